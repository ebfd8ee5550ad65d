"""The units of systemd: their commands exist, they wait long enough for a drain, and they confine the service."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headway.cli.main import CANNOT_START, USAGE, build
from headway.client.settings import Settings
from headway.server.uvicorn_server import SHUTDOWN_SECONDS

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
MISSING = [name for name in ("debootstrap", "systemd-nspawn", "nsenter") if shutil.which(name) is None]
STOP_MARGIN = 15  # Seconds beyond the time that a process takes for itself before systemd kills it.
SANDBOX = {
    "CapabilityBoundingSet", "LockPersonality", "NoNewPrivileges", "PrivateDevices", "PrivateTmp", "PrivateUsers",
    "ProtectClock", "ProtectControlGroups", "ProtectHome", "ProtectHostname", "ProtectKernelLogs",
    "ProtectKernelModules", "ProtectKernelTunables", "ProtectProc", "ProtectSystem", "RestrictAddressFamilies",
    "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID", "SystemCallArchitectures", "SystemCallFilter",
}  # fmt: skip


def read(unit: Path) -> dict[str, list[str]]:
    """Read the settings of the section Service. Fails for a line that systemd would not understand."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in unit.read_text().splitlines():
        if line.startswith("["):
            section = line
        elif line and not line.startswith("#"):
            match = re.fullmatch(r"([A-Z]\w+)=(.*)", line)
            assert match is not None, line
            if section == "[Service]":
                found.setdefault(match[1], []).append(match[2])
    return found


def test_there_is_a_unit_for_servers_and_a_template_for_workers() -> None:
    assert [unit.name for unit in UNITS] == ["headway-server.service", "headway-worker@.service"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_a_command_that_exists_and_reports_its_state(unit: Path) -> None:
    service = read(unit)
    [command] = service["ExecStart"]
    program, *words = shlex.split(command)
    assert program == "/opt/headway/bin/headway"
    called, _, _ = build().parse_args(words)
    assert called.__name__ == ("serve" if "server" in unit.name else "worker")
    assert (service["Type"], service["NotifyAccess"], service["KillMode"]) == (["notify"], ["main"], ["mixed"])
    assert int(service["WatchdogSec"][0]) > 0
    assert service["RestartPreventExitStatus"] == [f"{USAGE} {CANNOT_START}"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_stops_a_service_later_than_it_stops_itself(unit: Path) -> None:
    needed = SHUTDOWN_SECONDS if "server" in unit.name else Settings().grace
    assert read(unit)["TimeoutStopSec"] == [f"{needed + STOP_MARGIN:g}"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_shuts_its_service_in(unit: Path) -> None:
    service = read(unit)
    assert service.keys() >= SANDBOX
    assert (service["DynamicUser"], service["User"], service["StateDirectory"]) == (["yes"], ["headway"], ["headway"])
    assert service["CapabilityBoundingSet"] == [""]
    assert service["ProtectSystem"] == ["strict"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the units, with the command of this environment."""
    headway = Path(sys.executable).with_name("headway")
    for unit in UNITS:
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/headway/bin/headway", str(headway)))
    return tmp_path


@pytest.mark.proof
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (Debian: systemd)")
def test_systemd_understands_every_line_and_finds_little_exposed(folder: Path) -> None:
    def analyze(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["systemd-analyze", *words], cwd=folder, capture_output=True, text=True)

    checked = analyze("verify", "headway-server.service", "headway-worker@reports.service")
    assert (checked.returncode, checked.stderr) == (0, "")
    for unit in UNITS:  # The threshold is ten times the shown level: below 2 of 10.
        rated = analyze("security", "--offline=true", "--threshold=20", f"./{unit.name}")
        assert rated.returncode == 0, rated.stdout[-300:]
    (folder / "headway-server.service").write_text("[Service]\nTipe=notify\nExecStart=/bin/true\n")
    assert "'Tipe' in section" in analyze("verify", "headway-server.service").stderr


@pytest.mark.proof
@pytest.mark.skipif(bool(MISSING) or os.geteuid() != 0, reason="needs root, debootstrap and systemd-container (Debian)")
def test_systemd_starts_restarts_and_stops_the_services(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    command = [sys.executable, "scripts/try_units.py", "--dist", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4_000:]
    for line in (
        "a request right after the start of the server: 200",
        'a job that writes to /srv/headway/x: "Read-only file system"',
        "whether the job of the killed worker ended: True",
        "the watchdog of headway-worker@reports: True",
        "headway-worker@broken: ('2', '0')",
        "whether the job ended that ran when it stopped: True",
    ):
        assert f"ok: {line}" in done.stdout
