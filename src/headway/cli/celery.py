"""``headway celery``: check what of a Celery project runs on Headway; show and repair its load-based queues."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from headway.cli import render
from headway.cli.help import command, family, flag, option
from headway.cli.store_access import JsonFlag
from headway.core.errors import ConfigError, StoreError
from headway.version import __version__

if TYPE_CHECKING:
    from rich.console import Group as Renderables

    from headway.integrations.celery.balancer import Balancer
    from headway.integrations.celery.ledger import Ledger

REFRESH = 1.0
USERS = 10

AppPath = Annotated[str | None, option("The Celery app, as `celery -A` takes it.", name="APP", show_default=False)]
LedgerUrl = Annotated[str | None, option("Where the ledger is, in place of an app.", "URL", name="--store")]
Prefix = Annotated[str, option("With --store, what the names of the queues begin with.", "TEXT", name="--prefix")]

celery = family(
    "celery",
    "Check what of a Celery project runs on Headway; show, repair and reset its load-based queues.",
    "headway celery top proj",
    "headway celery top --store redis://localhost --once",
    "headway celery metrics proj --port 9180",
    "headway celery check proj",
    "headway celery repair proj",
)


@command(
    celery, "top [APP] [OPTIONS]", "headway celery top proj", "headway celery top --store redis://localhost/0 --json"
)
def top(
    app: AppPath = None,
    /,
    *,
    once: Annotated[bool, flag("Print one screen and exit.")] = False,
    json: JsonFlag = False,
    store: LedgerUrl = None,
    prefix: Prefix = "queue_",
) -> None:
    """Watch queues, loads, users and drift, refreshed every second. Ctrl-C ends it."""
    ledger, names = _ledger(app, store, prefix)
    if json:
        render.print_json(_values(ledger, names))
    elif once or not sys.stdout.isatty():
        render.console().print(_screen(ledger, names))
    else:
        with contextlib.suppress(KeyboardInterrupt):
            _watch(ledger, names)
    ledger.close()


@command(celery, "metrics [APP] [OPTIONS]", "headway celery metrics proj", "headway celery metrics proj --port 9180")
def metrics(
    app: AppPath = None,
    /,
    *,
    port: Annotated[int | None, option("Serve them at this port, below /metrics, until interrupted.", "PORT")] = None,
    host: Annotated[str, option("The address to serve at.", "HOST")] = "127.0.0.1",
    store: LedgerUrl = None,
    prefix: Prefix = "queue_",
) -> None:
    """Print the figures of `headway celery top` for Prometheus, or serve them."""
    from headway.integrations.celery.metrics import metrics_text

    ledger, names = _ledger(app, store, prefix)
    if port is None:
        print(metrics_text(ledger, names), end="")
    else:
        with contextlib.suppress(KeyboardInterrupt):
            serve(ledger, names, host, port).join()
    ledger.close()


@command(celery, "check PROJ [OPTIONS]", "headway celery check proj", "headway celery check proj --json")
def check(
    project: Annotated[str, option("The Celery app, as `celery -A` takes it.", name="PROJ")],
    /,
    *,
    source: Annotated[Path | None, option("The folder of the sources; else the current one.", "DIR")] = None,
    policy: Annotated[Path | None, option("Write the proposed policy to this file.", "FILE")] = None,
    json: JsonFlag = False,
) -> int:
    """Report what becomes of a Celery project on Headway, and change nothing.

    Imports the project as `celery -A` does and scans its sources. Prints what
    runs as it is, what differs and how, what is refused and why, and a proposed
    policy. Exits with 0 if everything runs, and with 1 if something is refused.
    """
    _need_celery()
    from headway.cli.celery_check import report_data, show_report
    from headway.integrations.celery.check.project_report import check_project

    report = check_project(project, source or Path.cwd())
    if policy is not None:
        from headway.cli.celery_check import policy_text

        policy.write_text(policy_text(report))
    if json:
        render.print_json(report_data(report))
    else:
        show_report(report)
    return 1 if report.refused else 0


@command(celery, "repair APP", "headway celery repair proj")
def repair(app: Annotated[str, option("The Celery app, as `celery -A` takes it.", name="APP")], /) -> int:
    """Compare the ledger with the broker and repair it, as workers do by themselves. Exits with 1 if it was wrong."""
    balancer = _balancer(app)
    report = balancer.reconcile()
    print(f"drift {report.drift}, dropped {report.dropped}, adopted {report.adopted}")
    for queue in report.stranded:
        print(f"no worker reads {render.clean(queue)}, where tasks wait")
    balancer.ledger.close()
    return 1 if any(report) else 0


@command(celery, "reset APP [QUEUE] --yes", "headway celery reset proj queue_3 --yes")
def reset(
    app: Annotated[str, option("The Celery app, as `celery -A` takes it.", name="APP")],
    queue: Annotated[str | None, option("One queue; else all.", name="QUEUE", show_default=False)] = None,
    /,
    *,
    yes: Annotated[bool, flag("Confirm the reset.")] = False,
) -> None:
    """Remove manual counts; waiting and running tasks stay counted. The reset is logged with your name."""
    if not yes:
        raise ConfigError("reset changes the counts that running Celery senders use; add --yes to do it")
    balancer = _balancer(app)
    balancer.reset_queue_counters(queue)
    balancer.ledger.close()


def serve(ledger: Ledger, names: list[str], host: str, port: int) -> threading.Thread:
    """Serve the figures from a thread of its own. Raises ``ConfigError`` if the address is taken."""
    from headway.integrations.celery.metrics import metrics_text

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
                return
            try:
                text, status = metrics_text(ledger, names), 200
            except StoreError as problem:
                text, status = f"# {problem}\n", 503
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None: ...

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as problem:
        raise ConfigError(f"cannot listen at {host}:{port}: {problem}; choose another --port or --host") from problem
    print(f"http://{host}:{server.server_port}/metrics", flush=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    return thread


def _balancer(app: str) -> Balancer:
    _need_celery()
    from headway.integrations.celery.app_import import import_celery_app
    from headway.integrations.celery.balancer import balancer_of

    return balancer_of(import_celery_app(app))


def _ledger(app: str | None, store: str | None, prefix: str) -> tuple[Ledger, list[str]]:
    if (app is None) == (store is None):
        raise ConfigError("nothing to read: name a Celery app, or the store of its ledger with --store")
    if app is not None:
        balancer = _balancer(app)
        return balancer.ledger, balancer.rules.names
    _need_celery()
    from headway.integrations.celery.ledger import Ledger

    return Ledger.at(store or "", prefix), []


def _need_celery() -> None:
    if find_spec("celery") is None:
        raise ConfigError("Celery is not installed; run: pip install 'headway-queue[celery]'")


def _values(ledger: Ledger, names: list[str]) -> dict[str, Any]:
    figures = ledger.figures(users=USERS)
    return {
        "queues": [load._asdict() for load in sorted(ledger.loads(names), key=lambda load: _order(load.queue))],
        "users": figures.users,
        "workers": figures.nodes,
        "totals": {name: number for name, number in figures.tally.items() if not name.endswith("_at")},
        "drift": ledger.check(),
    }


def _watch(ledger: Ledger, names: list[str]) -> None:
    from rich.console import RenderableType
    from rich.live import Live

    screen: RenderableType = _screen(ledger, names)
    with Live(screen, console=render.console(), screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen, refresh=True)
            time.sleep(REFRESH)
            try:
                screen = _screen(ledger, names)
            except StoreError as problem:
                screen = render.text(problem, "red")


def _screen(ledger: Ledger, names: list[str]) -> Renderables:
    from rich.console import Group as Renderables
    from rich.console import RenderableType
    from rich.text import Text

    values = _values(ledger, names)
    drift, totals = values["drift"], values["totals"]
    table = render.table("queue", "pending", "running", "expected work", "oldest waits", "read")
    for load in values["queues"]:
        table.add_row(
            render.text(load["queue"]),
            f"{load['pending']:,}",
            f"{load['running']:,}",
            render.duration(load["work_ms"]),
            render.NOTHING if load["oldest_ms"] is None else render.duration(load["oldest_ms"]),
            render.NOTHING
            if load["read"] is None
            else render.text("yes" if load["read"] else "no", "" if load["read"] else "red"),
        )
    repaired = totals.get("dropped", 0) + totals.get("adopted", 0)
    parts: list[RenderableType] = [
        Text(f"Headway {__version__}  ", "bold") + render.text(f"Celery's queues at {ledger.place.shown}", "dim"),
        Text(f"{render.plural(len(values['workers']), 'worker')}  ")
        + render.text(f"drift {drift}", "red" if drift else "green")
        + Text(f"  repaired {repaired:,}  lost with workers {totals.get('lost', 0):,}"),
        Text(),
        table,
    ]  # fmt: skip
    if values["users"]:
        busiest = "  ".join(f"{render.clean(user)} {count:,}" for user, count in values["users"].items())
        parts += [Text(), Text("busiest users  ", "dim") + Text(busiest)]
    return Renderables(*parts)


def _order(queue: str) -> tuple[str, int]:
    base = queue.rstrip("0123456789")
    return base, int(queue[len(base) :] or 0)
