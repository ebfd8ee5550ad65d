"""The ledger alone, on a real server: it counts each task once, even if messages repeat, come late or are lost."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from headway.integrations.celery.ledger import CountedTask, Ledger, TaskRun, lease_of
from headway.stores.redis.address import read_redis_address
from tests.servers import Valkey

NODE = "w@host#1-a"
MINUTE = 60_000


@pytest.fixture
def ledger(server: Valkey) -> Iterator[Ledger]:
    ledger = Ledger(read_redis_address(f"{server.url}/0"), "queue_")
    yield ledger
    assert ledger.check() == 0
    assert ledger.errors == 0, ledger.trouble
    ledger.close()


def count(ledger: Ledger, *members: str, queues: int = 3, **more: object) -> list[str]:
    entries = [CountedTask(f"{member}/0", "t", **more) for member in members]  # type: ignore[arg-type]
    return ledger.count(entries, queues=queues, measure="count")


def shown(server: Valkey, queue: str) -> tuple[int, int]:
    """Return the counts that redis-cli shows."""

    def number(kind: str) -> int:
        reply = server.ask("GET", f"queue:{queue}:{kind}")
        return 0 if reply.startswith(b"$-1") else int(reply.split(b"\r\n")[1])

    return number("pending"), number("running")


def loads(ledger: Ledger) -> dict[str, tuple[int, int]]:
    return {load.queue: (load.pending, load.running) for load in ledger.loads()}


def test_a_task_goes_to_the_least_loaded_queue(ledger: Ledger) -> None:
    # R4.4, R4.25, R4.33
    assert count(ledger, "a", "b", "c", "d") == ["queue_0", "queue_1", "queue_2", "queue_0"]
    assert loads(ledger) == {"queue_0": (2, 0), "queue_1": (1, 0), "queue_2": (1, 0)}


def test_ties_go_to_the_lowest_number_not_to_the_first_word(ledger: Ledger) -> None:
    # R4.5
    assert count(ledger, *map(str, range(12)), queues=12) == [f"queue_{number}" for number in range(12)]


def test_the_numbers_are_plain_keys(ledger: Ledger, server: Valkey) -> None:
    # R4.3, R4.26
    assert shown(server, "queue_0") == (0, 0)
    count(ledger, "a")
    assert shown(server, "queue_0") == (1, 0)
    ledger.start(TaskRun(lease_of("a/0", NODE), "queue_0", "t"))
    ledger.flush()
    assert shown(server, "queue_0") == (0, 1)


def test_a_start_is_one_move_and_an_end_too(ledger: Ledger) -> None:
    # R4.6, R4.14, R4.15
    count(ledger, "a")
    ledger.start(TaskRun(lease_of("a/0", NODE), "queue_0", "t"))
    ledger.flush()
    assert loads(ledger)["queue_0"] == (0, 1)
    ledger.finish(TaskRun(lease_of("a/0", NODE)))
    ledger.flush()
    assert loads(ledger)["queue_0"] == (0, 0)


def test_nothing_is_counted_twice_or_falls_below_zero(ledger: Ledger) -> None:
    # R4.12, R4.16, R4.34: each is told again, as after a lost reply.
    for _ in range(3):
        count(ledger, "a")
    assert loads(ledger)["queue_0"] == (1, 0)
    for _ in range(3):
        ledger.start(TaskRun(lease_of("a/0", NODE), "queue_0", "t"))
    ledger.flush()
    assert loads(ledger)["queue_0"] == (0, 1)
    for _ in range(3):
        ledger.finish(TaskRun(lease_of("a/0", NODE)))
        ledger.uncount(["a/0"], "revoked")
    ledger.flush()
    assert loads(ledger)["queue_0"] == (0, 0)


def test_a_retry_waits_while_its_first_attempt_still_runs(ledger: Ledger) -> None:
    # R4.37
    count(ledger, "a")
    ledger.start(TaskRun(lease_of("a/0", NODE), "queue_0", "t"))
    ledger.count([CountedTask("a/1", "t", fixed="queue_0")], queues=3, measure="count")
    assert loads(ledger)["queue_0"] == (1, 1)
    ledger.start(TaskRun(lease_of("a/1", NODE), "queue_0", "t"))
    ledger.finish(TaskRun(lease_of("a/0", NODE)))
    ledger.flush()
    assert loads(ledger)["queue_0"] == (0, 1)


def test_a_task_that_is_handed_out_twice_runs_twice(ledger: Ledger) -> None:
    # R4.37: the second delivery waits nowhere, so nothing goes below zero.
    count(ledger, "a")
    for node in (NODE, "other"):
        ledger.start(TaskRun(lease_of("a/0", node), "queue_0", "t"))
    ledger.flush()
    assert loads(ledger)["queue_0"] == (0, 2)
    ledger.finish(TaskRun(lease_of("a/0", NODE)))
    ledger.flush()
    assert loads(ledger)["queue_0"] == (0, 1)


def test_a_rejected_task_waits_again(ledger: Ledger) -> None:
    # R4.37
    count(ledger, "a")
    ledger.start(TaskRun(lease_of("a/0", NODE), "queue_0", "t"))
    ledger.finish(TaskRun(lease_of("a/0", NODE)), again=True)
    ledger.flush()
    assert loads(ledger)["queue_0"] == (1, 0)


def test_what_a_dead_node_ran_ends_with_its_lease(ledger: Ledger) -> None:
    # R4.36
    count(ledger, "a", "b")
    ledger.renew("dead", ["queue_0"], lease_ms=1, reconcile_ms=MINUTE)
    ledger.start(TaskRun(lease_of("a/0", "dead"), "queue_0", "t"))
    ledger.start(TaskRun(lease_of("b/0", NODE), "queue_1", "t"))
    time.sleep(0.01)  # The server's clock counts whole milliseconds.
    ledger.renew(NODE, ["queue_1"], lease_ms=MINUTE, reconcile_ms=MINUTE)
    _, leases = ledger.renew(NODE, ["queue_1"], lease_ms=MINUTE, reconcile_ms=MINUTE)
    assert leases == [lease_of("b/0", NODE)]
    assert loads(ledger) == {"queue_0": (0, 0), "queue_1": (0, 1)}
    assert ledger.figures().tally["lost"] == 1


def test_a_node_that_goes_ends_what_it_ran(ledger: Ledger) -> None:
    count(ledger, "a")
    ledger.start(TaskRun(lease_of("a/0", NODE), "queue_0", "t"))
    ledger.leave(NODE)
    assert loads(ledger)["queue_0"] == (0, 0)
    assert ledger.figures().nodes == {}


def test_a_queue_that_nobody_reads_is_never_chosen(ledger: Ledger) -> None:
    # R4.31
    ledger.renew(NODE, ["queue_1", "queue_2"], lease_ms=MINUTE, reconcile_ms=MINUTE)
    assert count(ledger, "a", "b", "c") == ["queue_1", "queue_2", "queue_1"]
    assert ledger.choose(queues=3, measure="count") == "queue_2"
    assert [load.read for load in ledger.loads(["queue_0", "queue_1"])][:2] == [False, True]


def test_a_user_whose_queues_nobody_reads_gets_others(ledger: Ledger) -> None:
    # R4.31
    ledger.renew(NODE, ["queue_2"], lease_ms=MINUTE, reconcile_ms=MINUTE)
    assert count(ledger, "a", among=(0, 1)) == ["queue_2"]


def test_a_queue_that_is_no_longer_read_is_noticed(ledger: Ledger) -> None:
    # R4.31
    ledger.renew(NODE, ["queue_0", "queue_1"], lease_ms=MINUTE, reconcile_ms=MINUTE)
    ledger.renew(NODE, ["queue_1"], lease_ms=MINUTE, reconcile_ms=MINUTE)
    assert ledger.choose(queues=3, measure="count") == "queue_1"
    ledger.leave(NODE)
    assert ledger.choose(queues=3, measure="count") == "queue_0"  # No worker is known, so all are as good.


def test_work_weighs_by_how_long_tasks_took(ledger: Ledger, server: Valkey) -> None:
    # R4.40: one long task weighs as much as five short ones.
    server.ask("HSET", "headway:celery:queue_:durations", "long", "5000", "short", "1000")
    entries = [CountedTask("l/0", "long"), *(CountedTask(f"s{number}/0", "short") for number in range(5))]
    queues = ledger.count(entries, queues=2, measure="work")
    assert queues == ["queue_0", *["queue_1"] * 5]


def test_short_runs_are_told_as_one(ledger: Ledger, server: Valkey) -> None:
    members = [f"{number}/0" for number in range(50)]
    count(ledger, *(str(number) for number in range(50)), queues=4)
    server.ask("CONFIG", "RESETSTAT")
    for member in members:
        ledger.start(TaskRun(lease_of(member, NODE), "queue_0", "t"))
        ledger.finish(TaskRun(lease_of(member, NODE)))
    ledger.flush()
    said = server.ask("INFO", "commandstats")
    assert int(said.split(b"cmdstat_fcall:calls=")[1].split(b",")[0]) < 10
    assert set(loads(ledger).values()) == {(0, 0)}
    tally = ledger.figures().tally
    assert (tally["started"], tally["finished"]) == (50, 50)


def test_how_long_tasks_take_is_learned(ledger: Ledger, server: Valkey) -> None:
    # R4.40
    count(ledger, "a")
    ledger.start(TaskRun(lease_of("a/0", NODE), "queue_0", "t"))
    ledger.finish(TaskRun(lease_of("a/0", NODE)), took_ms=250)
    ledger.flush()
    assert b"250.0" in server.ask("HGET", "headway:celery:queue_:durations", "t")


def test_selecting_costs_one_call_whatever_waits(ledger: Ledger, server: Valkey) -> None:
    # R4.27, R4.28: the server's work grows with the number of queues, not with that of tasks.
    def commands() -> int:
        return sum(
            int(line.split(b"calls=")[1].split(b",")[0])
            for line in server.ask("INFO", "commandstats").split(b"\r\n")
            if line.startswith(b"cmdstat_") and b"info" not in line
        )

    count(ledger, "first", queues=20)
    server.ask("CONFIG", "RESETSTAT")
    count(ledger, "a", queues=20)
    few = commands()
    ledger.count([CountedTask(f"{number}/0", "t") for number in range(5_000)], queues=20, measure="count")
    server.ask("CONFIG", "RESETSTAT")
    count(ledger, "b", queues=20)
    assert commands() == few < 40


def test_users_are_counted_while_their_tasks_wait_or_run(ledger: Ledger) -> None:
    ledger.count([CountedTask(f"{n}/0", "t", user="7" if n else "8") for n in range(3)], queues=3, measure="count")
    assert ledger.figures().users == {"7": 2, "8": 1}
    ledger.start(TaskRun(lease_of("0/0", NODE), "", ""))
    ledger.flush()
    assert ledger.figures().users == {"7": 2, "8": 1}
    ledger.finish(TaskRun(lease_of("0/0", NODE)))
    ledger.uncount(["1/0", "2/0"], "revoked")
    ledger.flush()
    assert ledger.figures().users == {}


def test_any_history_leaves_the_numbers_equal_to_a_recount(ledger: Ledger, server: Valkey, seed: int) -> None:
    # R4.7, R4.12, R4.38: random moves, some of them absurd, beside a plain count of what should be there.
    chance = random.Random(seed)
    waiting: dict[str, str] = {}
    running: dict[str, str] = {}
    for number in range(600):
        member = f"{chance.randrange(40)}/{chance.randrange(2)}"
        match chance.randrange(5):
            case 0 | 1:
                [queue] = ledger.count([CountedTask(member, "t", "u")], queues=4, measure="count")
                waiting.setdefault(member, queue)
                assert waiting[member] == queue
            case 2:
                lease = lease_of(member, NODE)
                fallback = chance.choice(["", "queue_3"])
                ledger.start(TaskRun(lease_of(member, NODE), fallback, "t"))
                if lease not in running and (queue := waiting.pop(member, fallback)):
                    running[lease] = queue
            case 3:
                ledger.finish(TaskRun(lease_of(member, NODE)))
                running.pop(lease_of(member, NODE), None)
            case _:
                ledger.uncount([member], "revoked")
                waiting.pop(member, None)
        if chance.randrange(4) == 0:
            ledger.flush()  # Otherwise short runs are told as one.
        if number % 50 == 0:
            assert ledger.check() == 0
    ledger.flush()
    pending, runs = Counter(waiting.values()), Counter(running.values())
    for queue, load in loads(ledger).items():
        assert load == (pending[queue], runs[queue]) == shown(server, queue)
