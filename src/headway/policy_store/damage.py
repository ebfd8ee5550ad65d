"""Finds documents of the policy, its rules, the tasks and the crons that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headway.core.errors import PolicyError
from headway.policy_store.catalogue import CRONS, TASKS, decode_cron, decode_task
from headway.policy_store.versions import CURRENT, read_current
from headway.stores.base import POLICIES, RULES, Store
from headway.stores.rule_codec import read_rules
from headway.stores.unreadable import DAMAGE

_DECODERS: dict[str, Callable[[bytes], Any]] = {RULES: read_rules, TASKS: decode_task, CRONS: decode_cron}


async def find_damaged(store: Store) -> list[tuple[str, str, str]]:
    """Return the kind and name of each damaged document, and what is wrong with it."""
    found = []
    try:
        await read_current(store)
    except PolicyError as problem:
        found.append((POLICIES, CURRENT, str(problem)))
    for kind, decode in _DECODERS.items():
        for document in await store.read(kind):
            try:
                decode(document.body)
            except DAMAGE as problem:
                found.append((kind, document.name, str(problem)))
    return found
