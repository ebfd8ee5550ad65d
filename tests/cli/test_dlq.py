"""Selecting dead letters by their properties."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headway import Headway, Worker
from headway.cli.dlq import Filters
from headway.cli.operator import StoreOperator
from headway.cli.store_access import whole_ids
from headway.core.job import JobRecord
from headway.stores.base import JobQuery, Store
from headway.stores.open import open_store
from tests.cli.command import Cli, CommandResult, until


@pytest.fixture
def dead(cli: Cli) -> Cli:
    """Return a command line whose store has four dead letters: two tasks, two errors, two lanes, two tenants."""
    app = Headway(f"sqlite:///{cli.folder}/headway.db")

    @app.task(name="mail", max_retries=0)
    def mail(number: int) -> None:
        raise (ConnectionError("smtp is away") if number % 2 else ValueError("no address"))

    with app, Worker(app, slots=4):
        jobs = [
            mail.using(priority="low" if number < 2 else "high", tenant="acme" if number != 3 else "bolt").enqueue(
                number
            )
            for number in range(4)
        ]
        until(lambda: all(job.status() == "dead_letter" for job in jobs) or None)
    return cli


def numbers(ran: CommandResult) -> list[int]:
    return sorted(job["arguments"]["number"] for job in ran.json["items"])


def test_dead_letters_are_listed_by_error_lane_tenant_and_time(dead: Cli) -> None:
    def listed(*words: str) -> list[int]:
        return numbers(dead.call("dlq", "list", "--json", *words))

    assert listed() == [0, 1, 2, 3]
    assert listed("--error", "ConnectionError") == [1, 3]
    assert listed("--error", "No Address") == [0, 2]  # A part of the message will do, in any case.
    assert listed("--priority", "low") == [0, 1]
    assert listed("--tenant", "bolt") == [3]
    assert listed("--since", "1h", "--error", "ValueError", "--priority", "high") == [2]
    assert listed("--until", "1h") == []
    assert listed("--since", "2001-01-01T00:00:00Z", "--until", "2099-01-01T00:00:00Z") == [0, 1, 2, 3]


def test_a_page_of_chosen_dead_letters_goes_on_where_it_ended(dead: Cli) -> None:
    first = dead.call("dlq", "list", "--json", "--error", "ValueError", "--limit", "1")
    rest = dead.call("dlq", "list", "--json", "--error", "ValueError", "--before", first.json["next_cursor"])
    assert (numbers(first), numbers(rest), rest.json["next_cursor"]) == ([2], [0], None)


def test_replay_and_purge_touch_only_what_was_chosen(dead: Cli) -> None:
    assert dead.call("dlq", "replay", "--all", "--error", "ConnectionError").out == "2 jobs queued again\n"
    assert dead.call("dlq", "purge", "--all", "--yes", "--priority", "low").out == "1 dead letter removed\n"
    assert numbers(dead.call("dlq", "list", "--json")) == [2]
    queued = dead.call("jobs", "--status", "queued", "--json")
    assert numbers(queued) == [1, 3]


def test_ids_may_be_short_and_go_with_no_filter(dead: Cli) -> None:
    ids = [job["id"] for job in dead.call("dlq", "list", "--json").json["items"]]
    assert dead.call("dlq", "replay", ids[0][-8:]).out == f"{ids[0]}  queued again\n"
    assert dead.call("dlq", "purge", ids[1][-8:], "--yes").out == "1 dead letter removed\n"
    assert "give ids, or --all with filters, not both" in dead.call("dlq", "purge", ids[2], "--tenant", "x", code=2).err


@pytest.mark.parametrize("text", ["yesterday", "2030-01-31T08:00:00", ""])
def test_a_time_that_cannot_be_read_is_refused(cli: Cli, text: str) -> None:
    cli.call("submit", "demo.noop")
    assert "--since takes a length such as 2h" in cli.call("dlq", "list", "--since", text, code=2).err


class ShortPages:
    """A store whose pages hold fewer jobs than requested, as a store may that bounds pages by bytes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(self, query: JobQuery) -> list[JobRecord]:
        return await self._store.find(query._replace(limit=min(query.limit, 1)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_a_short_page_is_not_the_last_one(dead: Cli) -> None:
    store = open_store(f"sqlite:///{dead.folder}/headway.db")
    await store.open()
    try:
        short = cast("Store", ShortPages(store))
        found = [job async for page in Filters().find(StoreOperator(short)) for job in page]
        assert len(found) == 4
        assert await whole_ids(StoreOperator(short), [found[-1].job_id[-8:]]) == [found[-1].job_id]
    finally:
        await store.close()
