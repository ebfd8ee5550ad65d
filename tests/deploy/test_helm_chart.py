"""The Helm chart: its values fit its schema, its templates use values that exist, its commands can be read.

Only Helm renders the templates, which ``make proof`` lets it do where it is installed.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml  # type: ignore[import-untyped]

from headway.cli.main import build
from headway.client.settings import Settings
from headway.server.uvicorn_server import SHUTDOWN_SECONDS
from headway.version import __version__

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "headway"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
TEMPLATES = {file.name: file.read_text() for file in sorted((CHART / "templates").iterdir())}
TEXT = "\n".join(TEMPLATES.values())


def at(path: str, values: Any) -> Any:
    for name in path.split("."):
        values = values[name]
    return values


def test_the_chart_is_of_this_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_the_defaults_fit_the_schema_and_wrong_values_do_not() -> None:
    jsonschema_rs.validate(SCHEMA, VALUES)
    for path, wrong in (
        ("grace", "30s"),
        ("image.pullPolicy", "Sometimes"),
        ("store.secretName", ""),
        ("server.service.port", 0),
        ("workers", [{"name": "no app"}]),
        ("store.password", "secret"),
        ("serviceMonitor.interval", "soon"),
    ):
        changed = copy.deepcopy(VALUES)
        *before, last = path.split(".")
        (at(".".join(before), changed) if before else changed)[last] = wrong
        with pytest.raises(jsonschema_rs.ValidationError):
            jsonschema_rs.validate(SCHEMA, changed)


def test_templates_use_every_value_and_no_other() -> None:
    used = set(re.findall(r"\.Values\.([A-Za-z.]+)", TEXT))
    for path in used:
        at(path, VALUES)
    leaves = {name if not isinstance(value, dict) else f"{name}.{inner}" for name, value in VALUES.items()
              for inner in (value if isinstance(value, dict) else [""])}  # fmt: skip
    assert {leaf for leaf in leaves if not any(path.startswith(leaf) for path in used)} == set()
    [worker] = VALUES["workers"]
    inside = TEMPLATES["workers.yaml"]
    assert {name for name in worker if not re.search(rf"[ (]\.{name}\b", inside)} == set()
    assert {name for name in worker["scaling"] if not re.search(rf"\.scaling\.{name}\b", inside)} == set()


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_block_has_its_end(name: str) -> None:
    words = re.findall(r"\{\{-?\s*(\w+)", TEMPLATES[name])
    opened = sum(words.count(word) for word in ("if", "range", "with", "define"))
    assert opened == words.count("end")


def test_a_pod_gets_longer_to_stop_than_its_jobs() -> None:
    assert VALUES["grace"] == Settings().grace
    assert "terminationGracePeriodSeconds: {{ add $root.Values.grace 15 }}" in TEMPLATES["workers.yaml"]
    assert f"terminationGracePeriodSeconds: {SHUTDOWN_SECONDS + 15}" in TEMPLATES["server.yaml"]


def test_its_commands_and_options_exist() -> None:
    options = re.findall(r"^\s+- (--[a-z-]+)$", TEMPLATES["workers.yaml"], re.MULTILINE)
    assert options == ["--slots", "--reserved", "--processes", "--capabilities"]
    build().parse_args(["worker", "tasks:app", *(word for option in options for word in (option, "1"))])
    options = re.findall(r"^\s+- (--[a-z-]+)$", TEMPLATES["server.yaml"], re.MULTILINE)
    assert options == ["--host", "--port"]
    build().parse_args(["serve", "--host", "0.0.0.0", "--port", "8000"])
    assert "args: [migrate]" in TEMPLATES["migrate.yaml"]
    build().parse_args(["migrate"])


def test_workers_scale_by_the_same_advice_as_the_plain_manifest() -> None:
    for line in ("valueLocation: slots_wanted", "authMode: bearer", "/api/v1/scale?lane="):
        assert line in TEMPLATES["workers.yaml"]
        assert line in (DEPLOY / "keda" / "worker.yaml").read_text()


def test_no_password_is_in_the_chart_and_pods_have_few_rights() -> None:
    assert not re.search(r"password|kind: Secret", TEXT + (CHART / "values.yaml").read_text().split("store:")[1])
    for right in (
        "runAsNonRoot: true",
        "readOnlyRootFilesystem: true",
        "drop: [ALL]",
        "automountServiceAccountToken: false",
    ):
        assert right in TEMPLATES["_helpers.tpl"]


@pytest.mark.proof
@pytest.mark.skipif(shutil.which("helm") is None, reason="needs helm")
@pytest.mark.parametrize("scaled", [False, True])
def test_helm_renders_the_chart(scaled: bool) -> None:
    values = ["image.repository=shop", "image.tag=1", f"workers[0].scaling.enabled={str(scaled).lower()}"]
    command = ["helm", "template", "shop", str(CHART), "--set", ",".join(values)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kinds = {document["kind"] for document in yaml.safe_load_all(done.stdout) if document}
    assert kinds >= {"Deployment", "Service", "Job", "PodDisruptionBudget", "NetworkPolicy"}
    assert ("ScaledObject" in kinds) == scaled
