"""The Helm chart: Helm renders it, the schemas of Kubernetes accept each object, and its commands can be read.

Helm and the schemas come from the package index. The schemas do not include objects of KEDA and of the Prometheus
operator.
"""

from __future__ import annotations

import copy
import json
import platform
import re
import subprocess
import sys
from functools import lru_cache
from importlib.util import find_spec
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
HELM = Path(sys.executable).with_name("helm")
STOP_MARGIN = 15  # Seconds from when a process stops itself until it is killed.

_package = find_spec("kubernetes_validate")
assert _package is not None
assert _package.origin is not None
SCHEMAS = Path(_package.origin).parent / "kubernetes-json-schema"
RELEASES = sorted(
    {path.name.removesuffix("-local-strict") for path in SCHEMAS.glob("v*-local-strict")},
    key=lambda name: int(name.split(".")[1]),
)
OTHERS = {"keda.sh", "monitoring.coreos.com"}  # Groups of objects that Kubernetes itself does not define.
EVERYTHING: dict[str, Any] = {
    "image": {"repository": "registry.example.com/shop", "tag": "sha256:" + "0" * 64},
    "imagePullSecrets": [{"name": "registry"}],
    "history": {"secretName": "headway-history"},
    "env": [{"name": "HEADWAY_LOG_LEVEL", "value": "debug"}],
    "server": {"app": "tasks:app"},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "networkPolicy": {"from": [{"namespaceSelector": {"matchLabels": {"name": "web"}}}]},
    "workers": [
        {"name": "default", "app": "tasks:app", "scaling": {"enabled": True}},
        {
            "name": "gpu",
            "app": "tasks:app",
            "replicas": 1,
            "slots": 2,
            "reserved": 0,
            "capabilities": ["gpu", "big-memory"],
            "resources": {"limits": {"nvidia.com/gpu": 1}},
            "nodeSelector": {"gpu": "yes"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "podDisruptionBudget": {"enabled": False},
        },
    ],
}

pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="the package index has Helm for Linux on x86-64"
)


def at(path: str, values: Any) -> Any:
    for name in path.split("."):
        values = values[name]
    return values


def helm(*words: str, values: str = "{}") -> subprocess.CompletedProcess[str]:
    """Run Helm on the chart, with values in JSON."""
    return subprocess.run([HELM, *words, "--values", "-"], input=values, capture_output=True, text=True)


@lru_cache
def rendered_text(values: str) -> str:
    done = helm("template", "shop", str(CHART), values=values)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rendered(**values: Any) -> list[dict[str, Any]]:
    """Return the objects that the chart renders."""
    text = rendered_text(json.dumps({"image": {"repository": "shop", "tag": "1.0"}, **values}))
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


