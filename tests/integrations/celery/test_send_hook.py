"""The hook on sending: each way to send a task is balanced and counted, and an unsent task is not."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, chain, chord, group, shared_task, signals  # type: ignore[import-untyped]
from kombu.exceptions import OperationalError

from headway.core.errors import ConfigError, StoreError
from headway.integrations.celery import (
    balancer_of,
    enqueue_bulk,
    enqueue_task_to_user_queue,
    enqueue_task_with_load_balancing,
    get_all_queue_loads,
    get_queue_load,
)
from headway.integrations.celery.sharding import shard_of
from tests.integrations.celery.conftest import MakeApp
from tests.integrations.celery.project import make_app
from tests.servers import Valkey


def waiting() -> dict[str, int]:
    """Return the pending counts of queues that are not empty."""
    return {queue: pending for queue, (pending, _) in get_all_queue_loads().items() if pending}


def listed(server: Valkey, queue: str) -> list[dict[str, Any]]:
    """Return the messages of a queue in the broker."""
    found = []
    length = int(server.ask("LLEN", queue)[1:])
    for place in range(length):
        text = server.ask("LINDEX", queue, str(place))
        found.append(json.loads(text.split(b"\r\n", 1)[1].removesuffix(b"\r\n")))
    return found


def depth(server: Valkey) -> dict[str, int]:
    """Return the lengths of the queues in the broker."""
    found = {f"queue_{number}": int(server.ask("LLEN", f"queue_{number}")[1:]) for number in range(20)}
    return {queue: length for queue, length in found.items() if length}


@pytest.fixture(params=["in one step", "in two"])
def listened(request: pytest.FixtureRequest) -> Iterator[None]:
    """Connect a listener to publishing, or not. With a listener, the queue of a task is chosen before it is sent."""
    if request.param == "in one step":
        yield
        return

    def listen(**_: Any) -> None: ...

    signals.after_task_publish.connect(listen)
    yield
    signals.after_task_publish.disconnect(listen)


@pytest.mark.usefixtures("listened")
def test_plain_calls_are_balanced(app: Celery, server: Valkey) -> None:
    # R4.4, R4.18, R4.24, R4.43
    add = app.tasks["project.add"]
    for number in range(40):
        add.delay(number, 1) if number % 2 else add.apply_async((number, 1), countdown=60)
    assert waiting() == {f"queue_{number}": 2 for number in range(20)} == depth(server)


@pytest.mark.usefixtures("listened")
def test_a_message_bears_its_queue(app: Celery, server: Valkey) -> None:
    for number in range(3):
        app.tasks["project.note"].delay("x", '"routing_key": "queue_9" headway:queue:here')
        [message] = listed(server, f"queue_{number}")
        assert message["properties"]["delivery_info"] == {"exchange": "", "routing_key": f"queue_{number}"}
        assert message["headers"]["task"] == "project.note"


def test_the_handle_is_that_of_the_task_that_was_sent(app: Celery, server: Valkey) -> None:
    # R4.18
    result = enqueue_task_with_load_balancing(app.tasks["project.add"], 1, b=2)
    [message] = listed(server, "queue_0")
    assert message["headers"]["id"] == message["properties"]["correlation_id"] == result.id
    assert (message["headers"]["task"], message["headers"]["argsrepr"]) == ("project.add", "(1,)")
    assert message["headers"]["kwargsrepr"] == "{'b': 2}"
    meta = {"status": "SUCCESS", "result": 3, "traceback": None, "children": [], "task_id": result.id}
    server.ask("SET", f"celery-task-meta-{result.id}", json.dumps(meta))
    assert (result.state, result.result) == ("SUCCESS", 3)


def test_shared_tasks_are_balanced_too(app: Celery, server: Valkey) -> None:
    @shared_task(name="shared.one")  # type: ignore[untyped-decorator]
    def one() -> None: ...

    @shared_task(name="shared.two", bind=True)  # type: ignore[untyped-decorator]
    def two(self: Any, number: int) -> None: ...

    made: tuple[Any, Any] = one, two
    for number in range(20):
        made[1].apply_async((number,)) if number % 2 else made[0].delay()
    enqueue_task_with_load_balancing(one)
    assert waiting() == {f"queue_{number}": 1 for number in range(1, 20)} | {"queue_0": 2} == depth(server)


def operations(app: Celery, server: Valkey) -> Counter[str]:
    """Return the server commands that a client uses to send one task. A function counts as one."""
    note = app.tasks["project.note"]
    for _ in range(20):
        note.delay("x", "opens connections and declares queues")
    server.ask("CONFIG", "RESETSTAT")
    for _ in range(10):
        note.delay("x", "y")
    said = server.ask("INFO", "commandstats").decode()
    counted = {name: int(count) for name, count in re.findall(r"cmdstat_(\w+):calls=(\d+)", said)}
    return Counter({name: counted.get(name, 0) // 10 for name in ("fcall", "multi", "exec", "lpush", "publish")})


def test_sending_a_task_adds_one_operation_at_most(app: Celery, make: MakeApp, server: Valkey, broker: str) -> None:
    # R4.27
    def listen(**_: Any) -> None: ...

    plain_app = make_app(broker, None)
    plain = operations(plain_app, server)
    plain_app.close()
    assert plain["lpush"] == 1
    at_once = operations(app, server)  # The function chooses, counts and pushes.
    assert at_once == Counter(fcall=1, lpush=1)
    signals.after_task_publish.connect(listen)
    try:
        assert operations(app, server) - plain == Counter(fcall=1)
    finally:
        signals.after_task_publish.disconnect(listen)


def test_options_go_on_a_signature_and_never_meet_the_tasks_own_keywords(app: Celery, server: Valkey) -> None:
    # R4.20
    signature = app.tasks["project.again"].s().set(countdown=60, expires=90, priority=6)
    enqueue_task_with_load_balancing(signature, "path", times=1, countdown=5)
    assert waiting() == {"queue_0": 1}
    [message] = listed(server, "queue_0\x06\x166")  # The list of its priority.
    assert message["headers"]["eta"]
    assert message["headers"]["expires"]
    assert "'countdown': 5" in message["headers"]["kwargsrepr"]


def test_groups_chords_and_chains(app: Celery) -> None:
    # R4.21
    add = app.tasks["project.add"]
    group(add.s(number, 1) for number in range(6)).apply_async()
    assert sum(waiting().values()) == 6
    chord([add.s(1, 1), add.s(2, 2)])(app.tasks["project.ignore"].si())
    assert sum(waiting().values()) == 8
    chain(add.s(1, 1), add.s(2), add.s(3)).apply_async()
    assert sum(waiting().values()) == 9  # The rest of a chain is sent when its turn comes.


def test_a_group_keeps_to_a_fifth_of_the_queues(app: Celery) -> None:
    # R4.1, R4.22
    group(app.tasks["project.add"].s(number, 1) for number in range(40)).apply_async()
    assert sorted(waiting().values()) == [10, 10, 10, 10]
    app.tasks["project.add"].delay(1, 1)
    assert sorted(waiting().values()) == [1, 10, 10, 10, 10]


@pytest.mark.parametrize("bulk, spread", [("shard", [25] * 4), ("together", [100]), ("spread", [5] * 20)])
@pytest.mark.usefixtures("listened")
def test_a_bulk_is_spread_or_kept_together(app: Celery, server: Valkey, bulk: Any, spread: list[int]) -> None:
    # R4.21, R4.22
    result = enqueue_bulk((app.tasks["project.add"].s(number, 1) for number in range(100)), bulk=bulk)
    assert sorted(waiting().values()) == spread
    assert waiting() == depth(server)
    assert len(result.results) == 100


def test_a_bulk_is_one_round_trip(app: Celery, server: Valkey) -> None:
    # R4.23
    add = app.tasks["project.add"]
    add.delay(1, 1)
    server.ask("CONFIG", "RESETSTAT")
    enqueue_bulk(add.s(number, 1).set(ignore_result=True) for number in range(200))
    said = server.ask("INFO", "commandstats").decode()
    [calls] = [line for line in said.splitlines() if line.startswith("cmdstat_fcall")]
    assert "calls=1," in calls
    assert sum(waiting().values()) == 201


def test_a_large_bulk_goes_in_parts(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    # R4.28
    monkeypatch.setattr("headway.integrations.celery.broker_push.CHUNK", 50)
    enqueue_bulk((app.tasks["project.add"].s(number, 1) for number in range(120)), bulk="together")
    assert list(waiting().values()) == [120]


def test_a_bulk_respects_routes(app: Celery, server: Valkey) -> None:
    add = app.tasks["project.add"]
    enqueue_bulk([add.s(1, 1), add.s(2, 2).set(queue="celery"), add.s(3, 3).set(queue="queue_7")], bulk="spread")
    assert waiting() == {"queue_0": 1, "queue_7": 1}
    assert server.ask("LLEN", "celery") == b":1\r\n"


def test_a_bulk_is_made_of_plain_tasks(app: Celery) -> None:
    add = app.tasks["project.add"]
    with pytest.raises(ConfigError, match="plain tasks"):
        enqueue_bulk([chain(add.s(1, 1), add.s(2))])
    assert waiting() == {}


def test_a_task_sent_elsewhere_is_not_counted(app: Celery, server: Valkey) -> None:
    # R4.17
    app.tasks["project.add"].apply_async((1, 1), queue="celery")
    assert waiting() == {}
    assert server.ask("LLEN", "celery") == b":1\r\n"


@pytest.mark.usefixtures("listened")
def test_a_task_sent_to_one_of_the_queues_is_counted_there(app: Celery, server: Valkey) -> None:
    # R4.43
    app.tasks["project.add"].apply_async((1, 1), queue="queue_9")
    assert waiting() == {"queue_9": 1} == depth(server)


def test_a_task_that_is_only_known_by_name_is_balanced_too(app: Celery) -> None:
    app.send_task("elsewhere.task", kwargs={"user_id": 1})
    assert waiting() == {"queue_0": 1}


def test_the_old_protocol_is_counted_too(make: MakeApp) -> None:
    app = make(conf={"task_protocol": 1})
    app.tasks["project.add"].delay(1, 1)
    assert waiting() == {"queue_0": 1}


def test_eager_tasks_are_not_counted(make: MakeApp) -> None:
    app = make(conf={"task_always_eager": True})
    assert app.tasks["project.add"].delay(1, 1).get() == 2
    assert waiting() == {}


@pytest.mark.usefixtures("listened")
def test_a_broker_that_refuses_leaves_no_count(app: Celery, server: Valkey) -> None:
    # R4.19
    app.tasks["project.add"].delay(1, 1)
    server.ask("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises((OperationalError, StoreError), match=r"OOM|maxmemory"):
            app.tasks["project.add"].apply_async((1, 1), retry=False)
    finally:
        server.ask("CONFIG", "SET", "maxmemory", "0")
    assert waiting() == {"queue_0": 1}


def test_a_message_that_cannot_be_written_leaves_no_count(app: Celery) -> None:
    # R4.19
    with pytest.raises(Exception, match="serializable"):
        app.tasks["project.add"].delay(object(), 1)
    assert waiting() == {}


@pytest.mark.usefixtures("listened")
def test_a_publish_that_fails_leaves_no_count(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    # R4.19
    from kombu.messaging import Producer

    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("the broker is away")

    monkeypatch.setattr(Producer, "publish", refuse)
    with pytest.raises((ConnectionError, OperationalError)):
        app.tasks["project.add"].delay(1, 1)
    with pytest.raises((ConnectionError, OperationalError)):
        enqueue_bulk([app.tasks["project.add"].s(1, 1)] * 3)
    balancer_of(app).ledger.flush()
    assert waiting() == {}


# ---------------------------------------------------------------------- users


def test_a_users_tasks_keep_to_the_users_queues(make: MakeApp) -> None:
    # R4.39, R4.30
    note = make(by="user_id").tasks["project.note"]
    for number in range(40):
        note.delay("path", str(number), user_id="7") if number % 2 else note.delay("path", str(number), "7")
    expected = shard_of("user:7", queues=20, width=4)
    assert waiting() == {f"queue_{number}": 10 for number in expected}


def test_users_are_named_by_a_function_too(make: MakeApp) -> None:
    app = make(by="text")  # A parameter by position…
    app.tasks["project.note"].delay("path", "u1")
    assert balancer_of(app).ledger.figures().users == {"u1": 1}


def test_whoever_is_not_named_has_all_queues(make: MakeApp) -> None:
    note = make(by="user_id").tasks["project.note"]
    for number in range(20):
        note.delay("path", str(number))
    assert set(waiting().values()) == {1}


def test_another_user_finds_a_free_queue(make: MakeApp) -> None:
    # R4.1, R4.39
    note = make(by="user_id").tasks["project.note"]
    enqueue_bulk(note.s("path", "a", user_id="a") for _ in range(200))
    before = waiting()
    for user in ("b", "c", "d"):
        result = note.delay("path", user, user_id=user)
        [queue] = [queue for queue, pending in waiting().items() if pending != before.get(queue, 0)]
        assert queue not in before or before[queue] < 50, result
        before = waiting()


def test_hash_routing_stays(make: MakeApp) -> None:
    # R4.29
    app = make()
    add = app.tasks["project.add"]
    for _ in range(3):
        enqueue_task_to_user_queue(add, "user-1", 1, b=1)
    [queue] = waiting()
    assert get_queue_load(queue) == (3, 0)
    enqueue_task_to_user_queue(add, None, 1, 1)
    assert waiting()["queue_0"] == 1 + 3 * (queue == "queue_0")


def test_hash_as_a_route(make: MakeApp) -> None:
    # R4.30
    note = make(by="user_id", route="hash").tasks["project.note"]
    for user in ("a", "b", "c"):
        for _ in range(4):
            note.delay("path", "x", user_id=user)
    assert Counter(waiting().values())[4] >= 1
    assert all(pending % 4 == 0 for pending in waiting().values())


# ---------------------------------------------------------------------- a ledger that is away


def test_a_lost_ledger_is_told_and_does_not_stop_the_work(
    make: MakeApp, server: Valkey, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R4.32, R4.45
    monkeypatch.setattr("headway.integrations.celery.ledger_client.RETRY_SECONDS", 0.1)
    app = make(store="redis://127.0.0.1:1")
    app.tasks["project.add"].delay(1, 1)
    assert "celery.uncounted" in caplog.text
    assert balancer_of(app).ledger.errors == 1
    assert sum(depth(server).values()) == 1


def test_strict_refuses_what_it_cannot_count(make: MakeApp, server: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    # R4.45
    monkeypatch.setattr("headway.integrations.celery.ledger_client.RETRY_SECONDS", 0.1)
    app = make(store="redis://127.0.0.1:1", strict=True)
    with pytest.raises(StoreError):
        app.tasks["project.add"].delay(1, 1)
    assert depth(server) == {}
