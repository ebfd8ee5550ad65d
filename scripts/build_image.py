"""Build the image of deploy/Dockerfile where no registry is at hand, start it, and check what it does.

    python scripts/build_image.py
    python scripts/build_image.py --base python:3.11-slim

Needs Linux, root, buildah and debootstrap (Debian). Buildah follows the Dockerfile. Only the base image differs from
the pinned one: without --base it is a Debian with Python, which debootstrap makes once in build/image. If the machine
trusts certificates of its own, the base gets them, because pip and npm download from inside the build. Containers run
by chroot, which needs no runtime: they share the network with the machine, and have the files, user and environment of
the image. If podman is installed, a server and a worker also run in its containers, as `docker run` would start them.
These share the network with the machine too, and use no cgroups. crun refuses a machine with cgroups of both versions,
so Podman then runs in a mount namespace without the second version.
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

from debian import CERTIFICATES, SUITE, TRUST, make_debian, require_tools

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "image"
BUILDAH = ("buildah", "--storage-driver", "vfs", "--root", str(WORK / "storage"), "--runroot", str(WORK / "run"))
BASE, IMAGE = "localhost/headway-base", "localhost/headway"
USER = 10001  # The user of the image.
# Podman asks for more by default, which root in a container or a small machine may not get.
LIMITS = ("--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096")
WAIT = 60.0  # Seconds for a server or worker to answer.
CGROUP2 = Path("/sys/fs/cgroup/unified")  # Exists only beside cgroups of version 1.
WITHOUT_CGROUP2 = ("unshare", "--mount", "sh", "-c", f'umount {CGROUP2} && exec "$@"', "sh")


def buildah(*words: str) -> str:
    """Run Buildah and return what it prints. Its errors are shown."""
    return subprocess.run([*BUILDAH, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def debian_base() -> str:
    """Make an image of a Debian with Python. The files stay for the next time."""
    files = WORK / SUITE
    make_debian(files)
    name = buildah("from", "scratch")
    buildah("add", "--quiet", name, str(files), "/")
    if TRUST:
        buildah("copy", "--quiet", name, str(CERTIFICATES), str(CERTIFICATES))
    for variable, value in TRUST.items():
        buildah("config", "--env", f"{variable}={value}", name)
    buildah("commit", "--quiet", "--rm", name, BASE)
    return BASE


def build(base: str) -> None:
    """Build the image from the Dockerfile."""
    print(f"Building {IMAGE} on {base}", flush=True)
    words = ("--format", "docker", "--isolation", "chroot", "--build-arg", f"PYTHON_IMAGE={base}")
    subprocess.run(
        [*BUILDAH, "build", *words, "--file", "deploy/Dockerfile", "--tag", IMAGE, "."], cwd=ROOT, check=True
    )


class Container:
    """A container of the image. It runs each command as ``docker run`` would."""

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


def wait_for(what: str, check: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait until a check holds. Raises ``SystemExit`` if the process ends or the time is over."""
    until = time.monotonic() + WAIT
    while not check():
        if process is not None and process.poll() is not None:
            raise SystemExit(f"{what} did not happen; the process ended with {process.returncode}")
        if time.monotonic() > until:
            raise SystemExit(f"{what} did not happen within {WAIT:g} s")
        time.sleep(0.2)


def shows_dashboard() -> bool:
    """Return whether a server on this machine shows the dashboard."""
    try:
        with urllib.request.urlopen("http://127.0.0.1:8000/ui/", timeout=10) as page:
            return page.status == 200 and b"<title>Headway" in page.read()
    except OSError:
        return False


def stop(process: subprocess.Popen[bytes], name: str) -> None:
    """Send the stop signal of the image to the process in the container, and wait for a clean end."""
    inside = subprocess.run(["pgrep", "-g", str(process.pid), "-o", "-x", "headway"], stdout=subprocess.PIPE, text=True)
    os.kill(int(inside.stdout), signal.SIGTERM)
    code = process.wait(WAIT)
    if code != 0:
        raise SystemExit(f"{name} ended with {code} after SIGTERM")
    print(f"ok: {name} stopped after SIGTERM", flush=True)


def expect(what: str, found: object, wanted: object) -> None:
    """Exit with an error unless two values are equal."""
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
            expect("whether the server shows the dashboard", shows_dashboard(), True)
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


class Podman:
    """Containers of the image in namespaces of their own, by Podman and its runtime."""

    def __init__(self, data: Path) -> None:
        self._podman = [*(WITHOUT_CGROUP2 if CGROUP2.is_mount() else ()), "podman", *BUILDAH[1:]]
        self._podman += ["--cgroup-manager=cgroupfs", "--events-backend=file"]
        self._run = [*self._podman, "run", "--network=host", "--cgroups=disabled", "--no-healthcheck", *LIMITS]
        self._run += [f"--volume={data}:/data", "--env=HEADWAY_STORE=sqlite:////data/headway.db"]

    def run(self, *words: str) -> str:
        """Run a command in a container of its own, to its end, and return what it prints."""
        done = subprocess.run([*self._run, "--rm", IMAGE, *words], stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout.strip()

    def start(self, name: str, *words: str) -> None:
        """Start a command in a container with a name."""
        command = [*self._run, "--detach", "--replace", "--name", name, IMAGE, *words]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)

    def stop(self, name: str) -> str:
        """Stop a container as its image asks for, remove it, and return the status with which it ended."""
        subprocess.run([*self._podman, "stop", "--time=45", name], stdout=subprocess.DEVNULL, check=True)
        status = [*self._podman, "inspect", "--format={{.State.ExitCode}}", name]
        ended = subprocess.run(status, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        self.remove(name)
        return ended

    def remove(self, name: str) -> None:
        subprocess.run([*self._podman, "rm", "--force", "--ignore", name], stdout=subprocess.DEVNULL, check=True)


def check_podman(data: Path, version: str) -> None:
    """Start a server and a worker in Podman, and run a job."""
    os.chown(data, USER, USER)
    podman = Podman(data)
    try:
        expect("the version in Podman", podman.run("--version"), version)
        podman.start("headway-server")
        wait_for("the dashboard of a server in Podman", shows_dashboard)
        podman.start("headway-worker", "worker", "headway.demo:app", "--slots", "2")
        answer = podman.run("submit", "demo.echo", "value=from Podman", "--app", "headway.demo:app", "--wait")
        expect("the result of a job in Podman", answer.splitlines()[-1], '"from Podman"')
        for name in ("headway-worker", "headway-server"):
            expect(f"the end of {name} in Podman", podman.stop(name), "0")
    finally:
        for name in ("headway-worker", "headway-server"):
            podman.remove(name)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the remaining processes of a process group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main() -> None:
    description = (__doc__ or "").split("\n", 1)[0]
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--base", help="an image with Python 3.11 to build on, instead of a Debian made here")
    base = parser.parse_args().base
    require_tools("buildah", "pgrep", *([] if base else ["debootstrap"]))
    build(base or debian_base())
    version = subprocess.run(
        [sys.executable, "-c", "from headway.version import __version__ as v; print(v)"],
        cwd=ROOT / "src", stdout=subprocess.PIPE, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    with tempfile.TemporaryDirectory() as data:
        check(Path(data), version)
    if shutil.which("podman") is None:
        print("Podman is not installed, so the containers ran by chroot only")
    else:
        with tempfile.TemporaryDirectory() as data:
            check_podman(Path(data), version)
    print(f"{shlex.join(BUILDAH)} images lists the image {IMAGE}")


if __name__ == "__main__":
    main()
