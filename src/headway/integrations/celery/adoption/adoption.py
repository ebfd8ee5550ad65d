"""``adopt``: lets tasks of a Celery app run on Headway, chosen by their names."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeVar

from celery import Celery  # type: ignore[import-untyped]
from celery.utils.imports import instantiate  # type: ignore[import-untyped]

from headway.client.app import Headway
from headway.client.job_template import RETRIES_MAX
from headway.client.options import Limit, Retry, TaskOptions
from headway.client.task import Task
from headway.core.errors import ConfigError
from headway.integrations.celery.adoption import canvas, lifecycle
from headway.integrations.celery.adoption.attempt import running
from headway.integrations.celery.adoption.backend import JobBackend
from headway.integrations.celery.adoption.control import AdoptedControl, BrokerProbe
from headway.integrations.celery.adoption.join import declare_join
from headway.integrations.celery.adoption.message import MessageSignature
from headway.integrations.celery.adoption.queues import NEED, QueueMap, known_queues, routed_queue
from headway.integrations.celery.adoption.rates import rate_of
from headway.integrations.celery.adoption.sender import JobSender
from headway.integrations.celery.adoption.tracing import make_function
from headway.policy_store.catalogue import TASKS, TaskEntry, TaskReader
from headway.stores.base import Store

T = TypeVar("T")

ATTRIBUTE = "headway_adoption"
ENVELOPES = ("celery.map", "celery.starmap")  # Celery's own tasks that call another task several times.
CATALOGUE_SECONDS = (
    60.0  # How long a client uses what a worker has published about a task that the client does not have.
)
ACCUMULATE = "celery.accumulate"  # What ``self.replace`` with a group makes of a running task.
EXECUTORS = ("process", "thread")
NO_LIMIT = 365 * 86_400  # Seconds. A Celery task without time_limit may run for any time; a job needs a number.
_THREAD_POOLS = ("threads", "gevent", "eventlet", "solo")
_adopting = threading.Lock()


class _PublishedTask(NamedTuple):
    """A task's published entry, and the moment at which the worker reads it again."""

    entry: TaskEntry | None
    until: float  # By the monotonic clock.


class AdoptedHeadway(Headway):
    """The Headway app of an adoption. It declares a task when it meets its name."""

    def __init__(self, adoption: Adoption, store: str | None, **settings: Any) -> None:
        self._adoption = adoption
        self._offers = False
        super().__init__(store, lifespan=lambda _: lifecycle.worker_lifespan(adoption), **settings)

    def import_task(self, name: str) -> Task[Any, Any, Any] | None:
        """Return an adopted task that was registered after the worker started."""
        adoption = self._adoption
        return adoption.task(name) if adoption.adopts(name) and name in adoption.app.tasks else None

    def configure(self, **settings: Any) -> None:
        super().configure(**settings)
        if self._offers:
            self.offer_queues()

    def offer_queues(self) -> None:
        """Offer all queues that the app knows, unless the command line named some."""
        self._offers = True
        if any(offer.startswith(NEED) for offer in self.settings.capabilities):
            return
        offers = tuple(f"{NEED}{queue}" for queue in self._adoption.queues())
        self.settings = replace(self.settings, capabilities=(*self.settings.capabilities, *offers))


