"""Adopted tasks run on Headway as they ran on Celery."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from celery import signals  # type: ignore[import-untyped]
from celery.exceptions import (  # type: ignore[import-untyped]
    Reject,
    SoftTimeLimitExceeded,
    TaskRevokedError,
    TimeLimitExceeded,
)
from celery.exceptions import TimeoutError as CeleryTimeout

from headway.core.errors import ConfigError, IdempotencyConflict, PayloadError
from headway.core.job import State
from headway.integrations.celery import adoption_of
from tests.integrations.celery.adoption.conftest import AdoptedProject
from tests.integrations.celery.adoption.project import Expected
from tests.integrations.celery.workers import eventually


def test_a_result_comes_back(adopted: AdoptedProject) -> None:
    result = adopted.app.tasks["work.add"].delay(1, y=2)
    assert result.get(timeout=60) == 3
    assert (result.state, result.ready(), result.successful(), result.failed()) == ("SUCCESS", True, True, False)


def test_the_job_has_the_id_of_the_task(adopted: AdoptedProject) -> None:
    result = adopted.call("work.add", 1)
    assert adoption_of(adopted.app).headway.job(result.id).result(timeout=60) == 1


@pytest.mark.parametrize("task_id", ["order-7", "ä b", "6f9619ff-8b86-d011-b42d-00cf4fc964ff"])
def test_any_text_can_be_the_id(adopted: AdoptedProject, task_id: str) -> None:
    chosen = f"{task_id}-{uuid.uuid4()}"
    assert adopted.result("work.request", task_id=chosen)["id"] == chosen


def test_an_id_that_marks_a_batch_is_refused_by_name(adopted: AdoptedProject) -> None:
    with pytest.raises(ConfigError, match="task_id must not begin with 'batch-'"):
        adopted.call("work.add", 1, task_id="batch-1")


def test_an_id_can_be_used_again_once_its_job_has_ended(adopted: AdoptedProject) -> None:
    again = str(uuid.uuid4())
    assert adopted.result("work.add", 1, task_id=again) == 1
    assert adopted.app.AsyncResult(adopted.call("work.add", 2, task_id=again).id).get(timeout=60) == 2
    first = adopted.app.AsyncResult(again).date_done
    adopted.result("work.add", 2, task_id=again)
    assert adopted.app.AsyncResult(again).date_done != first
    waiting = adopted.call("work.add", 3, countdown=600)
    adopted.call("work.add", 3, task_id=waiting.id)
    with pytest.raises(IdempotencyConflict, match="was used before"):
        adopted.call("work.add", 4, task_id=waiting.id)
    waiting.revoke()


def test_a_task_can_be_sent_by_name_from_an_app_that_does_not_have_it(adopted: AdoptedProject) -> None:
    assert adopted.app.send_task("work.add", [5], {"y": 6}).get(timeout=60) == 11


def test_values_come_back_as_celery_encodes_them(adopted: AdoptedProject) -> None:
    values = [datetime(2026, 1, 2, 3, tzinfo=UTC), Decimal("1.50"), uuid.UUID(int=7), {"a": [1, None]}, "ü"]
    assert adopted.result("work.gather", *values, kwargs={"k": 1}) == [values, {"k": 1}]


def test_the_request_has_what_celery_puts_into_it(adopted: AdoptedProject) -> None:
    found = adopted.result("work.request", "a", headers={"tenant": "acme"})
    assert found["headers"]["tenant"] == "acme"
    assert (found["retries"], found["args"], found["queue"]) == (0, ["a"], "celery")
    assert (found["called_directly"], found["is_eager"]) == (False, False)
    assert (found["root_id"], found["current"]) == (found["id"], "work.request")


def test_properties_of_the_message_reach_the_task(adopted: AdoptedProject) -> None:
    assert adopted.result("work.request", app_id="shop")["properties"]["app_id"] == "shop"


def test_retries_count_up_and_reach_the_task(adopted: AdoptedProject) -> None:
    assert adopted.result("work.flaky", 2) == 2


def test_a_task_that_is_out_of_retries_fails_with_its_own_error(adopted: AdoptedProject) -> None:
    with pytest.raises(ValueError, match="try 3"):
        adopted.result("work.flaky", 9)


def test_a_task_that_waits_for_its_retry_is_in_state_retry(adopted: AdoptedProject) -> None:
    result = adopted.call("work.later")
    eventually(lambda: result.state == "RETRY", "the task waits", lambda: result.state)
    assert (type(result.info), str(result.info)) == (ValueError, "not now")
    result.revoke()
    assert result.state == "REVOKED"


def test_autoretry_gives_up_after_max_retries(adopted: AdoptedProject) -> None:
    with pytest.raises(KeyError, match="missing"):
        adopted.result("work.auto")


def test_a_retry_can_have_other_arguments(adopted: AdoptedProject) -> None:
    assert adopted.result("work.new_arguments", 1, kwargs={"text": "ab"}) == [3, 8, 2]
    assert adopted.result("work.new_arguments", 1, kwargs={"text": '"' * 40_000}) == [3, 160_000, 2]


def test_a_soft_time_limit_is_raised_inside_the_task(adopted: AdoptedProject) -> None:
    assert adopted.result("work.soft") == "cleaned up"
    assert adopted.result("work.soft", 0.0) == "done"
    with pytest.raises(SoftTimeLimitExceeded):
        adopted.result("work.soft_uncaught")


def test_a_call_can_set_its_own_soft_time_limit(adopted: AdoptedProject) -> None:
    assert adopted.result("work.soft", 1.0, soft_time_limit=30) == "done"


def test_a_time_limit_kills_the_process_and_the_job_fails_once(adopted: AdoptedProject) -> None:
    if adopted.executor == "process":
        result = adopted.call("work.hard")
        with pytest.raises(TimeLimitExceeded):
            result.get(timeout=60)
        assert adoption_of(adopted.app).headway.job(result.id).info().attempts == 1


def test_a_failure_has_its_class_its_arguments_and_its_traceback(adopted: AdoptedProject) -> None:
    result = adopted.call("work.fail")
    with pytest.raises(ValueError, match="bad") as failure:
        result.get(timeout=60)
    assert failure.value.args == ("bad", 3)
    assert (result.state, result.failed()) == ("FAILURE", True)
    assert "in fail" in result.traceback
    assert repr(result.get(propagate=False)) == "ValueError('bad', 3)"


def test_an_expected_exception_is_logged_without_traceback(adopted: AdoptedProject) -> None:
    result = adopted.call("work.fail", kwargs={"expected": True})
    with pytest.raises(Expected):
        result.get(timeout=60)
    eventually(lambda: "raised expected" in adopted.log.read_text(), "the worker logs it")


def test_a_task_can_set_its_own_state(adopted: AdoptedProject, tmp_path: Path) -> None:
    result = adopted.call("work.progress", str(tmp_path / "gate"))
    eventually(lambda: result.state == "PROGRESS", "the task sets its state", lambda: result.state)
    assert result.info == {"current": 1, "total": 4}
    (tmp_path / "gate").touch()
    assert result.get(timeout=60) == "done"


def executing(adopted: AdoptedProject, result: Any) -> bool:
    return bool(adoption_of(adopted.app).headway.job(result.id).record().state is State.EXECUTING)


def test_a_running_task_is_started_only_if_it_says_so(adopted: AdoptedProject, tmp_path: Path) -> None:
    plain, tracked = (adopted.call(f"work.{name}", str(tmp_path / "open")) for name in ("gate", "tracked_gate"))
    eventually(lambda: executing(adopted, plain) and executing(adopted, tracked), "both tasks run", lambda: "")
    assert (plain.state, tracked.state) == ("PENDING", "STARTED")
    (tmp_path / "open").touch()
    assert (plain.get(timeout=60), tracked.get(timeout=60)) == ("done", "done")


def test_a_task_that_runs_again_after_a_crash_is_not_in_state_retry(adopted: AdoptedProject, tmp_path: Path) -> None:
    if adopted.executor == "process":
        result = adopted.call("work.crash_once", str(tmp_path / "crashed"), str(tmp_path / "open"))
        eventually(lambda: (tmp_path / "crashed").exists() and executing(adopted, result), "it runs", lambda: "")
        assert result.state == "PENDING"
        (tmp_path / "open").touch()
        assert result.get(timeout=60) == "done"


def test_an_ignored_task_keeps_the_state_that_it_set(adopted: AdoptedProject) -> None:
    result = adopted.call("work.ignore")
    eventually(result.ready, "the task ends", lambda: result.state)
    assert (result.state, str(result.result)) == ("FAILURE", "own")


def test_a_rejected_task_goes_back_or_fails(adopted: AdoptedProject, tmp_path: Path) -> None:
    assert adopted.result("work.reject", str(tmp_path / "one"), True) == "again"
    result = adopted.call("work.reject", str(tmp_path / "two"), False)
    assert (type(result.get(timeout=60, propagate=False)), result.state) == (Reject, "FAILURE")


def test_a_result_that_json_cannot_hold_fails_the_task(adopted: AdoptedProject) -> None:
    with pytest.raises(Exception, match="cannot be stored as JSON"):
        adopted.result("work.unstorable")


def test_an_argument_that_json_cannot_hold_is_refused_by_its_name(adopted: AdoptedProject) -> None:
    with pytest.raises(PayloadError, match=r"argument 'y' is a set.*never pickles"):
        adopted.call("work.add", 1, kwargs={"y": {1}})
    with pytest.raises(PayloadError, match="argument 'x' is a object"):
        adopted.call("work.add", object())


def test_an_ignored_result_can_still_be_read(adopted: AdoptedProject) -> None:
    result = adopted.call("work.quiet")
    assert result.get() is None
    assert adopted.app.AsyncResult(result.id).get(timeout=60) == "kept"


def test_an_ignored_result_may_be_too_large_to_keep(adopted: AdoptedProject) -> None:
    result = adopted.app.AsyncResult(adopted.call("work.large", 2 << 20).id)
    assert (result.get(timeout=60), result.state) == (None, "SUCCESS")


def test_all_hooks_of_a_base_class_are_called(adopted: AdoptedProject) -> None:
    assert adopted.result("work.hooked", "retry") == "retry"
    with pytest.raises(ValueError, match="hooked"):
        adopted.result("work.hooked", "fail")
    attempt = ["task_prerun", "before_start", "__call__ True"]
    assert adopted.traced("work.hooked") == [
        "apply_async",
        *attempt, "apply_async", "on_retry ValueError('once')", "task_retry", "task_postrun",
        *attempt, "on_success retry", "task_success", "after_return SUCCESS", "task_postrun",
        "apply_async",
        *attempt, "on_failure ValueError('hooked')", "task_failure", "after_return FAILURE", "task_postrun",
    ]  # fmt: skip


def test_the_publish_signals_can_add_headers(adopted: AdoptedProject) -> None:
    sent: list[str] = []

    def before(sender: str = "", headers: Any = None, routing_key: str = "", **_: Any) -> None:
        headers["traceparent"] = f"from {sender} to {routing_key}"
        sent.append("before")

    def after(sender: str = "", headers: Any = None, **_: Any) -> None:
        sent.append(headers["id"])

    signals.before_task_publish.connect(before)
    signals.after_task_publish.connect(after)
    try:
        found = adopted.result("work.request")
    finally:
        signals.before_task_publish.disconnect(before)
        signals.after_task_publish.disconnect(after)
    assert sent == ["before", found["id"]]
    assert found["headers"]["traceparent"] == "from work.request to celery"


def test_the_worker_sends_the_signals_of_a_start(adopted: AdoptedProject) -> None:
    written = adopted.trace.read_text()
    assert {"celeryd_init", "worker_init", "worker_ready", "task_received"} <= set(written.split())
    assert {"after_setup_logger", "after_setup_task_logger"} <= set(written.split())
    assert ("worker_process_init" in written) is (adopted.executor == "process")


def test_receivers_of_task_received_read_the_names_of_a_worker_request(adopted: AdoptedProject) -> None:
    result = adopted.call("work.add", 1)
    result.get(timeout=60)
    assert f"work.add work.add {result.id}" in adopted.traced("request")


def test_a_task_that_sends_a_task_has_it_as_a_child(adopted: AdoptedProject) -> None:
    result = adopted.call("work.sends", 4)
    sent = result.get(timeout=60)
    assert [(child.id, child.get(timeout=60)) for child in result.children] == [(sent, 8)]


def test_a_task_must_not_wait_for_a_task(adopted: AdoptedProject) -> None:
    with pytest.raises(RuntimeError, match=r"Never call result.get"):
        adopted.result("work.waits")


def test_countdown_eta_and_expires_are_kept(adopted: AdoptedProject) -> None:
    later = adopted.call("work.add", 1, countdown=600)
    eta = adopted.call("work.add", 1, eta=datetime.now(UTC) + timedelta(hours=1))
    now_at = datetime.now(UTC).timestamp() * 1_000
    waits = [adoption_of(adopted.app).headway.job(result.id).record().due_at or 0 for result in (later, eta)]
    assert 500_000 < waits[0] - now_at < 601_000
    assert 3_500_000 < waits[1] - now_at < 3_601_000
    expired = adopted.call("work.add", 1, countdown=0.5, expires=0.001)
    eventually(lambda: expired.state == "REVOKED", "the task expires", lambda: expired.state)
    for result in (later, eta):
        result.revoke()


def test_a_revoked_task_never_runs(adopted: AdoptedProject) -> None:
    result = adopted.call("work.add", 1, countdown=600)
    result.revoke()
    assert result.state == "REVOKED"
    with pytest.raises(TaskRevokedError):
        result.get(timeout=5)


def test_a_running_task_can_be_revoked(adopted: AdoptedProject, tmp_path: Path) -> None:
    result = adopted.call("work.progress", str(tmp_path / "gate"))
    eventually(lambda: result.state == "PROGRESS", "the task runs", lambda: result.state)
    adopted.app.control.revoke(result.id, terminate=True)
    if adopted.executor == "thread":  # A thread cannot be stopped, on Celery either.
        (tmp_path / "gate").touch()
    eventually(result.ready, "the task stops", lambda: result.state)
    assert result.state == "REVOKED" or adopted.executor == "thread"


def test_get_waits_no_longer_than_its_timeout_and_an_unknown_id_is_pending(adopted: AdoptedProject) -> None:
    unknown = adopted.app.AsyncResult("no such task")
    assert (unknown.state, unknown.result) == ("PENDING", None)
    with pytest.raises(CeleryTimeout):
        unknown.get(timeout=0.1)


def test_a_forgotten_result_is_unknown(adopted: AdoptedProject) -> None:
    result = adopted.call("work.add", 1)
    result.get(timeout=60)
    result.forget()
    assert adopted.app.AsyncResult(result.id).state == "PENDING"


def test_a_callback_of_get_receives_the_value(adopted: AdoptedProject) -> None:
    seen = []
    result = adopted.call("work.add", 1, kwargs={"y": 1})
    result.get(timeout=60, callback=lambda task_id, value: seen.append((task_id, value)))
    assert seen == [(result.id, 2)]


def test_health_checks_see_the_worker(adopted: AdoptedProject, tmp_path: Path) -> None:
    inspect = adopted.app.control.inspect()
    (name,) = inspect.ping()
    assert inspect.ping() == {name: {"ok": "pong"}}
    assert "work.add" in inspect.registered()[name]
    assert inspect.stats()[name]["pool"]["max-concurrency"] == 4
    assert inspect.reserved() == {name: []}
    assert {queue["name"] for queue in inspect.active_queues()[name]} == {"celery"}
    result = adopted.call("work.progress", str(tmp_path / "gate"))
    eventually(lambda: result.state == "PROGRESS", "the task runs", lambda: result.state)
    assert [job["id"] for job in inspect.active()[name]] == [result.id]
    waiting = adopted.call("work.add", 1, countdown=600)
    (eta,) = [job["eta"] for job in inspect.scheduled()[name] if job["request"]["id"] == waiting.id]
    assert timedelta(minutes=8) < datetime.fromisoformat(eta) - datetime.now(UTC) <= timedelta(minutes=10)
    (tmp_path / "gate").touch()
    waiting.revoke()
