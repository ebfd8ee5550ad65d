"""The alerts, evaluated on what real servers show: each fires on one side of its threshold, and not on the other.

Two servers are scraped every 15 seconds of a manual clock while their store is brought into each state. The rules
are evaluated on those series as Prometheus does. Each rule is then changed in every small way (a number, a label, a
metric, a length of time), and some state must tell the changed rule from the right one.
"""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client import parser as exposition

from headway import Headway
from headway.core.errors import JobError
from headway.core.job import State
from headway.core.lease import Lease
from headway.core.policy.document import BUILT_IN
from headway.core.policy.retry import Ending, Raised, Returned, judge
from headway.server.api import headway_api
from headway.stores.base import Exchange
from headway.stores.memory import MemoryStore
from headway.testing.harness import Testbed
from tests.conformance.builders import BOOM, a_job, a_worker, beat, claim, register, submit
from tests.deploy.promql import Alert, Series, parse, seconds
from tests.deploy.test_alerts import EXPECTED, PROMETHEUS, load, promtool, rules

__all__ = ["promtool"]  # A fixture.

EVERY = 15  # Seconds between two scrapes, and between two evaluations: the intervals of prometheus.yml.
SCRAPED_AFTER = 7  # Seconds from an evaluation to the next scrape.
HERE = ("127.0.0.1", 50_000)
RULES = {rule["alert"]: rule for rule in rules()}


@lru_cache(maxsize=4)  # Both servers show the same.
def read_samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    """Read the metrics of a server, without the buckets of histograms."""
    families = exposition.text_string_to_metric_families(re.sub(r"(?m)^\w+_bucket\{.*\n", "", text))
    return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]


class Scene:
    """A store, two servers that export its metrics, and the series that Prometheus has scraped from them."""

    def __init__(self, bed: Testbed, store: MemoryStore, servers: Mapping[str, httpx.AsyncClient]) -> None:
        self.store = store
        self.clock = bed.clock
        self.series = Series()
        self.now = 0.0
        self.down: set[str] = set()
        self.held: list[Lease] = []
        self.alive = True
        self._servers = servers

    async def steps(self, count: int = 1) -> None:
        """Advance the clock. Each step is one scrape of each server, then an evaluation."""
        for _ in range(count):
            self.clock.advance(SCRAPED_AFTER)
            if self.alive:
                await beat(self.store, a_worker(slots=20), held=self.held)
            for name, server in self._servers.items():
                await self._scrape(name, server)
            self.clock.advance(EVERY - SCRAPED_AFTER)
            self.now += EVERY

    async def _scrape(self, name: str, server: httpx.AsyncClient) -> None:
        at = self.now + SCRAPED_AFTER
        if name in self.down:
            self.series.end(at, instance=name)
            return
        answer = await server.get("/metrics")
        assert answer.status_code == 200
        for metric, labels, value in read_samples(answer.text):
            self.series.add(metric, {**labels, "instance": name}, at, value)

    async def end(self, *, completed: int = 0, failed: int = 0, dead: int = 0, cancelled: int = 0) -> None:
        """Submit and end this many jobs in each way."""
        endings: list[tuple[int, Ending]] = [
            (completed, Returned(b"null")),
            (failed, Raised(JobError("ValueError", "bad", retriable=False))),
            (dead, Raised(BOOM)),
        ]
        for count, ending in endings:
            if count:
                await submit(self.store, *(a_job(lane="high", max_retries=0) for _ in range(count)))
                while leases := await claim(self.store, free=20):
                    reports = [judge(ending, lease, BUILT_IN) for lease in leases]
                    await self.store.exchange(Exchange(None, finished=reports))
                    count -= len(leases)
                assert count == 0
        if cancelled:
            await self.store.cancel(await submit(self.store, *(a_job() for _ in range(cancelled))))


@asynccontextmanager
async def a_scene() -> AsyncIterator[Scene]:
    app = Headway("memory://")
    with Testbed(app) as bed:
        store = await bed.app.client.store()
        assert isinstance(store, MemoryStore)
        servers = {
            name: httpx.AsyncClient(
                transport=httpx.ASGITransport(headway_api(bed.app, hosts=["testserver"]), client=HERE),
                base_url="http://testserver",
            )
            for name in ("a", "b")
        }
        await register(store, slots=20)
        try:
            yield Scene(bed, store, servers)
        finally:
            for server in servers.values():
                await server.aclose()


