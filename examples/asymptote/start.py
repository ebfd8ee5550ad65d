"""Start the example, the page and a worker with six slots, until Ctrl-C. See ``make example-asymptote``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PORT = os.environ.get("PORT", "8002")


def main() -> None:
    """Run until interrupted."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="headway-drawings-") as folder:
        environment = {
            "HEADWAY_STORE": f"sqlite:///{folder}/drawings.db",
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        }

        def start(*words: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen([sys.executable, "-m", *words], cwd=folder, env=environment)

        started: list[subprocess.Popen[bytes]] = []
        try:
            started.append(start("headway", "worker", "drawings:queue", "--log-level", "warning"))
            bounds = ("--no-server-header", "--ws-max-size", "65536")  # As where Headway serves by itself.
            started.append(start("uvicorn", "service:app", "--port", PORT, "--log-level", "warning", *bounds))
            print(f"http://127.0.0.1:{PORT}/", flush=True)
            started[-1].wait()
        except KeyboardInterrupt:
            pass
        finally:
            for process in reversed(started):
                process.terminate()
            for process in started:
                process.wait()


if __name__ == "__main__":
    main()
