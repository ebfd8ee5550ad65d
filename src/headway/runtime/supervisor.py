"""Supervises a program of a worker, or the process of its jobs: starts it, and ends everything that it has started.

Why a separate process? Limits must be set between fork and exec. ``preexec_fn`` may deadlock in a process with
threads, and ``posix_spawn`` cannot set limits. A launcher that sets limits and then becomes the program would leave
orphans, because PR_SET_PDEATHSIG ends the program with its parent but not the children of the program. So the
supervisor stays. It costs an interpreter without ``site`` (some 10 ms and 8 MB), and it has three benefits:

- When the worker ends in any way, the socket closes, and the supervisor removes the folder and every process.
- On Linux the supervisor is a subreaper, so it also finds processes that left the group (``setsid``, daemons).
- Measuring the size of the output never blocks the worker's event loop.

The supervisor runs as a script. It does not import Headway, ``signal``, ``json`` or ``shutil``, because these imports
would take longer than everything else.

The messages on the socket are lines, except for the second:

    supervisor: folder PATH
    worker:     10 digits, then that many bytes: cpu, memory, output, stdin, program, the number of arguments, the
                arguments, the environment; separated by NUL, empty if not set
    supervisor: began PID                           or: unstartable ERRNO
    worker:     any byte stops the program: SIGTERM to its group, SIGKILL after a grace
    supervisor: ended exit|output CODE CPU SECONDS  CODE is negative for a signal; every process is gone now

The folder stays until the worker closes its side. If the worker does so before the end, the program is stopped too.

The program of a session runs under a terminal. It has no folder, and its limits and words are arguments of the
supervisor. The supervisor hangs the terminal up when the program ends or the worker closes its side: SIGHUP to every
process that is left, SIGKILL after a grace. It exits with the code of the program, as shells do.

The process of executor ``process`` has a supervisor, too. When this process or the runner ends, the supervisor kills
everything that a job has started, and ends with the same exit code or signal.
"""

import _signal  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]
import os
import resource
import select
import sys
import time

GRACE = 0.5  # Seconds between SIGTERM, or SIGHUP for a terminal, and SIGKILL.
TICK = 0.05  # Seconds between checks of the folder and of the worker.
ENTRIES_MAX = 10_000  # Files and folders that a program may have.
DEPTH_MAX = 32  # Levels of folders that a program may have.
RUNNER_TICK = 1.0  # Seconds between checks that a runner lives, since a process that it forked may keep the pipe open.
OPEN_FILES = 256
TERMINAL = "--terminal"
JOBS = "--jobs"
NOT_FOUND, NOT_STARTED = 127, 126  # The exit codes of shells for these cases.

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36


class Spec:
    """The program to run, with its limits, arguments and environment."""

    def __init__(self, body: bytes) -> None:
        cpu, memory, output, stdin, program, count, *texts = body.split(b"\0")
        self.cpu, self.memory, self.output = (int(text) if text else None for text in (cpu, memory, output))
        self.stdin = stdin
        self.program = program
        self.argv = texts[: int(count)]
        self.env = dict(text.split(b"=", 1) for text in texts[int(count) :])


def main() -> None:
    """Run one program. ``argv``: the descriptor of the link to the worker, and the parent of the program's folder.

    For a terminal: the descriptor, ``TERMINAL``, the CPU seconds, the bytes of memory, and the program's words.
    For jobs: the descriptor, ``JOBS``, the descriptor of a socket that only their process needs, and its words.
    """
    link = int(sys.argv[1])
    os.set_inheritable(link, False)
    for number in (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP):  # The worker handles these and decides.
        _signal.signal(number, _signal.SIG_IGN)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    if sys.argv[2] == TERMINAL:
        os._exit(_attend(link, *sys.argv[3:]))
    if sys.argv[2] == JOBS:
        _end_with(_guard(link, int(sys.argv[3]), sys.argv[4:]))
    os.umask(0o077)
    folder = f"{sys.argv[2]}/headway-{os.urandom(8).hex()}".encode()
    os.mkdir(folder, 0o700)
    try:
        _send_line(link, b"folder " + folder)
        spec = _read_spec(link)
        if spec is not None:
            _serve(link, folder, spec)
    finally:
        _remove(folder)
    os._exit(0)


