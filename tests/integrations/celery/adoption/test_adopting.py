"""Features that ``adopt`` takes over or leaves, and the effect of queues, priorities, rates and the policy."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, shared_task  # type: ignore[import-untyped]
from celery.result import EagerResult  # type: ignore[import-untyped]
from kombu.exceptions import OperationalError

from headway.core.errors import ConfigError
from headway.core.policy.document import BUILT_IN
from headway.integrations.celery import Adoption, adopt, adoption_of, install
from headway.integrations.celery.adoption.message import TaskMessage
from headway.integrations.celery.adoption.queues import QueueMap, lane_of_rank
from headway.integrations.celery.adoption.rates import rate_of
from headway.integrations.celery.adoption.tracing import soft_seconds
from headway.policy_store.catalogue import publish_tasks
from headway.worker.manifest import catalogue_entry

NO_BROKER = {"broker_transport_options": {"max_retries": 0}, "broker_connection_timeout": 0.1}


@pytest.fixture
def app() -> Celery:
    app = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.update(task_publish_retry=False, task_routes={"emails.*": {"queue": "emails"}}, **NO_BROKER)

    @app.task(name="reports.daily", shared=False)
    def daily(customer_id: int = 0, *, day: str = "") -> str:
        return f"{customer_id} {day}"

    @app.task(name="emails.send", rate_limit="10/m", shared=False)
    def send() -> None: ...

    app.finalize()
    return app


@pytest.fixture
def adoption(app: Celery, tmp_path: Path) -> Iterator[Adoption]:
    made = adopt(app, store=f"sqlite:///{tmp_path}/jobs.db", only=["reports.*", "emails.*"])
    yield made
    made.headway.close()


def record(adoption: Adoption, task_id: str) -> Any:
    return adoption.headway.job(task_id).record()


def test_only_the_chosen_names_leave_the_broker(app: Celery, adoption: Adoption) -> None:
    @app.task(name="other.thing", shared=False, lazy=False)
    def thing() -> None: ...

    assert record(adoption, app.tasks["reports.daily"].delay(1).id).task == "reports.daily"
    with pytest.raises(OperationalError):
        app.tasks["other.thing"].delay()


def test_load_based_queues_do_not_count_adopted_tasks(app: Celery, adoption: Adoption) -> None:
    install(app)
    found = record(adoption, app.tasks["reports.daily"].delay(1).id)
    assert found.needs == ("queue:celery",)


def test_tasks_may_be_defined_after_the_line(app: Celery, adoption: Adoption) -> None:
    @app.task(name="reports.late", shared=False)
    def late(n: int) -> int:
        return n

    @shared_task(name="reports.shared")
    def shared() -> None: ...

    assert record(adoption, app.tasks["reports.late"].delay(1).id).task == "reports.late"
    assert record(adoption, app.tasks["reports.shared"].delay().id).task == "reports.shared"
    assert {"reports.daily", "reports.late", "reports.shared", "emails.send"} <= set(adoption.registered())


def test_without_the_line_everything_is_on_celery(app: Celery) -> None:
    with pytest.raises(OperationalError):
        app.tasks["reports.daily"].delay(1)
    with pytest.raises(ConfigError, match="adopts no task; add `adopt"):
        adoption_of(app)


def test_an_app_is_adopted_once(app: Celery, adoption: Adoption) -> None:
    store = adoption.headway.settings.store
    assert adopt(app, store=store, only=["reports.*", "emails.*"]) is adoption
    with pytest.raises(ConfigError, match="adopted already, with other options"):
        adopt(app, store=store)


@pytest.mark.parametrize("options", [{"only": []}, {"only": [3]}, {"executor": "fork"}, {"storee": "x"}])
def test_a_wrong_option_is_refused(app: Celery, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        adopt(app, **options)


def test_eager_tasks_run_here_and_now(app: Celery, adoption: Adoption) -> None:
    app.conf.task_always_eager = True
    result = app.tasks["reports.daily"].delay(4, day="may")
    assert isinstance(result, EagerResult)
    assert result.get() == "4 may"
    assert app.tasks["reports.daily"].apply((5,)).get() == "5 "


def test_queues_are_needs_and_priorities_are_lanes(app: Celery, adoption: Adoption) -> None:
    daily, send = app.tasks["reports.daily"], app.tasks["emails.send"]
    plain = record(adoption, daily.delay().id)
    assert (plain.lane, plain.needs) == ("medium", ("queue:celery",))
    assert record(adoption, send.delay().id).needs == ("queue:emails",)
    lanes = [record(adoption, daily.apply_async(priority=priority).id).lane for priority in (0, 2, 3, 6, 7, 9)]
    assert lanes == ["high", "high", "medium", "medium", "low", "low"]
    assert record(adoption, daily.apply_async(queue="high").id).lane == "high"


def test_nine_is_the_best_priority_on_rabbitmq() -> None:
    queues = QueueMap({"emails": "low"})
    assert [queues.lane("q", priority, BUILT_IN, "amqp") for priority in (9, 5, 0)] == ["high", "medium", "low"]
    assert [queues.lane("q", priority, BUILT_IN, "rediss") for priority in (9, 5, 0)] == ["low", "medium", "high"]
    assert (queues.lane("emails", None, BUILT_IN, ""), queues.lane("q", None, BUILT_IN, "")) == ("low", None)
    assert [lane_of_rank(rank, BUILT_IN) for rank in (0, 4, 9)] == ["high", "medium", "low"]


def test_the_map_of_queues_names_lanes_and_tasks(app: Celery, adoption: Adoption) -> None:
    assert adoption.queues() == ["celery", "emails"]
    lines = adoption.queue_map.lines({"a": "celery", "b": "emails", "c": "emails"}, BUILT_IN, ["celery"])
    assert [tuple(line) for line in lines] == [("celery", "medium", 1), ("emails", "medium", 2)]


@pytest.mark.parametrize(
    "rate_limit, rate",
    [
        (None, None),
        (0, None),
        ("", None),
        ("10/m", "10/60s"),
        (5, "5/1s"),
        ("100/h", "100/3600s"),
        ("0.5/s", "1/2.000s"),
    ],
)
def test_a_rate_limit_is_a_rate(rate_limit: Any, rate: str | None) -> None:
    assert rate_of(rate_limit) == rate


def test_a_rate_limit_that_celery_cannot_read_is_refused() -> None:
    with pytest.raises(ConfigError, match="rate_limit must be a number per second"):
        rate_of("10/fortnight")


def test_a_rate_limit_holds_over_all_workers(app: Celery, adoption: Adoption) -> None:
    (limit,) = adoption.task("emails.send").options.limits
    assert (limit.rate, limit.by) == ("10/60s", None)


def test_the_policy_sets_fairness_and_limits_without_the_code(app: Celery, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(
        '[tasks."reports.daily"]\nfair_by = "customer_id"\nlimits = [{concurrency = 1, by = "customer_id"}]\n'
    )
    adoption = adopt(app, store=f"sqlite:///{tmp_path}/jobs.db", only=["reports.*"], policy=str(policy))
    try:
        daily = app.tasks["reports.daily"]
        for result in (daily.delay(7), daily.delay(customer_id=7), app.send_task("reports.daily", [7])):
            found = record(adoption, result.id)
            assert found.tenant == "7"
            assert len(found.limits) == 1
    finally:
        adoption.headway.close()


def test_the_time_limits_of_the_settings_hold_for_tasks_without_their_own(app: Celery, adoption: Adoption) -> None:
    app.conf.update(task_time_limit=70, task_soft_time_limit=60)
    daily, message = app.tasks["reports.daily"], TaskMessage([], {}, {}, {})
    daily.time_limit = daily.soft_time_limit = None  # Before Celery 5.7 a task does not read these settings.
    assert adoption.task("reports.daily").options.timeout == 70
    assert soft_seconds(adoption, daily, message) == 60
    daily.soft_time_limit = 50
    assert soft_seconds(adoption, daily, message) == 50
    assert soft_seconds(adoption, daily, message._replace(headers={"timelimit": [None, 40]})) == 40


def publish(adoption: Adoption, *names: str) -> None:
    """Publish tasks in the store's catalogue, as a starting worker does."""

    async def write() -> None:
        await publish_tasks(await adoption.headway.client.store(), [catalogue_entry(adoption.task(n)) for n in names])

    adoption.headway.portal.run(write())


