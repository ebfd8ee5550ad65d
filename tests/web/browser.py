"""The browser of the tests, and pages that record faults."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request

ROOT = Path(__file__).resolve().parents[2]
UNPACKED = ROOT / ".browser"
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
ARGUMENTS = ["--no-sandbox", "--headless=new", "--disable-gpu", "--no-zygote"]  # In containers, and as root.
PATIENCE_MS = 15_000
# Answers that a test asks for itself: browsers report them as errors although the page shows them.
ANSWERS = ("status of 401", "status of 403", "status of 404", "status of 422")
WATCH = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`CSP: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`));
"""


def launch_options() -> dict[str, Any]:
    """Return the options that start the browser of `make test`, or the system's."""
    if (UNPACKED / "chromium").is_file():
        environment = {"LD_LIBRARY_PATH": str(UNPACKED / "lib"), "FONTCONFIG_FILE": str(UNPACKED / "fonts.conf")}
        return {"executable_path": UNPACKED / "chromium", "args": ARGUMENTS, "env": environment}
    program = shutil.which("chromium")
    assert program is not None, "no browser: run `make .browser/chromium`, or install chromium"
    return {"executable_path": program, "args": ARGUMENTS}


class WatchedPage:
    """A page in a browser context of its own. ``wrong`` lists the faults, for the end of the test."""

    def __init__(self, browser: Browser, address: str, **options: Any) -> None:
        settings: dict[str, Any] = {"locale": "en-GB", "viewport": {"width": 1360, "height": 900}} | options
        self._context = browser.new_context(**settings)
        self._context.set_default_timeout(PATIENCE_MS)
        self._context.add_init_script(WATCH)
        self.page: Page = self._context.new_page()
        self.wrong: list[str] = []
        self.expected: tuple[str, ...] = ()
        self._origin = urlsplit(address).netloc
        self.page.on("console", self._note_console)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("request", self._note_request)
        self.page.goto(address)

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not any(one in message.text for one in self.expected):
            self.wrong.append(f"{message.type}: {message.text} ({self.page.url})")

    def _note_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme != "data" and parts.netloc != self._origin:
            self.wrong.append(f"request to {request.url}")

    def row(self, text: str) -> Locator:
        """Return the rows of tables that contain a text."""
        return self.page.locator("tbody tr", has_text=text)

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def accessibility_problems(self, *, contrast_only: bool = False) -> list[str]:
        """Return the problems that axe-core finds on the page."""
        # The page's own policy refuses foreign scripts, so axe runs through the protocol of the browser's tools.
        session = self._context.new_cdp_session(self.page)
        session.send("Runtime.evaluate", {"expression": AXE.read_text()})
        every = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
        rules = {"runOnly": ["color-contrast"] if contrast_only else every}
        found = session.send(
            "Runtime.evaluate",
            {
                "expression": f"axe.run(document, {json.dumps(rules)}).then((done) => JSON.stringify(done.violations))",
                "awaitPromise": True,
                "returnByValue": True,
            },
        )
        session.detach()
        violations = json.loads(found["result"]["value"])
        return [
            f"{one['id']}: {node['target']} {node.get('failureSummary', '')}"
            for one in violations
            for node in one["nodes"]
        ]

    def close(self) -> None:
        self._context.close()
