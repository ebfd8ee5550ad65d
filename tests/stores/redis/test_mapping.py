"""The keys on the page of requirements are those of a live store."""

from __future__ import annotations

from pathlib import Path

from headway.core.job import State
from headway.stores.redis.store import RedisStore
from tests.conformance.builders import a_job, ended_job, submit, the_job
from tests.servers import Valkey

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "requirements.md").read_text()
PREFIX = "{headway:default}:"


def words(server: Valkey, *command: str) -> list[str]:
    """Return the texts of a raw reply with a list."""
    return server.ask(*command).decode().split("\r\n")[2::2]


def row(entry: str) -> str:
    [found] = [line for line in PAGE.splitlines() if line.startswith(f"| {entry} ")]
    return found


async def test_each_lane_has_a_queue_in_the_order_of_submits(store: RedisStore, server: Valkey) -> None:
    # R1.5, R5.4
    assert all(f"`{key}`" in row("R1.5") for key in ("names", "w:C", "{headway:NAMESPACE}:"))
    lanes = ("high", "medium", "low")
    jobs = {lane: await submit(store, *(a_job(lane=lane) for _ in range(3))) for lane in lanes}
    named = words(server, "HGETALL", f"{PREFIX}names")
    numbers = {text.split("\0")[0]: number for number, text in zip(named[::2], named[1::2], strict=True)}
    assert set(numbers) == set(lanes)
    for lane in lanes:
        members = [str(10**15 + (await the_job(store, job_id)).seq) for job_id in jobs[lane]]
        assert words(server, "ZRANGE", f"{PREFIX}w:{numbers[lane]}", "0", "-1") == members


async def test_dead_letters_are_scored_by_the_moment_of_their_entry(store: RedisStore, server: Valkey) -> None:
    # R5.24
    assert "`old:D`" in row("R5.24")
    jobs = [await ended_job(store, State.DEAD_LETTER) for _ in range(3)]
    found = words(server, "ZRANGE", f"{PREFIX}old:D", "0", "-1", "WITHSCORES")
    kept = [await the_job(store, job_id) for job_id in jobs]
    assert found == [text for job in kept for text in (str(10**15 + job.seq), str(job.finished_at))]
