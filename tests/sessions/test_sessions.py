"""Interactive sessions, with a server and a worker in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headway import Headway, Worker
from headway.core.job import JobId
from headway.server.api import headway_api
from tests.server.live import served
from tests.sessions.dialogue import knock, opened, resumed
from tests.sessions.tasks import POLICY, make_app


@asynccontextmanager
async def running(app: Headway) -> AsyncIterator[str]:
    """Serve and work. Yields the address."""
    async with app, served(headway_api(app)) as address, Worker(app):
        yield address


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Headway:
    monkeypatch.chdir(tmp_path)
    return make_app("memory://")


@pytest.fixture
async def address(app: Headway) -> AsyncIterator[str]:
    async with running(app) as address:
        yield address


async def status(app: Headway, task_id: str) -> str:
    return str(await app.job(task_id).astatus())


async def ended(app: Headway, task_id: str) -> Any:
    """Wait until the job has ended, and return it."""
    return await app.client.ended(JobId(task_id), 10)


# ---------------------------------------------------------------------- talking


async def test_text_and_data_go_both_ways_until_the_task_returns(app: Headway, address: str) -> None:  # R3.4
    async with opened(address, "echo", parameters={"prompt": "> "}) as client:
        assert await client.expect("text") == {"type": "text", "data": "> "}
        assert await status(app, client.task_id) == "executing"
        await client.say("héllo")
        assert (await client.expect("text"))["data"] == "héllo"
        await client.socket.send(bytes(range(256)))
        assert await client.hear() == bytes(range(256))
        await client.say("bye")
        messages, code, _ = await client.rest()
    assert (messages[-1]["type"], messages[-1]["status"], messages[-1]["result"]) == ("result", "completed", "parted")
    assert code == 1000
    assert (await ended(app, client.task_id)).max_retries == 0


async def test_the_size_of_the_window_is_known(address: str) -> None:
    async with opened(address, "echo") as client:
        await client.say("size")
        assert (await client.expect("text"))["data"] == "24x80"
        await client.tell("resize", rows=50, columns=132)
        await client.say("size")
        assert (await client.expect("text"))["data"] == "50x132"


async def test_a_task_that_fails_says_why_and_is_not_tried_again(app: Headway, address: str) -> None:
    async with opened(address, "broken") as client:
        await client.say("go")
        messages, code, _ = await client.rest()
    assert code == 1000
    assert (messages[-1]["status"], messages[-1]["error"]["message"]) == ("failed", "no such luck")
    job = await ended(app, client.task_id)
    assert (job.state, job.attempts) == ("failed", 1)


async def test_large_messages_of_a_task_come_in_pieces_and_whole(app: Headway, address: str) -> None:
    async with opened(address, "flood", parameters={"count": 200}) as client:
        messages, code, _ = await client.rest()
    data = b"".join(message for message in messages if isinstance(message, bytes))
    assert data == b"".join(b"%07d" % number * 1_000 for number in range(200))
    assert (messages[-1]["result"], code) == (200, 1000)


async def test_a_client_that_closes_it_has_it_cancelled(app: Headway, address: str) -> None:  # R3.60
    async with opened(address, "deaf") as client:
        await client.tell("close")
        messages, code, _ = await client.rest()
    assert (messages[-1]["type"], messages[-1]["status"], code) == ("result", "cancelled", 1000)
    assert (await ended(app, client.task_id)).state == "cancelled"


# ---------------------------------------------------------------------- a place, or none


async def test_it_is_denied_at_once_where_no_slot_is_free(app: Headway) -> None:  # R3.30, R3.91
    app.configure(slots=1)
    async with running(app) as address:
        busy = await app.tasks["work"].aenqueue(30.0)
        await _started(app, busy.id)
        began = time.monotonic()
        async with knock(address, task_type="echo") as client:
            assert await client.expect("denied") == {"type": "denied", "error": "no slot is free"}
            assert (await client.rest())[1:] == (4429, "no slot is free")
        assert time.monotonic() - began < 2.0
        await busy.acancel()


async def test_a_denial_lowers_one_elastic_job(app: Headway, tmp_path: Path) -> None:  # R3.31
    (tmp_path / "policy.toml").write_text(POLICY)
    app.configure(slots=2, policy=str(tmp_path / "policy.toml"))
    async with running(app) as address:
        jobs = [await app.tasks["stay"].aenqueue() for _ in range(2)]
        for job in jobs:
            await _started(app, job.id)
        assert {(await job.arecord()).assigned for job in jobs} == {"slow"}
        async with knock(address, task_type="echo") as client:
            await client.expect("denied")
        assert sorted([(await job.arecord()).assigned or "" for job in jobs]) == ["fast", "slow"]
        for job in jobs:
            await job.acancel()


async def test_of_two_who_want_the_last_slot_one_is_started_and_one_denied(app: Headway) -> None:  # R3.30
    app.configure(slots=1)
    over = asyncio.Event()
    async with running(app) as address:

        async def attempt() -> str:
            async with knock(address, task_type="echo") as client:
                kind = str((await client.hear())["type"])
                if kind == "started":
                    await over.wait()
                return kind

        first, second = asyncio.create_task(attempt()), asyncio.create_task(attempt())
        done, _ = await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
        assert [one.result() for one in done] == ["denied"]  # While the other one still holds the slot.
        over.set()
        assert sorted(await asyncio.gather(first, second)) == ["denied", "started"]


async def test_many_at_once_get_as_many_places_as_there_are(app: Headway) -> None:  # R3.30
    app.configure(slots=3)
    async with running(app) as address:
        release = asyncio.Event()

        async def attempt() -> str:
            async with knock(address, task_type="echo") as client:
                kind = str((await client.hear())["type"])
                if kind == "started":
                    await release.wait()
                return kind

        attempts = [asyncio.create_task(attempt()) for _ in range(20)]
        async with asyncio.timeout(30):
            while sum(one.done() for one in attempts) < 17:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        release.set()
        assert sorted(await asyncio.gather(*attempts)) == ["denied"] * 17 + ["started"] * 3


async def test_nobody_offers_it(app: Headway) -> None:
    async with app, served(headway_api(app)) as address, knock(address, task_type="echo") as client:
        denied = await client.expect("denied")
        assert "no worker" in denied["error"]
        assert (await client.rest())[1] == 4429


# ---------------------------------------------------------------------- halted


async def test_it_is_halted_when_a_job_needs_its_slot(app: Headway) -> None:  # R3.12, R3.25
    app.configure(slots=1)
    async with running(app) as address, opened(address, "echo") as client:
        job = await app.tasks["work"].aenqueue()
        began = time.monotonic()
        messages, code, reason = await client.rest()
        assert time.monotonic() - began < 4.0
        assert messages == [{"type": "halted", "reason": reason}]
        assert code == 4409
        assert await job.aresult(timeout=10) == "done"
        halted = await ended(app, client.task_id)
        assert (halted.state, halted.reason) == ("cancelled", "halted")


async def test_it_is_halted_also_where_only_reserved_slots_are_free(app: Headway) -> None:  # R3.12
    app.configure(slots=2, reserved=1)
    async with running(app) as address, opened(address, "echo") as client:
        job = await app.tasks["work"].aenqueue()
        assert (await client.rest())[1] == 4409
        assert await job.aresult(timeout=10) == "done"


async def test_a_session_is_left_alone_while_slots_are_free(app: Headway, address: str) -> None:
    async with opened(address, "echo") as client:
        for _ in range(5):
            assert await (await app.tasks["work"].aenqueue(0.2)).aresult(timeout=10) == "done"
        await client.say("still here")
        assert (await client.expect("text"))["data"] == "still here"


async def test_its_slot_is_free_only_when_the_task_has_ended(app: Headway) -> None:  # R3.34
    app.configure(slots=1)
    async with running(app) as address, opened(address, "tidy") as client:
        job = await app.tasks["work"].aenqueue()
        assert (await client.rest())[1] == 4409
        assert await job.aresult(timeout=10) == "done"
        halted, work = await ended(app, client.task_id), await job.arecord()
        assert (work.started_at or 0) >= halted.finished_at


# ---------------------------------------------------------------------- gone, and back


async def test_a_client_that_comes_back_in_time_has_missed_nothing(app: Headway, address: str) -> None:  # R3.86, R3.87
    async with opened(address, "echo") as client:
        await client.say("one")
        await client.expect("text")
        first = client.secret
    async with resumed(address, client.task_id, first) as again:
        assert again.task_id == client.task_id
        assert again.secret != first
        await again.say("two")
        assert (await again.expect("text"))["data"] == "two"
    async with knock(address, task_id=client.task_id, resume=first) as stale:
        await stale.expect("denied")
        assert (await stale.rest())[1] == 4404
    async with resumed(address, client.task_id, again.secret) as last:
        await last.say("bye")
        assert (await last.rest())[0][-1]["result"] == "parted"


async def test_what_the_task_says_meanwhile_is_kept_up_to_a_bound(app: Headway, address: str) -> None:
    async with opened(address, "flood", parameters={"count": 300}) as client:
        pass
    await asyncio.sleep(0.5)
    job = await app.job(client.task_id).arecord()
    assert int(job.note or 0) < 120  # 7 kB each.
    async with resumed(address, client.task_id, client.secret) as again:
        messages, code, _ = await again.rest()
    data = b"".join(message for message in messages if isinstance(message, bytes))
    assert data.endswith(b"0000299" * 1_000)
    assert (messages[-1]["result"], code) == (300, 1000)


async def test_a_result_waits_for_a_client_that_comes_back(app: Headway, address: str) -> None:  # R3.87
    async with opened(address, "echo") as client:
        await client.say("bye")
    await ended(app, client.task_id)
    async with resumed(address, client.task_id, client.secret) as again:
        messages, code, _ = await again.rest()
    assert (messages[-1]["type"], messages[-1]["result"], code) == ("result", "parted", 1000)


async def test_a_second_connection_takes_over_from_a_dead_one(app: Headway, address: str) -> None:
    async with opened(address, "echo") as client, resumed(address, client.task_id, client.secret) as again:
        assert (await client.rest())[1] == 4408
        await again.say("here")
        assert (await again.expect("text"))["data"] == "here"


@pytest.mark.parametrize("task", ["echo", "deaf", "tidy"])
async def test_a_client_that_stays_away_has_it_cancelled(app: Headway, task: str) -> None:
    app.configure(session_grace=0.3)
    async with running(app) as address:
        async with opened(address, task) as client:
            assert await status(app, client.task_id) == "executing"
        job = await ended(app, client.task_id)
        assert job.state == "cancelled"
        async with knock(address, task_id=client.task_id, resume=client.secret) as late:
            assert (await late.expect("denied"))["error"]
            assert (await late.rest())[1] == 4404


async def test_a_server_that_leaves_ends_its_sessions(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/headway.db"
    app, front = make_app(url), make_app(url)
    async with app, Worker(app):
        api = headway_api(front)
        async with served(api) as address, opened(address, "deaf") as client:
            api.state.service.stop()
            assert (await client.rest())[1] == 1012
        job = await ended(app, client.task_id)
        assert job.state == "cancelled"


async def test_a_worker_that_drains_ends_its_sessions_and_nothing_is_queued(app: Headway) -> None:  # R3.30
    async with app, served(headway_api(app)) as address:
        async with AsyncExitStack() as stack:
            async with Worker(app):
                client = await stack.enter_async_context(knock(address, task_type="deaf"))
                await client.expect("started")
            [told], code, reason = await client.rest()  # The worker has left; the client had not.
            assert (told["type"], told["status"], code, reason) == ("result", "cancelled", 1000, "cancelled")
        job = await ended(app, client.task_id)
        assert job.state == "cancelled"


async def _started(app: Headway, job_id: str) -> None:
    async with asyncio.timeout(30):
        while await status(app, job_id) != "executing":  # noqa: ASYNC110
            await asyncio.sleep(0.005)
