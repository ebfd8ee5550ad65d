"""Run the services of deploy/systemd under systemd, and check how they start, fail, hang and stop.

    python scripts/try_units.py

Needs Linux, root, debootstrap and systemd-nspawn (Debian: systemd-container), and a wheel in dist/. It makes a Debian
once in build/units, installs the wheel and the units as docs/how-to/deploy.md says, and boots it in a container that
has a network of its own. The jobs of a killed worker are back after 5 seconds here instead of 90.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from debian import CERTIFICATES, TRUST, make_debian, require_tools

ROOT = Path(__file__).resolve().parents[1]
FILES = ROOT / "build" / "units" / "debian"
SERVER, WORKER = "headway-server", "headway-worker@reports"
BOOT, RESTART, WATCHDOG = 60.0, 20.0, 60.0  # Seconds to wait: the watchdog acts after 30.

TASKS = """
import pathlib, time
from headway import Headway

app = Headway()

@app.task
def greet(name: str) -> str:
    return f"hello {name}"

@app.task
def nap(seconds: float) -> str:
    time.sleep(seconds)
    return "slept"

@app.task
def write(path: str) -> str:
    try:
        pathlib.Path(path).write_text("here")
    except OSError as problem:
        return problem.strerror
    return "written"
"""
URL = "http://127.0.0.1:8000"
ASK = f"import urllib.request as u; print(u.urlopen('{URL}/readyz', timeout=5).status)"


def install(wheel: Path) -> None:
    """Install Headway, tasks, settings and units, as docs/how-to/deploy.md says."""
    inside = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--pipe", "--directory", str(FILES)]
    inside += [f"--bind-ro={wheel.parent}:/wheel", f"--bind-ro={ROOT / 'requirements'}:/requirements"]
    inside += [f"--setenv={name}={value}" for name, value in TRUST.items()]
    if CERTIFICATES.exists():
        inside.append(f"--bind-ro={CERTIFICATES}")
    pip = "/opt/headway/bin/pip install --quiet --disable-pip-version-check"
    steps = [
        "rm -rf /opt/headway /etc/headway /srv/headway /var/lib/private/headway",
        "python3 -m venv /opt/headway",
        f"{pip} --require-hashes --only-binary :all: -r /requirements/image.txt",
        f"{pip} --no-deps --no-index /wheel/{wheel.name}",
    ]
    subprocess.run([*inside, "sh", "-ec", "\n".join(steps)], check=True)
    for folder in ("etc/headway", "srv/headway"):
        (FILES / folder).mkdir()
    (FILES / "srv/headway/tasks.py").write_text(TASKS)
    for name, lines in (
        ("headway.env", "HEADWAY_HEARTBEAT=1\nHEADWAY_DEAD_AFTER=5\n"),  # Lost jobs soon return to the queue.
        ("worker-reports.env", "HEADWAY_APP=tasks:app\nHEADWAY_SLOTS=4\n"),
        ("worker-broken.env", "HEADWAY_APP=tasks:app\nHEADWAY_SLOTS=many\n"),
        ("worker-absent.env", "HEADWAY_APP=absent:app\n"),
    ):
        (FILES / "etc/headway" / name).write_text(lines)
        (FILES / "etc/headway" / name).chmod(0o600)
    for unit in (ROOT / "deploy" / "systemd").iterdir():
        shutil.copy(unit, FILES / "etc/systemd/system")


class Machine:
    """A booted Debian. Commands run inside it as root."""

    def __init__(self, console: Path) -> None:
        command = ["systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit", "--private-network"]
        with console.open("wb") as out:
            self._process = subprocess.Popen(
                [*command, "--console=pipe", "--directory", str(FILES)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        self._init = 0
        wait_for("the start of systemd", self._find_init, BOOT)
        wait_for("the end of the boot", self._is_up, BOOT)

    def _find_init(self) -> bool:
        if self._process.poll() is not None:
            raise SystemExit(f"systemd-nspawn ended with {self._process.returncode}")
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                lines = status.read_text()
            except OSError:
                continue
            if f"\nPPid:\t{self._process.pid}\n" in lines and lines.startswith("Name:\tsystemd\n"):
                self._init = int(status.parent.name)
        return self._init != 0

    def _is_up(self) -> bool:
        return self.run("systemctl", "is-system-running", check=False) in ("running", "degraded")

    def run(self, *words: str, check: bool = True) -> str:
        """Run a command in the machine and return what it prints."""
        enter = ["nsenter", "--target", str(self._init), "--all", "--root", "--", "env", "-i", "--chdir=/"]
        paths = ["PATH=/opt/headway/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "PYTHONPATH=/srv/headway"]
        done = subprocess.run([*enter, *paths, *words], capture_output=True, text=True)
        if check and done.returncode != 0:
            raise SystemExit(f"{' '.join(words)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout.strip()

    def show(self, unit: str, name: str) -> str:
        """Return one property of a unit."""
        return self.run("systemctl", "show", "--value", "--property", name, unit)

    def submit(self, *words: str) -> str:
        """Submit a job through the server and return the last line that the command prints."""
        return self.run("headway", "submit", *words, "--server", URL).splitlines()[-1]

    def status(self, job: str, *words: str) -> str:
        """Return what the server says about a job."""
        return self.run("headway", "status", job, *words, "--server", URL)

    def stop(self) -> None:
        """Switch the machine off."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(BOOT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def wait_for(what: str, check: Callable[[], bool], seconds: float) -> None:
    """Wait until a check holds. Raises ``SystemExit`` if the time is over."""
    until = time.monotonic() + seconds
    while not check():
        if time.monotonic() > until:
            raise SystemExit(f"{what} did not happen within {seconds:g} s")
        time.sleep(0.2)


