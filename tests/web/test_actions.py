"""Buttons change the store, scopes decide which buttons exist, and bulk changes need a confirmation."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from playwright.sync_api import expect

from tests.cli.command import until
from tests.conftest import ADDRESSES
from tests.web.browser import ROOT, WatchedPage
from tests.web.conftest import OpenPage
from tests.web.site import Site


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield a server and worker that only these tests change."""
    folder = tmp_path_factory.mktemp("shop")
    with Site(folder, ADDRESSES["sqlite"](folder)) as started:
        started.fill()
        yield started


def confirm(watched: WatchedPage, verb: str) -> None:
    """Confirm an action, and wait until it is done."""
    dialog = watched.page.get_by_role("dialog")
    dialog.get_by_role("button", name=re.compile(f"^{verb} [0-9,]+ job")).click()
    expect(dialog).to_have_count(0)
    expect(watched.page.locator(".acting progress")).to_have_count(0)


def test_a_waiting_job_is_cancelled_and_retried(shop: Site, open_page: OpenPage) -> None:
    job_id = shop.submit("reports.export", {"month": "2027-01"}, tenant="globex", priority="low")
    watched = open_page(f"{shop.ui}jobs/{job_id}")
    watched.button("Cancel").click()
    expect(watched.page.get_by_role("dialog")).to_contain_text("Cancel changes 1 job")
    confirm(watched, "Cancel")
    shop.wait_for(job_id, "cancelled")
    expect(watched.page.locator(".title .state")).to_have_text("cancelled")
    watched.button("Retry").click()
    confirm(watched, "Retry")
    shop.wait_for(job_id, "queued")
    expect(watched.page.locator(".title .state")).to_have_text("queued")


def test_a_job_changes_its_lane(shop: Site, open_page: OpenPage) -> None:
    job_id = shop.submit("reports.export", {"month": "2027-02"}, tenant="globex", priority="low")
    watched = open_page(f"{shop.ui}jobs/{job_id}")
    watched.button("Change lane").click()
    watched.page.get_by_role("combobox").select_option("high")
    confirm(watched, "Change lane")
    expect(watched.page.locator("dd", has_text="high").first).to_be_visible()
    assert shop.get(f"tasks/{job_id}")["priority"] == "high"


def test_a_delayed_job_runs_now(shop: Site, open_page: OpenPage) -> None:
    later = "2099-01-01T00:00:00Z"
    job_id = shop.submit("mail.send", {"to": "now@example.com"}, run_after=later, priority="high")
    watched = open_page(f"{shop.ui}jobs/{job_id}")
    watched.button("Run now").click()
    confirm(watched, "Run now")
    assert shop.wait_for(job_id, "completed")["result"] == "sent to now@example.com"


def test_keys_select_rows_and_an_action_changes_the_selection_only(shop: Site, open_page: OpenPage) -> None:
    ids = [
        shop.submit("reports.unknown", {"month": f"2028-0{number}"}, tenant="acme", priority="low")
        for number in (1, 2, 3)
    ]
    watched = open_page(f"{shop.ui}jobs?q=state:queued tenant:acme task:reports.*")
    expect(watched.page.locator("tbody tr")).to_have_count(3)
    for key in "jxjx":
        watched.page.keyboard.press(key)
    expect(watched.page.get_by_text("2 jobs selected")).to_be_visible()
    expect(watched.page.get_by_text("paused: 2 rows selected")).to_be_visible()
    bar = watched.page.locator(".acting")
    bar.get_by_role("button", name="Cancel", exact=True).click()
    confirm(watched, "Cancel")
    # The newest is the first row.
    assert [shop.get(f"tasks/{job_id}")["status"] for job_id in ids] == ["queued", "cancelled", "cancelled"]
    expect(watched.page.locator("tbody tr")).to_have_count(1)


def test_more_than_a_hundred_jobs_are_changed_after_their_number_is_typed(shop: Site, open_page: OpenPage) -> None:
    body = [{"task_type": "nobody.knows", "parameters": {"number": number}} for number in range(120)]
    shop.post("tasks/bulk", body)
    watched = open_page(f"{shop.ui}jobs?q=task:nobody.*")
    expect(watched.page.locator("tbody tr")).to_have_count(50)
    watched.page.locator(".row", has_text="All that match").get_by_role(
        "button", name="Cancel", exact=True
    ).last.click()
    dialog = watched.page.get_by_role("dialog")
    expect(dialog).to_contain_text("Cancel changes 120 jobs")
    button = dialog.get_by_role("button", name="Cancel 120 jobs")
    expect(button).to_be_disabled()
    dialog.get_by_label("Type 120 to confirm").fill("119")
    expect(button).to_be_disabled()
    dialog.get_by_label("Type 120 to confirm").fill("120")
    confirm(watched, "Cancel")
    expect(watched.page.get_by_text("Cancelled: 120 jobs.")).to_be_visible()
    assert shop.get("tasks", q="task:nobody.* state:queued")["items"] == []
    assert len(shop.get("tasks", q="task:nobody.* state:cancelled", limit=500)["items"]) == 120


