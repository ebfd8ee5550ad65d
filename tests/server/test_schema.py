"""Only documented replies, for any request, and never an internal error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import CHECKS

from headway.security.tokens import create_token
from headway.server.api import headway_api
from headway.server.auth import FailureLimiter
from headway.server.problems import STATUSES
from headway.server.uvicorn_server import UvicornServer, address_of, bind
from tests.server.conftest import make_app

pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")

API = headway_api(make_app("memory://"))
API.state.service.limiter = FailureLimiter(most=1_000_000)  # Attempts with a wrong token are part of it.
SCHEMA = API.openapi()
# A live view has no end that a reader could wait for.
schema = schemathesis.openapi.from_dict(SCHEMA).exclude(path="/api/v1/live")

# A lane, a task's parameters and much else can be well formed and still be refused.
EXCLUDED = [CHECKS.get_one("positive_data_acceptance")]
NEGATIVE = CHECKS.get_one("negative_data_rejection")
FEW = settings(
    max_examples=5,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
MANY = settings(FEW, max_examples=1_000)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, str]]:
    """Serve the application in a thread. Yields its address and a token with all rights."""
    listener = bind("127.0.0.1", 0)
    server = UvicornServer(API, listener, service=API.state.service)
    made: list[str] = []
    ready = threading.Event()

    async def main() -> None:
        store = await API.state.service.store()
        _, text = await create_token(store, ["admin"], now_at=1)
        made.append(text)
        ready.set()
        await server.run_here()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    ready.wait(10)
    yield address_of(listener), made[0]
    server.leave()
    thread.join()
    listener.close()


def check(case: Any, served: tuple[str, str]) -> None:
    address, token = served
    headers = {"Authorization": f"Bearer {token}"}
    # An empty list or object leaves no trace in an address: what should be refused is not even sent.
    unsent = any(value in ([], {}) for value in (case.query or {}).values())
    excluded = [*EXCLUDED, NEGATIVE] if unsent else EXCLUDED
    case.call_and_validate(base_url=address, headers=headers, excluded_checks=excluded, timeout=40)


@schema.parametrize()
@FEW
def test_every_operation_keeps_to_the_schema(case: Any, served: tuple[str, str]) -> None:
    check(case, served)


@pytest.mark.proof
@schema.parametrize()
@MANY
def test_every_operation_keeps_to_the_schema_a_thousand_times(case: Any, served: tuple[str, str]) -> None:
    check(case, served)


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in SCHEMA["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def test_no_answer_is_a_catch_all() -> None:
    for name, operation in operations():
        assert all(status.isdecimal() for status in operation["responses"]), name


def test_every_operation_says_what_it_is_for_and_who_may_use_it() -> None:
    public = {"GET /healthz", "GET /readyz", "GET /api/v1/session", "POST /api/v1/session", "DELETE /api/v1/session"}
    for name, operation in operations():
        assert operation["summary"], name
        assert operation["description"], name
        assert bool(operation["security"]) == (name not in public), name


def test_every_problem_is_one_document_with_codes_that_exist() -> None:
    for name, operation in operations():
        for status, response in operation["responses"].items():
            if int(status) < 400:
                continue
            assert response["content"].keys() == {"application/problem+json"}, (name, status)
            codes = response["content"]["application/problem+json"]["schema"]["properties"]["code"]["enum"]
            assert {STATUSES[code] for code in codes} == {int(status)}, (name, status)


def test_every_body_is_json() -> None:
    for name, operation in operations():
        body = operation.get("requestBody")
        if body is not None:
            assert body["content"].keys() == {"application/json"}, name


def test_the_schema_declares_its_tags_and_its_license() -> None:
    used = {tag for _, operation in operations() for tag in operation["tags"]}
    assert {tag["name"] for tag in SCHEMA["tags"]} == used
    assert all(tag["description"] for tag in SCHEMA["tags"])
    assert SCHEMA["info"]["license"] == {"name": "MIT", "identifier": "MIT"}
