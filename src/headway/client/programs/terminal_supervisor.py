"""Supervises a program under a terminal: starts it with its limits, and ends all its processes.

It is a separate process for the reasons in ``supervisor.py``. A worker has threads, so it cannot safely run code
between fork and exec. When the worker ends in any way, everything in the terminal ends too. On Linux the supervisor is
a subreaper, so it also finds processes that left the terminal (``setsid``, daemons).

It runs as a script and does not import Headway. Its one argument is JSON: ``argv``, ``cpu``, ``memory``, and the
descriptor of a pipe (``link``). The supervisor stops the program when the pipe closes. It returns the program's exit
code, as shells do, and ends only when every process is gone.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import sys
import termios
import time

HANGUP_GRACE = 0.5  # Seconds between SIGHUP and SIGKILL.
TICK = 0.02
NOT_FOUND, NOT_STARTED = 127, 126  # The exit codes of shells for these cases.
PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Run one program."""
    wanted = json.loads(sys.argv[1])
    link = wanted["link"]
    os.set_inheritable(link, False)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    program = os.fork()
    if program == 0:
        exec_program(wanted)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)  # The worker then sees the end of the output when the last process is gone.
    code = None
    while code is None:
        readable, _, _ = select.select([link, wake], [], [])
        if wake in readable:
            os.read(wake, 4_096)
        code = reap(program)
        if link in readable:
            break
    end(program)
    os._exit(NOT_STARTED if code is None else code)


def exec_program(wanted: dict) -> None:  # type: ignore[type-arg]
    """Make the terminal the controlling one, set the limits, and execute the program."""
    try:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        for name, most in (("RLIMIT_CPU", wanted["cpu"]), ("RLIMIT_AS", wanted["memory"]), ("RLIMIT_CORE", 0)):
            if most is not None:
                limit = getattr(resource, name)
                hard = resource.getrlimit(limit)[1]
                most = most if hard == resource.RLIM_INFINITY else min(most, hard)
                resource.setrlimit(limit, (most, most))
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        argv = wanted["argv"]
        os.execvp(argv[0], argv)  # noqa: S606  (a shell is not wanted)
    except OSError as problem:
        os.write(2, f"{wanted['argv'][0]}: {problem.strerror}\r\n".encode())
        os._exit(NOT_FOUND if isinstance(problem, FileNotFoundError) else NOT_STARTED)
    finally:
        os._exit(NOT_STARTED)


def reap(program: int) -> int | None:
    """Reap processes that have ended. Return the program's exit code if it is one of them, else None."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == program:
                code = os.waitstatus_to_exitcode(status)
                code = code if code >= 0 else 128 - code
    return code


def end(program: int) -> None:
    """Send SIGHUP to every remaining process, and SIGKILL after a grace."""
    deadline = time.monotonic() + HANGUP_GRACE
    left = descendants(program)
    tell(left, signal.SIGHUP)
    tell(left, signal.SIGCONT)  # A stopped process cannot handle SIGHUP.
    while left and time.monotonic() < deadline:
        time.sleep(TICK)
        reap(program)
        left = descendants(program)
    while left:
        tell(left, signal.SIGKILL)
        time.sleep(TICK)
        reap(program)
        left = descendants(program)


def tell(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def descendants(program: int) -> list[int]:
    """Return all descendants of this process. Outside Linux, return the program's process group."""
    if sys.platform != "linux":
        try:
            os.killpg(program, 0)
        except (ProcessLookupError, PermissionError):
            return []
        return [-program]
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except (OSError, ValueError):
                continue
            if state not in (b"Z", b"X"):
                parents.setdefault(int(parent), []).append(int(name))
    found = parents.get(os.getpid(), [])
    for pid in found:  # The list grows during the loop.
        found += parents.get(pid, [])
    return found


if __name__ == "__main__":
    main()
