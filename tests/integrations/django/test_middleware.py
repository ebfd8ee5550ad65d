"""The trace id of a request is carried into the jobs it submits."""

# pyright: reportArgumentType=false
# (Django brings no types, and what pyright makes of its code is not always so.)

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.http import HttpResponse
from django.test import RequestFactory

from headway.integrations.django.middleware import request_trace, trace_middleware
from headway.integrations.django.models import IOJob
from tests.integrations.django.conftest import both
from tests.integrations.django.shop import tasks

pytestmark = [pytest.mark.xdist_group("django"), both]

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def view(_: Any) -> HttpResponse:
    return HttpResponse(tasks.add(1))


async def aview(_: Any) -> HttpResponse:
    return HttpResponse(await tasks.add.asend(1))


def trace_of(response: Any) -> str:
    return str(IOJob.objects.get(pk=response.content.decode()).trace_id)


@pytest.mark.parametrize(
    "headers, trace",
    [
        ({"X-Request-ID": "r-17"}, "r-17"),
        ({"traceparent": PARENT, "X-Request-ID": "r-17"}, PARENT),
        ({"X-Request-ID": "x" * 201}, None),
        ({}, None),
    ],
    ids=["request id", "traceparent", "overlong", "none"],
)
def test_a_job_has_the_trace_id_of_its_request(headers: dict[str, str], trace: str | None) -> None:
    request = RequestFactory().get("/", headers=headers)
    found = trace_of(trace_middleware(view)(request))
    assert found == trace if trace else len(found) == 32
    assert request_trace.get() is None


def test_an_async_view_does_too() -> None:
    request = RequestFactory().get("/", headers={"X-Request-ID": "r-18"})
    assert trace_of(async_to_sync(trace_middleware(aview))(request)) == "r-18"


def test_a_trace_id_that_the_call_names_stays() -> None:
    def named(_: Any) -> HttpResponse:
        return HttpResponse(tasks.add.using(trace_id="mine")(1))

    request = RequestFactory().get("/", headers={"X-Request-ID": "r-19"})
    assert trace_of(trace_middleware(named)(request)) == "mine"


def test_without_the_middleware_a_job_has_none() -> None:
    assert IOJob.objects.get(pk=tasks.add(1)).trace_id == ""
