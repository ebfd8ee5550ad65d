"""The lines for HTTP in the README work as pasted."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.cli.command import Cli

ROOT = Path(__file__).parents[2]

# What the README needs of curl, for machines that have none.
CURL = r"""#!{python}
import sys, urllib.request
words, headers, data, url = sys.argv[1:], {{}}, None, None
while words:
    word = words.pop(0)
    if word == "-H":
        headers |= dict([words.pop(0).split(": ", 1)])
    elif word == "-d":
        data = words.pop(0).encode()
    elif not word.startswith("-"):
        url = "http://" + word
sys.stdout.buffer.write(urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30).read())
"""


def test_the_lines_work_as_pasted(tmp_path: Path) -> None:
    page = (ROOT / "README.md").read_text().partition("## Over HTTP")[2]
    lines = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)[0]
    if shutil.which("curl") is None:
        curl = tmp_path / "curl"
        curl.write_text(CURL.format(python=sys.executable))
        curl.chmod(0o755)
    cli = Cli(tmp_path)
    up = cli.start("up", "--log", "json")
    try:
        address = up.wait_for("server.up")["address"].removeprefix("http://")
        script = lines.replace("localhost:8000", address)
        path = f"{tmp_path}:/usr/bin:/bin:/usr/local/bin"
        done = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, timeout=40, env={"PATH": path})
    finally:
        up.end()
    assert done.returncode == 0, done.stderr
    assert '"queue_position":0' in done.stdout
    assert "event: finished" in done.stdout
    assert '"status":"completed"' in done.stdout
    assert '"queues"' in done.stdout
