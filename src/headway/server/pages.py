"""Pages of lists, bounded in bytes and in items."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from headway.core.job import JobId, JobRecord
from headway.core.policy.document import Policy
from headway.core.search import JobSearch
from headway.observability.redaction import ArgumentRedactor
from headway.server.problems import Problem
from headway.server.routing import encode
from headway.server.serializers import task_values
from headway.server.service import Service
from headway.stores.base import JobQuery, next_page
from headway.stores.paging import find_in_steps, get_in_steps
from headway.stores.searching import SearchSource, ids_by_find, needs_reasons, scan, source_of

PAGE, PAGE_MAX = 50, 500  # Items of a list: by default, and at most.
PAGE_BYTES = 4 << 20  # Maximum bytes of a page. A single larger item has a page of its own.
LISTED_MAX = 1 << 10  # Bytes of parameters or a result that a list shows without `include`.
READ_MAX = 20_000  # Tasks that one page of a search reads, in about half a second of processor time,
LOOKED_MAX = 100_000  # and tasks that it passes, if the store leaves out those without the words of the search.
LARGE = ("parameters", "result")  # The fields that a list leaves out if they are larger.

_NEXT = "`next_cursor` of the page before."
PageLimit = Annotated[int, Query(ge=1, le=PAGE_MAX)]
Cursor = Annotated[str | None, Query(max_length=64, description=_NEXT)]
NameCursor = Annotated[str | None, Query(max_length=1_500, description=_NEXT)]


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

    def answer(self, next_cursor: str | None, **more: Any) -> Response:
        head = b'{"%s":[' % self._name.encode()
        rest = encode({"next_cursor": next_cursor} | more)
        return Response(head + b",".join(self._items) + b"]," + rest[1:], media_type="application/json")


async def task_page(
    service: Service,
    query: JobQuery,
    *,
    include: Collection[str] = (),
    history: bool = False,
    explain: bool = False,
    hide: bool = False,
) -> Response:
    """Return a page of the tasks that a query finds. ``explain``: with why each waiting task waits.

    ``hide``: without the secrets in arguments.
    A process builds only a few pages at the same time, and reads a few jobs at a time, so that memory stays bounded.
    """
    policy, redactor = await service.policy(), await service.redactor() if hide else None
    find = service.client.find if history else (await service.store()).find
    page, shown = Page("items", query.limit), query
    rows = await service.views.rows() if explain else None
    async with service.listing:
        async for job in find_in_steps(find, query._replace(limit=query.limit + 1)):
            after = next_page(query, job)
            more = {} if rows is None else await rows.explain(job)
            if not page.add(listed_task(job, policy, write_cursor(after), include, redactor) | more):
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
    hide: bool = False,
) -> Response:
    """Return a page of the tasks that fit a search. It ends early after many tasks that do not fit.

    A page that is not full but has a cursor goes on where it ended. Searches do not look into secrets.
    """
    policy, store, page = await service.policy(), await service.store(), Page("items", most)
    redactor, looked, read = await service.redactor(), 0, 0
    rows = await service.views.rows() if explain or needs_reasons(search) else None
    reason_of = rows.reason_of if rows is not None else _no_reason
    last = before
    async with service.listing:
        source = source_of(store)
        if history and service.app.settings.history is not None and store.abilities.archive_source is not None:
            source = SearchSource(ids_by_find(service.client.find), service.client.read_jobs)
        visits = scan(source, search, reason_of, redactor.arguments_of, tenant=tenant, before=before)
        async with aclosing(visits) as found:
            async for visit in found:
                job = visit.job
                if job is not None and visit.fits:
                    more = await rows.explain(job) if explain and rows is not None else {}
                    shown = listed_task(job, policy, str(job.seq), include, redactor if hide else None)
                    if not page.add(shown | more):
                        return page.answer(str(last), searched=looked)
                last, looked, read = visit.seq, looked + visit.looked, read + (job is not None)
                if read >= READ_MAX or looked >= LOOKED_MAX:
                    return page.answer(str(last), searched=looked)
    return page.answer(None, searched=looked)


def _no_reason(_: JobRecord) -> str | None:
    return None


async def named_tasks(
    service: Service,
    job_ids: Sequence[JobId],
    *,
    tenant: str | None,
    start: int,
    most: int,
    include: Collection[str],
    hide: bool = False,
) -> Response:
    """Answer with the tasks of these ids that exist, in this order. The cursor counts the ids that were looked up."""
    policy, page, done = await service.policy(), Page("items", most), start
    redactor = await service.redactor() if hide else None
    async with service.listing:
        async for job in get_in_steps(service.client.read_jobs, job_ids[start:]):
            shown = job if job is not None and tenant in (None, job.tenant) else None
            if shown is not None and not page.add(listed_task(shown, policy, str(done + 1), include, redactor)):
                return page.answer(str(done))
            done += 1
    return page.answer(None)


def listed_task(
    job: JobRecord,
    policy: Policy,
    cursor: str,
    include: Collection[str] = (),
    redactor: ArgumentRedactor | None = None,
) -> dict[str, Any]:
    """Return a task as lists show it: without large parameters and results, unless ``include`` names them."""
    if redactor is not None:
        job = replace(job, payload=redactor.arguments_of(job))
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
