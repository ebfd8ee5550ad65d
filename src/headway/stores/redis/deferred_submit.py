"""Where a thread leaves plain jobs while no worker waits for any; the next function call takes them in."""

from __future__ import annotations

from headway.stores.redis.connection import Endpoint, pack
from headway.stores.redis.thread_client import ThreadClient

LENGTH_MAX = 200  # Jobs in it after which the next one goes by a call, which takes them in.


class DeferredSubmits:
    """To post a job costs the server half as much as a call.

    ``open``: no worker waits for jobs and no client watches them, as the server said last: they would miss a post.
    """

    def __init__(self, prefix: str, shortcut: ThreadClient) -> None:
        self.key = f"{prefix}in"
        self.open = False
        self._shortcut = shortcut
        looks = ("EXISTS", f"{prefix}wait", f"{prefix}watched"), ("XLEN", self.key)
        self._looks = b"".join(map(pack, looks))

    def post(self, address: Endpoint, posted: bytes, now: str | int) -> bool | None:
        """Leave a job, at a moment or by the server's clock. None: it is not known whether it is there.

        True: a worker waits after all, so a call has to follow.
        """
        command = pack(("XADD", self.key, "*" if now == "" else f"{now}-*", "", posted))
        self.open = False  # Should no reply come, or a refusal, the next job goes by a call.
        replies = self._shortcut.ask(address, command + self._looks, 3)
        if replies is None:
            return None
        _, others, length = replies
        self.open = not others and length < LENGTH_MAX
        return bool(others)
