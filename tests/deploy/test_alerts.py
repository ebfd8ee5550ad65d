"""The alerts and the dashboard of the distribution: each uses existing metrics in the right way."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families
from promql_parser import (
    AggModifierType,
    AggregateExpr,
    BinaryExpr,
    Call,
    Expr,
    MatrixSelector,
    NumberLiteral,
    ParenExpr,
    VectorSelector,
)

from headway.core.policy.document import BUILT_IN, Ladder, Rung
from headway.metrics.documents import METRICS, TASK_RUNS, MetricsDocument, encode
from headway.metrics.export import render
from headway.metrics.recorder import EXCHANGES, LENGTHS_MS, RUN_TIME, TOTAL_TIME
from headway.stores.memory import MemoryStore
from headway.testing.clock import ManualClock

SCRAPED = {"instance", "job"}  # Labels that Prometheus adds to what it scrapes.
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
    """Return the metrics that a server exports: the name of each sample, with its labels."""
    store = MemoryStore(clock=ManualClock())
    row: list[float] = [1] * (len(LENGTHS_MS) + 2)
    rows = {f"{TOTAL_TIME}|completed|low": row, f"{RUN_TIME}|completed|low": row, f"{EXCHANGES}|jobs": [1.0] * 17}
    body = encode(MetricsDocument(rows=rows | {f"{TASK_RUNS}|completed|mail": [1.0, 1.0]}))
    await store.write(METRICS, "one", body)
    ladder = Ladder((Rung("short", 60_000), Rung("long", 3_600_000, limit=1)))
    text, _ = await render(store, replace(BUILT_IN, ladder=ladder))
    families = text_string_to_metric_families(text.decode())
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def parse(expression: str) -> Expr:
    """Read an expression as Prometheus does. Raises ``ValueError``."""
    return promql_parser.parse(expression.replace("$__rate_interval", "5m"))


def check_names(expression: Expr, known: Mapping[str, set[str]]) -> set[str]:
    """Return the labels of an expression's result. Fails for unknown metrics and labels."""
    if isinstance(expression, ParenExpr):
        return check_names(expression.expr, known)
    if isinstance(expression, NumberLiteral):
        return set()
    if isinstance(expression, MatrixSelector):
        return check_names(expression.vector_selector, known)
    if isinstance(expression, VectorSelector):
        name = expression.name or ""
        assert name in known
        labels = known[name] | SCRAPED
        assert {matcher.name for matcher in expression.matchers.matchers} <= labels
        return labels
    if isinstance(expression, Call):
        labels = set().union(*(check_names(given, known) for given in expression.args))
        if expression.func.name == "histogram_quantile":
            assert "le" in labels
            labels.remove("le")
        return labels
    if isinstance(expression, BinaryExpr):
        left, right = check_names(expression.lhs, known), check_names(expression.rhs, known)
        matched = (
            set(expression.modifier.matching.labels) if expression.modifier and expression.modifier.matching else set()
        )
        assert matched <= left | right
        return left
    assert isinstance(expression, AggregateExpr), expression
    labels = check_names(expression.expr, known)
    if expression.modifier is None:
        return labels if str(expression.op).startswith(("topk", "bottomk")) else set()
    named = set(expression.modifier.labels)
    assert named <= labels
    return named if expression.modifier.type == AggModifierType.By else labels - named


def test_the_alerts_are_those_that_were_asked_for() -> None:
    # R5.95, R5.96, R5.97, R5.98, R5.99, R5.100, R5.101
    found = {rule["alert"]: rule for rule in rules()}
    assert set(found) == set(EXPECTED)
    for name, (severity, length) in EXPECTED.items():
        rule = found[name]
        assert (rule["labels"]["severity"], rule.get("for")) == (severity, length)
        assert set(rule["annotations"]) == {"summary", "description"}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
async def test_an_alert_asks_only_for_metrics_and_labels_that_a_server_shows(rule: dict[str, Any]) -> None:
    found = check_names(parse(rule["expr"]), await shown())
    used = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    assert used <= found


@pytest.mark.parametrize("panel", dashboard()["panels"], ids=lambda panel: panel["title"])
async def test_a_panel_asks_only_for_metrics_and_labels_that_a_server_shows(panel: dict[str, Any]) -> None:
    known = await shown()
    assert panel["targets"]
    for target in panel["targets"]:
        found = check_names(parse(target["expr"]), known)
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= found, target["expr"]


async def test_the_queries_of_the_documentation_ask_only_for_what_a_server_shows() -> None:
    known = await shown()
    page = (DEPLOY.parent / "docs" / "how-to" / "monitor.md").read_text()
    queries = [query for block in re.findall(r"```promql\n(.*?)```", page, re.DOTALL)
               for query in re.split(r"\n(?=\w)", block.strip())]  # fmt: skip
    assert len(queries) >= 2
    for query in queries:
        assert check_names(parse(query), known), query


@pytest.mark.parametrize(
    "expression",
    [
        "max(no_such_metric)",
        'max(queue_depth{lane="high"})',
        "max by (lane) (queue_depth)",
        "sum by (status) (max by (priority) (queue_depth))",
        "max without (instance, job, lane) (queue_depth)",
        "histogram_quantile(0.5, sum by (priority) (rate(queue_age_seconds_bucket[5m])))",
        "max(headway_dead_letters) / max(no_such_metric)",
    ],
)
async def test_an_expression_with_an_unknown_name_is_noticed(expression: str) -> None:
    with pytest.raises(AssertionError):
        check_names(parse(expression), await shown())


def test_a_misspelt_expression_is_noticed() -> None:
    for wrong in ("max by priority (queue_depth)", "rate(queue_depth)", "maximum(queue_depth)", "max(queue_depth"):
        with pytest.raises(ValueError):  # noqa: PT011 - the parser has one error.
            parse(wrong)


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
