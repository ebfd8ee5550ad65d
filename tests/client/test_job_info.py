"""The facts in ``job.info()``, and the errors that callers can import."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import headway as package
from headway import AttemptInfo, Context, JobInfo, State, errors
from headway.core import errors as all_errors
from headway.testing import Testbed

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "python.md"


def test_info_tells_of_a_job_in_public_words(headway: Testbed) -> None:
    @headway.app.task(name="mail", max_retries=2, timeout=9, context=True)
    def mail(ctx: Context, to: str, copies: int = 1) -> dict[str, int]:
        ctx.progress(0.5, "half")
        if ctx.attempt == 1:
            raise ValueError("no route")
        return {"sent": copies}

    began = datetime.fromtimestamp(headway.clock() / 1_000, UTC)
    job = mail.using(priority="high", tenant="acme", delay=60, idempotency_key="k").enqueue("ada", copies=3)
    queued = job.info()
    assert isinstance(queued, JobInfo)
    assert (queued.id, queued.task, queued.status, queued.priority) == (job.id, "mail", State.QUEUED, "high")
    assert queued.status == "queued"
    assert (queued.tenant, queued.timeout, queued.max_retries, queued.idempotency_key) == ("acme", 9.0, 2, "k")
    assert queued.arguments == {"to": "ada", "copies": 3}
    assert (queued.submitted_at, queued.due_at) == (began, began + timedelta(seconds=60))
    assert (queued.started_at, queued.worker, queued.result, queued.error, queued.history) == (
        None,
        None,
        None,
        None,
        (),
    )

    headway.drain(advance=True)
    ended = job.info()
    assert (ended.status, ended.attempts, ended.result, ended.due_at) == ("completed", 2, {"sent": 3}, None)
    assert ended.finished_at is not None
    assert ended.started_at is not None
    assert ended.started_at.tzinfo is UTC
    assert ended.finished_at >= ended.started_at >= began + timedelta(seconds=60)
    (failed,) = ended.history
    assert isinstance(failed, AttemptInfo)
    assert (failed.number, failed.reason, failed.worker) == (1, "failed", ended.worker)
    assert failed.error is not None
    assert (failed.error.type, failed.error.message) == ("ValueError", "no route")


async def test_info_is_read_on_a_loop_too(headway: Testbed) -> None:
    @headway.app.task
    def noop() -> None: ...

    assert (await (await noop.aenqueue()).ainfo()).status is State.QUEUED


def test_a_moment_that_no_datetime_holds_is_the_last_of_them(headway: Testbed) -> None:
    # T8
    @headway.app.task
    def noop() -> None: ...

    headway.clock.advance(8_000 * 365 * 86_400)
    expires_at = noop.using(expires=100 * 365 * 86_400).enqueue().info().expires_at
    assert expires_at is not None
    assert expires_at.isoformat() == "9999-12-31T23:59:59.999000+00:00"


def test_every_field_of_info_is_documented() -> None:
    page = PAGE.read_text()
    for field in (*fields(JobInfo), *fields(AttemptInfo)):
        assert f"`{field.name}`" in page, field.name


def test_every_documented_error_can_be_imported() -> None:
    page = PAGE.read_text()
    section = page[page.index("\n## Errors\n") : page.index("\n## Testing\n")]
    named = set(re.findall(r"`([A-Z]\w+)`", section)) | {"RetryAfter", "Snooze", "RateLimited", "Discard"}
    assert {"QueueFull", "StoreUnavailable", "ResultTimeout", "PolicyError"} <= named
    for name in named:
        assert getattr(errors, name) is getattr(all_errors, name)
        assert name in errors.__all__


@pytest.mark.parametrize("name", ["QueueFull", "StoreUnavailable", "ResultTimeout", "BadArguments", "ConfigError"])
def test_common_errors_are_imported_from_the_package(name: str) -> None:
    assert getattr(package, name) is getattr(errors, name)
    assert name in package.__all__