# ---------------------------------------------------------------------- the states


@dataclass(frozen=True)
class Situation:
    """A state of the store.

    ``fires``: the seconds of the first and the last evaluation that fires, or None. ``also``: other alerts that fire in
    it.
    """

    alert: str
    name: str
    play: Callable[[Scene], Awaitable[None]]
    fires: tuple[float, float] | None
    also: set[str]
    labels: Mapping[str, str]


STATES: list[Situation] = []


def state(
    alert: str, *, fires: tuple[float, float] | None = None, also: str = "", **labels: str
) -> Callable[[Callable[[Scene], Awaitable[None]]], Callable[[Scene], Awaitable[None]]]:
    def add(play: Callable[[Scene], Awaitable[None]]) -> Callable[[Scene], Awaitable[None]]:
        STATES.append(Situation(alert, play.__name__, play, fires, set(also.split()), labels))
        return play

    return add


# R5.95: no active worker for over two minutes.


@state("HeadwayNoActiveWorkers", fires=(195, 240))
async def the_only_worker_drains(scene: Scene) -> None:
    await scene.steps(4)
    await scene.store.drain("w1")
    await scene.steps(12)


@state("HeadwayNoActiveWorkers", fires=(180, 240))
async def the_only_worker_dies(scene: Scene) -> None:
    await scene.steps(3)
    scene.alive = False
    await scene.store.mark_dead("w1")
    await scene.steps(13)


@state("HeadwayNoActiveWorkers")
async def another_worker_comes_within_two_minutes(scene: Scene) -> None:
    await scene.steps(2)
    await scene.store.drain("w1")
    await scene.steps(8)
    await register(scene.store, "w2", lease_ms=3_600_000)
    await scene.steps(9)


# R5.96: the high lane is over 1000 deep.


@state("HeadwayHighQueueDeep")
async def a_thousand_of_high_wait(scene: Scene) -> None:
    await submit(scene.store, *(a_job(lane="high") for _ in range(1_000)))
    await submit(scene.store, *(a_job(lane=lane) for lane in ("medium", "low") for _ in range(2_000)))
    await submit(scene.store, *(a_job(lane="high", delay_ms=3_600_000) for _ in range(200)))
    await scene.steps(2)


@state("HeadwayHighQueueDeep", fires=(30, 45))
async def a_thousand_and_one_of_high_wait(scene: Scene) -> None:
    await submit(scene.store, *(a_job(lane="high") for _ in range(1_000)))
    await scene.steps()
    await submit(scene.store, a_job(lane="high", needs=("gpu",)))  # It waits for another reason than the rest.
    await scene.steps(2)
    await claim(scene.store, free=1)
    await scene.steps()


# R5.97: over a quarter of the tasks fail.


async def some_history(scene: Scene) -> None:
    await scene.end(completed=100, failed=30, dead=30, cancelled=5)
    await scene.store.purge([State.DEAD_LETTER], None)
    await scene.steps(21)


@state("HeadwayFailureRate", also="HeadwayDeadLetters")
async def a_quarter_fails(scene: Scene) -> None:
    await some_history(scene)
    await scene.end(completed=114, failed=19, dead=19, cancelled=40)  # Extended to 120, 20 and 20.
    await scene.steps(4)


@state("HeadwayFailureRate", also="HeadwayDeadLetters", fires=(330, 600))
async def over_a_quarter_fails_and_six_minutes_later_none(scene: Scene) -> None:
    await some_history(scene)
    await scene.end(completed=74, failed=14, dead=12, cancelled=40)
    await scene.store.purge([State.FAILED, State.DEAD_LETTER], None)  # What is no longer kept has failed all the same.
    await scene.steps(24)
    await scene.end(completed=30)
    await scene.steps(2)


