"""The functions of hand-written balancers under their old names do what their callers expect, without drift."""

from __future__ import annotations

import getpass
import multiprocessing
import socket
import threading
from collections.abc import Callable

import pytest
from celery import Celery, group  # type: ignore[import-untyped]

from headway.core.errors import ConfigError, StoreError
from headway.integrations.celery import (
    Balancer,
    decrement_pending,
    decrement_running,
    get_all_queue_loads,
    get_queue_load,
    increment_pending,
    increment_running,
    reset_queue_counters,
    select_best_queue,
)
from tests.integrations.celery.conftest import MakeApp
from tests.integrations.celery.project import make_app
from tests.servers import Valkey

PRODUCERS = 8
EACH = 40


@pytest.fixture(autouse=True)
def _current(balancer: Balancer) -> None:
    """Make the app current, because the functions use the current app."""


def test_loads_are_read_at_one_moment(app: Celery, server: Valkey) -> None:
    # R4.8, R4.9, R4.10, R4.26
    assert get_all_queue_loads() == {f"queue_{number}": (0, 0) for number in range(20)}
    for _ in range(3):
        app.tasks["project.add"].delay(1, 1)
    increment_running("queue_7", 5)
    server.ask("CONFIG", "RESETSTAT")
    loads = get_all_queue_loads()
    said = server.ask("INFO", "commandstats").decode()
    assert "cmdstat_fcall:calls=1," in said or "cmdstat_fcall_ro:calls=1," in said  # One function reads them all.
    busy = {"queue_0": (1, 0), "queue_1": (1, 0), "queue_2": (1, 0), "queue_7": (0, 5)}
    assert loads == {f"queue_{number}": (0, 0) for number in range(20)} | busy
    assert select_best_queue() == "queue_3"
    assert (get_queue_load("queue_0"), get_queue_load("queue_7")) == ((1, 0), (0, 5))


def test_counting_by_hand() -> None:
    # R4.11, R4.12
    assert increment_pending("queue_0") == 1
    assert increment_running("queue_0") == 1
    assert get_queue_load("queue_0") == (1, 1)
    assert select_best_queue() == "queue_1"
    assert decrement_pending("queue_0") == 0
    assert decrement_running("queue_0") == 0
    assert (decrement_pending("queue_0"), decrement_running("queue_0")) == (0, 0)


def test_a_decrement_takes_no_tasks_count_away(app: Celery) -> None:
    # R4.12, R4.34, R4.38
    app.tasks["project.add"].delay(1, 1)
    assert decrement_pending("queue_0") == 1


def test_hand_written_code_counts_each_task_once(app: Celery) -> None:
    # R4.19, R4.21: the example of the seed, as it is.
    my_task = app.tasks["project.add"]
    queue_name = select_best_queue()
    task_sigs = []
    for item in range(10):
        task_sig = my_task.s(item, 1)
        task_sig.set(queue=queue_name)
        task_sigs.append(task_sig)
        increment_pending(queue_name)
    assert get_queue_load(queue_name) == (10, 0)
    group(task_sigs).apply_async()
    assert get_queue_load(queue_name) == (10, 0)


def test_a_queue_is_selected_and_reserved_in_one_step() -> None:
    # R4.33
    assert [select_best_queue(reserve=2) for _ in range(3)] == ["queue_0", "queue_1", "queue_2"]
    assert get_queue_load("queue_0") == (2, 0)


def test_what_was_counted_by_hand_ends_by_itself(balancer: Balancer) -> None:
    # R4.38
    increment_running("queue_0", seconds=0)
    balancer.ledger.renew("node", [], lease_ms=60_000, reconcile_ms=60_000)
    assert get_queue_load("queue_0") == (0, 0)


def test_a_reset_in_flight_falsifies_nothing(app: Celery, server: Valkey, caplog: pytest.LogCaptureFixture) -> None:
    # R4.13, R4.48
    app.tasks["project.add"].delay(1, 1)
    increment_pending("queue_0", 5)
    server.ask("SET", "queue:queue_0:pending", "99")
    reset_queue_counters("queue_0")
    assert get_queue_load("queue_0") == (1, 0)
    assert server.ask("GET", "queue:queue_0:pending") == b"$1\r\n1\r\n"
    assert f"celery.reset user={getpass.getuser()} host={socket.gethostname()} queue=queue_0 forgotten=5" in caplog.text
    reset_queue_counters()
    assert get_queue_load("queue_0") == (1, 0)


def test_only_a_user_of_the_server_that_may_write_there_resets(app: Celery, make: MakeApp, server: Valkey) -> None:
    # R4.48: the server's own users and rules are the authority.
    app.tasks["project.add"].delay(1, 1)
    increment_pending("queue_0", 5)
    server.ask("ACL", "SETUSER", "viewer", "on", ">secret", "~*", "&*", "+@read", "+@connection")
    try:
        make(store=server.url.replace("redis://", "redis://viewer:secret@") + "/0")
        with pytest.raises(StoreError, match=r"(?i)noperm|permission"):
            reset_queue_counters()
    finally:
        server.ask("ACL", "DELUSER", "viewer")
    app.set_current()
    assert get_queue_load("queue_0") == (6, 0)


def test_queues_that_are_not_counted_are_refused() -> None:
    # R4.17
    functions: list[Callable[[str], object]] = [increment_pending, decrement_pending, increment_running,
                                                decrement_running, get_queue_load, reset_queue_counters]  # fmt: skip
    for function in functions:
        with pytest.raises(ConfigError):
            function("celery")


def test_a_queue_set_elsewhere_in_the_store_is_not_believed(server: Valkey, balancer: Balancer) -> None:
    # R4.38: the keys are for readers; what is chosen by comes from the tasks.
    server.ask("SET", "queue:queue_0:running", "1000")
    assert select_best_queue() == "queue_0"
    assert balancer.ledger.check() == 0  # Nothing was ever counted there…
    increment_pending("queue_0")
    assert balancer.ledger.check() == 0  # …and whatever is counted, is written whole.


def _produce(broker: str, barrier: object) -> None:
    """Run four producers, each with an app and a connection of its own."""

    def produce(app: Celery) -> None:
        barrier.wait()  # type: ignore[attr-defined]
        for number in range(EACH):
            app.tasks["project.add"].apply_async((number, 1), ignore_result=True)

    apps = [make_app(broker, {"queues": 7}) for _ in range(PRODUCERS // 2)]
    threads = [threading.Thread(target=produce, args=(app,)) for app in apps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_eight_producers_at_once_leave_the_queues_at_most_one_apart(broker: str, make: MakeApp) -> None:
    # R4.7, R4.33, R4.47
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PRODUCERS)
    processes = [context.Process(target=_produce, args=(broker, barrier)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(50)
        assert process.exitcode == 0
    make(queues=7)
    loads = [pending for pending, _ in get_all_queue_loads().values()]
    assert sum(loads) == PRODUCERS * EACH
    assert max(loads) - min(loads) <= 1


def test_eight_threads_of_one_process_do_so_too(broker: str, app: Celery) -> None:
    # R4.33, R4.47
    add = app.tasks["project.add"]
    threads = [
        threading.Thread(target=lambda: [add.apply_async((1, 1), ignore_result=True) for _ in range(20)])
        for _ in range(PRODUCERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    loads = [pending for pending, _ in get_all_queue_loads().values()]
    assert sum(loads) == PRODUCERS * 20
    assert max(loads) - min(loads) <= 1
