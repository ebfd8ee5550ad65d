"""Settings. Precedence: a flag or constructor argument, the environment, ``headway.toml``, the default."""

from __future__ import annotations

import os
import sys
import tomllib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

from headway.core.errors import ConfigError, UnknownOption
from headway.core.policy.units import parse_rate
from headway.core.suggest import did_you_mean
from headway.observability.redaction import SECRETS
from headway.protocol.sessions import plain_address
from headway.stores.base import TIMEOUT
from headway.stores.open import mask

FILE = "headway.toml"
UNLIMITED = "none"  # The token_rate that sets no bound.
LOOPBACK = ("127.0.0.1", "::1", "localhost")
# Environment variables accepted in addition to HEADWAY_*.
ALIASES = {"MAX_CONCURRENT_TASKS": "slots", "HIGH_PRIORITY_RESERVED": "reserved"}
# Read by the command line or by integrations, not by an app.
OTHER_VARIABLES = frozenset({"HEADWAY_APP", "HEADWAY_FAILPOINT", "HEADWAY_LOG_LEVEL"})
KUBERNETES = ("HEADWAY_SERVICE_", "HEADWAY_PORT_")  # It sets such variables for a service called headway.


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, checked. Lengths of time are in seconds."""

    store: str = "sqlite:///headway.db"
    namespace: str = "default"
    transient_store: str | None = None
    store_timeout: float = TIMEOUT
    history: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    slots: int = 5
    reserved: int = -1  # -1 means 1, or 0 with a single slot.
    capabilities: tuple[str, ...] = ()
    heartbeat: float = 30.0
    dead_after: float = 90.0
    confirm: float = 10.0
    grace: float = 30.0
    hard_grace: float = 10.0
    poll: float = 1.25
    max_jobs_per_child: int = 0  # 0 means no bound.
    max_memory_per_child: int = 0  # MiB; 0 means no bound.
    payload_max: int = 1 << 20
    http_payload_max: int = 256 << 10
    policy: str | None = None
    server: str | None = None
    token: str | None = None
    worker_http: str | None = None
    advertise: str | None = None
    session_grace: float = 15.0
    task_by_get: bool = True
    ui: bool = True
    ui_label: str | None = None
    token_rate: str = "1000/s"  # noqa: S105 (how often a token may submit)
    token_streams: int = 500
    token_workers: int = 100
    log: str | None = None
    log_args: bool = False
    redact: tuple[str, ...] = SECRETS

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= 10_000:
            raise ConfigError(f"slots must be between 1 and 10000, not {self.slots}", setting="slots")
        if self.reserved == -1:
            object.__setattr__(self, "reserved", 1 if self.slots > 1 else 0)
        if not 0 <= self.reserved < self.slots:
            raise ConfigError(
                f"reserved must be at least 0 and less than slots ({self.slots}), not {self.reserved}: "
                "with no slot left for other lanes they would never run",
                setting="reserved",
            )
        try:
            if self.token_rate != UNLIMITED:
                parse_rate(self.token_rate)
        except ValueError as problem:
            raise ConfigError(f"token_rate: {problem}, or {UNLIMITED!r}", setting="token_rate") from None
        positive = ("heartbeat", "dead_after", "confirm", "poll", "payload_max", "http_payload_max", "store_timeout")
        for name in (*positive, "token_streams", "token_workers"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be above 0, not {getattr(self, name)}", setting=name)
        for name in ("grace", "hard_grace", "session_grace", "max_jobs_per_child", "max_memory_per_child"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be at least 0, not {getattr(self, name)}", setting=name)
        if self.dead_after < 2 * self.heartbeat:
            raise ConfigError(
                f"dead_after ({self.dead_after} s) must be at least twice heartbeat ({self.heartbeat} s): "
                "one late heartbeat must not end a worker's leases",
                setting="dead_after",
            )
        if not self.namespace or len(self.namespace) > 64 or not self.namespace.replace("-", "_").isidentifier():
            raise ConfigError(
                f"namespace must be a name of letters, digits, - and _ (at most 64), not {self.namespace!r}",
                setting="namespace",
            )
        if self.log not in (None, "console", "json"):
            raise ConfigError(f"log must be console or json, not {self.log!r}", setting="log")
        if self.advertise is not None and plain_address(self.advertise) is None:
            raise ConfigError(
                f"advertise must be a scheme, a host and a port, such as http://10.0.0.7:8000, not {self.advertise!r}",
                setting="advertise",
            )
        if self.worker_http is not None:
            read_probe_address(self.worker_http)

    def masked(self) -> dict[str, Any]:
        """Return all settings by name, with passwords and tokens masked."""
        shown = {name: getattr(self, name) for name in _NAMES}
        shown |= {name: mask(shown[name]) for name in _ADDRESSES if shown[name] is not None}
        return shown | {"token": None if self.token is None else "***"}

    def __repr__(self) -> str:  # Masked, because printed settings end up in logs.
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.masked().items())})"


_ADDRESSES = ("store", "transient_store", "history", "server")
_NAMES = tuple(field.name for field in fields(Settings))


def load_settings(
    given: Mapping[str, Any] | None = None, *, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> Settings:
    """Return the settings from all sources.

    Raises ``UnknownOption`` for an unknown name in ``given`` or in the file, and suggests the nearest name.
    Raises ``ConfigError`` for an invalid value, and names its source.
    An unknown HEADWAY_* variable only causes a warning, because other programs share the environment.
    """
    return Settings(**{name: value for name, (value, _) in gather(given, environment, folder).items()})


def gather(
    given: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> dict[str, tuple[Any, str]]:
    """Return the value and the source of each setting that any source sets."""
    environment = os.environ if environment is None else environment
    # Compose and systemd write a variable without a value as an empty one.
    environment = {variable: text for variable, text in environment.items() if text.strip()}
    found: dict[str, tuple[Any, str]] = {}
    file = (folder or _current_folder()) / FILE
    for name, value in _read_file(file).items():
        _check_name(name, str(file))
        found[name] = (_READER_OF[name](value, f"{file}, {name}"), str(file))
    for variable, text in environment.items():
        name = ALIASES.get(variable) or variable.removeprefix("HEADWAY_").lower()
        if variable in ALIASES or (variable.startswith("HEADWAY_") and name in _NAMES):
            if name == "port" and text.startswith("tcp://"):
                continue  # Kubernetes sets HEADWAY_PORT this way for a service called headway.
            if variable in ALIASES and f"HEADWAY_{name.upper()}" in environment:
                continue
            found[name] = (_READER_OF[name](text, variable), variable)
        elif variable.startswith("HEADWAY_") and not (variable in OTHER_VARIABLES or variable.startswith(KUBERNETES)):
            _warn_once(variable, f"{variable} is not a setting of Headway{_suggestion(name, 'HEADWAY_')}")
    for name, value in (given or {}).items():
        _check_name(name, "the app's arguments")
        if value is not None:
            found[name] = (_READER_OF[name](value, name), "argument")
    return found


_warned: set[str] = set()  # Variables that this process has warned about. It reads settings more than once.


def _warn_once(variable: str, message: str) -> None:
    """Warn about a variable once per process, at the line of the first caller outside Headway."""
    if variable in _warned:
        return
    _warned.add(variable)
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "headway":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def read_probe_address(address: str) -> tuple[str, int]:
    """Return host and port of a worker's metrics and probes. Raises ``ConfigError`` for an address beyond loopback."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"worker_http is an address such as 127.0.0.1:9100, not {address!r}", setting="worker_http")
    if host not in LOOPBACK:
        raise ConfigError(
            f"worker_http must be on loopback (127.0.0.1, ::1 or localhost), not {host!r}: it asks for no token",
            setting="worker_http",
        )
    return host, int(port)


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise ConfigError("the current directory no longer exists; change to one that does") from None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise ConfigError(f"{path} cannot be read: {problem}", path=str(path)) from problem