class Adoption:
    """The tasks of one Celery app that run on Headway."""

    def __init__(
        self,
        app: Celery,
        store: str | None,
        *,
        only: tuple[str, ...],
        lanes: Mapping[str, str],
        executor: str | None,
        settings: Mapping[str, Any],
    ) -> None:
        self.app = app
        self.only = only
        self.queue_map = QueueMap(lanes)
        self.asked = (store, only, dict(lanes), executor, dict(settings))
        self._executor = executor
        self._declaring = threading.Lock()
        self._unregistered: dict[str, _PublishedTask] = {}  # Tasks that this process sends by name without having them.
        self._reader = TaskReader()
        self.headway = AdoptedHeadway(self, store, **settings)
        self.join = declare_join(self)
        self.sender = JobSender(self)
        self.broker = BrokerProbe(self)

    def on_store(self, verb: Callable[[Store], Awaitable[T]]) -> T:
        """Call a verb of the store from a thread, and wait for its result."""
        headway = self.headway

        async def call() -> T:
            return await verb(await headway.client.store())

        return headway.portal.run(call())

    # ------------------------------------------------------------------ names

    def adopts(self, name: str) -> bool:
        """Return whether a task of this name runs on Headway."""
        if name.startswith("celery."):  # Celery's own tasks stay, except those that only call other tasks.
            return name in ENVELOPES
        return any(fnmatchcase(name, pattern) for pattern in self.only)

    def adopts_call(self, name: str, kwargs: Mapping[str, Any]) -> bool:
        """Return whether a call runs on Headway. ``celery.map`` and ``celery.starmap`` go with the task they call."""
        if name in ENVELOPES:
            inner = kwargs.get("task")
            return isinstance(inner, Mapping) and self.adopts(str(inner.get("task", "")))
        if name == ACCUMULATE:
            return running.get() is not None
        return self.adopts(name)

    @property
    def adopts_all(self) -> bool:
        """Whether no task stays on Celery, so that its broker need not be asked."""
        return "*" in self.only

    def registered(self) -> list[str]:
        """Return the names of all adopted tasks that this process has registered."""
        return sorted(name for name in self.app.tasks if self.adopts(name))

    def queues(self) -> list[str]:
        """Return the queues that the settings and the adopted tasks name."""
        names = [routed_queue(self.app, name) for name in self.registered()]
        return list(dict.fromkeys([*known_queues(self.app), *names]))

    # ------------------------------------------------------------------ tasks

    def task(self, name: str) -> Task[Any, Any, Any]:
        """Return the Headway task of a name, and declare it first if it is new."""
        known, published = self.headway.tasks.get(name), self._unregistered.get(name)
        if known is not None and published is None:
            return known
        registry: Any = self.app._tasks
        registered = registry.get(name)  # Not ``tasks``, which finalizes the app while modules are imported.
        is_fresh = published is not None and time.monotonic() < published.until
        if registered is None and known is not None and is_fresh:
            return known
        with self._declaring:
            entry = None if registered is not None else self._read_entry(name)
            if registered is None:
                self._unregistered[name] = _PublishedTask(entry, time.monotonic() + CATALOGUE_SECONDS)
                if known is not None and published is not None and published.entry == entry:
                    return known
            else:
                self._unregistered.pop(name, None)
            task = self._declare(name, registered, entry)
            self.headway.tasks[name] = task
        return task

    def _read_entry(self, name: str) -> TaskEntry | None:
        """Return what a worker has published about a task: its time limit and its parameters."""
        found = self.on_store(lambda store: store.read(TASKS, name))
        return self._reader.read(name, found[0].body) if found else None

    def _declare(self, name: str, registered: Any, entry: TaskEntry | None) -> Task[Any, Any, Any]:
        if entry is not None:
            shown, timeout = _stand_in(entry), (entry.timeout_ms or 0) / 1_000
        else:
            shown = _unknown if registered is None else registered.run
            timeout = getattr(registered, "time_limit", None) or self.app.conf.task_time_limit
        options = TaskOptions(
            context=True,
            executor=self.executor,
            max_retries=RETRIES_MAX,  # Celery decides about retries.
            retry=Retry(give_up_on=(Exception,)),
            timeout=timeout or NO_LIMIT,
            limits=_limits(getattr(registered, "rate_limit", None)),
        )
        function = make_function(self, name, registered)
        return Task(self.headway, function, name, options, signature=MessageSignature(name, shown))

    @property
    def executor(self) -> str:
        if self._executor is not None:
            return self._executor
        return "thread" if self.app.conf.worker_pool in _THREAD_POOLS else "process"

    # ------------------------------------------------------------------ installing

    def install(self) -> None:
        """Make the app send adopted tasks to Headway, and read their results from Headway."""
        app = self.app
        make_amqp, make_control = app.amqp_cls, app.control_cls
        if "amqp" in vars(app):
            self._hook(app.amqp)
        else:
            app.amqp_cls = lambda app: self._hook(instantiate(make_amqp, app=app))
        app.control_cls = lambda app: AdoptedControl(self, instantiate(make_control, app=app))
        vars(app).pop("control", None)
        make_backend = app._get_backend
        app._get_backend = lambda: JobBackend(self, make_backend)
        _forget_backend(app)
        canvas.install()
        lifecycle.connect(self)

    def _hook(self, amqp: Any) -> Any:
        create: Callable[[], Any] = amqp._create_task_sender
        amqp._create_task_sender = lambda: self.sender.before(create())
        vars(amqp).pop("send_task_message", None)
        return amqp


