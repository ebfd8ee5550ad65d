"""The alerts and the dashboard that ship with Headway: each asks for metrics that exist, and means what it says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from headway.core.policy.document import BUILT_IN
from headway.metrics.documents import METRICS, TASK_RUNS, MetricsDocument, encode
from headway.metrics.export import collect
from headway.metrics.recorder import EXCHANGES, LENGTHS_MS, RUN_TIME, TOTAL_TIME
from headway.stores.memory import MemoryStore
from headway.testing.clock import ManualClock

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"

# R5.95 to R5.101, and Headway's own: how bad, and after how long. test_alerts_fire.py has the numbers.
EXPECTED = {
    "HeadwayNoActiveWorkers": ("critical", "2m"),  # R5.95
    "HeadwayHighQueueDeep": ("critical", None),  # R5.96
    "HeadwayFailureRate": ("critical", None),  # R5.97
    "HeadwayDeadLetters": ("critical", None),  # R5.98
    "HeadwayWorkersBusy": ("warning", "10m"),  # R5.99
    "HeadwayLowWaits": ("warning", None),  # R5.100
    "HeadwayQueueDeep": ("warning", None),  # R5.101
    "HeadwayCountersDrift": ("critical", "5m"),
    "HeadwayNotScraped": ("critical", "2m"),
}


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def rules() -> list[dict[str, Any]]:
    return [rule for group in load(PROMETHEUS / "alerts.yml")["groups"] for rule in group["rules"]]


def dashboard() -> Any:
    return json.loads((DEPLOY / "grafana" / "headway.json").read_text())


def dashboard_expressions() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]


async def shown() -> dict[str, set[str]]:
    """Return all that a server shows: the name of each sample, with its labels."""
    store = MemoryStore(clock=ManualClock())
    row: list[float] = [1] * (len(LENGTHS_MS) + 2)
    rows = {f"{TOTAL_TIME}|completed|low": row, f"{RUN_TIME}|completed|low": row, f"{EXCHANGES}|jobs": [1.0] * 17}
    body = encode(MetricsDocument(rows=rows | {f"{TASK_RUNS}|completed|mail": [1.0, 1.0]}))
    await store.write(METRICS, "one", body)
    families = await collect(store, BUILT_IN)
    return {
        f"{family.name}{sample.suffix}": {label for label, _ in sample.labels}
        for family in families
        for sample in family.samples
    }


def names_in(expression: str) -> set[str]:
    """Return the metrics that an expression names: words that are neither functions, labels nor keywords."""
    text = re.sub(r'"[^"]*"', "", expression)
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", text)
    text = re.sub(r"\b(by|without)\s*\([^)]*\)", "", text)
    return {word for word in re.findall(r"\b[a-z_]{3,}\b(?!\s*\()", text) if word not in ("and", "unless")}


def labels_in(expression: str) -> set[str]:
    """Return the labels that an expression chooses or groups by."""
    chosen = re.findall(r"([a-z_]+)\s*(?:=~|!=|=)\s*\"", expression)
    grouped = [name for group in re.findall(r"\bby\s*\(([^)]*)\)", expression) for name in group.split(",")]
    return {name.strip() for name in (*chosen, *grouped)}


def test_the_alerts_are_those_that_were_asked_for() -> None:
    # R5.95, R5.96, R5.97, R5.98, R5.99, R5.100, R5.101
    found = {rule["alert"]: rule for rule in rules()}
    assert set(found) == set(EXPECTED)
    for name, (severity, length) in EXPECTED.items():
        rule = found[name]
        assert (rule["labels"]["severity"], rule.get("for")) == (severity, length)
        assert set(rule["annotations"]) == {"summary", "description"}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
async def test_an_alert_asks_only_for_metrics_that_exist(rule: dict[str, Any]) -> None:
    known = await shown()
    names = names_in(rule["expr"])
    assert names
    assert names <= set(known)
    assert labels_in(rule["expr"]) <= set().union(*(known[name] for name in names))


async def test_the_dashboard_asks_only_for_metrics_that_exist() -> None:
    known = await shown()
    for expression in dashboard_expressions():
        names = names_in(expression)
        assert names, expression
        assert names <= set(known), expression
        assert labels_in(expression) <= set().union(*(known[name] for name in names)), expression


async def test_no_expression_adds_up_what_several_servers_show() -> None:
    # Each shows the whole store: whatever is summed must first have been reduced to one of them.
    for expression in (*dashboard_expressions(), *(rule["expr"] for rule in rules())):
        assert "max" in expression or "absent(" in expression, expression
        for inside in re.findall(r"sum(?: by \([^)]*\))? ?\(([a-z_]+)", expression):
            assert inside == "max", expression


def test_the_dashboard_is_tidy() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    titles = {"Depth", "Age of the oldest", "Throughput", "Failures", "Workers", "Utilisation", "Start latency"}
    assert titles <= {panel["title"] for panel in panels}
    taken = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) == 23
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}


def test_the_example_names_files_that_are_there() -> None:
    example = load(PROMETHEUS / "prometheus.yml")
    assert all((PROMETHEUS / name).is_file() for name in example["rule_files"])
    assert {job["job_name"] for job in example["scrape_configs"]} == {"headway", "headway-worker"}


def test_every_alert_has_a_test_that_fires_it_and_one_that_does_not() -> None:
    tests = [check for test in load(PROMETHEUS / "alerts.test.yml")["tests"] for check in test["alert_rule_test"]]
    assert {check["alertname"] for check in tests if check["exp_alerts"]} == set(EXPECTED)
    assert {check["alertname"] for check in tests if not check["exp_alerts"]} == set(EXPECTED)


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed here (Debian: prometheus)")
    return found


@pytest.mark.proof
@pytest.mark.parametrize(
    "command",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts.test.yml"),
    ],
    ids=" ".join,
)
def test_prometheus_itself_agrees(promtool: str, command: tuple[str, ...]) -> None:
    done = subprocess.run([promtool, *command], cwd=PROMETHEUS, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.proof
def test_prometheus_can_read_the_dashboards_expressions(promtool: str, tmp_path: Path) -> None:
    records = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, expression in enumerate(dashboard_expressions())
    ]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": records}]}))
    done = subprocess.run([promtool, "check", "rules", "rules.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
