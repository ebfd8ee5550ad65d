"""The ``IOQUEUE_*`` settings: their defaults, and what is wrong with those a project has."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import quote, urlsplit

from django.conf import settings

from headway.core.suggest import did_you_mean

PREFIX = "IOQUEUE_"
DATABASE = "default"
HEARTBEAT = 30.0  # Seconds between two renewals of leases at most.


def _redis_url() -> str:
    return urlsplit(os.environ.get("REDIS_URL") or "redis://localhost:6379")._replace(path="/5").geturl()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings, each named as in ``settings.py`` but for the prefix and the capitals.

    ``visibility_timeout_sec`` is how long a worker that has fallen silent keeps its jobs. While it lives it renews
    them, however long they take.
    """

    task_modules: tuple[str, ...] = ()
    max_concurrency: int = 8
    visibility_timeout_sec: float = 300
    poll_interval_sec: float = 0.5
    redis_url: str | None = None
    redis_queue_key: str = "ioqueue:memory"
    memory_blpop_timeout_sec: float = 5
    database: str = DATABASE
    namespace: str = "default"
    store: str | None = None
    grace_sec: float = 30

    def __post_init__(self) -> None:
        if self.redis_url is None:
            object.__setattr__(self, "redis_url", _redis_url())

    @property
    def transient_store(self) -> str | None:
        """Where transient jobs wait: at the Redis of the settings, under their key, if they name either."""
        named = any(getattr(settings, PREFIX + name, None) is not None for name in ("REDIS_URL", "REDIS_QUEUE_KEY"))
        if not named or self.redis_url is None:
            return None
        sign = "&" if "?" in self.redis_url else "?"
        return f"{self.redis_url}{sign}prefix={quote(self.redis_queue_key, safe=':')}"

    @property
    def heartbeat(self) -> float:
        """How often leases are renewed: thrice before they would end, and every half minute at least."""
        return min(HEARTBEAT, self.visibility_timeout_sec / 3)


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """What is wrong with one setting. ``unknown``: there is no such setting, so it changes nothing."""

    setting: str
    message: str
    unknown: bool = False


def read_options() -> tuple[Options, list[SettingProblem]]:
    """Read the settings. One that cannot be used is a problem, and its default is taken: the checks will refuse it."""
    known = {field.name: field for field in fields(Options)}
    found: dict[str, Any] = {}
    problems: list[SettingProblem] = []
    for setting in sorted(set(dir(settings))):
        if not setting.startswith(PREFIX):
            continue
        name = setting.removeprefix(PREFIX).lower()
        value = getattr(settings, setting)
        if name not in known:
            names = [PREFIX + name.upper() for name in known]
            problems.append(
                SettingProblem(setting, f"there is no setting {setting}{did_you_mean(setting, names)}", unknown=True)
            )
            continue
        fits, wanted = _KINDS[str(known[name].type)]
        if fits(value):
            found[name] = tuple(value) if isinstance(value, list) else value
        else:
            problems.append(SettingProblem(setting, f"{setting} must be {wanted}, not {value!r}"))
    return Options(**found), problems


def database() -> str:
    """Name the database that jobs are kept in."""
    return str(getattr(settings, "IOQUEUE_DATABASE", DATABASE))


def _is_names(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(name, str) and name for name in value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e9


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 10_000


_KINDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "tuple[str, ...]": (_is_names, "a list of the names of modules"),
    "int": (_is_count, "a whole number from 1 to 10000"),
    "float": (_is_number, "a number of seconds above 0"),
    "str": (lambda value: isinstance(value, str) and bool(value), "text"),
    "str | None": (lambda value: value is None or (isinstance(value, str) and bool(value)), "text"),
}
