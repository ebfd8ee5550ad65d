"""Check the files in dist/ as users get them: in new environments of every supported Python, and from the sdist.

    python scripts/release_check.py
    python scripts/release_check.py --require 3.11 3.12 3.13 3.14

For each Python it installs the wheel alone, compares what pip installed with the dependencies in pyproject.toml, and
runs a job. Then it adds the extra `server` and builds the service. It looks for Pythons on PATH and below pyenv's
folder, and names those that are missing. `--require` makes a missing Python an error. Finally it unpacks the sdist and
runs its quick tests. pip downloads the dependencies from the package index.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SUPPORTED = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", name)]
QUICK_TESTS = ("tests/core", "tests/runtime", "tests/stores/sqlite/test_opening.py", "tests/docs/test_install_page.py")
NOT_OURS = {"pip", "setuptools", "wheel"}

JOB = """
from headway import Headway, Worker
app = Headway()
@app.task
def add(a: int, b: int) -> int:
    return a + b
if __name__ == "__main__":
    with Worker(app):
        print(add.enqueue(2, 3).result(timeout=60))
"""
SERVICE = """
from headway import Headway
from headway.server.api import headway_api
print(headway_api(Headway("memory://")).title)
"""
NAMES = "from importlib.metadata import distributions as d; print(*sorted({x.name.lower() for x in d()}))"


def find_python(version: str) -> Path | None:
    """Return a working Python of this version, from PATH or from pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    named = shutil.which(f"python{version}")
    candidates = [*sorted(pyenv.glob(f"{version}.*/bin/python")), *([Path(named)] if named else [])]
    for candidate in reversed(candidates):
        command = [str(candidate), "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.stdout.strip() == version:
            return candidate
    return None


def run(*command: object, cwd: Path) -> str:
    """Run a command and return its output. Raises ``SystemExit`` with the output if it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWAY_", "PYTHON"))}
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"failed: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise SystemExit(f"{what}: expected {wanted!r}, got {found!r}")


def check_wheel(python: Path, wheel: Path, folder: Path) -> str:
    """Install the wheel into a new environment and use it. Return the number of the release of Python."""
    run(python, "-m", "venv", folder / "venv", cwd=folder)
    inside = folder / "venv" / "bin"
    pip = [inside / "python", "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    run(*pip, wheel, cwd=folder)
    version = wheel.name.split("-")[1]
    expect(run(inside / "headway", "--version", cwd=folder), version, "headway --version")
    (folder / "hello.py").write_text(JOB)
    expect(run(inside / "python", "hello.py", cwd=folder), "5", "the first job")
    names = set(run(inside / "python", "-c", NAMES, cwd=folder).split()) - NOT_OURS
    direct = {re.split(r"[\[><=;]", text)[0] for text in PROJECT["dependencies"]}
    if missing := {PROJECT["name"], *direct} - names:
        raise SystemExit(f"pip did not install {', '.join(sorted(missing))}")
    if extra := names & {"fastapi", "uvicorn", "hiredis", "asyncpg", "django", "celery"}:
        raise SystemExit(f"the plain install brings {', '.join(sorted(extra))}, which belong to extras")
    run(*pip, f"{wheel}[server]", cwd=folder)
    expect(run(inside / "python", "-c", SERVICE, cwd=folder), "Headway", "the service")
    return run(inside / "python", "-c", "import platform; print(platform.python_version())", cwd=folder)


def check_sdist(sdist: Path, folder: Path) -> str:
    """Unpack the sdist and run its quick tests on its own source. Return pytest's last line."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    [tree] = folder.iterdir()
    where = f"import headway; print(headway.__file__); assert headway.__file__.startswith({str(tree)!r})"
    paths = ["env", f"PYTHONPATH={tree / 'src'}", sys.executable]
    run(*paths, "-c", where, cwd=tree)
    output = run(*paths, "-m", "pytest", "-q", "-p", "no:cacheprovider", *QUICK_TESTS, cwd=tree)
    return output.splitlines()[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="the folder with the wheel and the sdist")
    parser.add_argument("--require", nargs="*", default=[], help="Pythons that must be found, such as 3.14")
    given = parser.parse_args()
    [wheel], [sdist] = list(given.dist.glob("*.whl")), list(given.dist.glob("*.tar.gz"))
    checked, missing = [], []
    for version in SUPPORTED:
        python = find_python(version)
        if python is None:
            missing.append(version)
            continue
        with tempfile.TemporaryDirectory() as folder:
            checked.append(check_wheel(python, wheel.resolve(), Path(folder).resolve()))
        print(f"Python {checked[-1]}: the wheel installs, runs a job and serves")
    with tempfile.TemporaryDirectory() as folder:
        print(f"sdist: {check_sdist(sdist.resolve(), Path(folder).resolve())}")
    if missing:
        print(f"Not checked, because no such Python was found here: {', '.join(missing)}")
    return 1 if not checked or set(given.require) & set(missing) else 0


if __name__ == "__main__":
    sys.exit(main())
