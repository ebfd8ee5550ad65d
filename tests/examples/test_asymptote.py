"""The drawing service, started as ``make example-asymptote`` starts it."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterator

import pytest

from tests.examples.service import ENDLESS, ROOT, STAR, Service, started
from tests.faults.conftest import wait_until
from tests.sessions.dialogue import knock, opened

pytestmark = [pytest.mark.xdist_group("asymptote"), pytest.mark.slow]

PAGE = ROOT / "examples" / "asymptote" / "page"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with started(tmp_path_factory.mktemp("drawings")) as service:
        yield service


@pytest.fixture(autouse=True)
def idle(service: Service) -> None:
    """Wait until all jobs of the test before have ended."""
    wait_until(lambda: service.load() == (6, 0))


# ---------------------------------------------------------------------- durations


@pytest.mark.parametrize("duration, seconds", [("fast", 3), ("medium", 10), ("slow", 30), ("default", 30)])
async def test_every_button_draws(service: Service, duration: str, seconds: int) -> None:
    # R3.85, R3.91
    # It draws for a moment, so that a client that comes a little later still sees it begin.
    task_id = service.submit(f"wait 0.5\n{STAR}", duration)
    told = await service.story(task_id)
    [began] = [message for message in told if message["type"] == "started"]
    assert began["seconds"] == seconds
    assert told[-1]["status"] == "completed"
    drawing = service.http.get(f"/drawings/{task_id}/drawing.svg")
    assert drawing.content.startswith(b"<svg ")
    assert b"<polyline" in drawing.content


async def test_an_endless_drawing_is_stopped_at_its_duration(service: Service) -> None:
    # R3.5
    told = await service.story(service.submit(ENDLESS, "fast"))
    assert told[-1]["status"] == "failed"
    assert told[-1]["error"]["message"] == "time limit (3 s)"


async def test_whoever_insists_gets_more_time(service: Service) -> None:
    task_id = service.submit(f"wait 3.5\n{STAR}", "fast", on_stop="retry_longer")
    told = await service.story(task_id)
    [again] = [message for message in told if message["type"] == "retried"]
    assert again["message"] == "time limit (3 s)"
    assert told[-1]["status"] == "completed"


async def test_those_who_wait_are_told_their_place_and_seconds(service: Service) -> None:
    # R3.37
    busy = service.submit_many("wait 4", "slow", 3)
    async with service.stream(busy[-1]) as stream:
        place = await stream.hear("queue")
        while not place["estimate"]["p50"]:
            place = await stream.hear("queue")
        assert 1 <= place["position"] <= 2
        assert 0 < place["estimate"]["p50"] < 90
    quick = await service.story(service.submit(STAR, "fast"))  # Short ones pass long ones.
    assert quick[-1]["status"] == "completed"
    assert service.status(busy[-1]) == "queued"
    service.cancel(*busy)


async def test_an_elastic_drawing_is_lowered_when_others_come(service: Service) -> None:
    # R3.91: what the plan of the protocol calls options {duration}.
    task_id = service.submit(ENDLESS, "default")
    async with service.stream(task_id) as stream:
        assert (await stream.hear("started"))["seconds"] == 30
        other = service.submit("wait 1", "slow")
        lowered = await stream.hear("duration")
        assert (lowered["from"], lowered["seconds"]) == ("slow", 10)
    service.cancel(task_id, other)


# ---------------------------------------------------------------------- coming and going


async def test_what_was_drawn_is_still_there_for_who_comes_back(service: Service) -> None:
    # R3.87
    task_id = service.submit(STAR, "fast", kind="pdf")
    first = (await service.story(task_id))[-1]
    again = (await service.story(task_id))[-1]
    assert again == first
    assert again["result"]["files"]["drawing.pdf"].startswith("%PDF")
    assert service.http.get(f"/drawings/{task_id}/drawing.pdf").content.startswith(b"%PDF")


async def test_a_closed_page_cancels_its_drawing_if_it_said_so(service: Service) -> None:
    task_id = service.submit(ENDLESS, "slow")
    async with service.stream(task_id, abandon="true") as stream:
        await stream.hear("started")
    async with asyncio.timeout(30):
        while service.status(task_id) != "cancelled":  # noqa: ASYNC110  (the server moves it)
            await asyncio.sleep(0.05)


async def test_a_mistake_is_told_with_its_line(service: Service) -> None:
    told = await service.story(service.submit("forward far", "fast"))
    assert "line 1: forward wants a number, not 'far'" in told[-1]["error"]["message"]


# ---------------------------------------------------------------------- the page


async def test_a_drawing_never_becomes_a_page_of_the_site(service: Service) -> None:
    task_id = service.submit(STAR, "fast")
    await service.story(task_id)
    headers = service.http.get(f"/drawings/{task_id}/drawing.svg").headers
    assert "sandbox" in headers["content-security-policy"]
    assert headers["content-disposition"].startswith("attachment")
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["drawings/none/drawing.svg", "drawings/none/secret", "service.py", "..%2fservice.py"])
def test_what_is_not_there_is_not_given(service: Service, path: str) -> None:
    assert service.http.get(f"/{path}").status_code == 404


def test_the_page_needs_nothing_from_elsewhere_and_runs_nothing_inline(service: Service) -> None:
    page = service.http.get("/")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert not re.search(r"https?://|<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", page.text)
    for name in [*re.findall(r'(?:src|href)="([^"]+)"', page.text), "task.js", "shell.js"]:
        assert service.http.get(f"/{name}").text == (PAGE / name).read_text()
    assert "innerHTML" not in "".join(file.read_text() for file in PAGE.glob("*.js"))


def test_other_names_and_other_sites_are_turned_away(service: Service) -> None:
    assert service.http.get("/", headers={"Host": "evil.example"}).status_code == 400
    refused = service.http.post(
        "/headway/api/v1/tasks", json=service.body(STAR, "fast"), headers={"Origin": "https://evil.example"}
    )
    assert refused.status_code == 403


# ---------------------------------------------------------------------- programs


async def test_every_program_of_this_machine_draws_its_sample(service: Service) -> None:
    programs = service.http.get("/programs").json()["programs"]
    assert programs[-1]["name"] == "draw"
    sent = {
        (program["name"], kind): service.submit(
            "", "medium", task=f"{program['name']}.draw", kind=kind, **{program["file"]: program["sample"]}
        )
        for program in programs
        for kind in ("svg", "pdf")
    }
    for (_, kind), task_id in sent.items():
        told = await service.story(task_id)
        assert told[-1]["status"] == "completed", told[-1]
        drawing = service.http.get(f"/drawings/{task_id}/drawing.{kind}").content
        assert (b"<svg" if kind == "svg" else b"%PDF") in drawing


if shutil.which("asy"):  # Else there is no program to ask.

    async def test_asymptote_reads_its_files_and_nobody_elses(service: Service) -> None:
        own = {"drawing.asy": "import shapes; draw(star);", "shapes.asy": "path star = (0,0)--(9,9)--(9,0)--cycle;"}
        told = await service.story(service.submit("", "medium", task="asy.draw", kind="pdf", **own))
        assert told[-1]["status"] == "completed", told[-1]
        others = {"drawing.asy": 'file f = input("/etc/hostname"); string s = f; label(s, (0,0));'}
        told = await service.story(service.submit("", "medium", task="asy.draw", kind="pdf", **others))
        assert "Read from other directories disabled" in told[-1]["error"]["message"]


# ---------------------------------------------------------------------- the shell

SAID = {  # By who is talked to: a line, and what it answers.
    "Asymptote": ("write(6 * 7);", b"42"),
    "gnuplot": ("print 6 * 7", b"42"),
    "Walking pen": ("forward 42", b"at 42.0, 0.0"),
}


async def test_a_program_can_be_talked_to_until_a_drawing_needs_its_slot(service: Service) -> None:
    line, answer = SAID[service.http.get("/programs").json()["shell"]]
    async with opened(f"{service.address}/headway", "shell") as dialogue:
        await dialogue.say(f"{line}\n")
        await dialogue.until(answer)
        sent = service.submit_many("wait 1", "fast", 6)
        told, code, _ = await dialogue.rest()
        assert told[-1]["type"] == "halted"
        assert code == 4409
    for task_id in sent:
        assert (await service.story(task_id))[-1]["status"] == "completed"


async def test_a_session_is_denied_while_all_slots_are_at_work(service: Service) -> None:
    sent = service.submit_many(ENDLESS, "fast", 6)
    wait_until(lambda: service.load() == (6, 6))
    async with knock(f"{service.address}/headway", task_type="shell") as dialogue:
        assert (await dialogue.expect("denied"))["error"] == "no slot is free"
    service.cancel(*sent)
