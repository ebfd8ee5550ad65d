"""Named points at which tests make a process die or fail: ``HEADWAY_FAILPOINT=exchange.after:kill:3:once``.

The third part is the number of the passage that fails. The fourth part is a file that the failing process creates.
A process that finds the file does not fail, so a restarted process lives. Unset, a point costs one comparison.
"""

from __future__ import annotations

import os
import signal

from headway.core.errors import StoreUnavailable

_armed = os.environ.get("HEADWAY_FAILPOINT", "")
_passages = 0


def reach(name: str) -> None:
    """Pass a point. If it is armed, kill this process or raise ``StoreUnavailable``."""
    if _armed:
        _trigger(name)


def _trigger(name: str) -> None:
    global _passages
    point, action, number, once = _armed.split(":", 3)
    if point != name:
        return
    _passages += 1
    if _passages != int(number):
        return
    try:
        os.close(os.open(once, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise StoreUnavailable(f"failpoint {name}")
