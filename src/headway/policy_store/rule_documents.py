"""The rules that a store enforces, in parts: the policy's, the limits that tasks declare, pauses, expected costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from headway.core.policy.document import LimitRule, Policy
from headway.core.policy.enforced import EnforcedRules, PauseSet, rules_of
from headway.stores.base import RULES, Store
from headway.stores.rule_codec import RuleReader, rules_body

# The names of the parts. They are joined in the order of their names, so the policy overrides declared limits.
COSTS = "costs"
DECLARED = "declared."
PAUSES = "pauses"
POLICY = "policy"


async def write_rules(store: Store, policy: Policy) -> None:
    """Write the policy's limits, rungs, reserve and weights, which the store enforces from then on."""
    await _write(store, POLICY, lambda _: rules_of(policy))


async def declare_limits(store: Store, task: str, limits: Mapping[str, LimitRule]) -> None:
    """Write the limits that a task declares. They replace those it declared before."""
    await _write(store, f"{DECLARED}{task}", lambda _: EnforcedRules(limits=dict(limits)))


async def read_paused(store: Store) -> PauseSet:
    part, _ = await _read(store, PAUSES)
    return (part or EnforcedRules()).paused


async def change_paused(store: Store, change: Callable[[PauseSet], PauseSet]) -> PauseSet:
    """Pause or resume something. Return what is paused then."""
    part = await _write(store, PAUSES, lambda old: replace(old, paused=change(old.paused)))
    return part.paused


async def read_costs(store: Store) -> Mapping[str, int]:
    """Read the expected run time of jobs in microseconds, by task."""
    part, _ = await _read(store, COSTS)
    return (part or EnforcedRules()).costs_us


async def change_costs(store: Store, change: Callable[[Mapping[str, int]], dict[str, int]]) -> None:
    """Change the expected run times of jobs."""
    await _write(store, COSTS, lambda old: replace(old, costs_us=change(old.costs_us)))


async def _read(store: Store, name: str) -> tuple[EnforcedRules | None, int]:
    """Read one part with its version. None: it is damaged."""
    for document in await store.read(RULES, name):
        return RuleReader().read(name, document.body), document.version
    return EnforcedRules(), 0


async def _write(store: Store, name: str, change: Callable[[EnforcedRules], EnforcedRules]) -> EnforcedRules:
    """Write one part unless it is unchanged, and retry if another process wrote first. Replaces a damaged part."""
    while True:
        old, version = await _read(store, name)
        new = change(old or EnforcedRules())
        if new == old or await store.write(RULES, name, rules_body(new), if_version=version) is not None:
            return new