@state("HeadwayFailureRate", also="HeadwayDeadLetters")
async def few_tasks_are_no_rate(scene: Scene) -> None:
    await some_history(scene)
    await scene.end(
        failed=9, dead=9, cancelled=30
    )  # Prometheus extends the 285 s it has seen of these to 300: nearly 19.
    await scene.steps(3)


@state("HeadwayFailureRate", fires=(330, 360))
async def twenty_tasks_are_a_rate(scene: Scene) -> None:
    await some_history(scene)
    await scene.end(completed=13, failed=4, dead=2)  # Extended likewise: exactly 20.
    await scene.steps(3)


@state("HeadwayFailureRate", fires=(645, 660))
async def what_completed_six_minutes_ago_does_not_count(scene: Scene) -> None:
    await some_history(scene)
    await scene.end(completed=200)
    await scene.steps(21)
    await scene.end(failed=12, dead=7)
    await scene.steps(2)


@state("HeadwayFailureRate")
async def few_tasks_are_no_rate_after_many(scene: Scene) -> None:
    await some_history(scene)
    await scene.end(completed=200)
    await scene.steps(21)
    await scene.end(failed=5, dead=5)
    await scene.steps(2)


# R5.98: more than ten dead letters a minute.


@state("HeadwayDeadLetters")
async def nine_dead_letters_a_minute(scene: Scene) -> None:
    await scene.end(dead=40)
    await scene.steps(5)
    for count in (2, 2, 3, 2, 2, 3, 2):  # In 45 s seven, which is 9.3 in a minute.
        await scene.end(completed=30, dead=count)
        await scene.steps()
    await scene.store.purge([State.DEAD_LETTER], None)
    await scene.steps(3)


@state("HeadwayDeadLetters", fires=(120, 135))
async def eleven_dead_letters_a_minute(scene: Scene) -> None:
    await scene.end(dead=40)
    await scene.steps(5)
    for count in (2, 3, 3, 2):  # In 45 s eight, which is 10.7 in a minute.
        await scene.end(dead=count)
        await scene.store.purge([State.DEAD_LETTER], None)
        await scene.steps()
    await scene.steps(4)


# R5.99: the workers are over 90 % full for over ten minutes.


async def fill(scene: Scene, slots: int) -> None:
    await submit(scene.store, *(a_job(lane="high", timeout_ms=7_200_000) for _ in range(slots)))
    scene.held += await claim(scene.store, free=slots)


@state("HeadwayWorkersBusy")
async def eighteen_of_twenty_slots_are_filled(scene: Scene) -> None:
    await fill(scene, 18)
    await scene.steps(44)


@state("HeadwayWorkersBusy", fires=(660, 705))
async def nineteen_of_twenty_slots_are_filled(scene: Scene) -> None:
    await fill(scene, 18)
    await scene.steps(3)
    await fill(scene, 1)
    await scene.steps(44)


@state("HeadwayWorkersBusy")
async def nineteen_of_twenty_slots_are_filled_for_nearly_ten_minutes(scene: Scene) -> None:
    await fill(scene, 19)
    await scene.steps(40)
    leases, scene.held = scene.held[:1], scene.held[1:]
    await scene.store.exchange(Exchange(None, finished=[judge(Returned(b"null"), leases[0], BUILT_IN)]))
    await scene.steps(4)


# R5.100: a low task waits for over 25 minutes.


@state("HeadwayLowWaits")
async def a_low_task_waits_for_twenty_five_minutes(scene: Scene) -> None:
    await submit(scene.store, a_job(lane="medium"), a_job(lane="high"))
    scene.clock.advance(600)
    await submit(scene.store, *(a_job(lane="low") for _ in range(3)))
    scene.clock.advance(1_500 - SCRAPED_AFTER - EVERY)
    await scene.steps(2)


@state("HeadwayLowWaits", fires=(30, 30))
async def a_low_task_waits_for_a_second_longer(scene: Scene) -> None:
    await submit(scene.store, a_job(lane="low"))
    scene.clock.advance(1_501 - SCRAPED_AFTER - EVERY)
    await scene.steps(2)


# R5.101: any lane is over 5000 deep.