def test_a_task_that_is_sent_by_name_has_the_time_limit_of_its_worker(app: Celery, adoption: Adoption) -> None:
    app.tasks["emails.send"].time_limit = 9
    publish(adoption, "emails.send")
    client = Celery("client", broker="redis://127.0.0.1:1/0", set_as_current=False)
    store = adoption.headway.settings.store
    other = adopt(client, store=store, only=["reports.*", "emails.*"])
    try:
        assert record(adoption, client.send_task("emails.send").id).timeout_ms == 9_000
    finally:
        other.headway.close()


def test_a_task_that_is_sent_by_name_is_shared_by_its_parameters(
    app: Celery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.integrations.celery.adoption.adoption.CATALOGUE_SECONDS", 0.0)
    policy = tmp_path / "policy.toml"
    policy.write_text('[tasks."reports.daily"]\nfair_by = "customer_id"\n')
    store = f"sqlite:///{tmp_path}/jobs.db"
    adoption = adopt(app, store=store, only=["reports.*"], policy=str(policy))
    client = Celery("client", broker="redis://127.0.0.1:1/0", set_as_current=False)
    other = adopt(client, store=store, only=["reports.*"], policy=str(policy))
    try:
        assert record(adoption, client.send_task("reports.daily", [7]).id).tenant is None  # No worker has started.
        publish(adoption, "reports.daily")
        for args, kwargs in (([7], {}), ([], {"customer_id": 7})):
            assert record(adoption, client.send_task("reports.daily", args, kwargs).id).tenant == "7"
    finally:
        other.headway.close()
        adoption.headway.close()


def test_the_first_task_protocol_can_be_set(app: Celery, adoption: Adoption) -> None:
    app.conf.task_protocol = 1
    found = record(adoption, app.tasks["reports.daily"].apply_async((3,), {"day": "may"}, countdown=60).id)
    message = adoption.task("reports.daily").signature.decode(found.payload)[0][0]
    assert (message.args, message.kwargs, found.due_at is not None) == ([3], {"day": "may"}, True)


DJANGO_WORKER = """
import asyncio, sys
from celery import Celery, signals
from celery.fixups.django import DjangoWorkerFixup
from django.conf import settings
from headway.integrations.celery import adopt
from headway.integrations.celery.adoption.lifecycle import worker_lifespan

settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1] + "/app.db"}})
app = Celery("shop")
adoption = adopt(app, store=f"sqlite:///{sys.argv[1]}/jobs.db", executor=sys.argv[2])

def query(sender, **_):
    from django.db import connection
    connection.cursor().execute("SELECT 1")
    fixup = DjangoWorkerFixup(app)
    fixup.worker = sender
    print(fixup.install()._is_prefork())

async def live():
    async with worker_lifespan(adoption):
        pass

for signal in (signals.worker_init, signals.worker_ready, signals.worker_shutdown):
    signal.connect(query, weak=False)
asyncio.run(live())
"""


@pytest.mark.parametrize("executor, prefork", [("process", "True"), ("thread", "False")])
def test_receivers_of_worker_signals_can_use_django(tmp_path: Path, executor: str, prefork: str) -> None:
    words = [sys.executable, "-c", DJANGO_WORKER, str(tmp_path), executor]
    answer = subprocess.run(words, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == [prefork] * 3, answer.stderr


def test_an_operator_can_submit_an_adopted_task_by_its_parameters(app: Celery, adoption: Adoption) -> None:
    job = adoption.task("reports.daily").call_named({"customer_id": 3, "day": "may"}).enqueue()
    message = adoption.task("reports.daily").signature.decode(record(adoption, job.id).payload)[0][0]
    assert (message.args, message.kwargs) == ([3], {"day": "may"})
