"""Chains, groups and chords of adopted tasks are graphs in the store."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import celery  # type: ignore[import-untyped]
import pytest
from celery.exceptions import ChordError  # type: ignore[import-untyped]
from celery.result import GroupResult  # type: ignore[import-untyped]

from headway.core.errors import ConfigError
from headway.core.job import JobId
from headway.integrations.celery import adoption_of
from headway.integrations.celery.adoption import join
from tests.integrations.celery.adoption.conftest import AdoptedProject
from tests.integrations.celery.workers import eventually

# pyright reads Celery's source and takes the result of a chain for None.
chain: Any = celery.chain
chord: Any = celery.chord
group: Any = celery.group


@pytest.fixture
def add(adopted: AdoptedProject) -> Any:
    return adopted.app.tasks["work.add"]


def test_a_chain_passes_results_on_and_skips_them_for_immutable_steps(adopted: AdoptedProject, add: Any) -> None:
    result = chain(add.s(1, 2), add.s(10), add.si(5, 5), add.s(1))()
    assert result.get(timeout=60) == 11
    assert [result.parent.get(), result.parent.parent.get(), result.parent.parent.parent.get()] == [10, 13, 3]


def test_a_chain_may_have_more_steps_than_the_broker_has_connections(adopted: AdoptedProject, add: Any) -> None:
    steps = 3 * (adopted.app.conf.broker_pool_limit or 10)
    assert chain(add.s(0, 1), *[add.s(1) for _ in range(steps)])().get(timeout=60) == steps + 1


def test_the_steps_of_a_chain_wait_in_the_store(adopted: AdoptedProject, add: Any) -> None:
    result = chain(add.s(1, 2).set(countdown=600), add.s(10))()
    headway = adoption_of(adopted.app).headway
    assert [reason.code for reason in headway.job(result.id).why()][:1] == ["depends"]
    result.parent.revoke()
    eventually(lambda: result.state == "REVOKED", "the step goes with the step before", lambda: result.state)


def test_a_step_fails_with_the_step_before_it(adopted: AdoptedProject, add: Any) -> None:
    result = chain(adopted.app.tasks["work.fail"].s(), add.s(1), add.s(2))()
    with pytest.raises(ValueError, match="bad"):
        result.get(timeout=60)
    assert adopted.app.AsyncResult(result.id).state == "FAILURE"


def test_a_step_with_a_countdown_starts_it_when_the_step_before_has_ended(adopted: AdoptedProject, add: Any) -> None:
    result = chain(add.s(1, 2), add.s(10).set(countdown=0.2), add.s(100))()
    assert result.get(timeout=60) == 113


def test_a_group_returns_its_results_in_order(adopted: AdoptedProject, add: Any) -> None:
    result = group(add.s(number, number) for number in range(5))()
    assert result.get(timeout=60) == [0, 2, 4, 6, 8]
    assert (result.successful(), result.completed_count()) == (True, 5)


def test_a_saved_group_can_be_restored(adopted: AdoptedProject, add: Any) -> None:
    result = group(add.s(1, 1), add.s(2, 2))()
    result.save()
    restored = GroupResult.restore(result.id, app=adopted.app)
    assert restored.get(timeout=60) == [2, 4]
    restored.delete()
    assert GroupResult.restore(result.id, app=adopted.app) is None


def test_a_chord_passes_all_results_to_its_body(adopted: AdoptedProject, add: Any) -> None:
    total = adopted.app.tasks["work.total"]
    result = chord([add.s(number, number) for number in range(5)], total.s())()
    assert result.get(timeout=60) == 20
    assert result.parent.get() == [0, 2, 4, 6, 8]


def test_a_group_inside_a_chain_becomes_a_chord(adopted: AdoptedProject, add: Any) -> None:
    total = adopted.app.tasks["work.total"]
    result = chain(add.s(1, 1), group(add.s(1), add.s(2)), total.s(), add.s(100))()
    assert result.get(timeout=60) == 107


def test_chords_can_be_nested(adopted: AdoptedProject, add: Any) -> None:
    total = adopted.app.tasks["work.total"]
    inner = chord([add.s(1, 1), chain(add.s(2, 2), add.s(1))], total.s())
    assert chord([inner, add.s(10, 10)], total.s())().get(timeout=60) == 27


def test_the_body_of_a_chord_has_the_parent_and_root_that_celery_gives_it(adopted: AdoptedProject) -> None:
    request = adopted.app.tasks["work.request"]
    result = chain(request.si(), chord([request.si(), request.si()], request.s()))()
    body = result.get(timeout=60)
    header = result.parent
    assert body["parent_id"] in [one.id for one in header.results]
    assert body["root_id"] == header.parent.id


@pytest.mark.parametrize(
    "by, value",
    [
        ("task", 3),
        ("itself", 3),
        ("later", 3),
        ("retried", 2),
        ("chain", 13),
        ("group", [2, 4]),
        ("chord", 7),
        ("chain to group", [4, 5]),
    ],
)
def test_a_task_can_replace_itself_and_keeps_its_id(adopted: AdoptedProject, by: str, value: Any) -> None:
    result = adopted.call("work.replace", by)
    assert (result.get(timeout=60), result.state) == (value, "SUCCESS")


def test_what_waits_for_a_replaced_task_waits_for_its_replacement(
    adopted: AdoptedProject, add: Any, tmp_path: Path
) -> None:
    replace, marked = adopted.app.tasks["work.replace"], tmp_path / "marked"
    callback = adopted.app.tasks["work.mark"].si(str(marked), "called")
    total = adopted.app.tasks["work.total"]
    assert chain(replace.si("chain"), add.s(1), replace.s("chord"), add.s(1))().get(timeout=60) == 8
    assert chord([replace.si("chord"), replace.si("chain"), add.s(1, 1)], total.s())().get(timeout=60) == 22
    replace.apply_async(("group",), link=callback)
    eventually(lambda: marked.exists() and marked.read_text() == "called", "the callback runs once")


@pytest.mark.parametrize(
    "by, error", [("failing", ValueError), ("failing chain", ValueError), ("failing chord", ChordError)]
)
def test_a_replaced_task_fails_with_its_replacement(
    adopted: AdoptedProject, add: Any, by: str, error: type[Exception]
) -> None:
    result = chain(adopted.app.tasks["work.replace"].si(by), add.s(1))()
    with pytest.raises(error, match="bad"):
        result.get(timeout=60)
    assert result.parent.state == "FAILURE"


def test_a_replacement_that_cannot_wait_in_the_store_is_refused_by_name(adopted: AdoptedProject) -> None:
    with pytest.raises(ConfigError, match=r"self\.replace is refused: .* without a countdown"):
        adopted.result("work.replace", "delayed chain")


def test_a_large_header_is_joined_in_parts(adopted: AdoptedProject, add: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "EDGES_MAX", 3)
    total = adopted.app.tasks["work.total"]
    inner = chord([add.s(number) for number in range(4)], total.s())
    result = chord([*[add.s(number) for number in range(11)], inner], total.s())()
    assert result.get(timeout=60) == 55 + 6
    result = chord([*[add.s(number) for number in range(11)], adopted.app.tasks["work.fail"].s()], total.s())()
    with pytest.raises(ChordError, match="bad"):
        result.get(timeout=60, follow_parents=False)


def test_a_chord_whose_header_fails_fails_and_calls_its_errback(
    adopted: AdoptedProject, add: Any, tmp_path: Path
) -> None:
    app, marked = adopted.app, tmp_path / "marked"
    body = app.tasks["work.total"].s().on_error(app.tasks["work.mark"].si(str(marked), "called"))
    result = chord([add.s(1, 1), app.tasks["work.fail"].s()], body)()
    with pytest.raises(ValueError, match="bad"):  # The error of the header comes first, as on Celery.
        result.get(timeout=60)
    eventually(result.ready, "the body fails")
    with pytest.raises(ChordError, match=r"raised ValueError\('bad', 3\)"):
        result.get(follow_parents=False)
    eventually(lambda: marked.exists() and marked.read_text() == "called", "the errback runs")


@pytest.mark.filterwarnings("ignore:task_allow_error_cb_on_chord_header")
@pytest.mark.parametrize("body", ["task", "chain", "group", "chord"])
def test_an_immutable_body_does_not_run_after_a_failed_header(
    adopted: AdoptedProject, body: str, tmp_path: Path
) -> None:
    fail, mark = adopted.app.tasks["work.fail"], adopted.app.tasks["work.mark"]
    called, errback = mark.si(str(tmp_path / "marked"), "b"), mark.si(str(tmp_path / "failed"), "e")
    bodies = {
        "task": called,
        "chain": chain(called, called),
        "group": group([called], app=adopted.app),
        "chord": chord([called], called),
    }
    result = chord([adopted.app.tasks["work.add"].s(1, 1), fail.s()], bodies[body].on_error(errback))()
    with pytest.raises((ChordError, ValueError), match="bad"):
        result.get(timeout=60)
    eventually(lambda: (tmp_path / "failed").exists(), "the errback runs")
    assert not (tmp_path / "marked").exists()
    assert chord([adopted.app.tasks["work.add"].s(1, 1)], called)().get(timeout=60) is None
    assert (tmp_path / "marked").read_text() == "b"


@pytest.mark.filterwarnings("ignore:task_allow_error_cb_on_chord_header")
def test_an_errback_of_nested_chords_is_called_once(adopted: AdoptedProject, add: Any, tmp_path: Path) -> None:
    fail, mark, total = (adopted.app.tasks[f"work.{name}"] for name in ("fail", "mark", "total"))
    errback = mark.si(str(tmp_path / "failed"), "e")
    nested = chord([chord([add.s(1, 1), fail.s()], total.s()), add.s(1, 1)], total.s())
    nested.link_error(errback)
    body = chain(total.s(), group([add.s(1), add.s(2)], app=adopted.app), total.s())
    body.link_error(errback)
    for canvas in (nested, chord([fail.s(), add.s(1, 1)], body)):
        (tmp_path / "failed").unlink(missing_ok=True)
        result = canvas()
        with pytest.raises((ChordError, ValueError), match="bad"):
            result.get(timeout=60)
        eventually(result.ready, "the last task fails")
        assert (tmp_path / "failed").read_text() == "e"


def test_a_canvas_with_ids_of_its_own_can_be_sent_again(adopted: AdoptedProject, add: Any, tmp_path: Path) -> None:
    marked = tmp_path / "marked"
    frozen = chord([add.s(1, 2), add.s(3, 4)], adopted.app.tasks["work.mark"].si(str(marked), "x"))
    frozen.freeze()
    for times in (1, 2):
        frozen.apply_async().get(timeout=60)
        assert marked.read_text() == "x" * times
    step = add.s(1).set(task_id=f"step-{tmp_path}")
    assert chain(add.s(1, 1), step)().get(timeout=60) == 3
    assert chain(add.s(2, 2), step)().get(timeout=60) == 5


def test_chunks_map_and_starmap_call_the_task_several_times(adopted: AdoptedProject, add: Any) -> None:
    assert add.chunks([(1, 2), (3, 4), (5, 6)], 2)().get(timeout=60) == [[3, 7], [11]]
    assert add.map([1, 2, 3]).delay().get(timeout=60) == [1, 2, 3]
    assert add.starmap([(1, 1), (2, 2)]).delay().get(timeout=60) == [2, 4]


def test_callbacks_receive_the_result_and_errbacks_run_after_a_failure(
    adopted: AdoptedProject, add: Any, tmp_path: Path
) -> None:
    app, marked = adopted.app, tmp_path / "marked"
    result = add.apply_async((1, 1), link=app.tasks["work.gather"].s("after"))
    result.get(timeout=60)
    assert [child.get(timeout=60) for child in result.children] == [[[2, "after"], {}]]
    failed = app.tasks["work.fail"].apply_async(link_error=app.tasks["work.mark"].si(str(marked), "called"))
    assert isinstance(failed.get(timeout=60, propagate=False), ValueError)
    eventually(lambda: marked.exists() and marked.read_text() == "called", "the errback runs")


def test_a_chord_can_follow_a_chord_with_a_group_as_body(adopted: AdoptedProject, add: Any) -> None:
    fail, total = adopted.app.tasks["work.fail"], adopted.app.tasks["work.total"]
    body = group([add.si(1, 1), add.si(2, 2)], app=adopted.app)
    result = chain(chord([add.s(1, 1), fail.s()], body), chord([add.s(1), add.s(2)], total.s()))()
    with pytest.raises((ChordError, ValueError), match="bad"):
        result.get(timeout=60)


def test_an_errback_starts_when_the_failed_task_has_ended(adopted: AdoptedProject) -> None:
    state = adopted.app.tasks["work.state_of"]
    chosen = f"state-{uuid.uuid4()}"
    failed = adopted.app.tasks["work.fail"].apply_async(link_error=state.s().set(task_id=chosen))
    assert adopted.app.AsyncResult(chosen).get(timeout=60) == "FAILURE"
    headway = adoption_of(adopted.app).headway

    async def sources() -> list[str]:
        (found,) = await (await headway.client.store()).upstreams([JobId(chosen)])
        return [upstream.source for upstream in found]

    assert headway.portal.run(sources()) == [failed.id]


def test_a_chord_with_tasks_on_both_sides_is_refused_by_name(adopted: AdoptedProject, add: Any) -> None:
    with pytest.raises(ConfigError, match=r"stay on Celery \(celery_side\)"):
        chord([add.s(1, 1), adopted.app.tasks["celery_side"].s()], adopted.app.tasks["work.total"].s())()


def test_a_group_is_stored_as_a_whole_or_not_at_all(adopted: AdoptedProject, add: Any) -> None:
    tasks = group(add.s(1, 1).set(task_id="whole-1"), add.s(object(), 1).set(task_id="whole-2"))
    with pytest.raises(ValueError, match="argument 'x'"):
        tasks()
    assert adoption_of(adopted.app).headway.client is not None
    assert adopted.app.backend.find_jobs(["whole-1", "whole-2"]) == [None, None]
