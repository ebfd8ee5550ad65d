"""Messages for users of other queues, and warnings."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytest

from headway import BadArguments, Headway, IdempotencyConflict
from headway.client import settings
from headway.client.settings import load_settings
from headway.core.log_event import LogEvent
from headway.testing import Testbed


@pytest.mark.parametrize(
    "name, hint",
    [
        ("delay", "send.enqueue("),
        ("apply_async", "send.using(delay=10, priority='high').enqueue("),
        ("s", "send.call("),
        ("send", "send.enqueue("),
    ],
)
def test_the_verbs_of_other_queues_are_answered_with_ours(headway: Testbed, name: str, hint: str) -> None:
    @headway.app.task
    def send(to: str) -> None: ...

    with pytest.raises(AttributeError, match=f"a task has no attribute '{name}'") as caught:
        getattr(send, name)
    assert hint in str(caught.value)
    assert not hasattr(send, "nonsense")
    assert send.__name__ == "send"


@pytest.mark.parametrize("wrong", [1, None, "text"])
def test_many_calls_are_calls(headway: Testbed, wrong: Any) -> None:
    @headway.app.task
    def child(number: int) -> int:
        return number

    with pytest.raises(BadArguments, match=r"enqueue_many takes calls such as task\.call\(1\), got"):
        headway.app.enqueue_many([child.call(1), wrong])
    with pytest.raises(TypeError):
        headway.app.portal.run(headway.app.aenqueue_many([wrong]))
    assert headway.enqueued() == []


def test_a_conflict_of_one_job_names_its_key(headway: Testbed) -> None:
    @headway.app.task
    def send(to: str) -> None: ...

    keyed = send.using(idempotency_key="o-9")
    keyed.enqueue("ada")
    with pytest.raises(IdempotencyConflict) as caught:
        keyed.enqueue("bob")
    assert str(caught.value) == "the idempotency key 'o-9' was used before, with another task or payload"


def test_an_unknown_variable_is_warned_of_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_warned", set())
    monkeypatch.setenv("HEADWAY_SLOTZ", "3")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Headway("memory://")
        load_settings()
    assert [str(warning.message) for warning in caught] == [
        "HEADWAY_SLOTZ is not a setting of Headway; did you mean 'HEADWAY_SLOTS'?"
    ]
    assert caught[0].filename == __file__


def test_a_worker_warns_of_tasks_whose_lane_is_not_in_the_policy(
    caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    from headway import Worker

    app = Headway(f"sqlite:///{tmp_path}/jobs.db")

    @app.task(name="mail", priority="urgent")
    def mail() -> None: ...

    @app.task(name="fine")
    def fine() -> None: ...

    with caplog.at_level(logging.WARNING, "headway.worker"), app, Worker(app):
        pass
    events = [record.msg for record in caplog.records if isinstance(record.msg, LogEvent)]
    facts = [event.facts for event in events if event.code == "worker.task_refused"]
    assert [fact["task"] for fact in facts] == ["mail"]
    assert "no lane 'urgent' in the policy" in facts[0]["problem"]