def test_dead_letters_are_replayed_and_purged_by_group(shop: Site, open_page: OpenPage) -> None:
    ids = [shop.submit("billing.charge", {"invoice": number}, priority="high") for number in (9, 10)]
    before = [shop.wait_for(job_id, "dead_letter") for job_id in ids]
    watched = open_page(f"{shop.ui}dead-letters")
    expect(watched.row("billing.charge").locator("td").nth(1)).to_have_text("4")
    watched.row("billing.charge").get_by_role("button", name="Replay").click()
    confirm(watched, "Replay")
    for task in before:  # They fail again.
        assert shop.wait_for(task["task_id"], "dead_letter")["epoch"] == task["epoch"] + 1
    watched.row("billing.charge").get_by_role("button", name="Purge").click()
    confirm(watched, "Purge")
    expect(watched.page.get_by_text("There are no dead letters.")).to_be_visible()
    assert shop.get("dlq")["items"] == []


def test_a_lane_and_a_tenant_are_paused_and_resumed(shop: Site, open_page: OpenPage) -> None:
    watched = open_page(shop.ui)
    watched.button("Pause low").click()
    expect(watched.button("Resume low")).to_be_visible()
    assert shop.get("pauses")["lanes"] == ["low"]
    watched.button("Resume low").click()
    expect(watched.button("Pause low")).to_be_visible()
    assert shop.get("pauses")["lanes"] == []
    watched.page.goto(f"{shop.ui}tenants")
    watched.button("Pause globex").click()
    expect(watched.button("Resume globex")).to_be_visible()
    assert shop.get("pauses")["tenants"] == ["globex"]
    watched.button("Resume globex").click()
    expect(watched.button("Pause globex")).to_be_visible()


def test_a_cron_runs_now_and_is_paused(shop: Site, open_page: OpenPage) -> None:
    watched = open_page(f"{shop.ui}crons")
    watched.page.get_by_role("button", name="Run now: reports.nightly").click()
    expect(watched.row("reports.nightly").locator(".state")).not_to_have_count(0)
    (cron,) = shop.get("crons")["items"]
    assert cron["last"]["task_id"] in watched.page.locator(".toast").first.inner_text()
    watched.button("Pause reports.nightly").click()
    expect(watched.button("Resume reports.nightly")).to_be_visible()
    assert shop.get("crons")["items"][0]["paused"] is True


def test_a_policy_is_applied_and_rolled_back(shop: Site, open_page: OpenPage) -> None:
    watched = open_page(f"{shop.ui}policy")
    watched.page.get_by_label("Weight of low").fill("2")
    watched.button("Apply as the next version").click()
    dialog = watched.page.get_by_role("dialog", name="Apply as version 2")
    expect(dialog.locator(".diff .add")).to_have_text(re.compile('"weight": 2'))
    dialog.get_by_label("Why").fill("low waits too long")
    dialog.get_by_role("button", name="Apply").click()
    expect(watched.page.get_by_text("low waits too long").first).to_be_visible()
    policy = shop.get("policy")
    assert (policy["version"], policy["note"]) == (2, "low waits too long")
    assert policy["policy"]["lanes"]["low"]["weight"] == 2
    watched.button("Compare with the one before").click()
    watched.button("Roll back to version 1").click()
    expect(watched.page.get_by_text("version 3", exact=False).first).to_be_visible()
    assert shop.get("policy")["policy"]["lanes"]["low"]["weight"] == 1


def test_what_cannot_be_applied_is_named(shop: Site, open_page: OpenPage) -> None:
    watched = open_page(f"{shop.ui}policy")
    watched.expected = ("status of 422",)
    editor = watched.page.get_by_label("The policy as JSON")
    editor.fill('{"lanez": {}}')
    watched.button("Check").click()
    expect(watched.page.get_by_role("alert")).to_contain_text("lanez")
    editor.fill("{")
    expect(watched.page.get_by_role("alert")).to_contain_text("The draft is not JSON")
    expect(watched.button("Apply as the next version")).to_be_disabled()


LEARN = """
import asyncio, sys
from headway.stores.open import open_store
from tests.estimates.lanes import learn_lanes

async def main():
    store = open_store(sys.argv[1], "default")
    await store.open()
    await learn_lanes(store, seconds=30.0, task="images.resize")
    await store.close()

asyncio.run(main())
"""


