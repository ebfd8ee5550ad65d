"""The servers of tests end with the process that started them, and can read their files until then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.servers import PATIENCE, Valkey

ROOT = Path(__file__).parents[2]
STARTER = """
import sys, time
from pathlib import Path
from tests.servers import Postgres, Valkey

folder = Path(sys.argv[1])
servers = [Valkey(folder / "frozen"), Valkey(folder / "valkey"), Postgres(folder / "postgres")]
for server in servers:
    server.start()
servers[0].freeze()
print(*[server.pid for server in servers], flush=True)
time.sleep(600)
"""


def test_the_servers_of_a_killed_process_end(tmp_path: Path) -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER, tmp_path], cwd=ROOT, stdout=subprocess.PIPE)
    assert starter.stdout is not None
    left = {int(pid) for pid in starter.stdout.readline().split()}
    assert len(left) == 3
    assert all(map(_runs, left))

    starter.send_signal(signal.SIGKILL)
    starter.communicate()

    deadline = time.monotonic() + PATIENCE
    while left := set(filter(_runs, left)):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def test_another_session_of_pytest_leaves_the_files_of_a_server_alone(tmp_path: Path) -> None:
    server = Valkey(tmp_path / "server")
    server.start()
    try:
        (tmp_path / "test_nothing.py").write_text("def test_nothing(tmp_path): assert tmp_path.exists()")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_nothing.py"]
        alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        subprocess.run(command, cwd=tmp_path, env=alone, check=True, capture_output=True)
        assert server.ask("CONFIG", "REWRITE") == b"+OK\r\n"
    finally:
        server.kill()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return " Z " not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]
    except OSError:
        return False