@state("HeadwayQueueDeep")
async def five_thousand_of_low_wait(scene: Scene) -> None:
    await submit(scene.store, *(a_job(lane="low") for _ in range(5_000)))
    await submit(scene.store, *(a_job(lane="medium") for _ in range(600)))
    await submit(scene.store, a_job(lane="low", delay_ms=3_600_000))
    await scene.steps(2)


@state("HeadwayQueueDeep", fires=(15, 30), priority="low")
async def five_thousand_and_one_of_low_wait(scene: Scene) -> None:
    await submit(scene.store, *(a_job(lane="low") for _ in range(5_000)), a_job(lane="low", needs=("gpu",)))
    await scene.steps(2)


# Headway's own.


def lose_count(scene: Scene) -> tuple[int, Any]:
    """Remove a running job from the store's indexes, as a bug would."""
    return scene.store.state.executing.popitem()


@state("HeadwayCountersDrift", fires=(330, 360), counter="running")
async def a_counter_is_wrong(scene: Scene) -> None:
    await fill(scene, 2)
    await scene.steps()
    lose_count(scene)
    scene.held.clear()
    await scene.steps(23)


@state("HeadwayCountersDrift")
async def a_counter_was_wrong_for_nearly_five_minutes(scene: Scene) -> None:
    await fill(scene, 2)
    await scene.steps()
    number, record = lose_count(scene)
    await scene.steps(20)
    scene.store.state.executing[number] = record
    await scene.steps(3)


@state("HeadwayNotScraped", fires=(150, 180))
async def no_server_answers(scene: Scene) -> None:
    await scene.steps()
    scene.down = {"a", "b"}
    await scene.steps(11)


@state("HeadwayNotScraped")
async def one_server_answers(scene: Scene) -> None:
    await scene.steps()
    scene.down = {"a"}
    await scene.steps(11)


@state("HeadwayNotScraped")
async def the_servers_answer_again_within_two_minutes(scene: Scene) -> None:
    await scene.steps()
    scene.down = {"a", "b"}
    await scene.steps(8)
    scene.down.clear()
    await scene.steps(9)


# ---------------------------------------------------------------------- what fires


@dataclass(frozen=True)
class Recording:
    """A state with the series scraped from it, until ``end``."""

    state: Situation
    series: Series
    end: float


Fired = dict[float, list[dict[str, str]]]  # The labels of what fires, by the moment of an evaluation.

_recordings: dict[str, Recording] = {}


async def recording_of(wanted: Situation) -> Recording:
    """Play a state once and return its recording."""
    if wanted.name not in _recordings:
        async with a_scene() as scene:
            await wanted.play(scene)
            _recordings[wanted.name] = Recording(wanted, scene.series, scene.now)
    return _recordings[wanted.name]


def fired(rule: Mapping[str, Any], recording: Recording) -> Fired:
    """Evaluate a rule every 15 seconds, as Prometheus does. Return the alerts that fired."""
    alert = Alert(rule)
    times = [float(at) for at in range(EVERY, int(recording.end) + 1, EVERY)]
    found = {at: [labels for labels, _ in alert.evaluate(recording.series, at)] for at in times}
    return {at: labels for at, labels in found.items() if labels}


@pytest.mark.parametrize("given", STATES, ids=lambda given: given.name)
async def test_an_alert_fires_exactly_when_its_threshold_is_passed(given: Situation) -> None:
    # R5.95, R5.96, R5.97, R5.98, R5.99, R5.100, R5.101
    recording = await recording_of(given)
    expected: Fired = {}
    if given.fires is not None:
        first, last = given.fires
        labels = {"severity": EXPECTED[given.alert][0], **given.labels}
        expected = {float(at): [labels] for at in range(int(first), int(last) + 1, EVERY)}
    assert fired(RULES[given.alert], recording) == expected
    others = {name for name, rule in RULES.items() if name != given.alert and fired(rule, recording)}
    assert others == given.also


def test_every_alert_has_a_state_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    assert {given.alert for given in STATES if given.fires} == set(RULES)
    assert {given.alert for given in STATES if not given.fires} == set(RULES)


# ---------------------------------------------------------------------- rules that are wrong in a small way


