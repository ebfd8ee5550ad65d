"""Every screen shows the state of the store in a real browser, without errors, and is accessible."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

from tests.conftest import ADDRESSES
from tests.web.conftest import OpenPage
from tests.web.site import Site

SCREENS = {
    "": "Now",
    "jobs": "Jobs",
    "tenants": "Tenants",
    "limits": "Limits",
    "workers": "Workers",
    "dead-letters": "Dead letters",
    "crons": "Crons",
    "batches": "Batches",
    "policy": "Policy",
    "system": "System",
}


def test_the_navigation_leads_to_every_screen(site: Site, open_page: OpenPage) -> None:
    watched = open_page(site.ui)
    watched.expected = ("status of 404",)  # Of batches, if this release has no such route.
    for path, name in SCREENS.items():
        watched.page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()
        expect(watched.page.get_by_role("heading", level=1, name=name, exact=True)).to_be_visible()
        assert watched.page.url == site.ui + path
        expect(watched.page).to_have_title(f"{name} · Headway")


def test_now_shows_lanes_slots_and_reasons(site: Site, open_page: OpenPage) -> None:
    watched = open_page(site.ui)
    lanes = site.get("queue/overview")["lanes"]
    for lane in lanes:
        cells = watched.row(lane["name"]).locator("td")
        expect(cells.nth(1)).to_contain_text(str(lane["waiting"]))
        expect(cells.nth(2)).to_have_text(str(lane["running"]))
    assert sum(lane["waiting"] for lane in lanes) == 5
    expect(watched.page.locator(".five div", has_text="waiting").first.locator("dd")).to_have_text("5")
    expect(watched.page.locator(".five div", has_text="running").locator("dd")).to_have_text("3")
    expect(watched.page.get_by_role("heading", name="What waiting jobs wait for")).to_be_visible()
    expect(watched.page.get_by_text("of 4 slots used")).to_be_visible()


def test_a_waiting_job_draws_how_its_estimate_has_changed(site: Site, open_page: OpenPage) -> None:
    task = site.get("tasks", q="state:queued task:reports.export")["items"][0]
    reply = site.get(f"tasks/{task['task_id']}")
    replies = 0

    def answer(route: Route) -> None:
        nonlocal replies
        replies += 1
        estimate = {"position": 3, "p50": 60.0 / replies, "p90": 120.0 / replies, "basis": "learned"}
        route.fulfill(json=reply | {"estimate": estimate})

    watched = open_page(site.ui)
    watched.page.route(f"**/api/v1/tasks/{task['task_id']}?**", answer)
    watched.page.goto(f"{site.ui}jobs/{task['task_id']}")
    band = watched.page.get_by_role("img", name="The estimate in the last")
    expect(band).to_have_attribute("aria-label", re.compile(r"from 1m to \d+(\.\d)? s \(p50\), at most 2m"))
    points = (band.locator("path.line").get_attribute("d") or "").count(",")
    assert 2 <= points <= replies


def test_jobs_show_why_each_waits_and_when_it_starts(site: Site, open_page: OpenPage) -> None:
    watched = open_page(f"{site.ui}jobs?q=state:queued task:reports.export")
    rows = watched.row("reports.export")
    expect(rows).to_have_count(len(site.get("tasks", q="state:queued task:reports.export")["items"]))
    task = site.get("tasks", q="state:queued task:reports.export", explain=True)["items"][0]
    row = watched.row(task["payload"]["parameters"]["month"])
    expect(row).to_contain_text(task["why"][0]["text"].split(" (")[0])
    expect(row.get_by_role("link", name="reports.export")).to_have_attribute("href", f"/ui/jobs/{task['task_id']}")
    expect(row).to_contain_text("globex")
    expect(row.locator("td:last-child :is(.range, .soft)")).to_be_visible()


def test_a_job_shows_what_it_is_and_why_it_waits(site: Site, open_page: OpenPage) -> None:
    task = site.get("tasks", q="state:queued task:reports.export", explain=True)["items"][0]
    watched = open_page(f"{site.ui}jobs/{task['task_id']}")
    expect(watched.page.get_by_role("heading", level=1)).to_have_text("reports.export")
    reasons = site.get(f"tasks/{task['task_id']}/why")["reasons"]
    for reason in reasons:
        expect(watched.page.get_by_text(reason["code"], exact=True).first).to_be_visible()
    assert reasons[0]["code"] in ("ladder", "limit", "slots_full", "reserved")
    expect(watched.page.get_by_role("heading", name="Arguments")).to_be_visible()
    expect(watched.page.locator("pre").first).to_contain_text(task["payload"]["parameters"]["month"])
    expect(watched.page.get_by_text(re.compile("Not known yet|p50 to p90"))).to_be_visible()


def test_a_job_with_any_number_of_retries_says_so(site: Site, open_page: OpenPage) -> None:
    later = "2099-01-01T00:00:00Z"  # No worker runs it, since other tests count what runs.
    job_id = site.submit("mail.send", {"to": "many@example.com"}, run_after=later, max_retries=1_000_000)
    watched = open_page(f"{site.ui}jobs/{job_id}")
    expect(watched.page.get_by_text("of any number")).to_be_visible()


def test_a_finished_job_shows_its_result_and_a_failed_one_its_error(site: Site, open_page: OpenPage) -> None:
    done = site.get("tasks", q="state:completed task:mail.send")["items"][0]
    watched = open_page(f"{site.ui}jobs/{done['task_id']}")
    expect(watched.page.get_by_text(f"sent to {done['payload']['parameters']['to']}")).to_be_visible()
    expect(watched.page.get_by_role("heading", name="What it waited for")).to_be_visible()
    dead = site.get("tasks", q="state:dead_letter")["items"][0]
    watched.page.goto(f"{site.ui}jobs/{dead['task_id']}")
    expect(watched.page.get_by_text("ValueError").first).to_be_visible()
    expect(watched.page.get_by_text("was declined").first).to_be_visible()
    expect(watched.page.locator("pre", has_text="Traceback").first).to_be_visible()


def test_a_finished_job_shows_what_it_had_waited_for(site: Site, open_page: OpenPage) -> None:
    task = site.get("tasks", q="state:completed task:mail.send")["items"][0]
    watched = open_page(f"{site.ui}jobs")
    reasons = {"waited_seconds": {"slots_full": 3.0, "lane": 1.0}, "passed_over": 2, "reasons": [], "task_id": "x"}
    watched.page.route("**/why", lambda route: route.fulfill(json=reasons))
    watched.page.goto(f"{site.ui}jobs/{task['task_id']}")
    bar = watched.page.get_by_role("img", name="slots_full 3 s, lane 1 s")
    expect(bar).to_be_visible()
    widths = [part.evaluate("part => part.style.width") for part in bar.locator("span").all()]
    assert widths == ["75%", "25%"]
    expect(watched.page.get_by_text("2 later jobs of its lane and tenant started before it.")).to_be_visible()


def test_a_running_job_shows_its_progress(site: Site, open_page: OpenPage) -> None:
    task = site.get("tasks", q="state:executing task:images.resize")["items"][0]
    watched = open_page(f"{site.ui}jobs/{task['task_id']}")
    expect(watched.page.get_by_text("tile 2 of 5")).to_be_visible()
    expect(watched.page.get_by_role("progressbar")).to_have_attribute("value", "0.4")


def test_tenants_show_their_share_and_what_they_are_entitled_to(site: Site, open_page: OpenPage) -> None:
    watched = open_page(f"{site.ui}tenants")
    tenants = {item["tenant"]: item for item in site.get("tenants")["items"]}
    assert tenants.keys() >= {"acme", "globex"}
    for name in ("acme", "globex"):
        cells = watched.row(name).locator("td")
        expect(cells.nth(1)).to_have_text(f"{tenants[name]['weight']:g}")
        expect(cells.nth(3)).to_have_text(str(tenants[name]["running"]))
        expect(cells.nth(4)).to_have_text(str(tenants[name]["waiting"]))
        expect(cells.nth(2).get_by_role("img")).to_have_attribute("aria-label", re.compile("entitled to"))
    watched.page.get_by_label("Filter tenants by name").fill("glob")
    expect(watched.page.locator("tbody tr")).to_have_count(1)


def test_limits_show_the_ladder_with_who_sits_on_it(site: Site, open_page: OpenPage) -> None:
    watched = open_page(f"{site.ui}limits")
    found = site.get("limits")
    names = [item["name"] for item in found["items"]]
    assert len(names) == 1
    expect(watched.row(names[0])).to_contain_text("by account")
    for rung in found["ladder"]["rungs"]:
        expect(watched.page.locator(".rung header", has_text=rung["name"])).to_be_visible()
    sitter = found["ladder"]["tasks"][0]
    inner = watched.page.locator(".rung", has_text=sitter["rung"]).last
    expect(inner.get_by_role("link", name=sitter["task_type"]).first).to_be_visible()
    expect(watched.page.locator(".rung .rung .rung")).to_have_count(1)


def test_workers_show_their_slots_and_jobs(site: Site, open_page: OpenPage) -> None:
    watched = open_page(f"{site.ui}workers")
    (worker,) = site.get("workers")["workers"]
    row = watched.row(worker["worker_id"])
    expect(row).to_contain_text(f"{worker['current_load']} of {worker['capacity']}")
    expect(row.locator(".slots i")).to_have_count(4)
    assert len(worker["current_tasks"]) == worker["current_load"] == 3
    for job_id in worker["current_tasks"]:
        expect(row.get_by_role("link", name=job_id[-8:])).to_be_visible()


def test_dead_letters_are_grouped_by_task_and_error(site: Site, open_page: OpenPage) -> None:
    watched = open_page(f"{site.ui}dead-letters")
    row = watched.row("billing.charge")
    expect(row).to_contain_text("ValueError")
    expect(row.locator("td").nth(1)).to_have_text(str(site.get("dlq/groups")["groups"][0]["count"]))
    row.get_by_role("link", name="billing.charge").click()
    expect(watched.page.get_by_role("searchbox")).to_have_value(re.compile("task:billing.charge"))
    expect(watched.row("billing.charge").first).to_be_visible()


def test_crons_show_their_schedule_in_words(site: Site, open_page: OpenPage) -> None:
    watched = open_page(f"{site.ui}crons")
    row = watched.row("reports.nightly")
    expect(row).to_contain_text("Monday to Friday at 03:00")
    expect(row).to_contain_text("Europe/Paris")
    expect(row.locator("time")).not_to_have_count(0)


def test_the_policy_shows_its_version_and_what_another_would_change(site: Site, open_page: OpenPage) -> None:
    watched = open_page(f"{site.ui}policy")
    expect(watched.page.get_by_text("version 1")).to_be_visible()
    expect(watched.page.get_by_label("The policy as JSON")).to_have_value(re.compile('"acme": 3'))
    with watched.page.expect_request("**/forecast") as request:
        watched.page.get_by_label("Slots", exact=False).first.fill("12")
    assert request.value.post_data_json == {"slots": 12}
    after = site.post("forecast", {"slots": 12})["lanes"]["high"]["after"]
    assert (after["p50"], after["p90"]) == (0, 0)
    expect(watched.row("high").first.locator("td").nth(2)).to_contain_text("at once")
    watched.page.get_by_label("Weight of low").fill("9")
    expect(watched.page.get_by_label("The policy as JSON")).to_have_value(re.compile('"weight": 9'))
    expect(watched.button("Apply as the next version")).to_be_enabled()
    watched.button("Check").click()
    expect(watched.page.get_by_role("status").filter(has_text=re.compile("valid", re.IGNORECASE))).to_be_visible()


def test_the_system_page_shows_checks_store_and_audit(site: Site, open_page: OpenPage) -> None:
    watched = open_page(f"{site.ui}system")
    found = site.get("system")
    for check in found["checks"]:
        row = watched.page.locator(
            "tbody tr", has=watched.page.get_by_role("rowheader", name=check["name"], exact=True)
        )
        text = re.split(r"\d[\d.]*", check["detail"][:20])[-1].strip()  # Free space changes while the test runs.
        expect(row).to_contain_text(text)
    for value in found["store"].values():
        expect(watched.page.locator("dd", has_text=str(value)).first).to_be_visible()
    expect(watched.row("policy.put").first).to_contain_text("version 1")


@pytest.mark.parametrize("path", ["", "jobs", "tenants", "dead-letters", "workers", "limits"])
def test_main_screens_work_on_other_stores(other_site: Site, open_page: OpenPage, path: str) -> None:
    watched = open_page(other_site.ui + path)
    expect(watched.page.get_by_role("heading", level=1, name=SCREENS[path], exact=True)).to_be_visible()
    (worker,) = other_site.get("workers")["workers"]
    shown = {
        "": "high",
        "jobs": "reports.export",
        "tenants": "globex",
        "dead-letters": "billing.charge",
        "workers": worker["worker_id"],
        "limits": "by account",
    }
    expect(watched.row(shown[path]).first).to_be_visible()
    expect(watched.page.locator(".problem")).to_have_count(0)


@pytest.fixture
def long_list(tmp_path: Path) -> Iterator[Site]:
    """Yield a server with 500 waiting jobs and no worker."""
    with Site(tmp_path, ADDRESSES["sqlite"](tmp_path), worker=False) as started:
        started.post("tasks/bulk", [{"task_type": "a.b", "parameters": {"number": one}} for one in range(500)])
        yield started


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_screens_are_accessible(site: Site, open_page: OpenPage, theme: str) -> None:
    watched = open_page(site.ui, color_scheme=theme)
    watched.expected = ("status of 404",)
    for path, name in SCREENS.items():
        watched.page.goto(site.ui + path)
        expect(watched.page.get_by_role("heading", level=1, name=name, exact=True)).to_be_visible()
        watched.page.locator(".card").first.wait_for()
        assert watched.accessibility_problems(contrast_only=theme == "dark") == [], name
    task = site.get("tasks", q="state:queued task:reports.export")["items"][0]
    watched.page.goto(f"{site.ui}jobs/{task['task_id']}")
    watched.page.locator(".timeline").wait_for()
    assert watched.accessibility_problems(contrast_only=theme == "dark") == []
    watched.page.keyboard.press("?")
    expect(watched.page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    assert watched.accessibility_problems(contrast_only=theme == "dark") == []


@pytest.mark.parametrize("width", [390, 1100])
def test_screens_fit_narrow_windows(site: Site, open_page: OpenPage, width: int) -> None:
    """No page and no table is wider than the window, so that its buttons can be seen."""
    watched = open_page(site.ui, viewport={"width": width, "height": 844})
    watched.expected = ("status of 404",)
    for path, name in SCREENS.items():
        watched.page.goto(site.ui + path)
        expect(watched.page.get_by_role("heading", level=1, name=name, exact=True)).to_be_visible()
        watched.page.locator(".card").first.wait_for()
        assert watched.page.evaluate("document.documentElement.scrollWidth") == width, name
        wide = "[...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth).length"
        assert watched.page.evaluate(wide) == 0, name


@pytest.mark.parametrize(
    "path, says",
    [
        ("", "Nothing waits."),
        ("jobs", "There are no jobs yet."),
        ("tenants", "No job has a tenant."),
        ("limits", "There are no limits."),
        ("workers", "No worker runs."),
        ("dead-letters", "There are no dead letters."),
        ("crons", "There are no crons."),
        ("batches", "There are no batches yet."),
        ("policy", "No policy was applied yet"),
        ("jobs/01999e2f-9d1c-7cc0-8a1e-5f1d6c3b2a10", "There is no such job."),
        ("nowhere", "There is no such page."),
    ],
)
def test_empty_screens_say_what_to_do_next(empty: Site, open_page: OpenPage, path: str, says: str) -> None:
    watched = open_page(empty.ui)
    watched.expected = ("status of 404",)
    watched.page.goto(empty.ui + path)
    expect(watched.page.get_by_text(says)).to_be_visible()


BATCH = {
    "batch_id": "b-1",
    "name": "import-7",
    "key": "import-7",
    "tenant": "acme",
    "status": "running",
    "counts": {
        "total": 10_000,
        "held": 1,
        "waiting": 3_999,
        "running": 4,
        "completed": 5_990,
        "failed": 6,
        "cancelled": 0,
    },
    "created_at": "2026-01-01T00:00:00Z",
    "finished_at": None,
    "ends_in_seconds": 754.0,
}
GRAPH = {
    "nodes": [
        {"task_id": "a", "task_type": "fetch", "status": "completed"},
        {"task_id": "b", "task_type": "parse", "status": "failed"},
        {"task_id": "c", "task_type": "store", "status": "queued"},
    ],
    "edges": [
        {"source": "a", "target": "b", "on_failure": "cancel"},
        {"source": "b", "target": "c", "on_failure": "run"},
    ],
}


def test_batches_show_their_progress_and_a_graph(site: Site, open_page: OpenPage) -> None:
    """The replies are those of the contract, so that a release without batches can test the screen too."""
    watched = open_page(site.ui)
    replies = {
        "batches": {"items": [BATCH], "next_cursor": None},
        "batches/b-1": BATCH,
        "batches/b-1/graph": GRAPH,
    }
    asked: list[object] = []

    def answer(route: Route) -> None:
        path = route.request.url.rpartition("/api/v1/")[2]
        if route.request.method == "POST":
            asked.append((path, route.request.post_data_json))
        route.fulfill(json=replies.get(path.partition("?")[0], BATCH))

    watched.page.route("**/api/v1/batches**", answer)
    watched.page.goto(f"{site.ui}batches")
    row = watched.row("import-7")
    expect(row).to_contain_text("5,996 of 10,000 jobs")
    expect(row).to_contain_text("in about 12m 34s")
    row.get_by_role("link", name="import-7").click()
    expect(watched.page.get_by_role("heading", level=1, name="import-7")).to_be_visible()
    graph = watched.page.get_by_role("group", name="3 jobs, 2 dependencies")
    expect(graph).to_be_visible()
    places = [float(box.get_attribute("x") or 0) for box in graph.locator("rect").all()]
    assert places == sorted(places)
    assert len(set(places)) == 3
    assert watched.accessibility_problems() == []
    watched.page.get_by_role("button", name="Retry").click()
    watched.button("the failed jobs and those after them").click()
    expect(watched.page.locator(".toast")).to_contain_text("those after them run again")
    assert asked == [("batches/b-1/retry", {"mode": "failed_and_after"})]


def test_a_list_of_five_hundred_rows_draws_those_near_the_screen(long_list: Site, open_page: OpenPage) -> None:
    watched = open_page(f"{long_list.ui}jobs?limit=500")
    table = watched.page.locator("table.jobs")
    expect(table).to_have_attribute("aria-rowcount", "501")
    expect(watched.row("number=499")).to_be_visible()
    assert watched.page.locator("tbody tr").count() < 80
    watched.page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    expect(watched.row("number=0")).to_be_visible()
    assert watched.page.locator("tbody tr").count() < 80
    first, last = watched.page.locator("tbody tr[id]").first, watched.page.locator("tbody tr[id]").last
    assert int(last.get_attribute("aria-rowindex") or 0) == 501
    assert int(first.get_attribute("aria-rowindex") or 0) > 400


def test_a_batch_of_the_store_is_cancelled_on_its_page(empty: Site, open_page: OpenPage) -> None:
    calls = [
        {"task_type": "mail.send", "parameters": {"to": "a@example.com"}, "run_after": "2100-01-01T00:00:00Z"},
        {"task_type": "mail.send", "parameters": {"to": "b@example.com"}, "after": [{"index": 0}]},
    ]
    empty.post("tasks/bulk", calls)
    (batch,) = empty.get("batches")["items"]
    assert batch["counts"] == {"total": 2, "held": 1, "waiting": 1, "running": 0} | dict.fromkeys(
        ("completed", "failed", "cancelled"), 0
    )
    watched = open_page(f"{empty.ui}batches/{batch['batch_id']}")
    expect(watched.page.get_by_role("group", name="2 jobs, 1 dependency")).to_be_visible()
    watched.button("Cancel").click()
    expect(watched.page.locator(".toast")).to_contain_text("The batch is being cancelled.")
    assert empty.get(f"batches/{batch['batch_id']}")["status"] == "cancelled"


def test_a_language_that_no_formatter_knows_is_no_error(site: Site, open_page: OpenPage) -> None:
    watched = open_page(site.ui)
    odd = "Object.defineProperty(navigator, 'language', {value: 'en-US@posix', configurable: true})"
    watched.page.add_init_script(odd)
    watched.page.reload()
    expect(watched.page.get_by_role("heading", level=1, name="Now", exact=True)).to_be_visible()