def _serve(link: int, folder: bytes, spec: Spec) -> None:
    wake = _watch_children()
    before, _ = _measure(folder)
    began = time.monotonic()
    pid, problem = _start(folder, spec)
    _close_streams()
    if problem is not None:
        os.waitpid(pid, 0)
        _send_line(link, b"unstartable %d" % problem)
        return
    _send_line(link, b"began %d" % pid)
    watch = _ProgramWatch(pid, folder, None if spec.output is None else spec.output + before)
    closed = watch.until_ended(link, wake)
    seconds = time.monotonic() - began
    watch.end_all()
    how = b"output" if watch.too_much or watch.is_too_much() else b"exit"
    _send_line(link, b"ended %s %d %.3f %.3f" % (how, watch.code, watch.cpu, seconds))
    while not closed:  # The worker reads the output files.
        closed = not os.read(link, 4_096)


def _attend(link: int, cpu: str, memory: str, *argv: str) -> int:
    """Run a program under the terminal that is the standard input. Return its exit code."""
    wake = _watch_children()
    pid = os.fork()
    if pid == 0:
        _become_in_terminal(cpu, memory, argv)
    _close_streams()
    watch = _ProgramWatch(pid, b"", None)
    code = NOT_STARTED
    readable: list[int] = []
    while link not in readable:
        readable, _, _ = select.select([link, wake], [], [])
        if wake in readable:
            os.read(wake, 4_096)
        watch.reap()
        if watch.ended:
            code = watch.code if watch.code >= 0 else 128 - watch.code
            break
    watch.hang_up()
    watch.end_all()
    return code


def _guard(link: int, connection: int, command: list[str]) -> int:
    """Run the process of jobs until it or the runner ends. SIGTERM is for that process. Return its exit code."""
    _prctl(PR_SET_DUMPABLE, 0)  # The environment of this process holds the worker's secrets.
    runner, wake = os.getppid(), _watch_children()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            _prctl(PR_SET_PDEATHSIG, _signal.SIGKILL)
            _reset_signals()
            os.execv(command[0], command)
        finally:
            os._exit(NOT_FOUND)
    _signal.signal(_signal.SIGTERM, lambda *_: _kill(pid, _signal.SIGTERM))
    os.close(connection)
    watch = _ProgramWatch(pid, b"", None)
    readable: list[int] = []
    while not watch.ended and link not in readable and os.getppid() == runner:
        readable, _, _ = select.select([link, wake], [], [], RUNNER_TICK)
        if wake in readable:
            os.read(wake, 4_096)
        watch.reap()
    if not watch.ended:
        _kill(pid, _signal.SIGKILL)  # It may not have a group yet.
    watch.end_all()
    return watch.code


