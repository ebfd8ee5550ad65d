"""The choice of queues: shards, widths, ties, and options that install refuses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from celery import Celery  # type: ignore[import-untyped]

from headway.core.errors import ConfigError
from headway.integrations.celery import balancer_of, install
from headway.integrations.celery.options import BalancerOptions
from headway.integrations.celery.sharding import queue_of, shard_of


def test_a_user_has_always_the_same_queues() -> None:
    # R4.29, R4.30: in every process, on every machine and in every release, or users would move.
    assert shard_of("user:7", queues=20, width=4) == (3, 7, 13, 17)
    assert [queue_of(user, queues=20) for user in ("a", "b", 7, "7", "ünï")] == [14, 3, 8, 8, 18]


def test_nobody_has_the_first_queue() -> None:
    # R4.29
    assert queue_of(None, queues=20) == queue_of("", queues=20) == 0


def test_hash_and_least_loaded_are_the_ends_of_one_rule() -> None:
    # R4.30
    assert len(shard_of("u", queues=20, width=1)) == 1
    assert shard_of("u", queues=20, width=20) == tuple(range(20))
    for width in range(1, 20):
        assert set(shard_of("u", queues=20, width=width)) < set(shard_of("u", queues=20, width=width + 1))


def test_users_are_spread_evenly_and_seldom_share_all() -> None:
    # R4.39
    shards = [shard_of(f"user:{number}", queues=20, width=4) for number in range(2_000)]
    used = Counter(queue for shard in shards for queue in shard)
    assert set(used) == set(range(20))
    assert max(used.values()) < 1.3 * min(used.values())
    assert sum(shard == shards[0] for shard in shards[1:]) <= 6  # One in 4,845 is expected.


def test_one_more_queue_moves_few_users() -> None:
    # R4.42
    users = [f"user:{number}" for number in range(1_000)]
    moved = sum(shard_of(user, queues=20, width=1) != shard_of(user, queues=21, width=1) for user in users)
    assert moved < 90  # 48 are expected.


@pytest.mark.parametrize(
    "rules, user, bulk",
    [
        pytest.param(BalancerOptions(), 4, 4, id="by default a fifth"),
        pytest.param(BalancerOptions(route="shuffle"), 4, 4, id="shuffle"),
        pytest.param(BalancerOptions(route="hash"), 1, 1, id="hash"),
        pytest.param(BalancerOptions(k=7), 7, 7, id="k"),
        pytest.param(BalancerOptions(k=20), 20, 20, id="all"),
        pytest.param(BalancerOptions(bulk="together"), 4, 1, id="together"),
        pytest.param(BalancerOptions(bulk="spread"), 4, 20, id="spread"),
        pytest.param(BalancerOptions(queues=3), 1, 1, id="few queues"),
    ],
)
def test_how_many_queues_a_user_and_a_bulk_are_spread_over(rules: BalancerOptions, user: int, bulk: int) -> None:
    # R4.22, R4.30
    assert (rules.width(user=True), rules.width(user=False)) == (user, bulk)


@pytest.mark.parametrize(
    "wrong",
    [
        {"queues": 0}, {"queues": 100_000}, {"prefix": "queue 1"}, {"prefix": "q1"}, {"prefix": ""}, {"route": "best"},
        {"k": 0}, {"k": 21}, {"bulk": "all"}, {"load": "bytes"}, {"lease": 0.1},
    ],
    ids=str,
)  # fmt: skip
def test_what_install_refuses(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        install(Celery("refused", broker="redis://", set_as_current=False), **wrong)


def test_only_queues_of_the_family_are_counted() -> None:
    # R4.17, R4.2
    rules = BalancerOptions()
    assert rules.names == [f"queue_{number}" for number in range(20)]
    assert [
        name for name in ("queue_0", "queue_25", "queue_", "queue_x", "celery", "aqueue_1") if rules.is_ours(name)
    ] == [
        "queue_0",
        "queue_25",
    ]


def test_an_app_is_installed_once() -> None:
    app = Celery("once", broker="redis://", set_as_current=False)
    assert install(app) is install(app)
    with pytest.raises(ConfigError, match="with other options"):
        install(app, queues=10)


def test_an_app_without_queues_says_so() -> None:
    # R4.32
    with pytest.raises(ConfigError, match="install"):
        balancer_of(Celery("bare", set_as_current=False))


def test_what_an_app_had_before_is_kept() -> None:
    from kombu.entity import Queue

    app = Celery("before", broker="redis://", set_as_current=False)
    app.conf.task_queues = [Queue("mail", routing_key="mail")]  # type: ignore[no-untyped-call]
    app.conf.task_routes = {"mail.send": "mail"}
    install(app, queues=2)
    app.conf.broker_url  # noqa: B018 - lets its settings be read
    assert [queue.name for queue in app.conf.task_queues] == ["mail", "queue_0", "queue_1"]
    assert app.amqp.router.route({}, "mail.send")["queue"].name == "mail"
    assert list(app.amqp.queues.consume_from) == ["mail", "queue_0", "queue_1"]


def test_workers_go_on_with_the_default_queue() -> None:
    # R4.43: what was sent before is still worked off.
    app = Celery("default", broker="redis://", set_as_current=False)
    install(app, queues=2)
    app.conf.broker_url  # noqa: B018 - lets its settings be read
    assert list(app.amqp.queues.consume_from) == ["celery", "queue_0", "queue_1"]
