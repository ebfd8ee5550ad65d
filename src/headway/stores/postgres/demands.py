"""What the functions of the schema ask for before they can do their work."""

from __future__ import annotations

from typing import Any

import msgspec

from headway.core.errors import HeadwayError
from headway.stores.postgres.rule_columns import RuleColumns

_tasks = msgspec.json.Decoder(list[str])
_pairs = msgspec.json.Decoder(list[tuple[str, str]])


class FunctionDemand(HeadwayError):
    """A function has done nothing and must be called again with what it asks for."""


class UnknownValues(FunctionDemand):
    """Jobs are concerned for whose tasks or tenants the function was not given what the rules say."""

    def __init__(self, tasks: list[str], pairs: list[tuple[str, str]]) -> None:
        super().__init__(f"{len(tasks) + len(pairs)} unknown tasks")
        self._tasks = tasks
        self._pairs = pairs

    def teach(self, columns: RuleColumns) -> None:
        """Look up what the function asks for."""
        columns.learn(self._tasks)
        columns.learn_steps(self._pairs)


class SettlesFirst(FunctionDemand):
    """The exchange must hold the flow lock from its start."""


class NeedsExclusive(FunctionDemand):
    """This has to be done with no other process in the namespace."""


def demand_of(problem: Any) -> FunctionDemand | None:
    """Return what a function asks for by raising an error, or None for any other error."""
    if problem.sqlstate == "HW002":  # claim: the limits of tasks.
        return UnknownValues(_tasks.decode(problem.message), [])
    if problem.sqlstate == "HW003":  # release: how far apart jobs of tenants are.
        return UnknownValues([], _pairs.decode(problem.message))
    if problem.sqlstate == "HW004":  # exchange
        return SettlesFirst("a claim has ended jobs that others wait for")
    if problem.sqlstate == "HW006":  # release
        return NeedsExclusive("a class must become fair")
    return None
