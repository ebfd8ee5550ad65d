"""Submits of plain jobs by one plain command. The next function call stores the jobs: see deferred_submit.lua."""

from __future__ import annotations

from headway.stores.redis.connection import Endpoint, pack
from headway.stores.redis.thread_client import ThreadClient

LENGTH_MAX = 200  # Deferred jobs after which the next submit is a call, which stores them in about a millisecond.


class DeferredSubmits:
    """The stream of deferred jobs.

    ``open``: no worker is idle and no client watches, as the server reported last. They would not notice such a job.
    """

    def __init__(self, prefix: str, client: ThreadClient) -> None:
        self.key = f"{prefix}in"
        self.open = False
        self._client = client
        checks = ("EXISTS", f"{prefix}wait", f"{prefix}watched"), ("XLEN", self.key)
        self._checks = b"".join(map(pack, checks))

    def add(self, address: Endpoint, entry: bytes, now: str | int) -> bool | None:
        """Add a job. Return None if it is not known whether the server has it.

        Return True if a worker is idle or a client watches after all, so that a call has to follow.
        """
        command = pack(("XADD", self.key, "*" if now == "" else f"{now}-*", "", entry))
        self.open = False  # After a lost reply or an error, the next submit is a call.
        replies = self._client.ask(address, command + self._checks, 3)
        if replies is None:
            return None
        _, awaited, length = replies
        self.open = not awaited and length < LENGTH_MAX
        return bool(awaited)
