"""Build the image of deploy/Dockerfile where no registry is at hand, start it, and check what it does.

    python scripts/build_image.py
    python scripts/build_image.py --base python:3.11-slim

Needs Linux, root, buildah and debootstrap (Debian). Buildah follows the Dockerfile. Only the base image differs from
the pinned one: without --base it is a Debian with Python, which debootstrap makes once in build/image. If the machine
trusts certificates of its own, the base gets them, because pip and npm download from inside the build. Containers run
by chroot, which needs no runtime: they share the network with the machine, and have the files, user and environment of
the image.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "image"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
DEBIAN, MIRROR = "bookworm", "http://deb.debian.org/debian"
PACKAGES = "ca-certificates,python3,python3-venv,python-is-python3"
BUILDAH = ("buildah", "--storage-driver", "vfs", "--root", str(WORK / "storage"), "--runroot", str(WORK / "run"))
BASE, IMAGE = "localhost/headway-base", "localhost/headway"
USER = 10001  # The user of the image.
WAIT = 60.0  # Seconds for a server or worker to answer.


def buildah(*words: str) -> str:
    """Run Buildah and return what it prints. Its errors are shown."""
    return subprocess.run([*BUILDAH, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def debian_base() -> str:
    """Make an image of a Debian with Python. The files stay for the next time."""
    files = WORK / DEBIAN
    if not files.exists():
        print(f"Making a Debian {DEBIAN} in {files}", flush=True)
        half = files.with_suffix(".part")
        shutil.rmtree(half, ignore_errors=True)
        half.parent.mkdir(parents=True, exist_ok=True)
        command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", DEBIAN, str(half), MIRROR]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        half.rename(files)
    name = buildah("from", "scratch")
    buildah("add", "--quiet", name, str(files), "/")
    if CERTIFICATES.exists():
        buildah("copy", "--quiet", name, str(CERTIFICATES), str(CERTIFICATES))
        for variable in ("PIP_CERT", "NODE_EXTRA_CA_CERTS"):
            buildah("config", "--env", f"{variable}={CERTIFICATES}", name)
    buildah("commit", "--quiet", "--rm", name, BASE)
    return BASE


def build(base: str) -> None:
    """Follow the Dockerfile."""
    print(f"Building {IMAGE} on {base}", flush=True)
    words = ("--format", "docker", "--isolation", "chroot", "--build-arg", f"PYTHON_IMAGE={base}")
    subprocess.run(
        [*BUILDAH, "build", *words, "--file", "deploy/Dockerfile", "--tag", IMAGE, "."], cwd=ROOT, check=True
    )


class Container:
    """A container of the image. Each command in it is what ``docker run`` would start."""

    def __init__(self, data: Path) -> None:
        self.config: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", IMAGE))["Docker"]["config"]
        self.name = buildah("from", IMAGE)
        self._data = data

    def command(self, *words: str, entrypoint: bool = True) -> list[str]:
        """Return the command that runs words in the container, by default behind the entry point of the image."""
        own = [*self.config["Entrypoint"], *(words or self.config["Cmd"])] if entrypoint else list(words)
        settings = ("--env", "HEADWAY_STORE=sqlite:////data/headway.db", "--volume", f"{self._data}:/data")
        return [*BUILDAH, "run", "--isolation", "chroot", *settings, self.name, "--", *own]

    def run(self, *words: str, entrypoint: bool = True) -> str:
        """Run a command to its end and return what it prints."""
        command = self.command(*words, entrypoint=entrypoint)
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a command in a process group of its own."""
        return subprocess.Popen(self.command(*words), start_new_session=True)


def wait_for(what: str, check: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait until a check holds. Raises ``SystemExit`` if the process ends or the time is over."""
    until = time.monotonic() + WAIT
    while not check():
        if process.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"{what} did not happen; the process has the state {process.returncode}")
        time.sleep(0.2)


def stop(process: subprocess.Popen[bytes], name: str) -> None:
    """Send the stop signal of the image to the process in the container, and wait for a clean end."""
    inside = subprocess.run(["pgrep", "-g", str(process.pid), "-o", "-x", "headway"], stdout=subprocess.PIPE, text=True)
    os.kill(int(inside.stdout), signal.SIGTERM)
    code = process.wait(WAIT)
    if code != 0:
        raise SystemExit(f"{name} ended with {code} after SIGTERM")
    print(f"ok: {name} stopped after SIGTERM", flush=True)


def expect(what: str, found: object, wanted: object) -> None:
    """Compare, and end the program on a difference."""
    if found != wanted:
        raise SystemExit(f"{what} is {found!r}, not {wanted!r}")
    print(f"ok: {what} is {found!r}", flush=True)


def check(data: Path, version: str) -> None:
    """Start the image as a server and as a worker, and run a job."""
    os.chown(data, USER, USER)
    container = Container(data)
    try:
        config = container.config
        expect("the user", config["User"], "headway")
        expect("the stop signal", config["StopSignal"], "SIGTERM")
        expect("the command", [*config["Entrypoint"], *config["Cmd"]], ["headway", "serve"])
        expect("the version", container.run("--version"), version)
        expect("the number of the user", container.run("id", "-u", entrypoint=False), str(USER))
        writable = "touch /opt/headway/x 2>/dev/null && echo yes || echo no"
        expect("whether it may change its own files", container.run("sh", "-c", writable, entrypoint=False), "no")
        node = "test -e /opt/node && echo there || echo gone"
        expect("Node", container.run("sh", "-c", node, entrypoint=False), "gone")

        health = container.command(*config["Healthcheck"]["Test"][1:], entrypoint=False)

        def healthy() -> bool:
            return subprocess.run(health, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0

        expect("the health check without a server", healthy(), False)
        server = container.start()
        try:
            wait_for("a healthy server", healthy, server)
            with urllib.request.urlopen("http://127.0.0.1:8000/ui/", timeout=10) as page:
                expect("the dashboard", (page.status, b"<title>Headway" in page.read()), (200, True))
            worker = container.start("worker", "headway.demo:app", "--slots", "2")
            try:
                answer = container.run(
                    "submit", "demo.echo", "value=from the image", "--app", "headway.demo:app", "--wait"
                )
                expect("the result of a job", answer.splitlines()[-1], '"from the image"')
                stop(worker, "the worker")
            finally:
                kill(worker)
            stop(server, "the server")
        finally:
            kill(server)
    finally:
        buildah("rm", container.name)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a process group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main() -> None:
    description = (__doc__ or "").split("\n", 1)[0]
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--base", help="an image with Python 3.11 to build on, instead of a Debian made here")
    base = parser.parse_args().base
    missing = [name for name in ("buildah", "pgrep", *([] if base else ["debootstrap"])) if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        raise SystemExit(f"needs root and: {', '.join(missing) or 'nothing else'} (Debian has packages of these names)")
    build(base or debian_base())
    version = subprocess.run(
        [sys.executable, "-c", "from headway.version import __version__ as v; print(v)"],
        cwd=ROOT / "src", stdout=subprocess.PIPE, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    with tempfile.TemporaryDirectory() as data:
        check(Path(data), version)
    print(f"{shlex.join(BUILDAH)} images lists the image {IMAGE}")


if __name__ == "__main__":
    main()