def wrong_rules(rule: Mapping[str, Any], series: Series) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield variants of a rule, each with one small change."""
    text: str = rule["expr"]

    def changed(match: re.Match[str], new: str) -> tuple[str, dict[str, Any]]:
        expr = text[: match.start()] + new + text[match.end() :]
        return expr, {**rule, "expr": expr}

    for match in re.finditer(r"(?<![\w\[.\"])\d+(\.\d+)?(?![\w\].])", text):  # Thresholds.
        number = float(match[0])
        for new in (number * 1.1, number * 0.9) if number else (1.0,):
            yield changed(match, f"{new:g}")
    for match in re.finditer(r"\[(\d+)m\]", text):  # Ranges.
        yield changed(match, f"[{int(match[1]) * 2}m]")
    for match in re.finditer(r"(?<![<>=!])(>=|<=|==|>|<)(?!=)", text):  # Comparisons.
        for sign in {">": (">=", "<"), ">=": (">", "<"), "==": ("!=", ">")}[match[1]]:
            if not (sign == ">=" and "[1m])) >" in text):  # Three intervals extended to a minute are never exactly 10.
                yield changed(match, sign)
    for match in re.finditer(r"\bmax\b", text):
        if not re.search(r"(==|>) 0\b", text):  # A sum is 0 where the largest is.
            yield changed(match, "sum")
    for match in re.finditer(r"(\w+)=(~?)\"([^\"]*)\"", text):  # Labels.
        label, how, value = match[1], match[2], match[3]
        if how:
            words = value.split("|")
            others = ["|".join(w for w in words if w != left_out) for left_out in words]
            others += [f"{value}|cancelled"]
        else:
            metric = re.findall(r"\w+", text[: match.start()])[-1]
            others = sorted(series.values(metric, label) - {value})
            assert others, (metric, label)
        for other in others:
            yield changed(match, f'{label}={how}"{other}"')
        yield changed(match, "")
    for match in re.finditer(r"\b(?:queue|task|tasks|workers?|headway)_\w+", text):  # Metrics.
        others = ["no_such_metric"] if "absent(" in text else sorted(series.names - {match[0]})
        for other in others:
            yield changed(match, other)
    held = seconds(rule.get("for"))
    for other_s in (held + EVERY, held - EVERY):
        if other_s >= 0:
            yield f"for: {other_s:.0f}s", {**rule, "for": f"{other_s:.0f}s"}


@pytest.mark.parametrize("alert", EXPECTED)
async def test_a_rule_that_is_wrong_in_any_small_way_is_noticed(alert: str) -> None:
    # R5.95, R5.96, R5.97, R5.98, R5.99, R5.100, R5.101
    recordings = [await recording_of(given) for given in STATES if given.alert == alert]
    right = [fired(RULES[alert], recording) for recording in recordings]
    unnoticed, tried = [], 0
    for what, rule in wrong_rules(RULES[alert], recordings[0].series):
        tried += 1
        if all(fired(rule, recording) == before for recording, before in zip(recordings, right, strict=True)):
            unnoticed.append(what)
    assert tried >= 3
    assert unnoticed == []


# ---------------------------------------------------------------------- the evaluator


def read_values(text: str) -> list[float | None]:
    """Read promtool's notation of a series: ``0+5x3`` is 0 5 10 15, ``1x2`` is 1 1 1, and ``stale`` ends it."""
    found: list[float | None] = []
    for word in text.split():
        if match := re.fullmatch(r"([\d.]+)(?:([+-][\d.]+))?x(\d+)", word):
            found += [float(match[1]) + float(match[2] or 0) * turn for turn in range(int(match[3]) + 1)]
        else:
            found.append(None if word == "stale" else float(word))
    return found


def read_series(test: Mapping[str, Any]) -> Series:
    series, apart = Series(), seconds(test["interval"])
    for given in test["input_series"]:
        match = re.fullmatch(r"(\w+)(?:\{(.*)\})?", given["series"])
        assert match is not None
        labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
        for turn, value in enumerate(read_values(str(given["values"]))):
            series.add(match[1], labels, turn * apart, float("nan") if value is None else value)
    return series