def put_policy(site: Site, policy: dict[str, Any]) -> int:
    """Apply a policy over HTTP. Return its version."""
    answer = httpx.put(f"{site.address}/api/v1/policy", json=policy, timeout=20).raise_for_status()
    return int(answer.json()["version"])


def test_what_if_names_who_gains_and_a_version_applied_meanwhile(
    tmp_path_factory: pytest.TempPathFactory, open_page: OpenPage
) -> None:
    folder = tmp_path_factory.mktemp("what-if")
    with Site(folder, ADDRESSES["sqlite"](folder)) as site:
        subprocess.run([sys.executable, "-c", LEARN, site.store], cwd=ROOT, check=True)
        policy = site.get("policy")["policy"] | {"limits": {"resizes": {"concurrency": 1, "tasks": ["images.*"]}}}
        assert put_policy(site, policy) == 2
        running = site.submit("images.resize", {"path": "/0.png"})
        site.wait_for(running, "executing")
        for number in range(10):
            site.submit("images.resize", {"path": f"/{number}.png"}, tenant="acme", priority="low")
        until(lambda: site.post("forecast", {})["limits"])
        watched = open_page(f"{site.ui}policy")
        watched.expected = ("status of 409",)
        before = watched.row("resizes").locator("td")
        expect(before.nth(3)).to_have_text("same")
        watched.page.get_by_label("Limit resizes").fill("3")
        expect(watched.page.get_by_role("status").filter(has_text="Gains:")).to_contain_text("resizes −")
        expect(before.nth(3)).to_have_class(re.compile("num"))
        expect(before.nth(3)).to_contain_text("−")
        expect(watched.page.get_by_label("The policy as JSON")).to_have_value(re.compile('"concurrency": 3'))
        # Another operator is faster while the dialog is open.
        watched.button("Apply as the next version").click()
        dialog = watched.page.get_by_role("dialog", name="Apply as version 3")
        assert put_policy(site, policy | {"max_depth": 1_000}) == 3
        dialog.get_by_role("button", name="Apply").click()
        told = "version 3 was applied meanwhile, and this policy is based on 2"
        expect(watched.page.locator(".toast").filter(has_text=told)).to_be_visible()
        dialog.get_by_role("button", name="Keep the draft").click()
        expect(watched.page.get_by_role("alert")).to_contain_text("Version 3 was applied meanwhile")
        expect(watched.button("Apply as the next version")).to_be_disabled()
        assert site.get("policy")["version"] == 3
        watched.button("Reset").click()
        watched.page.get_by_label("Limit resizes").fill("2")
        watched.button("Apply as the next version").click()
        watched.page.get_by_role("dialog", name="Apply as version 4").get_by_role("button", name="Apply").click()
        expect(watched.page.get_by_text("version 4", exact=False).first).to_be_visible()
        applied = site.get("policy")["policy"]
        assert (applied["limits"]["resizes"]["concurrency"], applied["max_depth"]) == (2, 1_000)
        watched.page.goto("about:blank")


def test_a_worker_is_drained(tmp_path_factory: pytest.TempPathFactory, open_page: OpenPage) -> None:
    folder = tmp_path_factory.mktemp("drained")
    with Site(folder, ADDRESSES["sqlite"](folder)) as site:
        (worker,) = site.get("workers")["workers"]
        site.wait_for(site.submit("images.resize", {"path": "/a.png"}), "executing")
        watched = open_page(f"{site.ui}workers")
        watched.button("Drain").click()
        watched.page.get_by_role("dialog").get_by_role("button", name="Drain").click()
        expect(watched.row(worker["worker_id"]).locator(".state")).to_have_text("draining")
        assert site.get("workers")["workers"][0]["status"] == "draining"
        watched.page.goto("about:blank")  # The server goes with the worker.


class Tokens(NamedTuple):
    """A server that requires tokens, and some of them."""

    site: Site
    admin: str
    reader: str
    tenant: str


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokens]:
    folder = tmp_path_factory.mktemp("guarded")
    with Site(folder, ADDRESSES["sqlite"](folder), HEADWAY_UI_LABEL="production <b>") as site:
        site.fill()
        yield Tokens(site, *create_tokens(site, "--scope admin", "--scope read", "--scope read --tenant acme"))


def create_tokens(site: Site, *options: str) -> list[str]:
    """Create tokens by the command, in one process for all of them."""
    code = "import sys; from headway.cli.main import main; [main(words.split()) for words in sys.argv[1:]]"
    commands = [f"token create --json --store {site.store} {one}" for one in options]
    done = subprocess.run([sys.executable, "-c", code, *commands], cwd=site.cli.folder, capture_output=True, check=True)
    return re.findall(r'"token": "(\w[^"]*)"', done.stdout.decode())


