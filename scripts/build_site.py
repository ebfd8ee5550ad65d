"""Build the documentation of every version into build/site, where any web server can serve it.

    python scripts/build_site.py

docs/versions.json lists the versions, the newest first. This tree is one of them. Each other version is built from the
newest tag of its releases (v0.1.2 for 0.1). Every page leads to every version, because all are built with the list of
this tree. The page above them leads to the newest version.
"""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "build" / "site"
FIRST_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Headway</title>
<meta http-equiv="refresh" content="0; url={path}/">
<link rel="canonical" href="{path}/">
<p>The documentation of <a href="{path}/">Headway {name}</a></p>
</html>
"""


def git(*words: str) -> str:
    """Run git in this tree and return what it prints."""
    return subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def newest_tag(version: str) -> str:
    """Return the newest tag of a version, such as v0.1.2 for 0.1. Raises ``SystemExit`` if it has no tag."""
    tags = git("tag", "--list", f"v{version}.*", "--sort=-version:refname").splitlines()
    if not tags:
        raise SystemExit(f"docs/versions.json lists {version}, which has no tag v{version}.*; run: git fetch --tags")
    return tags[0]


def build(tree: Path, into: Path, *, strict: bool) -> None:
    """Build the documentation of one tree."""
    checks = ["-W", "--keep-going"] if strict else []
    with tempfile.TemporaryDirectory() as read:
        command = [sys.executable, "-m", "sphinx", "-q", *checks, "-b", "html", "-d", read, "docs", str(into)]
        subprocess.run(command, cwd=tree, check=True)


def build_tag(tag: str, into: Path) -> None:
    """Build the documentation of a tag, with the list of versions of this tree."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git("worktree", "add", "--quiet", "--detach", str(tree), tag)
        try:
            shutil.copy(ROOT / "docs" / "versions.json", tree / "docs")
            build(tree, into, strict=False)
        finally:
            git("worktree", "remove", "--force", str(tree))


def main() -> None:
    versions = json.loads((ROOT / "docs" / "versions.json").read_text())
    here = str(runpy.run_path(str(ROOT / "src" / "headway" / "version.py"))["__version__"])
    if here.rpartition(".")[0] not in [version["name"] for version in versions]:
        raise SystemExit(f"docs/versions.json does not list the version of this tree, {here}")
    shutil.rmtree(SITE, ignore_errors=True)
    for version in versions:
        if version["name"] == here.rpartition(".")[0]:
            print(f"{version['name']}: this tree", flush=True)
            build(ROOT, SITE / version["path"], strict=True)
        else:
            tag = newest_tag(version["name"])
            print(f"{version['name']}: {tag}", flush=True)
            build_tag(tag, SITE / version["path"])
    (SITE / "index.html").write_text(FIRST_PAGE.format(**versions[0]))


if __name__ == "__main__":
    main()
