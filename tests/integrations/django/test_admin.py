"""Jobs in the admin: the shown columns, and the permissions of each action."""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# (Django brings no types, and what pyright makes of its code is not always so.)

from __future__ import annotations

import json
import re
import urllib.parse

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils.html import escape

from headway.core.errors import JobError
from headway.core.policy.retry import Raised
from headway.integrations.django import queue
from headway.integrations.django.models import IOJob
from headway.observability.traces import shown_trace
from headway.stores.base import Heartbeat
from tests.conformance.builders import CONFIRM_MS, LEASE_MS, a_job, a_worker, claim_one, end, register, submit
from tests.integrations.django.conftest import both
from tests.integrations.django.shop import tasks

pytestmark = [pytest.mark.xdist_group("django"), both]

LIST = "/admin/ioqueue/iojob/"


def client_of(*permissions: str, superuser: bool = False) -> Client:
    """Return a client of a user with these permissions."""
    User.objects.all().delete()
    user = User.objects.create_user("ana", is_staff=True, is_superuser=superuser)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


def act(client: Client, action: str, *job_ids: str | None) -> str:
    answer = client.post(LIST, {"action": action, "_selected_action": list(job_ids)}, follow=True)
    assert answer.status_code == 200
    return str(answer.content.decode())


def test_the_list_shows_jobs_and_numbers() -> None:
    # R2.51
    client = client_of("view_iojob")
    job_id = tasks.add(1)
    tasks.fetch(2)
    page = client.get(LIST).content.decode()
    assert str(job_id) in page
    assert "<strong>2</strong> pending" in page
    assert "No worker lives" in page


def test_the_list_filters_and_searches() -> None:
    client = client_of("view_iojob")
    one, two = tasks.add(1), tasks.fetch.using(tenant="acme")(2)
    queue().cancel_jobs([str(one)])
    for query, shown in [
        ("?status__exact=error", one),
        ("?q=acme", two),
        ("?state__exact=queued", two),
        (f"?q={one}", one),
    ]:
        page = client.get(LIST + query).content.decode()
        assert str(shown) in page, query
        assert str(two if shown == one else one) not in page, query


def test_the_page_of_a_job_is_read_only() -> None:
    client = client_of(superuser=True)
    job_id = tasks.fetch(7, options={"text": "<b>"})
    page = client.get(f"{LIST}{job_id}/change/")
    assert page.status_code == 200
    text = page.content.decode()
    assert "&quot;paper_id&quot;: 7" in text
    assert "<b>" not in text.partition("paper_id")[2].partition("</pre>")[0]
    assert 'name="_save"' not in text
    assert "no worker" in text  # Why it waits.
    assert client.post(f"{LIST}{job_id}/change/", {"status": "done"}).status_code == 403
    assert client.post(f"{LIST}{job_id}/delete/", {"post": "yes"}).status_code == 403
    assert client.get(f"{LIST}add/").status_code == 403
    assert IOJob.objects.get(pk=job_id).status == "pending"


def test_jobs_are_cancelled_and_run_again() -> None:
    # R2.74
    client = client_of("view_iojob", "manage_iojob")
    job_id = tasks.add(1)
    assert "1 job cancelled" in act(client, "cancel_jobs", job_id)
    assert IOJob.objects.get(pk=job_id).state == "cancelled"
    assert "1 left as they are" in act(client, "cancel_jobs", job_id)
    assert "1 left as they are" in act(client, "replay_jobs", job_id)
    assert "1 job queued again" in act(client, "retry_jobs", job_id)
    assert IOJob.objects.get(pk=job_id).state == "queued"


XSS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg onload=alert(1)>",
    "</textarea><script>alert(1)</script>",
    "javascript:alert(1)",
    "{{ 7|add:7 }}{% now 'Y' %}",
]


async def make_hostile_jobs(text: str) -> list[str]:
    """Put jobs into the store whose every field is hostile: one waits, one runs, one has failed."""
    store = await queue().client.store()
    await register(store, text)
    hostile = {"task": text, "lane": text, "tenant": text, "trace_id": text, "unique_key": text}
    payload = b"\x01" + json.dumps({text: text}).encode()
    [failed] = await submit(store, a_job(**hostile, payload=payload, idempotency_key=text, max_retries=0))  # type: ignore[arg-type]
    lease = await claim_one(store, text)
    await end(store, lease, Raised(JobError(text, text, text)))
    [runs] = await submit(store, a_job(**hostile, payload=payload))  # type: ignore[arg-type]
    lease = await claim_one(store, text)
    await store.renew(Heartbeat(a_worker(text), LEASE_MS, CONFIRM_MS, [(lease.job_id, lease.token)]))
    [waits] = await submit(store, a_job(task=text, lane=text, tenant=text, payload=payload))
    return [failed, runs, waits]


