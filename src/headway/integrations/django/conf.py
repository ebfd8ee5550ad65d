"""The ``IOQUEUE_*`` settings, their defaults and their checks."""

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
HEARTBEAT = 30.0  # Maximum seconds between renewals of leases, as in Headway's own settings.


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings, with the names of ``settings.py`` in lower case and without the prefix.

    ``visibility_timeout_sec`` is how long a worker without heartbeats keeps its jobs. A live worker renews its leases,
    so jobs may take longer.
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
            server = urlsplit(os.environ.get("REDIS_URL") or "redis://localhost:6379")
            object.__setattr__(self, "redis_url", server._replace(path="/5").geturl())

    @property
    def transient_store(self) -> str | None:
        """The address of the Redis store for transient jobs, or None if the settings name neither Redis nor key."""
        named = any(getattr(settings, PREFIX + name, None) is not None for name in ("REDIS_URL", "REDIS_QUEUE_KEY"))
        if not named or self.redis_url is None:
            return None
        sign = "&" if "?" in self.redis_url else "?"
        return f"{self.redis_url}{sign}prefix={quote(self.redis_queue_key, safe=':')}"

    @property
    def heartbeat(self) -> float:
        """Seconds between renewals of leases: a third of the visibility timeout, at most ``HEARTBEAT``."""
        return min(HEARTBEAT, self.visibility_timeout_sec / 3)


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """An error in one setting. ``unknown``: there is no such setting, so it has no effect."""

    setting: str
    message: str
    unknown: bool = False


def read_options() -> tuple[Options, list[SettingProblem]]:
    """Return the settings and their problems. An invalid value gives a problem, and the default applies."""
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
    """Return the alias of the database that holds the jobs."""
    return str(getattr(settings, "IOQUEUE_DATABASE", DATABASE))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "tuple[str, ...]": (
        lambda v: isinstance(v, (list, tuple)) and all(map(_is_text, v)),
        "a list of the names of modules",
    ),
    "int": (lambda v: type(v) is int and 1 <= v <= 10_000, "a whole number from 1 to 10000"),
    "float": (lambda v: type(v) in (int, float) and 0 < v < 1e9, "a number of seconds above 0"),
    "str": (_is_text, "text"),
    "str | None": (lambda v: v is None or _is_text(v), "text"),
}