def one(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    [found] = [given for given in objects if (given["kind"], given["metadata"]["name"]) == (kind, name)]
    return found


def pod(deployment: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the Pod template of an object, and its only container."""
    spec = deployment["spec"]["template"]["spec"]
    [container] = spec["containers"]
    return spec, container


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
        ("workers", [{"name": "misspelt", "app": "tasks:app", "slot": 3}]),
        ("workers", [{"name": "misspelt", "app": "tasks:app", "scaling": {"enable": True}}]),
        ("workerDefaults", {"slots": 3}),
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
              for inner in (value if isinstance(value, dict) else [""]) if name != "workerDefaults"}  # fmt: skip
    assert {leaf for leaf in leaves if not any(path.startswith(leaf) for path in used)} == set()
    defaults, inside = VALUES["workerDefaults"], TEMPLATES["workers.yaml"]
    assert {name for name in defaults if not re.search(rf"[ (]\.{name}\b", inside)} == set()
    assert {name for name in defaults["scaling"] if not re.search(rf"\.scaling\.{name}\b", inside)} == set()


# ---------------------------------------------------------------------- what Helm renders


def test_helm_finds_no_fault_and_asks_for_an_image() -> None:
    assert helm("lint", "--strict", str(CHART), values=json.dumps(EVERYTHING)).returncode == 0
    assert "image.repository is required" in helm("template", "shop", str(CHART)).stderr
    refused = helm("template", "shop", str(CHART), values='{"workers": [{"name": "a", "app": "b", "slot": 3}]}')
    assert "slot" in refused.stderr


@pytest.mark.parametrize("tag, image", [("1.0", "shop:1.0"), (42, "shop:42"), ("sha256:ab", "shop@sha256:ab")])
def test_an_image_has_a_tag_or_a_digest(tag: object, image: str) -> None:
    _, container = pod(one(rendered(image={"repository": "shop", "tag": tag}), "Deployment", "shop-server"))
    assert container["image"] == image


@pytest.mark.parametrize("release", RELEASES)
def test_kubernetes_accepts_each_object(release: str) -> None:
    assert len(RELEASES) >= 10
    folder, checked = SCHEMAS / f"{release}-local-strict", set()
    definitions = json.loads((folder / "_definitions.json").read_text())
    for document in (*rendered(), *rendered(**EVERYTHING)):
        group, _, version = document["apiVersion"].rpartition("/")
        if group in OTHERS:
            continue
        words = [document["kind"].lower(), *([group.split(".")[0]] if group else []), version]
        file = folder / f"{'-'.join(words)}.json"
        schema = jsonschema_rs.validator_for(json.loads(file.read_text()), retriever=lambda _: definitions)
        assert [f"{error.instance_path}: {error.message}" for error in schema.iter_errors(document)] == []
        wrong = copy.deepcopy(document)
        wrong["spec"]["replica"] = 1
        assert not schema.is_valid(wrong)
        checked.add(document["kind"])
    assert checked == {"Deployment", "Service", "Job", "PodDisruptionBudget", "NetworkPolicy"}


def test_what_is_turned_on_is_rendered_and_nothing_else() -> None:
    def names(objects: list[dict[str, Any]]) -> list[tuple[str, str]]:
        return sorted((given["kind"], given["metadata"]["name"]) for given in objects)

    plain = [
        ("Deployment", "shop-server"), ("Deployment", "shop-worker-default"), ("Job", "shop-migrate"),
        ("NetworkPolicy", "shop-server"), ("NetworkPolicy", "shop-worker-default"),
        ("PodDisruptionBudget", "shop-server"), ("PodDisruptionBudget", "shop-worker-default"),
        ("Service", "shop-server"),
    ]  # fmt: skip
    assert names(rendered()) == plain
    more = [
        ("Deployment", "shop-worker-gpu"), ("NetworkPolicy", "shop-worker-gpu"),
        ("ScaledObject", "shop-worker-default"), ("ServiceMonitor", "shop-server"),
        ("TriggerAuthentication", "shop-worker-default"),
    ]  # fmt: skip
    assert names(rendered(**EVERYTHING)) == sorted([*plain, *more])
    least = rendered(migrate={"enabled": False}, networkPolicy={"enabled": False}, workers=[])
    assert {given["kind"] for given in least} == {"Deployment", "Service", "PodDisruptionBudget"}


def test_a_service_a_budget_and_a_policy_choose_pods_of_their_own_kind() -> None:
    objects = rendered(**EVERYTHING)
    pods = {
        given["metadata"]["name"]: given["spec"]["template"]["metadata"]["labels"]
        for given in objects
        if given["kind"] == "Deployment"
    }
    assert len({json.dumps(labels, sort_keys=True) for labels in pods.values()}) == len(pods) == 3
    for given in objects:
        selector = {
            "Deployment": lambda spec: spec["selector"]["matchLabels"],
            "Service": lambda spec: spec["selector"],
            "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
            "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
            "ServiceMonitor": lambda spec: spec["selector"]["matchLabels"],
        }.get(given["kind"])
        if selector is not None:
            name = given["metadata"]["name"]
            chosen = [pod for pod, labels in pods.items() if labels.items() >= selector(given["spec"]).items()]
            assert chosen == [name]


def test_a_pod_gets_longer_to_stop_than_its_jobs() -> None:
    assert VALUES["grace"] == Settings().grace
    spec, container = pod(one(rendered(grace=90), "Deployment", "shop-worker-default"))
    assert spec["terminationGracePeriodSeconds"] == 90 + STOP_MARGIN
    assert {"name": "HEADWAY_GRACE", "value": "90"} in container["env"]
    spec, _ = pod(one(rendered(), "Deployment", "shop-server"))
    assert spec["terminationGracePeriodSeconds"] == SHUTDOWN_SECONDS + STOP_MARGIN


def test_its_commands_can_be_read() -> None:
    objects = rendered(**EVERYTHING)
    calls = {}
    for given in objects:
        if given["kind"] in ("Deployment", "Job"):
            _, container = pod(given)
            command, arguments, _ = build().parse_args(container["args"])
            calls[given["metadata"]["name"]] = (command.__name__, arguments.arguments)
    assert {name: command for name, (command, _) in calls.items()} == {
        "shop-server": "serve", "shop-worker-default": "worker", "shop-worker-gpu": "worker", "shop-migrate": "migrate",
    }  # fmt: skip
    _, container = pod(one(objects, "Deployment", "shop-worker-gpu"))
    assert container["args"] == [
        "worker", "tasks:app", "--slots", "2", "--reserved", "0", "--processes", "1",
        "--capabilities", "gpu,big-memory",
    ]  # fmt: skip


def test_a_worker_has_the_defaults_that_it_does_not_change() -> None:
    _, container = pod(one(rendered(**EVERYTHING), "Deployment", "shop-worker-gpu"))
    assert container["resources"]["requests"] == VALUES["workerDefaults"]["resources"]["requests"]
    assert container["resources"]["limits"] == {"memory": "1Gi", "nvidia.com/gpu": 1}
    changed = {**VALUES["workerDefaults"], "slots": 4, "replicas": 7}
    deployment = one(rendered(workerDefaults=changed), "Deployment", "shop-worker-default")
    assert deployment["spec"]["replicas"] == 7
    assert pod(deployment)[1]["args"][2:4] == ["--slots", "4"]


def test_workers_scale_by_the_same_advice_as_the_plain_manifest() -> None:
    scaled = one(rendered(**EVERYTHING), "ScaledObject", "shop-worker-default")
    [plain] = [
        document
        for document in yaml.safe_load_all((DEPLOY / "keda" / "worker.yaml").read_text())
        if document["kind"] == "ScaledObject"
    ]
    assert scaled["apiVersion"] == plain["apiVersion"]
    assert scaled["spec"].keys() == plain["spec"].keys()
    assert len(scaled["spec"]["triggers"]) == len(VALUES["workerDefaults"]["scaling"]["lanes"])
    for mine, theirs in zip(scaled["spec"]["triggers"], plain["spec"]["triggers"], strict=False):
        assert mine["metadata"].keys() == theirs["metadata"].keys()
        for key in ("valueLocation", "authMode"):
            assert mine["metadata"][key] == theirs["metadata"][key]
        assert "/api/v1/scale?lane=" in mine["metadata"]["url"]
    assert "replicas" not in one(rendered(**EVERYTHING), "Deployment", "shop-worker-default")["spec"]


def test_no_password_is_in_the_chart_and_pods_have_few_rights() -> None:
    objects = rendered(**EVERYTHING)
    assert not re.search(r"password|kind: Secret", TEXT + (CHART / "values.yaml").read_text().split("store:")[1])
    for given in objects:
        if given["kind"] in ("Deployment", "Job"):
            spec, container = pod(given)
            assert spec["automountServiceAccountToken"] is False
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            [store] = [variable for variable in container["env"] if variable["name"] == "HEADWAY_STORE"]
            assert store["valueFrom"] == {"secretKeyRef": {"name": "headway-store", "key": "url"}}