def test_whatever_a_job_holds_is_text_on_every_page() -> None:
    # S-14
    client, text = client_of(superuser=True), " ".join(XSS)
    job_ids = queue().portal.run(make_hostile_jobs(text))
    quoted = urllib.parse.quote(text)
    pages = [LIST, f"{LIST}?q={quoted}", f"{LIST}?lane__exact={quoted}", f"{LIST}?{quoted}={quoted}", f"{LIST}?e=1"]
    pages += [f"{LIST}{job_id}/{page}/" for job_id in job_ids for page in ("change", "history")]
    shown = 0
    for page in pages:
        answer = client.get(page, follow=True)
        assert answer.status_code == 200, page
        body = answer.content.decode()
        shown += all(escape(part) in body for part in XSS)
        assert [part for part in XSS if "<" in part and part in body] == [], page
        assert not re.search(r"(?i)(href|src|action)\s*=\s*[\"']?\s*javascript:", body), page
    assert shown >= 4  # It was there to be seen, and unchanged.


VIEWS = ["", "add/", "{id}/change/", "{id}/history/", "{id}/delete/", "{id}/act/"]


@pytest.mark.parametrize("who", ["nobody", "a user who is not staff"])
def test_no_view_is_open_to_who_is_not_staff(who: str) -> None:
    # S-37, S-16
    job_id = tasks.add(1)
    User.objects.all().delete()
    client = Client()
    if who != "nobody":
        user = User.objects.create_user("bo", is_staff=False)
        user.user_permissions.set(Permission.objects.filter(codename__in=("view_iojob", "manage_iojob")))
        client.force_login(user)
    found = {str(pattern.pattern) for pattern in admin.site._registry[IOJob].urls}
    assert len(found) == len(VIEWS) + 1  # The last sends an old address to the new one.
    for view in (*VIEWS, "{id}/"):
        path = LIST + view.format(id=job_id)
        body = {"action": "cancel_jobs", "_selected_action": [job_id], "verb": "cancel"}
        for answer in (client.get(path), client.post(path, body)):
            assert answer.status_code == 302, path
            assert answer["location"].startswith("/admin/login/?next=/admin/"), answer["location"]
    assert IOJob.objects.get(pk=job_id).state == "queued"


def test_an_action_needs_the_token_against_forged_requests() -> None:
    # S-37
    job_id = tasks.add(1)
    client_of("view_iojob", "manage_iojob")
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.get())
    answer = client.post(LIST, {"action": "cancel_jobs", "_selected_action": [job_id]})
    assert answer.status_code == 403
    assert client.post(f"{LIST}{job_id}/act/", {"verb": "cancel"}).status_code == 403
    assert IOJob.objects.get(pk=job_id).state == "queued"


def test_who_may_only_view_is_offered_no_action_and_has_none() -> None:
    client = client_of("view_iojob")
    job_id = tasks.add(1)
    assert "cancel_jobs" not in client.get(LIST).content.decode()
    act(client, "cancel_jobs", job_id)
    assert IOJob.objects.get(pk=job_id).state == "queued"


def test_who_may_not_view_sees_nothing() -> None:
    assert client_of().get(LIST).status_code == 403
    assert client_of("manage_iojob").get(LIST).status_code == 403


def test_a_job_is_cancelled_and_retried_on_its_own_page() -> None:
    # R2.74
    client = client_of("view_iojob", "manage_iojob")
    job_id = str(tasks.add(1))
    page, act_on = f"{LIST}{job_id}/change/", f"{LIST}{job_id}/act/"
    shown = client.get(page).content.decode()
    assert f'action="{act_on}"' in shown
    assert ('value="cancel"' in shown, 'value="retry"' in shown) == (True, False)
    answer = client.post(act_on, {"verb": "cancel"}, follow=True)
    assert answer.redirect_chain == [(page, 302)]
    shown = answer.content.decode()
    assert "1 job cancelled" in shown
    assert ('value="cancel"' in shown, 'value="retry"' in shown) == (False, True)
    assert "1 job queued again" in client.post(act_on, {"verb": "retry"}, follow=True).content.decode()
    assert IOJob.objects.get(pk=job_id).state == "queued"


def test_the_buttons_of_a_job_are_for_who_may_use_them() -> None:
    # S-37
    job_id = str(tasks.add(1))
    client = client_of("view_iojob")
    assert 'value="cancel"' not in client.get(f"{LIST}{job_id}/change/").content.decode()
    assert client.post(f"{LIST}{job_id}/act/", {"verb": "cancel"}).status_code == 403
    assert client_of("manage_iojob").post(f"{LIST}{job_id}/act/", {"verb": "cancel"}).status_code == 403
    client = client_of("view_iojob", "manage_iojob")
    assert client.get(f"{LIST}{job_id}/act/").status_code == 405
    assert client.post(f"{LIST}{job_id}/act/", {"verb": "delete"}).status_code == 404
    assert client.post(f"{LIST}nowhere/act/", {"verb": "cancel"}).status_code == 404
    assert IOJob.objects.get(pk=job_id).state == "queued"


def test_moments_are_shown_to_the_millisecond_and_the_trace_as_in_the_log() -> None:
    client = client_of("view_iojob")
    job = IOJob.objects.get(pk=tasks.add(1))
    moment = job.queued_at.isoformat(" ", "milliseconds")[:23]
    shown = client.get(f"{LIST}{job.pk}/change/").content.decode()
    assert moment in shown
    assert shown_trace(None, job.pk) in shown
    assert moment[:19] in client.get(LIST).content.decode()
    traced = tasks.add.using(trace_id="00-aabb").enqueue(1)
    assert shown_trace("00-aabb", traced.id) in client.get(f"{LIST}{traced.id}/change/").content.decode()
