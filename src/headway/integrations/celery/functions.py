"""Functions for the current Celery app, with names that are common in hand-written load balancers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, wraps
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeVar

from celery import Celery, current_app  # type: ignore[import-untyped]
from celery.canvas import Signature  # type: ignore[import-untyped]

from headway.core.errors import ConfigError
from headway.integrations.celery.balancer import ATTRIBUTE, Balancer, balancer_of
from headway.integrations.celery.bulk import send_bulk
from headway.integrations.celery.options import BalancerOptions, Bulk, By, Measure, Route

P = ParamSpec("P")
R = TypeVar("R")


def install(
    app: Celery,
    queues: int = 20,
    prefix: str = "queue_",
    route: Route = "least_loaded",
    k: int | None = None,
    by: By | None = None,
    *,
    bulk: Bulk = "shard",
    load: Measure = "count",
    store: str | None = None,
    lease: float = 30.0,
    reconcile: float = 30.0,
    strict: bool = False,
) -> Balancer:
    """Add queues that are chosen by load to an app, and keep a ledger of the tasks that wait and run in each.

    Call it where the app is created, after its routes and queues are set, in producers and in workers.

    ``by`` names the parameter with the user of a task, or is a function of task name, args and kwargs. A user's tasks
    go to the least loaded of ``k`` queues that the user hashes to. ``k`` is a fifth of the queues by default, and one
    with ``route="hash"``. A bulk without users (a group, or the tasks that one task sends) is treated as one user,
    unless ``bulk`` is ``"together"`` (one queue) or ``"spread"`` (all). Any other task goes to the least loaded queue
    of all. ``load="work"`` weighs a task by the past run times of tasks with its name.

    The ledger is on the broker's server unless ``store`` names another. A worker that has not renewed for ``lease``
    seconds is dead. Every ``reconcile`` seconds a worker compares the ledger with the broker. With ``strict``, sending
    a task fails if the task cannot be counted. Without it, the task is sent uncounted. Raises ``ConfigError``.
    """
    rules = BalancerOptions(
        queues=queues, prefix=prefix, route=route, k=k, by=by, bulk=bulk, load=load, lease=lease, reconcile=reconcile,
        strict=strict,
    )  # fmt: skip
    if ATTRIBUTE in vars(app):
        before = balancer_of(app)
        if (before.rules, before.store) != (rules, store):
            raise ConfigError(f"the Celery app {app.main!r} has load-based queues already, with other options")
        return before
    balancer = Balancer(app, rules, store)
    setattr(app, ATTRIBUTE, balancer)
    if app.configured:
        balancer.set_up()
    else:
        configured: Any = app.on_after_configure
        configured.connect(balancer.set_up, weak=False)
    return balancer


def enqueue_task_with_load_balancing(task: Any, *args: Any, **kwargs: Any) -> Any:
    """Send a task to the least loaded queue. Return its ``AsyncResult``.

    All arguments are passed to the task. To set options, pass a signature: ``task.s().set(countdown=5)``.
    Plain ``task.delay()`` and ``apply_async()`` do the same.
    """
    balancer_of(_app_of(task))
    return _signature(task).apply_async(args=args, kwargs=kwargs)


def enqueue_task_to_user_queue(task: Any, user_id: object, *args: Any, **kwargs: Any) -> Any:
    """Send a task to the queue that its user hashes to, or without a user to the first. Return its ``AsyncResult``.

    ``user_id`` itself is not passed to the task.
    """
    queue = balancer_of(_app_of(task)).queue_of_user(user_id)
    return _signature(task).apply_async(args=args, kwargs=kwargs, queue=queue)


def enqueue_bulk(tasks: Iterable[Any], *, bulk: Bulk | None = None) -> Any:
    """Send many tasks (signatures, or a group), counted in one round trip. Return a ``GroupResult``.

    ``bulk``: use a few queues (``"shard"``), one queue (``"together"``) or all queues (``"spread"``).
    """
    return send_bulk(_here(), tasks, bulk=bulk)


def _on_current_app(method: Callable[Concatenate[Balancer, P], R]) -> Callable[P, R]:
    """Return a function that calls a method of the current app's balancer."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return method(_here(), *args, **kwargs)

    call.__signature__ = signature(partial(method, None))  # type: ignore[attr-defined, arg-type]
    return call


select_best_queue = _on_current_app(Balancer.select_best_queue)
get_all_queue_loads = _on_current_app(Balancer.get_all_queue_loads)
get_queue_load = _on_current_app(Balancer.get_queue_load)
increment_pending = _on_current_app(Balancer.increment_pending)
decrement_pending = _on_current_app(Balancer.decrement_pending)
increment_running = _on_current_app(Balancer.increment_running)
decrement_running = _on_current_app(Balancer.decrement_running)
reset_queue_counters = _on_current_app(Balancer.reset_queue_counters)


def _here() -> Balancer:
    return balancer_of(current_app._get_current_object())


def _app_of(task: Any) -> Celery:
    app = task.app
    return app._get_current_object() if hasattr(app, "_get_current_object") else app


def _signature(task: Any) -> Any:
    return task if isinstance(task, Signature) else task.s()
