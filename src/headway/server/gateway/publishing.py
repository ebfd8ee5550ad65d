"""Publish what an HTTP worker declares about its tasks: catalogue entries, limits and crons."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from headway.core.policy.document import LimitRule
from headway.policy_store import catalogue
from headway.policy_store.rule_documents import DECLARED, declare_limits
from headway.security.audit import record
from headway.stores.base import RULES, Store
from headway.stores.rule_codec import RuleReader
from headway.stores.unreadable import read_or


class Declaration(NamedTuple):
    """A task as a worker declares it: its entry in the catalogue, its limits, and its cron if it is one."""

    entry: catalogue.TaskEntry
    limits: Mapping[str, LimitRule]
    cron: catalogue.CronDocument | None

    @property
    def name(self) -> str:
        return self.entry.name


class Change(NamedTuple):
    """A change that publishing makes. ``before``: what the store has of the task, or nothing."""

    declaration: Declaration
    before: dict[str, Any]


async def changes(store: Store, declarations: Sequence[Declaration]) -> list[Change]:
    """Return the declarations that differ from what the store has."""
    entries = {document.name: document.body for document in await store.read(catalogue.TASKS)}
    crons = {cron.name: cron for cron, _ in await catalogue.read_crons(store)}
    declared = {document.name: document.body for document in await store.read(RULES)}
    found: list[Change] = []
    for one in declarations:
        entry, cron, rules = entries.get(one.name), crons.get(one.name), declared.get(f"{DECLARED}{one.name}")
        part = None if rules is None else RuleReader().read(f"{DECLARED}{one.name}", rules)
        limits = {} if part is None else dict(part.limits)
        kept_cron = None if cron is None else msgspec.structs.replace(cron, ticked_at=0)
        wanted_cron = None if one.cron is None else msgspec.structs.replace(one.cron, ticked_at=0)
        if (entry, limits, kept_cron) != (catalogue.encode_task(one.entry), dict(one.limits), wanted_cron):
            kept: dict[str, Any] = read_or({}, partial(msgspec.json.decode, entry or b"{}"))
            found.append(Change(one, _shown(kept, limits, cron)))
    return found


async def publish(store: Store, wanted: Sequence[Change], *, who: str, now_at: int) -> None:
    """Write these changes, and record each of them in the audit."""
    declarations = [change.declaration for change in wanted]
    await catalogue.publish_tasks(store, [one.entry for one in declarations])
    for one in declarations:
        await declare_limits(store, one.name, one.limits)
    crons = [one.cron for one in declarations if one.cron is not None]
    await catalogue.publish_crons(store, crons, {one.name for one in declarations}, now_at)
    for change in wanted:
        one = change.declaration
        after = _shown(msgspec.to_builtins(one.entry), one.limits, one.cron)
        await record(
            store,
            who=who,
            what="catalogue.publish",
            target=one.name,
            before=change.before or None,
            after=after,
            now_at=now_at,
            group="callers",
        )


def _shown(
    entry: dict[str, Any], limits: Mapping[str, LimitRule], cron: catalogue.CronDocument | None
) -> dict[str, Any]:
    """Return what the audit shows of a task. It shows only a digest of a cron's arguments."""
    shown = dict(entry)
    if limits:
        shown["limits"] = {name: msgspec.to_builtins(rule) for name, rule in limits.items()}
    if cron is not None:
        values = {name: value for name, value in msgspec.structs.asdict(cron).items() if name not in _NOT_SHOWN}
        shown["cron"] = msgspec.to_builtins(values) | {"arguments": hashlib.sha256(cron.payload).hexdigest()[:16]}
    return shown


_NOT_SHOWN = ("payload", "ticked_at")