def _end_with(code: int) -> None:
    """End with the exit code or signal of another process."""
    if code < 0:
        if code != -_signal.SIGKILL:
            _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _watch_children() -> int:
    """Return a descriptor that becomes readable when a child ends."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    _signal.signal(_signal.SIGCHLD, lambda *_: None)
    _signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    return wake


def _close_streams() -> None:
    """Leave the streams to the program. Otherwise the worker would never see their end."""
    devnull = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(devnull, number)


class _ProgramWatch:
    """Waits for the end of a program, and stops it."""

    def __init__(self, pid: int, folder: bytes, limit: int | None) -> None:
        self._pid = pid
        self._folder = folder
        self._limit = limit
        self._parent = os.getppid()
        self.ended = False
        self._scan_at = 0.0
        self.code = 0
        self.cpu = 0.0
        self.too_much = False

    def until_ended(self, link: int, wake: int) -> bool:
        """Wait until the program has ended or must be killed. Return whether the worker has closed its side."""
        kill_at: float | None = None
        closed = False
        while True:
            listening = [wake] if kill_at else [wake, link]
            ready, _, _ = select.select(listening, [], [], TICK)
            if wake in ready:
                os.read(wake, 4_096)
            lost = os.getppid() != self._parent  # A process that the worker forked may hold the socket open.
            if kill_at is None and (lost or link in ready):
                closed = lost or not os.read(link, 4_096)
                kill_at = time.monotonic() + GRACE
                self._kill_group(_signal.SIGTERM)
            self.reap()
            if kill_at is not None:
                if time.monotonic() >= kill_at or (self.ended and not self._kill_group(0)):
                    return closed
            elif self.ended:
                return False
            elif self._scan_at <= time.monotonic():
                began = time.monotonic()
                if self.is_too_much():
                    self.too_much = True
                    return False
                self._scan_at = began + 20 * (time.monotonic() - began)  # Use at most a twentieth of the time for this.

    def hang_up(self) -> None:
        """Send SIGHUP to every process that is left, and wait until all have ended or the grace is over."""
        deadline = time.monotonic() + GRACE
        for number in (_signal.SIGHUP, _signal.SIGCONT):  # A stopped process cannot handle SIGHUP.
            for pid in self._left():
                _kill(pid, number)
        while self._left() and time.monotonic() < deadline:
            time.sleep(TICK)
            self.reap()

    def _left(self) -> list[int]:
        """Return all descendants of this process. Outside Linux, return the program's process group."""
        if sys.platform != "linux":
            return [-self._pid] if self._kill_group(0) else []
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

    def end_all(self) -> None:
        """Kill all remaining processes and wait until they are gone."""
        wait = 0.001
        while True:
            in_group = self._kill_group(_signal.SIGKILL)
            left = children()
            for pid in left:
                _kill(pid, _signal.SIGKILL)
            if not self.reap() or (not left and not in_group):
                return
            time.sleep(wait)
            wait = min(2 * wait, TICK)

    def is_too_much(self) -> bool:
        size, odd = _measure(self._folder)
        return odd or (self._limit is not None and size > self._limit)

    def reap(self) -> bool:
        """Reap processes that ended. Return whether any process remains."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._pid:
                self.ended = True
                self.code = os.waitstatus_to_exitcode(status)
                self.cpu = usage.ru_utime + usage.ru_stime

    def _kill_group(self, number: int) -> bool:
        """Send a signal to the program's group. Return whether the group has a process."""
        try:
            os.killpg(self._pid, number)
        except OSError:  # No process; on some systems, only dead ones.
            return False
        return True


def _start(folder: bytes, spec: Spec) -> tuple[int, int | None]:
    """Start the program. Return its process id, and the error number if it could not be started."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _exec(folder, spec)
        except BaseException as problem:
            number = getattr(problem, "errno", None)
            os.write(writing, b"%d" % (number if isinstance(number, int) else 0))
        finally:
            os._exit(127)
    os.close(writing)
    failure = os.read(reading, 100)  # Closed by a successful exec.
    os.close(reading)
    return pid, int(failure) if failure else None


def _exec(folder: bytes, spec: Spec) -> None:
    """Turn this process into the program."""
    os.setsid()
    _prctl(PR_SET_PDEATHSIG, _signal.SIGKILL)  # In case the supervisor itself is killed.
    os.chdir(folder)
    os.dup2(os.open(spec.stdin or os.devnull, os.O_RDONLY), 0)
    _reset_signals()
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, OPEN_FILES)
    if spec.output is not None:
        _limit(resource.RLIMIT_FSIZE, spec.output + 1)  # One byte more, so that an excess can be detected.
    if spec.cpu is not None:
        _limit(resource.RLIMIT_CPU, spec.cpu, spec.cpu + 1)  # SIGXCPU, and a second later SIGKILL.
    if spec.memory is not None:
        _limit(resource.RLIMIT_AS, spec.memory)
    os.execve(spec.program, spec.argv, spec.env)


def _become_in_terminal(cpu: str, memory: str, argv: tuple[str, ...]) -> None:
    """Turn this process into the program, with the terminal as the controlling one."""
    import fcntl
    import termios

    code = NOT_STARTED
    try:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        _reset_signals()
        _limit(resource.RLIMIT_CORE, 0)
        if cpu:
            _limit(resource.RLIMIT_CPU, int(cpu))
        if memory:
            _limit(resource.RLIMIT_AS, int(memory))
        os.execvp(argv[0], argv)
    except OSError as problem:
        os.write(2, f"{argv[0]}: {problem.strerror}\r\n".encode())
        code = NOT_FOUND if isinstance(problem, FileNotFoundError) else NOT_STARTED
    finally:
        os._exit(code)


def _reset_signals() -> None:
    for name in ("SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP", "SIGPIPE", "SIGXFSZ"):  # Python ignores the last two.
        _signal.signal(getattr(_signal, name), _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


def _limit(what: int, soft: int, hard: int | None = None) -> None:
    """Set a limit, but never raise one."""
    _, highest = resource.getrlimit(what)
    bounds = [soft, soft if hard is None else hard]
    if highest != resource.RLIM_INFINITY:
        bounds = [min(bound, highest) for bound in bounds]
    resource.setrlimit(what, (bounds[0], bounds[1]))


def _prctl(option: int, value: int) -> None:
    """Call ``prctl`` on Linux. Other systems do not have it."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:  # It has ended meanwhile.
        pass