def sign_in(watched: WatchedPage, token: str) -> None:
    watched.page.get_by_label("Token").fill(token)
    watched.button("Sign in").click()
    expect(watched.page.get_by_role("navigation")).to_be_visible()


def test_a_page_asks_for_a_token_and_a_wrong_one_is_refused(guarded: Tokens, open_page: OpenPage) -> None:
    watched = open_page(f"{guarded.site.ui}jobs")
    watched.expected = ("status of 401",)
    watched.page.get_by_label("Token").fill("hw_0000000000000000_wrong")
    watched.button("Sign in").click()
    expect(watched.page.get_by_role("alert")).to_contain_text("token that is known")
    assert watched.accessibility_problems() == []
    sign_in(watched, guarded.admin)
    expect(watched.page.get_by_role("heading", level=1, name="Jobs")).to_be_visible()
    cookies = watched.page.context.cookies()
    assert [(cookie.get("httpOnly"), cookie.get("sameSite")) for cookie in cookies] == [(True, "Strict")]
    assert watched.page.evaluate("document.cookie") == ""
    watched.page.reload()
    expect(watched.page.get_by_role("heading", level=1, name="Jobs")).to_be_visible()
    watched.page.get_by_role("button", name="operator").click()
    watched.button("Sign out").click()
    expect(watched.page.get_by_label("Token")).to_be_visible()
    watched.page.reload()
    expect(watched.page.get_by_label("Token")).to_be_visible()


def test_a_session_ends_with_its_token(guarded: Tokens, open_page: OpenPage) -> None:
    created = guarded.site.cli.run("token", "create", "--scope", "read", "--json", "--store", guarded.site.store).json
    watched = open_page(f"{guarded.site.ui}jobs")
    watched.expected = ("status of 401",)
    sign_in(watched, created["token"])
    expect(watched.row("mail.send").first).to_be_visible()
    guarded.site.cli.run("token", "revoke", created["id"], "--store", guarded.site.store)
    expect(watched.page.get_by_label("Token")).to_be_visible()


VERBS = re.compile("^(Cancel|Retry|Run now|Change lane|Pause|Resume|Drain|Replay|Purge|Apply|Roll back)")


def test_a_reader_sees_no_buttons_and_an_operator_does(guarded: Tokens, open_page: OpenPage) -> None:
    job_id = httpx.get(
        f"{guarded.site.address}/api/v1/tasks",
        params={"q": "state:queued task:reports.*"},
        headers={"Authorization": f"Bearer {guarded.reader}"},
    ).json()["items"][0]["task_id"]
    reader, operator = open_page(guarded.site.ui), open_page(guarded.site.ui)
    sign_in(reader, guarded.reader)
    sign_in(operator, guarded.admin)
    for path in ("", "jobs?q=state:queued", f"jobs/{job_id}", "tenants", "workers", "dead-letters", "crons", "policy"):
        for watched, buttons in ((operator, True), (reader, False)):
            watched.page.goto(guarded.site.ui + path)
            watched.page.locator(".card").first.wait_for()
            if buttons:
                expect(watched.page.get_by_role("button", name=VERBS)).not_to_have_count(0)
            else:
                expect(watched.page.get_by_role("button", name=VERBS)).to_have_count(0)
                expect(watched.page.get_by_role("checkbox")).to_have_count(0)


def test_a_token_of_a_tenant_sees_that_tenant_only(guarded: Tokens, open_page: OpenPage) -> None:
    watched = open_page(guarded.site.ui)
    sign_in(watched, guarded.tenant)
    expect(watched.page.get_by_role("heading", level=1, name="Jobs")).to_be_visible()
    expect(watched.row("mail.send").first).to_be_visible()
    expect(watched.row("globex")).to_have_count(0)
    expect(watched.page.get_by_role("navigation").get_by_role("link", name="Workers")).to_have_count(0)
    watched.page.goto(f"{guarded.site.ui}workers")
    expect(watched.page.get_by_text("Your token is for one tenant")).to_be_visible()


def test_the_label_of_the_environment_is_shown_as_text(guarded: Tokens, open_page: OpenPage) -> None:
    watched = open_page(guarded.site.ui)
    sign_in(watched, guarded.reader)
    label = watched.page.locator(".label")
    expect(label).to_have_text("production <b>")
    assert label.evaluate("label => getComputedStyle(label).backgroundColor") == "rgb(179, 38, 30)"
