"""Start the example, its database, the page and a worker, until Ctrl-C. See ``make example-django``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PORT = os.environ.get("PORT", "8001")


def main() -> None:
    """Run until interrupted."""
    with tempfile.TemporaryDirectory(prefix="headway-press-") as folder:
        environment = {
            **os.environ,
            "PRESS_FILE": str(Path(folder, "press.sqlite3")),
            "DJANGO_SUPERUSER_PASSWORD": "admin",
        }

        def manage(*words: str) -> list[str]:
            return [sys.executable, str(HERE / "manage.py"), *words]

        started: list[subprocess.Popen[bytes]] = []
        try:
            subprocess.run(manage("migrate", "-v", "0"), env=environment, check=True)
            who = "as whom you made with manage.py createsuperuser"
            if not os.environ.get("PGHOST"):  # Only this process has the file, and it ends with us.
                who = "admin, admin"
                name = ("--username", "admin", "--email", "admin@example.org")
                subprocess.run(manage("createsuperuser", "--noinput", *name), env=environment, check=True)
            print(f"http://127.0.0.1:{PORT}/ and http://127.0.0.1:{PORT}/admin/ ({who})", flush=True)
            started += [
                subprocess.Popen(manage("run_ioqueue"), env=environment),
                subprocess.Popen(manage("runserver", "--noreload", PORT), env=environment),
            ]
            started[1].wait()
        except KeyboardInterrupt:
            pass
        finally:
            for process in reversed(started):
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main()
