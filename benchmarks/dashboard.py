"""Measure the dashboard in a real browser: ``python -m benchmarks.dashboard``.

It prints the time until the first paint, with an empty and with a warm cache. It also prints the lengths of the tasks
that block the main thread while a list of 500 rows changes with every update. Both come from the browser's own trace.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

from tests.web.browser import launch_options
from tests.web.site import Site

ROUNDS = 9
ROWS = 500
UPDATES_MS = 20_000
FRAME_MS = 16.0
PAINTED = """() => new Promise((resolve) => {
  const look = () => {
    const [found] = performance.getEntriesByName("first-contentful-paint");
    if (found) resolve(found.startTime); else setTimeout(look, 10);
  };
  look();
})"""


def main() -> None:
    """Start a server with waiting jobs, and measure its dashboard."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder)
        with Site(path, f"sqlite:///{path}/headway.db?synchronous=normal", worker=False) as site:
            jobs = [{"task_type": "mail.send", "parameters": {"number": number}} for number in range(ROWS)]
            site.post("tasks/bulk", jobs)
            browser = playwright.chromium.launch(**launch_options())
            show("first paint, cold cache", [first_paint(browser, site.ui, warm=False) for _ in range(ROUNDS)])
            show("first paint, warm cache", [first_paint(browser, site.ui, warm=True) for _ in range(ROUNDS)])
            tasks, updates = busy_while_rows_change(browser, site)
            slow = [task for task in tasks if task > FRAME_MS]
            print(
                f"{ROWS} rows, {updates} updates: longest task {max(tasks):.1f} ms, {len(slow)} above {FRAME_MS:.0f} ms"
            )
            browser.close()


def first_paint(browser: Browser, address: str, *, warm: bool) -> float:
    """Return the milliseconds from the request to the first text on the page."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(address)
    if warm:
        page.goto("about:blank")
        page.goto(address)
    found: float = page.evaluate(PAINTED)
    context.close()
    return found


def busy_while_rows_change(browser: Browser, site: Site) -> tuple[list[float], int]:
    """Return how long each task of the main thread took, and how many updates the list got."""
    page = browser.new_page(viewport={"width": 1360, "height": 900})
    updates = 0

    def change(route: Any) -> None:
        """Reply with rows that have all changed since the last reply."""
        nonlocal updates
        updates += 1
        reply = json.loads(route.fetch().text())
        for task in reply["items"]:
            task["priority"] = f"lane {updates}"
            task["estimate"] = {"position": 1, "p50": updates, "p90": 2 * updates, "basis": "learned"}
        route.fulfill(json=reply)

    page.route("**/api/v1/tasks?**", change)
    page.goto(f"{site.ui}jobs?limit={ROWS}")
    page.wait_for_selector("table.jobs tbody tr[id]")
    page.get_by_role("button", name="every 2 s").click()
    page.get_by_role("button", name="every 1 s").click()
    page.wait_for_timeout(3_000)
    updates = 0
    tasks = traced(page.context.new_cdp_session(page), page)
    page.unroute_all(behavior="ignoreErrors")
    page.close()
    return tasks, updates


def traced(session: CDPSession, page: Page) -> list[float]:
    """Record a trace for a while. Return the length of each task of the page's main thread, in milliseconds."""
    events: list[dict[str, Any]] = []
    ended: list[object] = []
    session.on("Tracing.dataCollected", lambda part: events.extend(part["value"]))
    session.on("Tracing.tracingComplete", lambda reply: ended.append(reply))
    categories = "devtools.timeline,disabled-by-default-devtools.timeline,toplevel"
    session.send("Tracing.start", {"transferMode": "ReportEvents", "categories": categories})
    page.wait_for_timeout(UPDATES_MS)
    session.send("Tracing.end")
    while not ended:
        page.wait_for_timeout(50)
    main = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    return [
        event["dur"] / 1_000
        for event in events
        if event["name"] == "RunTask" and (event["pid"], event["tid"]) in main and "dur" in event
    ]


def show(name: str, values: Sequence[float]) -> None:
    """Print the median and the range of some measurements."""
    print(f"{name}: median {statistics.median(values):.0f} ms ({min(values):.0f} to {max(values):.0f})")


if __name__ == "__main__":
    main()