def adopt(
    app: Celery,
    store: str | None = None,
    *,
    only: str | Iterable[str] = ("*",),
    lanes: Mapping[str, str] | None = None,
    executor: str | None = None,
    **settings: Any,
) -> Adoption:
    """Run tasks of a Celery app on Headway. Everything else stays on Celery; without this line all of it does.

    Call it where the app is created: ``adopt(app, store="postgresql://…", only=["reports.*"])``. Clients and workers
    import that module. ``headway worker --celery proj`` then runs the tasks whose names match a pattern in ``only``.

    ``lanes``: the lane of each queue, such as ``{"emails": "high"}``. ``executor``: ``process``, the default, or
    ``thread``. Other settings are those of ``Headway``. Raises ``ConfigError``.
    """
    patterns = (only,) if isinstance(only, str) else tuple(only)
    if not patterns or not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise ConfigError(f"adopt: only must be a list of names or patterns such as 'reports.*', got {only!r}")
    if executor is not None and executor not in EXECUTORS:
        raise ConfigError(f"adopt: executor must be {' or '.join(EXECUTORS)}, got {executor!r}")
    with _adopting:
        before = find_adoption(app)
        if before is not None:
            if before.asked != (store, patterns, dict(lanes or {}), executor, settings):
                raise ConfigError(f"the Celery app {app.main!r} is adopted already, with other options")
            return before
        adoption = Adoption(app, store, only=patterns, lanes=lanes or {}, executor=executor, settings=settings)
        setattr(app, ATTRIBUTE, adoption)
        adoption.install()
    return adoption


def find_adoption(app: Any) -> Adoption | None:
    """Return the adoption of an app, or None."""
    found = vars(app).get(ATTRIBUTE)
    return found if isinstance(found, Adoption) else None


def adoption_of(app: Celery) -> Adoption:
    """Return the adoption of an app. Raises ``ConfigError`` if the app has none."""
    found = find_adoption(app)
    if found is None:
        raise ConfigError(
            f"the Celery app {app.main!r} adopts no task; add `adopt(app, store=…)` from headway.integrations.celery "
            "where the app is created"
        )
    return found


def _limits(rate_limit: Any) -> tuple[Limit, ...]:
    rate = rate_of(rate_limit)
    return () if rate is None else (Limit(rate=rate),)


def _unknown(*args: Any, **kwargs: Any) -> None:
    """Stand for a task that only its worker knows."""


def _stand_in(entry: TaskEntry) -> Callable[..., None]:
    """Return a function with the parameters of a task that only its worker has."""

    def elsewhere(*_more: Any, **_named: Any) -> None: ...

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    known = [inspect.Parameter(name, kind, default=None) for name in entry.parameters.get("properties", {})]
    others = inspect.signature(elsewhere).parameters.values()
    elsewhere.__signature__ = inspect.Signature([*known, *others])  # type: ignore[attr-defined]
    return elsewhere


def _forget_backend(app: Any) -> None:
    """Remove an app's backend, so that the app makes a new one."""
    app._backend_cache = None
    app._local.__dict__.pop("backend", None)
