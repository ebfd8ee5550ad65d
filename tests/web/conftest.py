"""A real browser, and real servers with data for it to show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.conftest import ADDRESSES
from tests.web.browser import PATIENCE_MS, WatchedPage, launch_options
from tests.web.site import Site

expect.set_options(timeout=PATIENCE_MS)  # A machine that is busy with tests may keep a page waiting.
OpenPage = Callable[..., WatchedPage]


# Not for the whole session: while Playwright runs, no other test of the process can run an event loop.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Yield a Chromium without a window: the one of `make test`, or the system's."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(**launch_options())
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Yield a function that opens pages. Console errors, CSP violations and requests to other origins fail the test."""
    pages: list[WatchedPage] = []

    def open_one(address: str, **options: object) -> WatchedPage:
        page = WatchedPage(browser, address, **options)
        pages.append(page)
        return page

    yield open_one
    for page in pages:
        page.close()
    assert [found for page in pages for found in page.wrong] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield a server and worker on SQLite with jobs in all states. Tests that share it change only their own jobs."""
    yield from _site(tmp_path_factory.mktemp("site"), "sqlite")


@pytest.fixture(scope="module", params=["redis", "postgres"])
def other_site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield the same site on another store."""
    yield from _site(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield a server on an empty store, without a worker."""
    folder = tmp_path_factory.mktemp("empty")
    with Site(folder, ADDRESSES["sqlite"](folder), worker=False) as started:
        yield started


def _site(folder: Path, store_name: str) -> Iterator[Site]:
    with Site(folder, ADDRESSES[store_name](folder)) as started:
        started.fill()
        yield started
