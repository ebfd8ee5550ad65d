"""The runner process, which only a worker's parent starts. It runs jobs, and its parent renews the leases."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
from functools import partial

from headway.client.app import Headway
from headway.client.context import job_facts
from headway.client.loading import load_app, policy_file
from headway.core.errors import HeadwayError, ServerRefused, StoreUnavailable
from headway.core.job import PAYLOAD_VERSION
from headway.core.log_event import LogEvent
from headway.core.policy.writer import policy_data
from headway.observability.logs import configure_logs, flush_logs
from headway.policy_store.current import CurrentPolicy
from headway.runtime.fast_loop import run_on_fast_loop
from headway.runtime.os_support import die_with_parent, hide_from_programs, tune_gc
from headway.worker import control
from headway.worker.backend.base import Backend
from headway.worker.backend.http import HttpBackend
from headway.worker.backend.store import StoreBackend
from headway.worker.runner import Runner
from headway.worker.slot_table import SlotTable, Stop

log = logging.getLogger("headway.worker")

BEGAN = time.monotonic()  # When this process started, nearly.
CANNOT_START = 3
OPEN_AGAIN, OPEN_AGAIN_MAX = 0.1, 5.0  # Seconds between attempts to open the store.


async def _serve(connection: socket.socket, board_descriptor: int) -> int:
    channel = await control.Channel.over(connection)
    begin = await channel.receive()
    if not isinstance(begin, control.StartRunner):
        return CANNOT_START
    try:
        app = load_app(begin.app, begin.folder)
        app.configure(**begin.overrides)
        if app.runs_programs:
            hide_from_programs()
        configure_logs(app.settings.log, begin.log_level, job_facts=job_facts)
        server = app.settings.server if begin.remote else None
        backend = _make_backend(app, server)
        if not await _open(backend, channel):
            return 0
    except HeadwayError as problem:
        return await _fail(channel, control.RunnerFailed(str(problem), setting="setting" in problem.facts))
    except BaseException as problem:
        return await _fail(
            channel, control.RunnerFailed(f"{type(problem).__name__}: {problem}", traceback.format_exc())
        )
    settings = app.settings
    slot_table = SlotTable(board_descriptor, settings.slots)
    runner = Runner(
        app,
        backend,
        slot_table,
        worker_id=begin.worker_id,
        host=socket.gethostname(),
        slots=settings.slots,
        reserved=app.reserved_asked,
        app_path=begin.app,
        has_parent=True,
        on_offers=lambda offers: channel.send(control.OffersChanged(list(offers))),
        began=BEGAN,
        memory_after=begin.memory_after,
        on_recycling=channel.send,
    )

    go = asyncio.Event()

    async def ready() -> None:
        """Wait until the parent renews leases, so that the runner claims no job before."""
        tune_gc()
        channel.send(_up(app, runner, backend, server))
        await go.wait()
        watching.start()

    listening = asyncio.create_task(_listen(channel, runner, go))
    watching = threading.Thread(target=_end_in_time, args=(runner, slot_table), name="headway-lease", daemon=True)
    try:
        await runner.run(ready=ready)
    except ServerRefused as problem:
        return await _fail(channel, control.RunnerFailed(str(problem)))
    except Exception as problem:
        return await _fail(
            channel, control.RunnerFailed(f"{type(problem).__name__}: {problem}", traceback.format_exc())
        )
    finally:
        listening.cancel()
    await backend.close()
    await app.client.close()
    return 0


async def _fail(channel: control.Channel, message: control.RunnerFailed) -> int:
    """Report why the runner cannot run. Return its exit code."""
    channel.send(message)
    await asyncio.sleep(0.05)
    return CANNOT_START


def _end_in_time(runner: Runner, slot_table: SlotTable) -> None:
    """End this process before its leases do, if the parent has stopped renewing. Jobs cannot block this thread."""
    while (left := slot_table.runner_ends() - time.monotonic()) > 0:
        time.sleep(left)
    runner.kill_jobs()
    os._exit(control.LEASES_ENDING)


async def _open(backend: Backend, channel: control.Channel) -> bool:
    """Open the store, and retry while it is unavailable. Return False if the parent asks to leave meanwhile."""
    receiving = asyncio.create_task(channel.receive())
    delay = OPEN_AGAIN
    try:
        while True:
            try:
                await backend.open()
            except StoreUnavailable as problem:
                backend.outage.failed("open", problem, retry_in=delay)
            else:
                backend.outage.succeeded("open")
                return True
            done, _ = await asyncio.wait({receiving}, timeout=delay * random.uniform(0.7, 1.3))
            if done:
                return False
            delay = min(delay * 2, OPEN_AGAIN_MAX)
    finally:
        receiving.cancel()


async def _listen(channel: control.Channel, runner: Runner, go: asyncio.Event) -> None:
    """Act on the parent's messages. End this process when the parent is gone, because the leases then end."""
    draining: asyncio.Task[None] | None = None
    finishing: asyncio.Task[None] | None = None
    while True:
        match await channel.receive():
            case control.StartClaiming():
                go.set()
            case control.DrainRunner(grace):
                go.set()
                if draining is None:
                    draining = asyncio.create_task(runner.drain(grace))
            case control.FinishRunner():
                if finishing is None:
                    stopped = partial(channel.send, control.ClaimingStopped())
                    finishing = asyncio.create_task(runner.finish(stopped))
            case control.SlotsTaken(slots):
                runner.slots_taken(slots)
            case control.PolicyChanged(version, policy):
                runner.governed(version, policy)
            case control.BudgetsChanged(grants):
                runner.grant(grants)
            case control.StopJobs(job_ids, why):
                runner.stop_jobs(job_ids, Stop(why))
            case None:
                runner.kill_jobs()
                os._exit(1)


def _make_backend(app: Headway, server: str | None) -> Backend:
    """Build the source of the runner's jobs. Over HTTP, only jobs that use the app's own store open it."""
    settings = app.settings
    if server is None:
        return StoreBackend(app.make_store(), app.in_force, file=policy_file(app))
    if settings.policy is not None:
        log.warning(LogEvent("policy.file_ignored", path=settings.policy, hint="the server's policy is in force"))
    return HttpBackend(server, settings.token, CurrentPolicy(), mark=PAYLOAD_VERSION)


def _up(app: Headway, runner: Runner, backend: Backend, server: str | None) -> control.RunnerReady:
    settings, pace = app.settings, runner.pace
    return control.RunnerReady(
        worker=runner.worker,
        store=settings.store,
        namespace=settings.namespace,
        reserved_asked=app.reserved_asked,
        heartbeat=pace.heartbeat,
        dead_after=pace.dead_after,
        confirm=pace.confirm,
        grace=settings.grace,
        registered=runner.registered,
        transient_store=settings.transient_store,
        history=settings.history,
        worker_http=settings.worker_http,
        server=server,
        token=None if server is None else settings.token,
        programs=app.runs_programs,
        sessions=runner.has_sessions,
        policy_version=backend.in_force.version,
        policy=None if server is None else policy_data(backend.in_force.policy),
    )


def main() -> None:
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # The parent acts on these signals and sends messages.
    connection = socket.socket(fileno=int(sys.argv[1]))
    code = run_on_fast_loop(_serve(connection, int(sys.argv[2])))
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    flush_logs()
    # Not sys.exit: a thread that will not end must not keep the process, whose jobs are already back in the queue.
    os._exit(code)


if __name__ == "__main__":
    main()
