"""Build the wheel and the sdist twice, compare the bytes, check the metadata, and write both files into dist/.

    python scripts/build_dist.py --tag v0.1.0

The two builds differ in folder, file times and umask, because none of these may change a release. `--tag` also checks
that the version in src/headway/version.py is the one that the tag names.
"""

import argparse
import os
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from packaging.metadata import Metadata
from trove_classifiers import classifiers as known_classifiers

ROOT = Path(__file__).resolve().parents[1]
NAME = "headway-queue"  # Of the distribution. The import and the command are headway.
IGNORED = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".browser", ".hypothesis", "__pycache__", "node_modules", "build", "dist"
)


def read_version() -> str:
    """Return the version of this tree, from the one file that contains it."""
    return str(runpy.run_path(str(ROOT / "src" / "headway" / "version.py"))["__version__"])


def build(folder: Path, moment: int, umask: int) -> dict[str, bytes]:
    """Build in a copy of this tree. Return the bytes of each built file."""
    tree, built = folder / "tree", folder / "built"
    shutil.copytree(ROOT, tree, ignore=IGNORED, copy_function=shutil.copyfile)
    for file in tree.rglob("*"):
        os.utime(file, (moment, moment))
        file.chmod((0o755 if file.is_dir() else 0o644) & ~umask)
    environment = {key: value for key, value in os.environ.items() if key != "SOURCE_DATE_EPOCH"}
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(built)]
    subprocess.run(command, cwd=tree, env=environment, umask=umask, check=True, stdout=subprocess.DEVNULL)
    return {file.name: file.read_bytes() for file in sorted(built.iterdir())}


def differing(first: dict[str, bytes], second: dict[str, bytes]) -> list[str]:
    """Return the names of files that the two builds do not share byte for byte."""
    return sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))


def metadata(file: Path) -> bytes:
    """Read the metadata of a wheel or an sdist."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as wheel:
            [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
            return wheel.read(name)
    with tarfile.open(file) as sdist:
        return sdist.extractfile(f"{file.name.removesuffix('.tar.gz')}/PKG-INFO").read()  # type: ignore[union-attr]


def problems(text: bytes, version: str) -> list[str]:
    """Return the problems for which a package index would refuse a file or show it wrongly."""
    try:
        found = Metadata.from_email(text, validate=True)
    except ExceptionGroup as errors:
        return [str(error) for error in errors.exceptions]
    wrong = []
    if (found.name, str(found.version)) != (NAME, version):
        wrong.append(f"the metadata is of {found.name} {found.version}, but the release is {NAME} {version}")
    wrong += [f"unknown classifier: {name}" for name in found.classifiers or () if name not in known_classifiers]
    if found.description_content_type != "text/markdown" or not (found.description or "").strip():
        wrong.append("the description must be README.md, with the content type text/markdown")
    if not found.license_files:
        wrong.append("the license file is missing")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag", help="the tag of the release: v and the version")
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="the folder for the built files")
    given = parser.parse_args()
    version = read_version()
    if given.tag not in (None, f"v{version}"):
        print(f"The tag is {given.tag}, but version.py has version {version}. Change one of them.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        built = build(Path(first), 1_700_000_000, 0o022)
        again = build(Path(second), 1_700_086_400, 0o077)
    if differs := differing(built, again):
        print(f"Two builds of the same tree differ: {', '.join(differs)}", file=sys.stderr)
        return 1
    given.into.mkdir(parents=True, exist_ok=True)
    for name, content in built.items():
        (given.into / name).write_bytes(content)
        if wrong := problems(metadata(given.into / name), version):
            print(f"{name}: {'; '.join(wrong)}", file=sys.stderr)
            return 1
        print(given.into / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
