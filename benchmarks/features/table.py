"""The measured configurations, and the maximum that each may cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headway import Limit

DEEP = 100_000  # Waiting jobs of a deep configuration.
RATE = Limit(rate="1000000/s", burst=100_000)


@dataclass(frozen=True)
class Feature:
    """The tasks of one configuration. Jobs use them in turn, and each is declared with these options.

    ``keys``: the number of values of the argument ``key``. ``most``: the maximum cost of a job, as a multiple of a job
    of the configuration ``beside``. ``among``: the app also declares the tasks of all other configurations. ``logs``:
    the worker logs as it does by default.
    """

    title: str
    most: float | None = None
    tasks: tuple[Mapping[str, Any], ...] = ({},)
    keys: int = 200
    deep: bool = False
    beside: str = "plain"
    ladder: bool = False
    among: bool = False
    logs: bool = False


FEATURES: dict[str, Feature] = {
    "plain": Feature("plain jobs"),
    "plain-deep": Feature("plain jobs, 100,000 waiting", deep=True),
    "tenants-200": Feature("fair_by, 200 tenants", 1.15, ({"fair_by": "key"},)),
    "tenants-100k": Feature(
        "fair_by, 100,000 tenants", 1.3, ({"fair_by": "key"},), keys=DEEP, deep=True, beside="plain-deep"
    ),
    "limit": Feature("a limit by task", 1.2, ({"limits": [Limit(concurrency=1_000)]},)),
    "limit-by": Feature("a limit by argument", 1.3, ({"limits": [Limit(concurrency=1_000, by="key")]},)),
    "rate": Feature("a rate", 1.2, ({"limits": [RATE]},)),
    "saas": Feature(
        "fair_by, a limit by tenant and a rate",
        1.5,
        ({"fair_by": "key", "limits": [Limit(concurrency=1_000, by="tenant"), RATE]},),
    ),
    "ladder": Feature(
        "a ladder of three rungs", 1.5, tuple({"duration": rung} for rung in ("fast", "medium", "slow")), ladder=True
    ),
    "binding": Feature("a limit of 1 by argument that binds", 1.6, ({"limits": [Limit(concurrency=1, by="key")]},)),
    "among": Feature("plain jobs among the others", 1.1, ladder=True, among=True),
    "logging": Feature("plain jobs, each logged", 1.15, logs=True),
}

# Configurations that grow along one axis, by the number that grows.
GROWING: dict[str, Callable[[int], Feature]] = {
    "waiting": lambda _: FEATURES["plain"],
    "tenants": lambda number: replace(FEATURES["tenants-100k"], keys=number),
    "keys": lambda number: replace(FEATURES["limit-by"], keys=number),
    "classes": lambda number: Feature("classes", tasks=tuple({"needs": (f"need-{n}",)} for n in range(number))),
    "processes": lambda _: FEATURES["plain"],
    "history": lambda _: FEATURES["plain"],
    "streams": lambda _: FEATURES["plain"],
}


def feature_of(name: str) -> Feature:
    """Return the configuration with this name, or for an axis and a number, such as ``tenants=1000``."""
    axis, _, number = name.partition("=")
    return GROWING[axis](int(number)) if number else FEATURES[name]
