"""``headway worker``: run an app's jobs."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from headway.cli.help import StoreUrl, flag, option, split_names
from headway.cli.render import clean, plural
from headway.client.settings import gather
from headway.core.errors import ConfigError
from headway.core.log_event import LogEvent
from headway.core.worker import tasks_in
from headway.observability.logs import LEVELS, configure_logs
from headway.runtime.fast_loop import run_on_fast_loop
from headway.version import __version__

if TYPE_CHECKING:
    from headway.stores.base import Store
    from headway.worker.control import RunnerReady

log = logging.getLogger("headway.worker")

AppPath = Annotated[str | None, option("The app: module:attribute or file.py:attribute.", "APP", env_var="HEADWAY_APP")]
Processes = Annotated[
    int, option("How many runner processes, each with its own slots.", "N", validator=Number(gte=1, lte=256))
]


def _check_level(_: object, level: str) -> None:
    if level.lower() not in LEVELS:
        raise ValueError(f"The level must be one of {', '.join(LEVELS)}.")


LogLevel = Annotated[
    str,
    option(
        "Minimum level of log lines: debug, info, warning or error.",
        "LEVEL",
        env_var="HEADWAY_LOG_LEVEL",
        validator=_check_level,
    ),
]
_Count = Number(gte=0, lte=10_000)
ServerOption = Annotated[
    str | None, option("Run the jobs of a server: http://host:8000; else HEADWAY_SERVER, if set.", "URL")
]
ServerToken = Annotated[
    str | None, option("Token for the server. Better set HEADWAY_TOKEN, which no process list shows.", "TOKEN")
]


CeleryProject = Annotated[
    str | None,
    option("Run the adopted tasks of a Celery project, in place of APP: as `celery -A` takes it.", "PROJ"),
]
CeleryQueues = Annotated[
    str | None,
    option("With --celery, the queues whose tasks it runs: emails,reports (all).", "NAMES", name=["--queues", "-Q"]),
]
Reload = Annotated[bool, flag("Drain and start again whenever source files change; for development.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class WorkerFlags:
    """Settings of a worker. What is not given comes from the app, HEADWAY_* variables and headway.toml."""

    slots: Annotated[
        int | None,
        option("How many jobs each runner process runs at once (5).", "N", validator=Number(gte=1, lte=10_000)),
    ] = None
    reserved: Annotated[
        int | None, option("How many of these slots are kept for the lane high (1).", "N", validator=_Count)
    ] = None
    capabilities: Annotated[
        str | None, option("What this worker offers to jobs that need it: gpu,big-memory.", "NAMES")
    ] = None
    grace: Annotated[float | None, option("How long running jobs get when the worker has to stop (30).", "SECONDS")] = (
        None
    )
    heartbeat: Annotated[float | None, option("How often the worker renews its leases (30).", "SECONDS")] = None
    dead_after: Annotated[
        float | None, option("How long after its last heartbeat it counts as dead (90).", "SECONDS")
    ] = None
    max_jobs_per_child: Annotated[
        int | None,
        option("Replace a process after it has run this many jobs (no bound).", "N", validator=Number(gte=0)),
    ] = None
    max_memory_per_child: Annotated[
        int | None,
        option("Replace a process that occupies more memory than this (no bound).", "MIB", validator=Number(gte=0)),
    ] = None
    store: StoreUrl = None
    namespace: Annotated[str | None, option("Namespace of an app in a shared store.", "NAME")] = None
    log: Annotated[
        Literal["console", "json"] | None, option("Format of log lines; else console on a terminal, json elsewhere.")
    ] = None

    def overrides(self, **more: str | None) -> dict[str, Any]:
        """Return what was set on the command line. Raises ``ConfigError`` for what cannot be read."""
        given = {field.name: getattr(self, field.name) for field in fields(self)} | more
        given = {name: value for name, value in given.items() if value is not None}
        found = gather(given)
        remote = "server" in more and "server" in found
        stores = (str(found.get(name, ("",))[0]) for name in ("store", "transient_store"))
        if not remote and any(store.startswith("memory:") for store in stores):
            raise ConfigError("memory:// lives inside one process, but a worker has several; use sqlite:///headway.db")
        return given

    def log_form(self) -> str | None:
        """Return how the log lines of the parent look, by what can be known without the app."""
        form: str | None = gather({"log": self.log}).get("log", (None, ""))[0]
        return form


NO_FLAGS = WorkerFlags()


def worker(
    app: AppPath = None,
    /,
    *,
    processes: Processes = 1,
    flags: WorkerFlags = NO_FLAGS,
    server: ServerOption = None,
    token: ServerToken = None,
    log_level: LogLevel = "info",
    reload: Reload = False,
    celery: CeleryProject = None,
    queues: CeleryQueues = None,
) -> int:
    """Run an app's jobs until it is stopped.

    With --celery it runs the tasks of a Celery project that the project adopts
    with headway.integrations.celery.adopt.

    With --server the jobs come from a server over HTTP, and this machine need
    not reach the store. Jobs that submit jobs still use the app's own store. If
    the server requires tokens, set HEADWAY_TOKEN to one for the app's tasks,
    made with `headway token create --scope worker --tasks 'tasks.*'`.

    The first Ctrl-C or SIGTERM drains: the worker claims no more jobs, running
    jobs get the grace period, and the rest return to the queue. The second stops
    at once. Exits with 3 if the app cannot be loaded.

    With --reload, for development, it drains and starts again whenever a Python
    or TOML file below the current folder changes.
    """
    if celery is not None:
        app, flags = _celery_app(celery), _with_queues(flags, queues)
    elif queues is not None:
        raise ConfigError("--queues names queues of a Celery project; write `headway worker --celery proj -Q emails`")
    if app is None:
        raise ConfigError("no app: write `headway worker module:attribute`, or set HEADWAY_APP")
    from headway.runtime.service_manager import ServiceManager
    from headway.worker.parent import Parent

    overrides = flags.overrides(server=server, token=token)
    configure_logs(flags.log_form(), log_level)
    if reload:
        from headway.worker.autoreload import run_reloading

        words = [word for word in sys.argv[1:] if word != "--reload"]
        return run_reloading([sys.executable, "-m", "headway", *words], Path.cwd())
    if sys.stderr.isatty():
        print(
            f"Headway {__version__}: {plural(processes, 'runner')} of {clean(app)}. "
            "Ctrl-C drains; a second one stops at once.",
            file=sys.stderr,
        )
    parent = Parent(
        app,
        processes=processes,
        overrides=overrides,
        log_level=log_level,
        manager=ServiceManager.from_environment(),
        remote=True,
        on_up=log_up,
        on_remote=log_up,
    )
    return run_on_fast_loop(parent.run())


def _celery_app(project: str) -> str:
    if find_spec("celery") is None:
        raise ConfigError("Celery is not installed; run: pip install 'headway-queue[celery]'")
    from headway.integrations.celery.adoption.project import app_path

    return app_path(project)


def _with_queues(flags: WorkerFlags, queues: str | None) -> WorkerFlags:
    """Return flags with a capability for each queue."""
    names = split_names([queues or ""])
    given = [flags.capabilities] if flags.capabilities else []
    return replace(flags, capabilities=",".join([*given, *(f"queue:{name}" for name in names)]) or None)


def log_up(up: RunnerReady, _: Store | None = None) -> None:
    from headway.stores.open import mask

    where = {"server": up.server} if up.server else {"store": mask(up.store), "namespace": up.namespace}
    facts = {
        "worker": up.worker.worker_id,
        **where,
        "slots": up.worker.slots,
        "reserved": up.worker.reserved,
        "tasks": len(tasks_in(up.worker.offers)),
    }
    log.info(LogEvent("worker.up", **facts))
