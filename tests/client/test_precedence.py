"""Precedence of options: first those of a call, then the decorator's, then the lane's."""

from __future__ import annotations

from typing import Any

import pytest

from headway import Headway
from headway.core.job import NewJob


def new_job(decorator: dict[str, object], call: dict[str, object]) -> NewJob:
    declare: Any = Headway("memory://").task(**decorator)  # type: ignore[call-overload]
    job: NewJob = declare(lambda: None).using(**call).call().new
    return job


@pytest.mark.parametrize(
    "decorator, call, expected",
    [
        pytest.param({}, {}, ("medium", 3, 600_000), id="nobody says anything: the default lane's"),
        pytest.param({"priority": "high"}, {}, ("high", 5, 300_000), id="the lane's"),
        pytest.param({"priority": "low", "timeout": 60}, {}, ("low", 2, 60_000), id="the decorator's over the lane's"),
        pytest.param(
            {"priority": "low", "timeout": 60, "max_retries": 7},
            {"priority": "high", "timeout": 5},
            ("high", 7, 5_000),
            id="the call's over the decorator's",
        ),
        pytest.param({"max_retries": 0}, {"priority": "high"}, ("high", 0, 300_000), id="none is a number too"),
    ],
)
def test_the_nearest_word_counts(
    decorator: dict[str, object], call: dict[str, object], expected: tuple[str, int, int]
) -> None:
    # R5.37, R5.33, R5.34, R5.35
    job = new_job(decorator, call)
    assert (job.lane, job.max_retries, job.timeout_ms) == expected


def test_digests_have_128_bits() -> None:
    # R2.63, R2.21
    job = new_job({}, {"idempotency_key": "k"})
    assert len(job.digest) * 8 == 128
