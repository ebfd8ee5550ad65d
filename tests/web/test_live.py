"""The page follows the store, stands still when it should, survives restarts, and shows hostile data as text."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from tests.conftest import ADDRESSES
from tests.servers import free_port, wait_for
from tests.web.conftest import OpenPage
from tests.web.site import Site

HOSTILE = [
    "<script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "javascript:document.title='owned'",
    "'\"><svg onload=document.title='owned'>",
    "{{constructor.constructor('return 1')()}}",
    "</title><base href=//evil.example>",
    "\u202eevil\u202c",
]


@pytest.fixture
def own_site(tmp_path: Path) -> Iterator[Site]:
    """Yield a server without a worker, on a store that one test changes."""
    with Site(tmp_path, ADDRESSES["sqlite"](tmp_path), worker=False) as started:
        yield started


def test_the_numbers_follow_the_store(own_site: Site, open_page: OpenPage) -> None:
    watched = open_page(own_site.ui)
    waiting = watched.page.locator(".five div", has_text="waiting").first.locator("dd")
    expect(waiting).to_have_text("0")
    for _ in range(3):
        own_site.submit("mail.send", {"to": "a@example.com"})
    expect(waiting).to_have_text("3")
    expect(watched.page.get_by_text("3 jobs wait and no worker runs.")).to_be_visible()


def test_a_list_follows_the_store_and_stands_still_while_rows_are_selected(own_site: Site, open_page: OpenPage) -> None:
    own_site.submit("mail.send", {"to": "first@example.com"})
    watched = open_page(f"{own_site.ui}jobs")
    expect(watched.page.locator("tbody tr")).to_have_count(1)
    own_site.submit("mail.send", {"to": "second@example.com"})
    expect(watched.page.locator("tbody tr")).to_have_count(2)
    watched.row("first@example.com").get_by_role("checkbox").check()
    own_site.submit("mail.send", {"to": "third@example.com"})
    watched.page.wait_for_timeout(2_500)  # Longer than a beat: nothing may happen.
    expect(watched.page.locator("tbody tr")).to_have_count(2)
    watched.button("Clear").click()
    expect(watched.page.locator("tbody tr")).to_have_count(3)


def test_a_hidden_page_asks_for_nothing(own_site: Site, open_page: OpenPage) -> None:
    watched = open_page(f"{own_site.ui}jobs")
    expect(watched.page.get_by_text("There are no jobs yet.")).to_be_visible()
    watched.page.evaluate(
        "Object.defineProperty(document, 'hidden', {get: () => true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    asked: list[str] = []
    watched.page.on("request", lambda request: asked.append(request.url))
    own_site.submit("mail.send", {"to": "a@example.com"})
    watched.page.wait_for_timeout(2_500)
    assert asked == []
    watched.page.evaluate(
        "Object.defineProperty(document, 'hidden', {get: () => false, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    expect(watched.page.locator("tbody tr")).to_have_count(1)


def test_a_page_survives_a_restart_of_its_server(own_site: Site, open_page: OpenPage) -> None:
    watched = open_page(f"{own_site.ui}jobs")
    watched.expected = ("net::ERR_", "Failed to load resource")
    expect(watched.page.get_by_role("button", name=re.compile("every 2 s"))).to_be_visible()
    port = own_site.port
    own_site.stop()
    expect(watched.page.get_by_role("button", name=re.compile("not connected"))).to_be_visible()
    own_site.start(port)
    own_site.submit("mail.send", {"to": "after@example.com"})
    expect(watched.row("after@example.com")).to_be_visible(timeout=15_000)
    expect(watched.page.locator(".five div", has_text="waiting").first.locator("dd")).to_have_text("1", timeout=15_000)
    expect(watched.page.get_by_role("button", name=re.compile("every 2 s"))).to_be_visible()


def test_hostile_data_is_shown_as_text(own_site: Site, open_page: OpenPage) -> None:
    # S-14
    ids = [
        own_site.submit(f"evil{number} {text}"[:200], {"argument": text, text: [text]}, tenant=text)
        for number, text in enumerate(HOSTILE)
    ]
    watched = open_page(f"{own_site.ui}jobs")
    for number, text in enumerate(HOSTILE):
        row = watched.row(f"evil{number} ")
        expect(row.locator("a.name")).to_have_text(f"evil{number} {text}")
        expect(row.locator("td").nth(3)).to_have_text(text)
    for job_id, text in zip(ids, HOSTILE, strict=True):
        watched.page.goto(f"{own_site.ui}jobs/{job_id}")
        expect(watched.page.get_by_role("heading", level=1)).to_contain_text(text)
        expect(watched.page.locator("pre").first).to_have_text(
            json.dumps({"argument": text, text: [text]}, indent=2, ensure_ascii=False)
        )
        expect(watched.page).to_have_title(re.compile("· Jobs · Headway$"))
    for path in ("", "tenants", "dead-letters"):
        watched.page.goto(own_site.ui + path)
        watched.page.locator(".card").first.wait_for()
        assert watched.page.title().endswith("· Headway")
    watched.page.goto(f"{own_site.ui}jobs?q={HOSTILE[0]}")
    watched.expected = ("status of 422",)
    expect(watched.page.get_by_role("searchbox")).to_have_value(HOSTILE[0])


def test_hostile_replies_are_shown_as_text(site: Site, open_page: OpenPage) -> None:
    """Errors, notes, workers and limits come from programs that an attacker may have written."""
    watched = open_page(site.ui)
    watched.expected = ("status of 404",)
    text = HOSTILE[1]

    def poison(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: poison(part) for name, part in value.items()}
        if isinstance(value, list):
            return [poison(part) for part in value]
        return value if not isinstance(value, str) or KEPT.search(value) else text

    def answer(route: Any) -> None:
        reply = route.fetch()
        if reply.ok and "json" in reply.headers.get("content-type", ""):
            route.fulfill(response=reply, json=poison(reply.json()))
        else:
            route.fulfill(response=reply)

    watched.page.route(re.compile("/api/v1/(?!live|session)"), answer)
    task = site.get("tasks", q="state:dead_letter")["items"][0]
    paths = (
        "jobs",
        f"jobs/{task['task_id']}",
        "tenants",
        "limits",
        "workers",
        "dead-letters",
        "crons",
        "policy",
        "system",
    )
    for path in paths:
        watched.page.goto(site.ui + path)
        expect(watched.page.get_by_text(text, exact=False).first).to_be_attached()
        assert watched.page.locator("img, main script, main base").count() == 0
        assert watched.page.title().endswith("· Headway")


# Words that the page must understand: states, times and ids.
KEPT = re.compile(
    r"^(queued|executing|completed|failed|dead_letter|cancelled|active|ok|learned|policy|task|\d{4}-\d\d-\d\dT.*|[0-9a-f-]{36})$"
)


def test_a_search_is_in_the_address_and_suggests_fields_and_values(site: Site, open_page: OpenPage) -> None:
    watched = open_page(f"{site.ui}jobs")
    box = watched.page.get_by_role("searchbox")
    expect(box).to_be_visible()
    watched.page.keyboard.press("/")
    expect(box).to_be_focused()
    expect(watched.page.get_by_role("option").first).to_contain_text("state:")
    watched.page.keyboard.type("ta")
    expect(watched.page.get_by_role("option")).to_have_count(1)
    watched.page.keyboard.press("ArrowDown")
    watched.page.keyboard.press("Tab")
    expect(box).to_have_value("task:")
    expect(watched.page.get_by_role("option").filter(has_text="billing.charge")).to_be_visible()
    watched.page.keyboard.type("mail")
    expect(watched.page.get_by_role("option")).to_have_count(1)
    watched.page.keyboard.press("ArrowDown")
    watched.page.keyboard.press("Enter")
    expect(watched.page).to_have_url(f"{site.ui}jobs?q=task%3Amail.send")
    count = len(site.get("tasks", q="task:mail.send")["items"])
    expect(watched.page.locator("tbody tr")).to_have_count(count)
    watched.button("completed").click()
    expect(box).to_have_value("state:completed task:mail.send")
    expect(watched.page.locator("tbody tr")).to_have_count(3)
    watched.page.go_back()
    expect(box).to_have_value("task:mail.send")


def test_a_search_that_cannot_be_read_says_why(site: Site, open_page: OpenPage) -> None:
    watched = open_page(f"{site.ui}jobs")
    watched.expected = ("status of 422",)
    watched.page.get_by_role("searchbox").fill("stat:failed")
    watched.page.keyboard.press("Enter")
    expect(watched.page.get_by_role("alert")).to_contain_text("did you mean 'state'?")


def test_keys_lead_to_pages_rows_and_help(site: Site, open_page: OpenPage) -> None:
    watched = open_page(site.ui)
    expect(watched.page.get_by_role("heading", level=1, name="Now")).to_be_visible()
    for key, path in {"j": "jobs", "t": "tenants", "w": "workers", "p": "policy", "n": "", "d": "dead-letters"}.items():
        watched.page.keyboard.press("g")
        watched.page.keyboard.press(key)
        expect(watched.page).to_have_url(site.ui + path)
    watched.page.goto(f"{site.ui}jobs")
    watched.page.locator("tbody tr").first.wait_for()
    watched.page.keyboard.press("j")
    watched.page.keyboard.press("j")
    expect(watched.page.locator("tr[data-current]")).to_have_count(1)
    second = watched.page.locator("tbody tr").nth(1)
    expect(second).to_have_attribute("data-current", "true")
    address = second.locator("a.name").get_attribute("href") or ""
    watched.page.keyboard.press("o")
    expect(watched.page).to_have_url(site.address + address)
    watched.page.keyboard.press("?")
    expect(watched.page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    watched.page.keyboard.press("Escape")
    expect(watched.page.get_by_role("dialog")).to_have_count(0)


def test_a_theme_is_kept(site: Site, open_page: OpenPage) -> None:
    watched = open_page(site.ui, color_scheme="light")
    expect(watched.page.get_by_role("heading", level=1, name="Now")).to_be_visible()
    background = "getComputedStyle(document.body).backgroundColor"
    light = watched.page.evaluate(background)
    watched.page.keyboard.press("t")  # As the system, light, dark.
    assert watched.page.evaluate(background) == light
    watched.page.keyboard.press("t")
    dark = watched.page.evaluate(background)
    assert dark != light
    watched.page.reload()
    assert watched.page.evaluate(background) == dark


def test_a_job_is_copied_as_a_command_that_submits_it_again(site: Site, open_page: OpenPage) -> None:
    task = site.get("tasks", q="state:completed task:mail.send")["items"][0]
    watched = open_page(f"{site.ui}jobs/{task['task_id']}", permissions=["clipboard-read", "clipboard-write"])
    watched.page.get_by_role("button", name="Copy ▾").click()
    watched.button("as headway submit …").click()
    expect(watched.page.locator(".toast")).to_have_text(re.compile("Copied"))
    command = watched.page.evaluate("navigator.clipboard.readText()")
    to = task["payload"]["parameters"]["to"]
    assert command == f'headway submit mail.send --json-args \'{{"to":"{to}"}}\' --priority medium --tenant acme'


def test_secrets_in_arguments_do_not_reach_the_page(own_site: Site, open_page: OpenPage) -> None:
    job_id = own_site.submit("mail.send", {"to": "ann", "api_key": "k-hunter2"})
    watched = open_page(f"{own_site.ui}jobs?q=ann")
    expect(watched.row("mail.send")).to_contain_text("redacted")
    replies: list[str] = []
    watched.page.on("response", lambda reply: replies.append(reply.text()) if "/tasks" in reply.url else None)
    watched.page.goto(f"{own_site.ui}jobs/{job_id}")
    expect(watched.page.locator("pre").first).to_contain_text("redacted")
    assert not any("hunter2" in text for text in (watched.page.content(), *replies))
    watched.page.goto(f"{own_site.ui}jobs?q=hunter2")
    expect(watched.page.get_by_text("No job matches.")).to_be_visible()


def test_large_numbers_are_shown_exactly(own_site: Site, open_page: OpenPage) -> None:
    job_id = own_site.submit("mail.send", {"number": 12345678901234567890})
    watched = open_page(f"{own_site.ui}jobs/{job_id}")
    expect(watched.page.locator("pre").first).to_contain_text("12345678901234567890")


@pytest.mark.parametrize("wanted", [True, False])
def test_the_server_names_the_address_of_the_dashboard(tmp_path: Path, *, wanted: bool) -> None:
    with Site(tmp_path, ADDRESSES["sqlite"](tmp_path), worker=False, HEADWAY_UI=str(wanted)) as site:
        assert site.up.get("dashboard") == (site.ui if wanted else None)
        assert httpx.get(site.ui).status_code == (200 if wanted else 404)


MOUNTED = """
from fastapi import FastAPI
from headway import Headway
from headway.server import headway_api

site = FastAPI()
site.mount("/queue", headway_api(Headway("sqlite:///headway.db"), ui=True))
"""


def answers(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


def test_it_works_below_a_prefix_of_another_application(tmp_path: Path, open_page: OpenPage) -> None:
    (tmp_path / "mounted.py").write_text(MOUNTED)
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "mounted:site", "--port", str(port), "--log-level", "warning"]
    address = f"http://127.0.0.1:{port}/queue/"
    with subprocess.Popen(command, cwd=tmp_path) as process:
        try:
            wait_for(lambda: answers(port), "the application")
            watched = open_page(f"{address}ui/jobs")
            expect(watched.page.get_by_text("There are no jobs yet.")).to_be_visible()
            job_id = httpx.post(f"{address}api/v1/tasks", json={"task_type": "mail.send"}).json()["task_id"]
            watched.row("mail.send").get_by_role("link", name="mail.send").click()
            expect(watched.page).to_have_url(f"{address}ui/jobs/{job_id}")
            expect(watched.page.get_by_text("Why it waits")).to_be_visible()
            expect(watched.page.locator(".five div", has_text="waiting").first.locator("dd")).to_have_text("1")
            watched.page.goto("about:blank")  # A stream keeps the server from its end.
        finally:
            process.terminate()
