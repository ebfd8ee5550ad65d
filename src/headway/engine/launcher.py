"""Becomes a program under a terminal. Started by its path and alone: it must need nothing but the standard library.

What it does here between fork and exec could not be done safely in a worker, which has threads.
"""

import ctypes
import fcntl
import json
import os
import resource
import signal
import sys
import termios

_PR_SET_PDEATHSIG = 1
NOT_FOUND, NOT_STARTED = 127, 126  # What shells give for these.


def main() -> None:
    """Take the terminal, lower the limits, and become the program: all told in the one argument, as JSON."""
    wanted = json.loads(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != wanted["parent"]:
            os._exit(NOT_STARTED)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for name, most in (("RLIMIT_CPU", wanted["cpu"]), ("RLIMIT_AS", wanted["memory"]), ("RLIMIT_CORE", 0)):
        if most is not None:
            limit = getattr(resource, name)
            hard = resource.getrlimit(limit)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(limit, (most, most))
    for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    argv = wanted["argv"]
    try:
        os.execvp(argv[0], argv)  # noqa: S606  (a shell is not wanted)
    except OSError as problem:
        os.write(2, f"{argv[0]}: {problem.strerror}\r\n".encode())
        os._exit(NOT_FOUND if isinstance(problem, FileNotFoundError) else NOT_STARTED)


if __name__ == "__main__":
    main()