def children() -> list[int]:
    """Return the child processes, including adopted orphans. The list is empty except on Linux."""
    found: list[int] = []
    try:
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:
        pass
    return found


def _measure(folder: bytes) -> tuple[int, bool]:
    """Return the total size of all files, and whether there are too many entries or levels."""
    size = entries = 0
    waiting = [(folder, 0)]
    while waiting:
        path, depth = waiting.pop()
        for entry in _entries(path, ENTRIES_MAX + 1):
            entries += 1
            if entries > ENTRIES_MAX or depth > DEPTH_MAX:
                return size, True
            try:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, depth + 1))
                else:
                    size += entry.stat(follow_symlinks=False).st_size
            except OSError:  # The entry has been removed meanwhile.
                pass
    return size, False


def _entries(path: bytes, most: int = sys.maxsize) -> "list[os.DirEntry[bytes]]":
    for again in (True, False):
        try:
            with os.scandir(path) as found:
                return [entry for entry, _ in zip(found, range(most), strict=False)]
        except PermissionError:  # The program has removed the permission to read it.
            if again:
                _open(path)
        except OSError:
            break
    return []


def _remove(folder: bytes) -> None:
    """Remove a folder and its content.

    Nested folders are first moved to the top level, so that no path is too long.
    """
    folders = {folder}
    waiting = [folder]
    for path in waiting:
        again = True
        while again:
            again = False
            for entry in _entries(path):
                try:
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.path)
                        again = True
                    elif entry.path not in folders:
                        place = entry.path
                        _open(place)
                        if path != folder:
                            place = b"%s/.%s" % (folder, os.urandom(16).hex().encode())
                            os.rename(entry.path, place)
                            again = True
                        folders.add(place)
                        waiting.append(place)
                except OSError:
                    pass
    for path in reversed(waiting):
        try:
            os.rmdir(path)
        except OSError:
            pass


def _open(path: bytes) -> None:
    try:
        os.chmod(path, 0o700)
    except OSError:
        pass


def _send_line(link: int, line: bytes) -> None:
    try:
        os.write(link, line + b"\n")
    except OSError:  # The worker is gone.
        pass


def _read_spec(link: int) -> "Spec | None":
    size = _exactly(link, 10)
    body = None if size is None else _exactly(link, int(size))
    return None if body is None else Spec(body)


def _exactly(link: int, size: int) -> bytes | None:
    found = b""
    while len(found) < size:
        piece = os.read(link, size - len(found))
        if not piece:
            return None
        found += piece
    return found


if __name__ == "__main__":
    main()
