"""Jobs in the admin: what is shown, who may do what."""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# (Django brings no types, and what pyright makes of its code is not always so.)

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from headway.integrations.django import queue
from headway.integrations.django.models import IOJob
from tests.integrations.django.conftest import both
from tests.integrations.django.shop import tasks

pytestmark = [pytest.mark.xdist_group("django"), both]

LIST = "/admin/ioqueue/iojob/"


def client_of(*permissions: str, superuser: bool = False) -> Client:
    """Log somebody in who has these permissions."""
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


def test_who_may_only_view_is_offered_no_action_and_has_none() -> None:
    client = client_of("view_iojob")
    job_id = tasks.add(1)
    assert "cancel_jobs" not in client.get(LIST).content.decode()
    act(client, "cancel_jobs", job_id)
    assert IOJob.objects.get(pk=job_id).state == "queued"


def test_who_may_not_view_sees_nothing() -> None:
    assert client_of().get(LIST).status_code == 403
    assert client_of("manage_iojob").get(LIST).status_code == 403
