"""Dependencies and builds: pinned by hash, the same in every file, and the same bytes each time."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from headway.stores.assets import load_migrations
from headway.stores.postgres.statements import FUNCTIONS_VERSION
from headway.version import __version__
from tests.conftest import SHARED_FILES, STORES

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "requirements"
LOCKS = sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))
NPM_LOCK = (ROOT / "web" / "package-lock.json").read_text()
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


sbom = _load(ROOT / "deploy" / "sbom.py")
build_dist = _load(ROOT / "scripts" / "build_dist.py")


def wanted(name: str) -> set[str]:
    """Return the requirements of a file, without those that it includes from another."""
    lines = (REQUIREMENTS / f"{name}.in").read_text().splitlines()
    return {_same(line) for line in lines if line and not line.startswith(("#", "-r", "-c"))}


def _same(text: str) -> str:
    """Return a requirement in a uniform notation of quotes and spaces."""
    return re.sub(r"\s+", "", text.replace('"', "'")).lower()


def pins(name: str) -> dict[str, str]:
    """Read the pins. Fails for an entry without a version and hashes."""
    return {package.name: package.version for package in sbom.read_lock((REQUIREMENTS / f"{name}.txt").read_text())}


def extra(*names: str) -> set[str]:
    return {_same(text) for name in names for text in PROJECT["project"]["optional-dependencies"][name]}


# ---------------------------------------------------------------------- lock files


def test_what_is_run_is_what_the_package_asks_for() -> None:
    # S-39: a number that is raised in one file alone would be found out by a user.
    build = {"hatchling>=1.27", "editables>=0.5"}
    assert build >= {_same(text) for text in PROJECT["build-system"]["requires"]}
    assert wanted("run") == {_same(text) for text in PROJECT["project"]["dependencies"]} | extra("server") | build


def test_the_image_has_every_extra_that_it_needs() -> None:
    # S-39
    assert wanted("image") == extra("redis", "postgres", "otel")
    assert "-r run.txt" in (REQUIREMENTS / "image.in").read_text()


def test_every_dependency_and_extra_is_tested_at_a_version_that_the_package_allows() -> None:
    # S-39: dev.in lists what tests need of each extra, in its own words.
    needed = {_same(text) for text in PROJECT["project"]["dependencies"]}
    needed |= extra(*(PROJECT["project"]["optional-dependencies"].keys() - {"all"}))
    found = pins("dev")
    checked = {}
    for text in needed:
        match = re.match(r"([a-z0-9._-]+)(?:\[[^]]*\])?>=([0-9.]+)(;platform_system=='windows')?", text)
        assert match is not None, f"{text} needs an oldest version"
        if match[3] is None:
            checked[match[1]] = _number(found[match[1]]) >= _number(match[2])
    assert checked == dict.fromkeys(checked, True)
    assert checked.keys() >= {"apsw", "hiredis", "asyncpg", "fastapi", "django", "celery", "opentelemetry-api"}


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_is_pinned_with_hashes_and_fits_what_was_asked_for(name: str) -> None:
    # S-39
    assert (REQUIREMENTS / f"{name}.in").exists()
    found = pins(name)
    assert found
    for text in wanted(name):
        match = re.match(r"([a-z0-9._-]+)(?:\[[^]]*\])?(?:>=([0-9.]+))?(;platform_system=='windows')?", text)
        assert match is not None, text
        if match[3] is None:
            version = found[re.sub(r"[-_.]+", "-", match[1])]
            assert _number(version) >= _number(match[2] or "0"), text


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


@pytest.mark.parametrize("name", ["image", "dev"])
def test_what_is_tested_and_shipped_is_what_is_run(name: str) -> None:
    # S-39
    run, other = pins("run"), pins(name)
    assert {package: other.get(package) for package in run} == run
    shared = pins("dev").keys() & other.keys()
    assert {package: other[package] for package in shared} == {package: pins("dev")[package] for package in shared}


def test_a_lock_file_without_hashes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"apsw==3\.51\.3"):
        list(sbom.read_lock("apsw==3.51.3\n    # via -r run.in\n"))
    with pytest.raises(ValueError, match="rich"):
        list(sbom.read_lock(f"rich>=13 --hash=sha256:{'0' * 64}\n"))


# ---------------------------------------------------------------------- the bill of materials


@pytest.mark.parametrize("name", ["run", "image"])
def test_the_bill_of_materials_names_every_package_with_its_hashes_and_needs(name: str) -> None:
    # S-39
    command = [sys.executable, str(ROOT / "deploy" / "sbom.py"), str(REQUIREMENTS / f"{name}.txt")]
    written = [subprocess.run(command, capture_output=True, check=True).stdout for _ in range(2)]
    assert written[0] == written[1]
    bill = json.loads(written[0])
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", bill["serialNumber"])
    found = {one["name"]: one["version"] for one in bill["components"]}
    bundled = {package.name: package.version for package in sbom.read_bundled(NPM_LOCK)}
    assert found == pins(name) | bundled
    assert all(one["hashes"] and one["purl"].startswith(("pkg:pypi/", "pkg:npm/")) for one in bill["components"])
    refs = {one["bom-ref"] for one in bill["components"]}
    needs = {one["ref"]: set(one["dependsOn"]) for one in bill["dependencies"]}
    ours = f"pkg:pypi/headway-queue@{__version__}"
    assert needs.keys() == refs | {ours}
    assert set().union(*needs.values()) == refs  # Each is there for a reason.
    direct = {"apsw", "msgspec", "fastapi"}
    assert direct <= {ref.split("/")[1].split("@")[0] for ref in needs[ours]}


def test_the_bill_of_materials_names_the_code_in_the_dashboard() -> None:
    # S-39
    [names] = re.findall(r"^BUNDLED = (\(.*\))$", (ROOT / "web" / "build.py").read_text(), re.MULTILINE)
    bundled = {package.name: package for package in sbom.read_bundled(NPM_LOCK)}
    assert bundled.keys() == set(ast.literal_eval(names))
    signals = bundled["@preact/signals"]
    assert signals.purl == f"pkg:npm/%40preact/signals@{signals.version}"
    assert len(signals.hashes[0]) == 128  # SHA-512
    assert bundled["@preact/signals-core"].wanted_by == ["@preact/signals"]


# ---------------------------------------------------------------------- the wheel and the sdist


@pytest.mark.slow
def test_a_wheel_and_an_sdist_built_twice_have_the_same_bytes_and_good_metadata(tmp_path: Path) -> None:
    # S-39: in another folder, at another time, by a user with another umask.
    version = __version__
    command = [sys.executable, str(ROOT / "scripts" / "build_dist.py"), "--tag", f"v{version}", "--into", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    wheel, sdist = sorted(tmp_path.iterdir())
    assert (wheel.name, sdist.name) == (
        f"headway_queue-{version}-py3-none-any.whl",
        f"headway_queue-{version}.tar.gz",
    )
    assert build_dist.metadata(wheel) == build_dist.metadata(sdist)


def test_builds_that_differ_are_named() -> None:
    # S-39
    assert build_dist.differing({"a.whl": b"1", "a.tar.gz": b"2"}, {"a.whl": b"1", "a.tar.gz": b"2"}) == []
    assert build_dist.differing({"a.whl": b"1", "a.tar.gz": b"2"}, {"a.whl": b"3"}) == ["a.tar.gz", "a.whl"]


def test_a_tag_of_another_version_is_refused(tmp_path: Path) -> None:
    # S-39
    command = [sys.executable, str(ROOT / "scripts" / "build_dist.py"), "--tag", "v999.0", "--into", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"The tag is v999.0, but version.py has version {__version__}." in done.stderr
    assert list(tmp_path.iterdir()) == []


GOOD = {
    "Metadata-Version": "2.4", "Name": "headway-queue", "Version": "1.0", "License-File": "LICENSE",
    "Classifier": "Typing :: Typed", "Description-Content-Type": "text/markdown",
}  # fmt: skip


@pytest.mark.parametrize(
    "header, value, problem",
    [
        ("Version", "2.0", "the metadata is of headway-queue 2.0, but the release is headway-queue 1.0"),
        ("Classifier", "Typing :: Guessed", "unknown classifier: Typing :: Guessed"),
        (
            "Description-Content-Type",
            "text/plain",
            "the description must be README.md, with the content type text/markdown",
        ),
        ("License-File", None, "the license file is missing"),
    ],
)
def test_metadata_that_an_index_would_refuse_is_found(header: str, value: str | None, problem: str) -> None:
    # S-39
    def text(headers: dict[str, str | None]) -> bytes:
        lines = [f"{name}: {content}" for name, content in headers.items() if content is not None]
        return ("\n".join(lines) + "\n\n# Headway\n").encode()

    assert build_dist.problems(text({**GOOD}), "1.0") == []
    assert build_dist.problems(text({**GOOD, header: value}), "1.0") == [problem]


# ---------------------------------------------------------------------- workflows


FROM_MATRIX = {"STORE": "${{ matrix.store }}"}  # The only value that a step gets. The workflow itself lists its values.
WORKFLOWS = {file.stem: file.read_text() for file in sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))}
PARSED: dict[str, dict[Any, Any]] = {name: yaml.safe_load(text) for name, text in WORKFLOWS.items()}


def jobs(name: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    for workflow, parsed in PARSED.items():
        if name in (None, workflow):
            for job, content in parsed["jobs"].items():
                yield f"{workflow}.{job}", content


def steps(job: dict[str, Any], action: str) -> list[dict[str, Any]]:
    """Return the steps of a job that use an action, at any commit."""
    return [step for step in job["steps"] if step.get("uses", "").startswith(f"{action}@")]


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def unpinned(text: str) -> list[str]:
    """Return the lines that do not name an action by its commit with its version in a comment."""
    lines = [line.strip().removeprefix("- ") for line in text.splitlines() if re.match(r"\s*(- )?[\"']?uses\b", line)]
    pinned = re.compile(r"uses: [\w.-]+(/[\w.-]+)+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    return [line for line in lines if not pinned.fullmatch(line)]


def test_every_action_is_pinned_by_a_commit_and_names_its_version() -> None:
    # S-39
    assert WORKFLOWS.keys() == {"ci", "nightly", "release"}
    commits: dict[str, set[str]] = {}
    for name, text in WORKFLOWS.items():
        assert unpinned(text) == []
        used = [step["uses"] for _, job in jobs(name) for step in job["steps"] if "uses" in step]
        assert len(used) == text.count("uses:")  # The lines above are all of them.
        assert not [job for job, content in jobs(name) if "uses" in content]
        for action, commit in re.findall(r"uses: (\S+)@(.*)", text):
            commits.setdefault(action, set()).add(commit)
    assert {action: len(found) for action, found in commits.items()} == dict.fromkeys(commits, 1)


@pytest.mark.parametrize(
    "line",
    [
        "- uses: actions/checkout@v7 # v7.0.1",
        "- uses: actions/checkout@3d3c42e # v7.0.1",
        f"- uses: actions/checkout@{'a' * 40}",
        f"- uses: actions/checkout@{'a' * 40} # v7",
        "  uses: docker://alpine:3",
        "- 'uses': actions/checkout@main",
    ],
)
def test_an_action_by_tag_or_without_a_version_is_found(line: str) -> None:
    # S-39
    assert unpinned(f"    steps:\n      {line}\n") == [line.removeprefix("- ").strip()]


@pytest.mark.parametrize(
    "job, script, target",
    [
        ("ci.test", ".ci/run", "test"),
        ("ci.stores", ".ci/conformance", 'conformance STORE="${STORE:?name a store: sqlite, redis, postgres, ...}"'),
        ("nightly.nightly", ".ci/nightly", "nightly"),
    ],
)
def test_a_workflow_runs_the_same_command_as_its_script(job: str, script: str, target: str) -> None:
    # S-39
    assert commands(dict(jobs())[job]) == [script]
    lines = (ROOT / script).read_text().splitlines()
    assert [line for line in lines if line.startswith("make")] == [f"make {target}"]
    assert (ROOT / script).stat().st_mode & 0o111


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_a_failed_part_of_the_night_hides_no_other(tmp_path: Path) -> None:
    # S-39, S-40
    called = tmp_path / "called"
    make = tmp_path / "make"
    make.write_text(f'#!/bin/sh\necho "$1" >> {called}\n[ "$1" != audit ]\n')
    make.chmod(0o755)
    command = ["make", "-f", str(ROOT / "Makefile"), "nightly", f"MAKE={make}"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert called.read_text().split() == ["audit", "fuzz", "proof"]
    assert done.returncode != 0
    assert "Failed: audit\n" in done.stderr


def test_the_audit_reads_every_lock_file_that_is_used() -> None:
    # S-39, S-40: the peers of benchmarks are installed into an environment of their own, and only by `make bench`.
    make = (ROOT / "Makefile").read_text()
    [audited] = re.findall(r"^AUDITED := (.*)$", make, re.MULTILINE)
    assert set(audited.split()) == {name for name in LOCKS if not name.startswith("peers")}
    [recipe] = re.findall(r"^audit:.*\n((?:\t.*\n)+)", make, re.MULTILINE)
    assert "web/build.py --audit" in recipe  # The packages of npm.


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_a_registry_that_cannot_be_asked_hides_no_other_part_of_the_audit(tmp_path: Path) -> None:
    # S-39, S-40
    (tmp_path / "bin").mkdir()
    for name, code in {"python": 1, "pip-audit": 0}.items():
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/called\nexit {code}\n')
        program.chmod(0o755)
    for stamp in (".run-ready", ".package-ready", ".node-ready", ".ready"):
        (tmp_path / stamp).touch()
    command = ["make", "-f", str(ROOT / "Makefile"), "audit", f"VENV={tmp_path}", f"AUDIT_VENV={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    called = (tmp_path / "called").read_text()
    assert "python web/build.py --audit\n" in called
    assert called.count("pip-audit ") == len([name for name in LOCKS if not name.startswith("peers")])
    assert done.returncode != 0


def test_ci_runs_every_python_that_the_package_names() -> None:
    # S-39
    job = dict(jobs("ci"))["ci.test"]
    versions = job["strategy"]["matrix"]["python"]
    assert versions == ["3.11", "3.12", "3.13", "3.14"]
    assert steps(job, "actions/setup-python")[0]["with"] == {"python-version": "${{ matrix.python }}"}
    named = {name.rpartition(" ")[2] for name in PROJECT["project"]["classifiers"] if ":: Python :: 3." in name}
    assert named == set(versions)


def test_ci_runs_the_conformance_tests_on_every_durable_store() -> None:
    # S-39: `make test` leaves some stores out, to stay short.
    job = dict(jobs("ci"))["ci.stores"]
    named = set(job["strategy"]["matrix"]["store"])
    assert named == (STORES.keys() | SHARED_FILES.keys()) - {"memory"}
    assert job["steps"][-1]["env"] == FROM_MATRIX


def test_a_job_has_only_the_rights_that_it_needs() -> None:
    # S-39
    rights = {name: job["permissions"] for name, job in jobs()}
    assert rights.pop("release.attest") == {"id-token": "write", "attestations": "write"}
    assert rights.pop("release.publish") == {"id-token": "write"}
    assert {name: right for name, right in rights.items() if right != {"contents": "read"}} == {}
    for name, parsed in PARSED.items():
        assert parsed["permissions"] == {}
        assert "pull_request_target" not in WORKFLOWS[name]
        assert "workflow_run" not in WORKFLOWS[name]
        assert not re.search(r"secrets\b|github\.token|GITHUB_TOKEN", WORKFLOWS[name])
        assert "env" not in parsed
    for name, job in jobs():
        assert job["timeout-minutes"] > 0, name
        assert "env" not in job
        for step in job["steps"]:
            assert step.get("env", FROM_MATRIX) == FROM_MATRIX
            assert "${{" not in step.get("run", "")  # What a tag or branch is called would become part of the script.
        for step in steps(job, "actions/checkout"):
            assert step["with"]["persist-credentials"] is False, name


def test_a_release_is_tested_and_built_before_it_is_signed_and_published() -> None:
    # S-39
    release = dict(jobs("release"))
    assert PARSED["release"][True] == {"push": {"tags": ["v[0-9]+.[0-9]+.[0-9]+*"]}}  # YAML reads `on` as true.
    needs = {name.partition(".")[2]: job.get("needs") for name, job in release.items()}
    assert needs == {"test": None, "build": "test", "site": "test", "attest": "build", "publish": "attest"}
    assert commands(release["release.test"]) == [".ci/run"]
    assert commands(release["release.build"]) == ['make dist sbom ARGS="--tag $GITHUB_REF_NAME"']
    assert commands(release["release.site"]) == ["make site"]
    assert [commands(release[f"release.{name}"]) for name in ("attest", "publish")] == [[], []]
    targets = (ROOT / "Makefile").read_text()
    [recipe] = re.findall(r"^dist:.*\n((?:\t.*\n)+)", targets, re.MULTILINE)
    steps_of = [
        "rm -f dist/*.whl",
        "$(BIN)/python scripts/build_dist.py $(ARGS)",
        "twine check --strict",
        "check-wheel",
    ]
    assert [step in line for step, line in zip(steps_of, recipe.splitlines(), strict=True)] == [True] * 4


def test_a_release_is_published_by_trust_and_not_by_a_password() -> None:
    # S-39
    publish = dict(jobs("release"))["release.publish"]
    assert publish["environment"] == "pypi"
    [download] = steps(publish, "actions/download-artifact")
    assert download["with"] == {"name": "packages", "path": "dist"}  # Bills of materials are no packages.
    [step] = steps(publish, "pypa/gh-action-pypi-publish")
    assert step["with"] == {"attestations": True, "verify-metadata": True, "print-hash": True}  # No user, no password.
    assert [name for name, job in jobs() if "environment" in job] == ["release.publish"]


def test_the_wheel_the_sdist_and_the_bill_of_materials_are_attested() -> None:
    # S-39
    release = dict(jobs("release"))
    packages = ["dist/*.whl", "dist/*.tar.gz"]
    uploads = {
        step["with"]["name"]: step["with"] for step in steps(release["release.build"], "actions/upload-artifact")
    }
    assert uploads["packages"]["path"].split() == packages
    assert uploads["bills-of-materials"]["path"] == "dist/*.cdx.json"
    assert {upload["if-no-files-found"] for upload in uploads.values()} == {"error"}
    provenance, contents = [step["with"] for step in steps(release["release.attest"], "actions/attest")]
    assert provenance.keys() == {"subject-path"}
    assert provenance["subject-path"].split() == [*packages, "dist/*.cdx.json"]
    assert contents["subject-path"].split() == packages
    assert f"> {contents['sbom-path']}" in (ROOT / "Makefile").read_text()


# ---------------------------------------------------------------------- images


DIGEST = re.compile(r"[a-z0-9./-]+:[\w.-]+@sha256:[0-9a-f]{64}")


def images(text: str) -> list[str]:
    """Return the base images of a Dockerfile, without those that an argument names."""
    found = re.findall(r"^(?:ARG \w*IMAGE=|FROM )(\S+)", text, re.MULTILINE)
    return [image for image in found if image != "${PYTHON_IMAGE}"]


def test_every_image_is_pinned_by_its_digest() -> None:
    # S-39
    found = images((ROOT / "deploy" / "Dockerfile").read_text())
    assert len(found) == 1
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    found += [service["image"] for service in services.values() if "build" not in service]
    assert len(found) == len(services) - 1  # The API and the workers run the image of the Dockerfile.
    assert [image for image in found if not DIGEST.fullmatch(image)] == []
    for file in (ROOT / "deploy").rglob("*"):
        if "helm" in file.parts:  # The chart has no image of its own: an operator names one.
            assert not re.search(r"repository: [\"']?\w", file.read_text() if file.is_file() else ""), file
        elif file.is_file() and file.suffix != ".pyc" and file.name not in ("Dockerfile", "compose.yaml", "sbom.py"):
            assert not re.search(r"^\s*-?\s*(image|FROM)\b", file.read_text(), re.MULTILINE), file


# ---------------------------------------------------------------------- what is said of it


def test_the_changelog_has_the_form_that_people_know() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert "https://keepachangelog.com/en/1.1.0/" in text
    _, *parts = re.split(r"^## ", text.partition("\n[Unreleased]: ")[0], flags=re.MULTILINE)
    headings = [part.splitlines()[0] for part in parts]
    assert headings[0] == "[Unreleased]"
    form = re.compile(r"\[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}")
    assert [heading for heading in headings[1:] if not form.fullmatch(heading)] == []
    assert headings[1:] == [] or headings[1].startswith(f"[{__version__}] - ")
    for name in re.findall(r"^## \[(.*?)\]", text, re.MULTILINE):
        assert f"\n[{name}]: https://" in text
    order = ["Before you upgrade", "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    for part in parts:
        groups = dict(re.findall(r"^### (.*)\n((?:(?!### ).*\n)*)", part, re.MULTILINE))
        assert list(groups) == [name for name in order if name in groups]
        assert [name for name, changes in groups.items() if not re.search(r"^- ", changes, re.MULTILINE)] == []
        assert re.findall(r"^- .*\n  .*\n  .*", part, re.MULTILINE) == []  # A change takes two lines at most.


def test_the_changelog_names_the_versions_of_the_stores() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    notes = text.partition("### Before you upgrade\n")[2].partition("\n### ")[0]
    newest = {store: load_migrations(f"headway.stores.{store}")[-1][0] for store in ("postgres", "sqlite")}
    assert f"The schema has version {newest['postgres']} and the functions have version {FUNCTIONS_VERSION}." in notes
    assert f"The schema has version {newest['sqlite']}." in notes


def test_a_newcomer_finds_rules_and_forms() -> None:
    assert (ROOT / "CODE_OF_CONDUCT.md").read_text().startswith("# Code of conduct\n")
    forms = {file.stem: yaml.safe_load(file.read_text()) for file in (ROOT / ".github" / "ISSUE_TEMPLATE").iterdir()}
    assert forms.keys() == {"bug", "idea", "config"}
    for name in ("bug", "idea"):
        assert forms[name].keys() >= {"name", "description", "body"}
        assert len({part["id"] for part in forms[name]["body"]}) == len(forms[name]["body"])
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    for hook in hooks:  # Each runs a script of ours, or a tool at the version that is pinned for `make test`.
        program, *words = hook["entry"].split()
        tool = {".venv/bin/ruff": "ruff", ".venv/bin/lint-imports": "import-linter"}.get(program)
        assert tool in pins("dev") if tool else (ROOT / words[0]).is_file()


def test_security_md_names_commands_that_exist() -> None:
    # S-40
    text, make = (ROOT / "SECURITY.md").read_text(), (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"`make ([a-z-]+)`", text))
    assert targets == {"audit", "dist", "sbom", "fuzz", "nightly"}
    assert targets <= set(re.findall(r"^([a-z-]+):", make, re.MULTILINE))
    for heading in ("Report a vulnerability", "Supported versions", "What Headway defends against"):
        assert f"## {heading}\n" in text
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (ROOT / target).exists(), target
