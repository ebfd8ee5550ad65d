"""Writes a software bill of materials (CycloneDX 1.6, JSON) from a lock file of pip-compile.

    python deploy/sbom.py requirements/image.txt > dist/headway-image.cdx.json

It adds the packages of npm whose code is in the dashboard, from web/package-lock.json. It reads what is written in the
files and asks no network. The same lock files give the same bytes.
"""

from __future__ import annotations

import base64
import json
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

ROOT = Path(__file__).resolve().parents[1]
BUNDLED = ("@preact/signals", "@preact/signals-core", "preact", "uplot")  # web/build.py puts these into the dashboard.


class Package(NamedTuple):
    """A pinned package: its index, its hashes, and what asked for it."""

    name: str
    version: str
    hashes: list[str]
    wanted_by: list[str]
    index: str = "pypi"
    algorithm: str = "SHA-256"

    @property
    def purl(self) -> str:
        return f"pkg:{self.index}/{quote(self.name)}@{self.version}"


def read_lock(text: str) -> Iterator[Package]:
    """Read the packages of a lock file, in its order. Raises ``ValueError`` for one that has no hash."""
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    for block in re.split(r"\n(?=\S)", text.strip()):
        pinned = re.match(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", block)
        hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", block)
        if pinned is None or not hashes:
            raise ValueError(f"not a pinned package with hashes: {block.splitlines()[0]!r}")
        wanted_by = re.findall(r"^    #(?: via|  ) +(\S.*)$", block, re.MULTILINE)
        name = re.sub(r"[-_.]+", "-", pinned[1]).lower()
        yield Package(name, pinned[2], hashes, [by for by in wanted_by if not by.startswith("-")])


def read_bundled(text: str) -> Iterator[Package]:
    """Read the packages of the dashboard from the lock file of npm."""
    locked = {name: json.loads(text)["packages"][f"node_modules/{name}"] for name in BUNDLED}
    for name, package in locked.items():
        algorithm, _, digest = package["integrity"].partition("-")
        if algorithm != "sha512":
            raise ValueError(f"{name} has a hash of the kind {algorithm}, not sha512")
        wanted_by = [by for by, other in locked.items() if name in other.get("dependencies", {})]
        yield Package(name, package["version"], [base64.b64decode(digest).hex()], wanted_by, "npm", "SHA-512")


def bill(packages: list[Package], version: str) -> dict[str, Any]:
    """Build the document."""
    known = {package.name: package for package in packages}
    ours = f"pkg:pypi/headway-queue@{version}"
    needs: dict[str, list[str]] = {ours: [], **{package.purl: [] for package in packages}}
    for package in packages:
        parents = [known[by].purl for by in package.wanted_by if by in known]
        for parent in parents or [ours]:
            needs[parent].append(package.purl)
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application", "bom-ref": ours, "name": "headway-queue", "version": version, "purl": ours,
                "licenses": [{"license": {"id": "MIT"}}],
            },
        },
        "components": [
            {
                "type": "library", "bom-ref": package.purl, "name": package.name, "version": package.version,
                "purl": package.purl,
                "hashes": [{"alg": package.algorithm, "content": text} for text in package.hashes],
            }
            for package in packages
        ],
        "dependencies": [{"ref": ref, "dependsOn": sorted(wanted)} for ref, wanted in needs.items()],
    }  # fmt: skip
    serial = uuid5(NAMESPACE_URL, json.dumps(document, sort_keys=True))
    return {**document, "serialNumber": f"urn:uuid:{serial}"}


def main() -> None:
    [lock] = sys.argv[1:]
    version = runpy.run_path(str(ROOT / "src" / "headway" / "version.py"))["__version__"]
    bundled = read_bundled((ROOT / "web" / "package-lock.json").read_text())
    print(json.dumps(bill([*read_lock(Path(lock).read_text()), *bundled], version), indent=2))


if __name__ == "__main__":
    main()
