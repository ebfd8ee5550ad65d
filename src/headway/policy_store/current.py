"""The current policy of a store, cached in this process."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

from headway.core.errors import PolicyError
from headway.core.log_event import LogEvent
from headway.core.policy.document import BUILT_IN, Policy
from headway.core.policy.reader import read_policy
from headway.policy_store.versions import current_version, read_current
from headway.stores.base import Store

log = logging.getLogger("headway.policy")

READ_EVERY = 1.25  # Seconds between reads of the store, so that a change applies within two.
UNKNOWN = -1  # In place of the version where the store's document of the current one is damaged.
READ_EVERY_IF_NOTIFIED = 30.0  # Seconds between reads where the store notifies the process of changes.


class CurrentPolicy:
    """Caches the current policy of a store. A ``fixed`` one is never replaced."""

    def __init__(self, policy: Policy = BUILT_IN, *, fixed: bool = False) -> None:
        self.policy = policy
        self.version = 0
        self.fixed = fixed
        self._last_read = -math.inf
        self._unreadable = 0

    def was_read_within(self, seconds: float) -> bool:
        """Return whether the store was read within the last ``seconds``."""
        return time.monotonic() - self._last_read < seconds

    async def refresh(self, store: Store, *, every: float = READ_EVERY) -> bool:
        """Read the store unless this was done within ``every`` seconds. Return whether the policy has changed.

        A policy that cannot be read changes nothing: the process keeps the version before.
        """
        if self.was_read_within(every):
            return False
        version = UNKNOWN
        try:
            version = await current_version(store)
            self._last_read = time.monotonic()
            if version in (self.version, self._unreadable):
                return False
            current = await read_current(store)
        except PolicyError as problem:
            self._last_read = time.monotonic()
            if version != self._unreadable:
                self._leave_out(version, problem)
            return False
        if current is None:
            return False
        self._put(current.version, current.policy)
        return True

    def set(self, version: int, data: dict[str, Any]) -> None:
        """Use a policy that the server or parent sent. A policy that cannot be read changes nothing."""
        if version in (self.version, self._unreadable):
            return
        try:
            self._put(version, read_policy(data, f"policy version {version}"))
        except PolicyError as problem:
            self._leave_out(version, problem)

    def _put(self, version: int, policy: Policy) -> None:
        self.policy, self.version = policy, version
        log.info(LogEvent("policy.in_force", version=version))

    def _leave_out(self, version: int, problem: PolicyError) -> None:
        self._unreadable = version
        log.error(LogEvent("policy.unreadable", version=version, kept=self.version, error=str(problem)))
