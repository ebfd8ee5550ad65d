"""What is installed, and what is built: pinned by hash, the same in every file, the same bytes each time."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "requirements"
LOCKS = sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))
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


def wanted(name: str) -> set[str]:
    """Read what a file asks for, without what it takes from another."""
    lines = (REQUIREMENTS / f"{name}.in").read_text().splitlines()
    return {_same(line) for line in lines if line and not line.startswith(("#", "-r"))}


def _same(text: str) -> str:
    """Write a requirement in one way, whichever quotes and spaces it has."""
    return re.sub(r"\s+", "", text.replace('"', "'")).lower()


def pins(name: str) -> dict[str, str]:
    """Read what is pinned. Fails for anything without a version and hashes."""
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
    assert {one["name"]: one["version"] for one in bill["components"]} == pins(name)
    assert all(one["hashes"] and one["purl"].startswith("pkg:pypi/") for one in bill["components"])
    refs = {one["bom-ref"] for one in bill["components"]}
    needs = {one["ref"]: set(one["dependsOn"]) for one in bill["dependencies"]}
    ours = f"pkg:pypi/headway@{PROJECT['project']['version']}"
    assert needs.keys() == refs | {ours}
    assert set().union(*needs.values()) == refs  # Each is there for a reason.
    direct = {"apsw", "msgspec", "fastapi"}
    assert direct <= {ref.split("/")[1].split("@")[0] for ref in needs[ours]}


# ---------------------------------------------------------------------- the wheel


@pytest.mark.slow
def test_a_wheel_built_twice_has_the_same_bytes(tmp_path: Path) -> None:
    # S-39: in another folder, at another time, by a user with another umask.
    found = []
    for turn, umask in enumerate((0o022, 0o077)):
        folder = tmp_path / f"tree{turn}"
        folder.mkdir()
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copyfile(ROOT / name, folder / name)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "src", folder / "src", ignore=ignored, copy_function=shutil.copyfile)
        for file in folder.rglob("*"):
            moment = 1_700_000_000 + turn * 86_400
            os.utime(file, (moment, moment))
            file.chmod(0o755 if file.is_dir() else 0o644 & ~umask)
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / f"dist{turn}")]
        environment = {key: value for key, value in os.environ.items() if key != "SOURCE_DATE_EPOCH"}
        subprocess.run(command, cwd=folder, env=environment, umask=umask, check=True, capture_output=True)
        [wheel] = (tmp_path / f"dist{turn}").iterdir()
        found.append((wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest()))
    assert found[0] == found[1]
    assert found[0][0] == f"headway-{PROJECT['project']['version']}-py3-none-any.whl"


# ---------------------------------------------------------------------- what is said of it


def test_security_md_names_commands_that_exist() -> None:
    # S-40
    text, make = (ROOT / "SECURITY.md").read_text(), (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"`make ([a-z-]+)`", text))
    assert targets == {"audit", "sbom", "fuzz", "nightly"}
    assert targets <= set(re.findall(r"^([a-z-]+):", make, re.MULTILINE))
    for heading in ("Report a vulnerability", "Supported versions", "What Headway defends against"):
        assert f"## {heading}\n" in text
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (ROOT / target).exists(), target