def _check_name(name: str, where: str) -> None:
    if name not in _NAMES:
        raise UnknownOption(f"{where}: unknown setting {name!r}{_suggestion(name)}", setting=name)


def _suggestion(name: str, prefix: str = "") -> str:
    known = [prefix + known.upper() if prefix else known for known in _NAMES]
    return did_you_mean(prefix + name.upper() if prefix else name, known) or f"; known are {', '.join(known)}"


def seconds(value: object, what: str) -> float:
    """Return the seconds of a number or a ``timedelta``. Raises ``ConfigError`` for other values."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or abs(value) == float("inf"):
        raise ConfigError(f"{what} must be a number of seconds or a timedelta, not {value!r}")
    return float(value)


def _integer(value: Any, where: str) -> int:
    try:
        if isinstance(value, (bool, float)):
            raise ValueError
        return int(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{where}: expected a whole number, not {value!r}", setting=where) from None


def _seconds(value: Any, where: str) -> float:
    try:
        return seconds(float(value) if isinstance(value, str) else value, where)
    except ValueError:
        raise ConfigError(f"{where}: expected a number of seconds, not {value!r}", setting=where) from None


def _text(value: Any, where: str) -> str:
    if not isinstance(value, (str, Path)) or not str(value):
        raise ConfigError(f"{where}: expected text, not {value!r}", setting=where)
    return str(value)


def _read_bool(value: Any, where: str) -> bool:
    if isinstance(value, str) and value.lower() in ("1", "true", "yes", "on", "0", "false", "no", "off"):
        return value.lower() in ("1", "true", "yes", "on")
    if not isinstance(value, bool):
        raise ConfigError(f"{where}: expected true or false, not {value!r}", setting=where)
    return value


def _names(value: Any, where: str) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple, set, frozenset)) or not all(isinstance(part, str) for part in parts):
        raise ConfigError(f"{where}: expected names, not {value!r}", setting=where)
    return tuple(sorted({part.strip() for part in parts if part.strip()}))


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "bool": _read_bool,
    "int": _integer,
    "float": _seconds,
    "str": _text,
    "str | None": _text,
    "tuple[str, ...]": _names,
}
_READER_OF = {field.name: _READERS[str(field.type)] for field in fields(Settings)}
