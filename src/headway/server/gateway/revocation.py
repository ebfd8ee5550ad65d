"""End the workers of tokens that were revoked or have expired."""

from __future__ import annotations

import logging

from headway.core.log_event import LogEvent
from headway.security.tokens import Tokens
from headway.server.gateway.service import WorkerGateway

log = logging.getLogger("headway.server")


class RevocationEnforcer:
    """Ends workers whose token was revoked or has expired, so that they hold no jobs and count as no capacity.

    There is no leader. Any number of servers may run this, and each worker is ended once.
    """

    def __init__(self, gateway: WorkerGateway, tokens: Tokens) -> None:
        self._gateway = gateway
        self._tokens = tokens
        self._ended: set[str] = set()

    async def __call__(self) -> float | None:
        known = self._gateway.registry.token_of
        if not known:
            return None
        await self._tokens.refresh()
        for worker_id, token_id in list(known.items()):
            if worker_id not in self._ended and not self._tokens.allows(token_id):
                released = await self._gateway.dismiss(worker_id, "token_ended")
                self._ended.add(worker_id)
                log.warning(LogEvent("worker.dismissed", worker=worker_id, token=token_id, released=released))
        self._ended &= self._gateway.registry.token_of.keys()
        return None
