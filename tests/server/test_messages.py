"""Bodies of the worker protocol: error messages that name a field, and the OpenAPI document."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headway.protocol.worker import PollRequest, RegisterRequest, ResultReport, ResultReports, WorkerHeartbeat
from headway.server.messages import as_message, describe_messages
from headway.server.problems import Problem

A_REPORT = {"task_id": "a", "status": "completed"}

WRONG: list[tuple[type[msgspec.Struct], Any, str, str]] = [
    (PollRequest, {}, "available_capacity", "required, but missing"),
    (PollRequest, {"available_capacity": 1, "waits": 3}, "waits", "unknown member"),
    (PollRequest, {"available_capacity": 10_001}, "available_capacity", "Expected `int` <= 10000"),
    (PollRequest, {"available_capacity": 1, "wait_seconds": float("nan")}, "wait_seconds", "Expected `float` >= 0.0"),
    (PollRequest, None, "body", "Expected `object`, got `null`"),
    (ResultReport, A_REPORT | {"status": "secret"}, "status", "expected one of cancelled, completed, crashed,"),
    (ResultReport, A_REPORT | {"task_id": "a\n"}, "task_id", "matching regex '^[0-9A-Za-z_-]+$'"),
    (ResultReport, A_REPORT | {"\ud800": 1}, "body", "unknown member"),
    (ResultReports, {"results": [A_REPORT, A_REPORT | {"fence": 7}]}, "results.1.fence", "Expected `str | null`"),
    (ResultReports, {"results": [A_REPORT] * 1_001}, "results", "Expected `array` of length <= 1000"),
    (WorkerHeartbeat, {"tasks": ["a"]}, "tasks.0", '{"task_id": "…", "fence": "…"}'),
    (RegisterRequest, {"capabilities": [], "tasks": [{"name": 5}]}, "tasks.0.name", "Expected `str`, got `int`"),
    (RegisterRequest, {"capabilities": [], "limits": {"": {}}}, "limits", "Expected `str` of length >= 1"),
    (RegisterRequest, {"capabilities": [], "protocol": 2}, "protocol", "expected one of 1"),
]


@pytest.mark.parametrize("kind, body, field, text", WRONG)
def test_a_problem_names_the_field_and_what_is_expected_but_not_the_value(
    kind: type[msgspec.Struct], body: Any, field: str, text: str
) -> None:
    with pytest.raises(Problem) as caught:
        as_message(body, kind)
    [error] = caught.value.facts["errors"]
    assert (caught.value.code, caught.value.status, error["field"]) == ("invalid", 422, field)
    assert text in error["text"]
    assert "secret" not in caught.value.detail


def test_requests_refuse_unknown_members_and_replies_promise_every_member() -> None:
    schemas = describe_messages()
    assert schemas["PollRequest"]["additionalProperties"] is False
    assert schemas["PollRequest"]["required"] == ["available_capacity"]
    assert schemas["PollReply"]["required"] == list(schemas["PollReply"]["properties"])
    assert "additionalProperties" not in schemas["PollReply"]
    assert schemas["ResultReply"]["required"] == ["acknowledged"]


def test_the_schema_has_examples_and_patterns_that_other_languages_read() -> None:
    schemas = describe_messages()
    assert schemas["RegisterRequest"]["examples"] == [{"capabilities": ["gpu"], "capacity": 5}]
    assert schemas["HeldTask"]["properties"]["task_id"]["pattern"] == "^[0-9A-Za-z_-]+$"
