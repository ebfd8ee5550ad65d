"""Make a Debian in a folder with debootstrap, to build an image on or to boot."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# Programs that download read these variables to find certificates. A machine behind a proxy may add its own.
TRUST = {name: str(CERTIFICATES) for name in ("PIP_CERT", "NODE_EXTRA_CA_CERTS")} if CERTIFICATES.exists() else {}
SUITE, MIRROR = "bookworm", "http://deb.debian.org/debian"
PACKAGES = ("ca-certificates", "python3", "python3-venv", "python-is-python3")


def make_debian(files: Path, *packages: str) -> None:
    """Install a Debian with Python and these packages into a folder, unless it is there already."""
    if files.exists():
        return
    print(f"Making a Debian {SUITE} in {files}", flush=True)
    half = files.with_suffix(".part")
    shutil.rmtree(half, ignore_errors=True)
    half.parent.mkdir(parents=True, exist_ok=True)
    include = f"--include={','.join((*PACKAGES, *packages))}"
    command = ["debootstrap", "--variant=minbase", include, SUITE, str(half), MIRROR]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    half.rename(files)


def require_tools(*names: str) -> None:
    """Raise ``SystemExit`` unless this is root and all programs are installed."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        raise SystemExit(f"needs root and: {', '.join(missing) or 'nothing else'} (Debian has packages of these names)")