def expect(what: str, found: object, wanted: object) -> None:
    """Exit with an error unless two values are equal."""
    if found != wanted:
        raise SystemExit(f"{what}: {found!r}, not {wanted!r}")
    print(f"ok: {what}: {found}", flush=True)


def check_start(machine: Machine) -> None:
    """Start both units. They are ready when `systemctl` returns, run without rights, and share a store."""
    machine.run("systemctl", "enable", "--now", SERVER, WORKER)
    for unit in (SERVER, WORKER):
        expect(f"{unit} after its start", machine.show(unit, "ActiveState"), "active")
    expect("a request right after the start of the server", machine.run("python3", "-c", ASK), "200")
    hello = machine.submit("tasks.greet", "name=Ada", "--wait")
    expect("a job right after the start of the worker", hello, '"hello Ada"')
    for unit in (SERVER, WORKER):
        pid = machine.show(unit, "MainPID")
        expect(f"the user of {unit}", machine.run("stat", "-c", "%U", f"/proc/{pid}"), "headway")
        state = machine.run("cat", f"/proc/{pid}/status")
        rights = dict(line.split(":\t") for line in state.splitlines() if line.startswith(("Cap", "NoNew", "Seccomp:")))
        expect(f"the capabilities of {unit}", int(rights["CapBnd"], 16) | int(rights["CapEff"], 16), 0)
        expect(f"new privileges and system calls of {unit}", (rights["NoNewPrivs"], rights["Seccomp"]), ("1", "2"))
    for path, outcome in (("/srv/headway/x", "Read-only file system"), ("/var/lib/headway/x", "written")):
        expect(f"a job that writes to {path}", machine.submit("tasks.write", f"path={path}", "--wait"), f'"{outcome}"')


def check_crash(machine: Machine) -> None:
    """Kill the main process of each unit. systemd starts it again, and a running job runs again."""
    job = machine.submit("tasks.nap", "seconds=3")
    wait_for("the start of a job", lambda: "executing" in machine.status(job), RESTART)
    for unit in (WORKER, SERVER):
        machine.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", unit)
        wait_for(f"a restart of {unit}", lambda unit=unit: machine.show(unit, "NRestarts") == "1", RESTART)
        wait_for(f"readiness of {unit}", lambda unit=unit: machine.show(unit, "ActiveState") == "active", RESTART)
        print(f"ok: {unit} was started again after its main process was killed", flush=True)
    machine.status(job, "--follow")
    expect("whether the job of the killed worker ended", "slept" in machine.status(job), True)


def check_watchdog(machine: Machine) -> None:
    """Freeze the main process of each unit. The watchdog ends it, and systemd starts it again."""
    since = time.monotonic()
    for unit in (SERVER, WORKER):
        machine.run("systemctl", "kill", "--kill-whom=main", "--signal=STOP", unit)
    for unit in (SERVER, WORKER):
        wait_for(f"a second restart of {unit}", lambda unit=unit: machine.show(unit, "NRestarts") == "2", WATCHDOG)
        wait_for(f"readiness of {unit}", lambda unit=unit: machine.show(unit, "ActiveState") == "active", RESTART)
        log = machine.run("journalctl", "--unit", unit, "--output=cat")
        expect(f"the watchdog of {unit}", "Watchdog timeout (limit 30s)!" in log, True)
    print(f"ok: both ran again {time.monotonic() - since:.0f} s after they froze", flush=True)


def check_mistakes(machine: Machine) -> None:
    """Start workers with wrong settings and without an app. They fail once, and systemd leaves it at that."""
    for name, code in (("broken", "2"), ("absent", "3")):
        unit = f"headway-worker@{name}"
        machine.run("systemctl", "start", unit, check=False)
        time.sleep(4)  # RestartSec is 2.
        expect(f"{unit}", (machine.show(unit, "ExecMainStatus"), machine.show(unit, "NRestarts")), (code, "0"))


def check_stop(machine: Machine) -> None:
    """Stop the worker while a job runs. The job ends first."""
    job = machine.submit("tasks.nap", "seconds=5")
    wait_for("the start of a job", lambda: "executing" in machine.status(job), RESTART)
    machine.run("systemctl", "stop", WORKER)
    expect(f"the end of {WORKER}", machine.show(WORKER, "Result"), "success")
    expect("whether the job ended that ran when it stopped", "slept" in machine.status(job), True)
    machine.run("systemctl", "stop", SERVER)
    expect(f"the end of {SERVER}", machine.show(SERVER, "Result"), "success")


def main() -> None:
    description = (__doc__ or "").split("\n", 1)[0]
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="the folder with the wheel")
    [wheel] = parser.parse_args().dist.resolve().glob("*.whl")
    require_tools("debootstrap", "systemd-nspawn", "nsenter")
    make_debian(FILES, "systemd", "systemd-sysv", "libnss-systemd")
    install(wheel)
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(Path(folder) / "console")
        try:
            for check in (check_start, check_crash, check_watchdog, check_mistakes, check_stop):
                check(machine)
        except SystemExit:
            print(machine.run("journalctl", "--no-pager", "--lines=60", check=False), file=sys.stderr)
            raise
        finally:
            machine.stop()


if __name__ == "__main__":
    main()
