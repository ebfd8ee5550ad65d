"""Named points at which tests make a process die or stumble: ``HEADWAY_FAILPOINT=exchange.after:kill:3``.

The last part says at which passage (the first, unless told). Unset, a point costs one comparison.
"""

from __future__ import annotations

import os
import signal

from headway.core.errors import StoreUnavailable

_armed = os.environ.get("HEADWAY_FAILPOINT", "")
_passages = 0


def reach(name: str) -> None:
    """Pass a point; if it is armed, die of SIGKILL or raise ``StoreUnavailable``."""
    if _armed:
        _strike(name)


def _strike(name: str) -> None:
    global _passages
    point, _, rest = _armed.partition(":")
    action, _, number = rest.partition(":")
    if point != name:
        return
    _passages += 1
    if _passages != int(number or 1):
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise StoreUnavailable(f"failpoint {name}")