@pytest.mark.parametrize("test", load(PROMETHEUS / "alerts.test.yml")["tests"], ids=lambda test: test["name"])
def test_promtools_own_tests_pass_here_too(test: dict[str, Any]) -> None:
    every = seconds(load(PROMETHEUS / "alerts.test.yml")["evaluation_interval"])
    series = read_series(test)
    for check in test["alert_rule_test"]:
        alert, now, until = Alert(RULES[check["alertname"]]), 0.0, seconds(check["eval_time"])
        while now < until:
            alert.evaluate(series, now)
            now += every
        found = [{"exp_labels": labels, "exp_annotations": notes} for labels, notes in alert.evaluate(series, until)]
        assert found == check["exp_alerts"]


@pytest.mark.parametrize(
    "text",
    [
        "max(",
        "max(x) >",
        'x{a="b"',
        "x[5m]x",
        "rate(x[5m])",
        "max(x) > 1 or y",
        "histogram_quantile(0.9, x)",
        "x @ 5",
        "",
    ],
)
def test_what_the_evaluator_does_not_know_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it says, it does not pass by.
        parse(text)


def some_values(chance: random.Random, name: str) -> list[float]:
    if name.endswith("_total") and name != "workers_total":
        values, total = [], float(chance.randrange(200))
        for _ in range(60):
            total = 0.0 if chance.random() < 0.02 else total + chance.choice([0, 0, 1, 2, 3, 8])
            values.append(total)
        return values
    scale = {"queue_depth": 1_000, "headway_queue_oldest_age_seconds": 300, "worker_capacity_used_ratio": 0.18}
    steps = [chance.choice([0, 1, 4.9, 5, 5.1, 6]) * scale.get(name, 0.2) for _ in range(5)]
    return [chance.choice(steps[at // 12 :]) if chance.random() < 0.1 else steps[at // 12] for at in range(60)]


@pytest.mark.proof
@pytest.mark.parametrize("turn", range(12))
def test_the_evaluator_and_promtool_agree(promtool: str, turn: int, tmp_path: Path, seed: int) -> None:
    """Random series, all alerts, many moments: promtool expects the results of the evaluator."""
    chance = random.Random(seed * 1_000 + turn)
    given: list[dict[str, Any]] = []
    known = {
        "workers_total": [f'status="{status}"' for status in ("active", "dead")],
        "queue_depth": [f'priority="{lane}"' for lane in ("high", "low")],
        "headway_tasks_finished_total": [f'status="{status}"' for status in ("completed", "failed", "dead_letter")],
        "tasks_dlq_total": [""],
        "headway_count_drift": ['counter="running"'],
        "worker_capacity_used_ratio": [""],
        "headway_queue_oldest_age_seconds": [f'priority="{lane}"' for lane in ("medium", "low")],
    }
    for name, all_labels in known.items():
        for labels in all_labels:
            for instance in "ab":
                text = ", ".join(part for part in (labels, f'instance="{instance}"') if part)
                values = " ".join(f"{value:g}" for value in some_values(chance, name))
                given.append({"series": f"{name}{{{text}}}", "values": values})
    test = {"name": "random", "interval": "13s", "input_series": given, "alert_rule_test": []}
    series, checks, fires = read_series(test), [], 0
    for alertname, rule in RULES.items():
        alert = Alert(rule)
        for now in range(0, 780, EVERY):
            found = alert.evaluate(series, float(now))
            # Releases of Prometheus differ on whether a range has the sample at its very start.
            if any((now - span) % 13 == 0 for span in (60, 300)):
                continue
            fires += len(found)
            expected = [{"exp_labels": labels, "exp_annotations": notes} for labels, notes in found]
            checks.append({"eval_time": f"{now}s", "alertname": alertname, "exp_alerts": expected})
    assert fires > 10
    test["alert_rule_test"] = checks
    file = tmp_path / "random.yml"
    rule_files = [str(PROMETHEUS / "alerts.yml")]
    file.write_text(yaml.safe_dump({"rule_files": rule_files, "evaluation_interval": f"{EVERY}s", "tests": [test]}))
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[:3_000]
