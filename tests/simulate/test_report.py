"""The report: figures by group, noise, calibration, conditions, JSON and the page."""

from __future__ import annotations

import json
import random
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.policy.document import BUILT_IN, Policy
from headway.simulate.calibration import calibrate
from headway.simulate.capacity import same_workers
from headway.simulate.condition import failed_conditions, parse_condition
from headway.simulate.html_report import html_report
from headway.simulate.job import SimulatedJob
from headway.simulate.json_report import json_report
from headway.simulate.report import Scenario, SimulationInput, SimulationReport
from headway.simulate.run import simulate
from headway.simulate.text_report import text_report
from tests.simulate.jobs import job, played, policy

LANES = {"high": {"level": 0}, "low": {"level": 1, "promote_after": [20]}}
PATIENT = policy(lanes=LANES | {"low": {"level": 1}}, reserve={"slots": 0})
FAIR = policy(lanes=LANES, reserve={"slots": 0})


def workload(seed: int, count: int = 600, hostile: str = "acme") -> list[SimulatedJob]:
    chance = random.Random(seed)
    moments = sorted(chance.uniform(0, 3_600) for _ in range(count))
    return [
        job(at, chance.expovariate(0.17), lane=chance.choice(["high", "low"]), tenant=chance.choice([hostile, None]))
        for at in moments
    ]


def reported(jobs: list[SimulatedJob], *policies: Policy, slots: int = 1, recorded: bool = False) -> SimulationReport:
    scenarios = [Scenario(f"rules {number}", one, same_workers(slots, 1)) for number, one in enumerate(policies)]
    given = SimulationInput("trace", "jobs.csv", len(jobs), jobs[-1].arrives_ms, 1, left_out={"not ended": 2})
    return simulate(given, scenarios, [jobs], recorded=(jobs, scenarios[0]) if recorded else None)


def test_a_report_names_what_changes_and_by_how_much() -> None:
    report = reported(workload(1), PATIENT, FAIR)
    (comparison,) = report.comparisons
    low = comparison.changes["lane", "low", "p90"]
    assert low.after < low.before
    assert not low.same
    assert low.noise[1] < 1
    assert comparison.changes["lane", "high", "p90"].after > comparison.changes["lane", "high", "p90"].before
    assert sum(figures.jobs for figures in comparison.result.by("lane")) == 600
    assert sum(figures.busy for figures in comparison.result.by("lane")) == pytest.approx(1)
    assert [figures.key for figures in comparison.result.by("lane")] == ["high", "low"]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1_000), st.sampled_from([BUILT_IN, FAIR, PATIENT]))
def test_equal_policies_give_equal_reports(seed: int, one: Policy) -> None:
    jobs = workload(seed, 80)
    report = reported(jobs, one, one)
    first, second = (json_report(report)["policies"][number] | {"name": ""} for number in (0, 1))
    assert first == second
    assert all(change.same for change in report.comparisons[0].changes.values())
    assert json_report(reported(jobs, one, one)) == json_report(report)


def test_a_change_within_the_noise_is_no_change() -> None:
    heavier = policy(lanes=LANES | {"high": {"level": 0, "weight": 1.05}}, reserve={"slots": 0})
    report = reported(workload(2), FAIR, heavier)
    assert report.comparisons[0].changes["lane", "high", "p50"].same
    assert " = " in text_report(report)


def test_a_change_of_a_single_burst_is_shown() -> None:
    jobs = [job(0, 1, lane="high") for _ in range(3)] + [job(0.02, 1, lane="low") for _ in range(40)]
    report = reported(jobs, policy(lanes=LANES, reserve={"slots": 0}), policy(lanes=LANES), slots=4)
    low = report.comparisons[0].changes["lane", "low", "p90"]
    assert low.after == pytest.approx(low.before * 4 / 3, rel=0.1)
    assert not low.same


def test_a_replay_is_held_against_what_happened() -> None:
    jobs = workload(3)
    truth = played(*jobs, under=FAIR)
    known = [one._replace(waited_ms=wait) for one, wait in zip(jobs, truth.waits, strict=True)]
    report = reported(known, FAIR, PATIENT, recorded=True)
    assert report.calibration is not None
    assert (report.calibration.jobs, report.calibration.p50_error, report.calibration.p90_error) == (600, 0, 0)
    off = [one._replace(waited_ms=(one.waited_ms or 0) * 2) for one in known]
    found = calibrate(off, truth)
    assert found is not None
    assert found.p90_error == pytest.approx(0.5, abs=0.01)
    assert "replays p50 within 0 %, p90 within 0 % (600 jobs; 2 left out: 2 not ended)" in text_report(report)
    assert calibrate(jobs, truth) is None


def test_conditions_are_checked_on_what_is_new() -> None:
    report = reported(workload(4), PATIENT, FAIR)
    low = report.comparisons[0].result.groups["lane", "low"]
    assert failed_conditions(report, [parse_condition(f"low.p99 > {low.p99 + 1}")]) == []
    (failed,) = failed_conditions(report, [parse_condition(f"low.p99 >= {low.p99}")])
    assert failed == f"rules 1: low.p99 >= {low.p99}, found {low.p99:.6g}"
    assert failed_conditions(report, [parse_condition("all.busy > 5%"), parse_condition("tenant:acme.p50 < 0")])
    assert parse_condition("low.p99 > 10m").bound == 600


def test_json_has_the_documented_shape() -> None:
    report = json.loads(json.dumps(json_report(reported(workload(5), PATIENT, FAIR))))
    assert report["version"] == 1
    assert report["input"]["left_out"] == {"not ended": 2}
    group: dict[str, Any] = next(one for one in report["policies"][1]["groups"] if one["key"] == "low")
    assert set(group) >= {"by", "key", "jobs", "p50", "p90", "p99", "max", "mean", "started_within", "busy"}
    assert set(group["started_within"]) == {"1", "10", "60"}
    assert group["started_within"]["10"] <= group["started_within"]["60"]
    change = next(one for one in report["compare"] if (one["group"], one["metric"]) == ("low", "p90"))
    assert change["ratio"] == pytest.approx(change["to"] / change["from"])
    assert report["gains"][0]["to"] < report["gains"][0]["from"]
    assert {one["lane"]: one["held"] for one in report["promises"] if one["policy"] == "rules 1"} == {
        "high": True, "low": True,
    }  # fmt: skip
    assert {series["lane"] for series in report["policies"][0]["series"]} == {"high", "low"}


class Page(HTMLParser):
    """Collects the tags of a page, and checks that each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_loads_nothing_runs_nothing_and_escapes_names() -> None:
    hostile = '<script>alert("x")</script>&'
    text = html_report(reported(workload(6, hostile=hostile), PATIENT, FAIR))
    page = Page()
    page.feed(text)
    assert page.open == []
    assert "script" not in page.tags
    assert page.addresses == []
    assert "&lt;script&gt;" in text
    assert page.tags.count("svg") == 6  # Two lanes over time, slots before and after, two dumbbell charts.
    assert "prefers-color-scheme: dark" in text
    assert "lanes.low.promote_after" in text
    assert "<svg" in html_report(reported(workload(6), FAIR))


def test_more_policies_are_compared_one_by_one() -> None:
    report = reported(workload(7), PATIENT, FAIR, BUILT_IN)
    text = text_report(report)
    assert "Rules 0 against rules 1 and rules 2." in text
    assert text.count("Who gains:") == 2
    assert "\nrules 2:\n" in text
