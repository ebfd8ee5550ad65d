"""The checked options of ``install``: how tasks are assigned to queues, and how the ledger is kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from headway.core.errors import ConfigError

Route = Literal["least_loaded", "hash", "shuffle"]
Bulk = Literal["shard", "together", "spread"]
Measure = Literal["count", "work"]
By = str | Callable[[str, Sequence[Any], Mapping[str, Any]], object]

QUEUES_MAX = 1_000
SHARDS = 5  # By default a sender of many tasks uses one in this many queues, which leaves the others free.


@dataclass(frozen=True, kw_only=True)
class BalancerOptions:
    """The options of a balancer. The constructor raises ``ConfigError`` for an invalid one."""

    queues: int = 20
    prefix: str = "queue_"
    route: Route = "least_loaded"
    k: int | None = None
    by: By | None = None
    bulk: Bulk = "shard"
    load: Measure = "count"
    lease: float = 30.0
    reconcile: float = 30.0
    strict: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.queues <= QUEUES_MAX:
            raise ConfigError(f"queues: from 1 to {QUEUES_MAX:,}, not {self.queues}")
        if not re.fullmatch(r"[\w.-]*[A-Za-z_.-]", self.prefix):
            raise ConfigError(f"prefix: letters, digits, . _ and -, with no digit at its end, not {self.prefix!r}")
        for name, value, words in (
            ("route", self.route, get_args(Route)),
            ("bulk", self.bulk, get_args(Bulk)),
            ("load", self.load, get_args(Measure)),
        ):
            if value not in words:
                raise ConfigError(f"{name}: one of {', '.join(words)}, not {value!r}")
        if self.k is not None and not 1 <= self.k <= self.queues:
            raise ConfigError(f"k: from 1 to the number of queues, {self.queues}, not {self.k}")
        if self.lease < 1 or self.reconcile < 1:
            raise ConfigError("lease and reconcile must be at least one second")

    @property
    def names(self) -> list[str]:
        """The queues, in the order in which ties are broken."""
        return [f"{self.prefix}{index}" for index in range(self.queues)]

    def is_ours(self, queue: str | None) -> bool:
        """Return whether a queue has a name of ours, even if its number is beyond ``queues``."""
        return queue is not None and queue.startswith(self.prefix) and queue[len(self.prefix) :].isdecimal()

    def width(self, *, user: bool) -> int:
        """Return how many queues the tasks of one user or one bulk may use."""
        if not user and self.bulk != "shard":
            return 1 if self.bulk == "together" else self.queues
        if self.route == "hash":
            return 1
        return self.k or max(1, self.queues // SHARDS)
