"""Pages of lists, bounded in bytes and in items."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Sequence
from contextlib import aclosing
from typing import Any

from starlette.responses import Response

from headway.core.job import JobId, JobRecord
from headway.core.policy.document import Policy
from headway.core.search import JobSearch
from headway.server.problems import Problem
from headway.server.replies import encode
from headway.server.serializers import task_values
from headway.server.service import Service
from headway.stores.base import JobQuery, next_page
from headway.stores.paging import Get, find_in_steps, get_in_steps
from headway.stores.searching import FindIds, ids_by_find, needs_reasons, scan

PAGE, PAGE_MAX = 50, 500  # Items of a list: by default, and at most.
PAGE_BYTES = 4 << 20  # Maximum bytes of a page. A single larger item has a page of its own.
LISTED_MAX = 1 << 10  # Bytes of parameters or a result that a list shows without `include`.
SCANNED_MAX = 5_000  # Tasks that one page of a search looks at.
LARGE = ("parameters", "result")  # The fields that a list leaves out if they are larger.


class Page:
    """Items of a list, encoded one by one until the page is full."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._items: list[bytes] = []
        self._size = 0

    def add(self, item: Any) -> bool:
        """Add an item. Return False if the page is full."""
        if len(self._items) >= self._most:
            return False
        body = encode(item)
        if self._items and self._size + len(body) > PAGE_BYTES:
            return False
        self._items.append(body)
        self._size += len(body)
        return True

    def answer(self, next_cursor: str | None) -> Response:
        head = b'{"%s":[' % self._name.encode()
        body = head + b",".join(self._items) + b'],"next_cursor":' + encode(next_cursor) + b"}"
        return Response(body, media_type="application/json")


async def task_page(
    service: Service, query: JobQuery, *, include: Collection[str] = (), history: bool = False, explain: bool = False
) -> Response:
    """Return a page of the tasks that a query finds. ``explain``: with why each waiting task waits.

    A process builds only a few pages at the same time, and reads a few jobs at a time, so that memory stays bounded.
    """
    policy = await service.policy()
    find = service.client.find if history else (await service.store()).find
    page, shown = Page("items", query.limit), query
    rows = await service.views.rows() if explain else None
    async with service.listing:
        async for job in find_in_steps(find, query._replace(limit=query.limit + 1)):
            after = next_page(query, job)
            more = {} if rows is None else await rows.explain(job)
            if not page.add(listed_task(job, policy, write_cursor(after), include) | more):
                return page.answer(write_cursor(shown))
            shown = after
    return page.answer(None)


async def search_page(
    service: Service,
    search: JobSearch,
    *,
    tenant: str | None,
    before: int | None,
    most: int,
    include: Collection[str] = (),
    history: bool = False,
    explain: bool = False,
) -> Response:
    """Return a page of the tasks that fit a search. It ends early after many tasks that do not fit.

    A page that is not full but has a cursor goes on where it ended.
    """
    policy, store, page, seen = await service.policy(), await service.store(), Page("items", most), 0
    rows = await service.views.rows() if explain or needs_reasons(search) else None
    reason_of = rows.reason_of if rows is not None else _no_reason
    last = before
    async with service.listing:
        find_ids: FindIds = store.find_ids
        get: Get = store.get
        if history and service.app.settings.history is not None and store.abilities.archive_source is not None:
            find_ids, get = ids_by_find(service.client.find), service.client.read_jobs
        scanned = scan(find_ids, get, search, reason_of, tenant=tenant, before=before)
        async with aclosing(scanned) as found:
            async for job, fits in found:
                seen += 1
                if fits:
                    more = await rows.explain(job) if explain and rows is not None else {}
                    if not page.add(listed_task(job, policy, str(job.seq), include) | more):
                        return page.answer(str(last))
                last = job.seq
                if seen >= SCANNED_MAX:
                    return page.answer(str(last))
    return page.answer(None)


def _no_reason(_: JobRecord) -> str | None:
    return None


async def named_tasks(
    service: Service, job_ids: Sequence[JobId], *, tenant: str | None, start: int, most: int, include: Collection[str]
) -> Response:
    """Answer with the tasks of these ids that exist, in this order. The cursor counts the ids that were looked up."""
    policy, page, done = await service.policy(), Page("items", most), start
    async with service.listing:
        async for job in get_in_steps(service.client.read_jobs, job_ids[start:]):
            shown = job if job is not None and tenant in (None, job.tenant) else None
            if shown is not None and not page.add(listed_task(shown, policy, str(done + 1), include)):
                return page.answer(str(done))
            done += 1
    return page.answer(None)


def listed_task(job: JobRecord, policy: Policy, cursor: str, include: Collection[str] = ()) -> dict[str, Any]:
    """Return a task as lists show it: without large parameters and results, unless ``include`` names them."""
    sizes = {"parameters": len(job.payload), "result": len(job.result or b"")}
    omitted = [name for name in LARGE if sizes[name] > LISTED_MAX and name not in include]
    return task_values(job, policy, omitted=omitted) | {"omitted": omitted, "cursor": cursor}


def named_page(name: str, items: Iterable[tuple[str, Any]], *, after: str | None, most: int) -> Response:
    """Return a page of items that are sorted by name. The cursor is the name of the last one."""
    page, last = Page(name, most), ""
    for key, item in items:
        if after is not None and key <= after:
            continue
        if not page.add(item):
            return page.answer(write_name(last))
        last = key
    return page.answer(None)


def write_cursor(query: JobQuery) -> str:
    """Return the cursor of a page, given the query for the next page."""
    return ".".join(map(str, query.ended_before or (0, 0))) if query.by_end else str(query.before or 0)


def read_cursor(text: str) -> int:
    """Return where the page of a cursor ended. Raises ``Problem``."""
    if not _is_number(text):
        raise bad_cursor()
    return int(text)


def read_end_cursor(text: str) -> tuple[int, int]:
    """Return where a page of tasks, sorted by their ends, ended. Raises ``Problem``."""
    moment, _, number = text.partition(".")
    if not (_is_number(moment) and _is_number(number)):
        raise bad_cursor()
    return int(moment), int(number)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19


def read_name(text: str) -> str:
    """Return the name that a cursor encodes. Raises ``Problem``."""
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except ValueError:
        raise bad_cursor() from None


def bad_cursor() -> Problem:
    return Problem("invalid", "cursor must be the next_cursor of the page before, unchanged")


def write_name(name: str) -> str:
    """Return the cursor that encodes a name."""
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")
