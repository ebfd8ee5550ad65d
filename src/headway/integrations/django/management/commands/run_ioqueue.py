"""``manage.py run_ioqueue``: run the project's jobs."""

from __future__ import annotations

import logging
import os
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import ENVIRONMENT_VARIABLE
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import connections
from django.utils.autoreload import get_child_arguments

from headway.core.errors import HeadwayError
from headway.core.log_event import LogEvent
from headway.core.worker import tasks_in
from headway.integrations.django.address import store_address
from headway.integrations.django.conf import read_options
from headway.integrations.django.outcomes import Outcomes, has_django_tasks
from headway.integrations.django.queue import worker_settings
from headway.observability.logs import LEVELS, configure_logs
from headway.runtime.fast_loop import run_on_fast_loop
from headway.stores.open import mask
from headway.worker.autoreload import run_reloading
from headway.worker.parent import Parent
from headway.worker.runner_process import CannotStart

if TYPE_CHECKING:
    from headway.stores.base import Store
    from headway.worker.control import RunnerReady

log = logging.getLogger("headway.worker")

ENTRY = "headway.integrations.django.entry:app"


class Command(BaseCommand):
    """Run the project's jobs until the command is stopped."""

    help = (
        "Runs the project's jobs until it is stopped. The first SIGINT or SIGTERM drains: it claims no more jobs, "
        "running jobs get IOQUEUE_GRACE_SEC seconds, and the rest return to the queue. The second stops at once."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--concurrency", "--slots", type=int, metavar="N", help="jobs at once, over IOQUEUE_MAX_CONCURRENCY"
        )
        parser.add_argument("--processes", type=int, default=1, metavar="N", help="runner processes, each with as many")
        parser.add_argument("--log-level", choices=LEVELS, default="info", help="the least that is logged (info)")
        parser.add_argument(
            "--reload", action="store_true", help="drain and start again whenever source files change; for development"
        )

    def handle(self, *_: Any, **given: Any) -> None:
        if ENVIRONMENT_VARIABLE not in os.environ:
            raise CommandError(
                f"{ENVIRONMENT_VARIABLE} is not set, so the processes of the worker cannot find the settings"
            )
        configure_logs(None, given["log_level"])
        if given["reload"]:
            words = [word for word in get_child_arguments() if word != "--reload"]
            sys.exit(run_reloading(words, Path.cwd()))
        options, _problems = read_options()
        overrides = worker_settings(options) | {"slots": given["concurrency"] or options.max_concurrency}
        try:
            overrides["store"] = store_address()
        except ImproperlyConfigured as problem:
            raise CommandError(str(problem)) from problem
        # The runners are started by Python itself, not by manage.py, and must find the same modules.
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in sys.path if path))
        connections.close_all()  # The parent runs no task of the project.
        parent = Parent(
            ENTRY,
            processes=max(1, given["processes"]),
            overrides=overrides,
            log_level=given["log_level"],
            on_up=_log_up,
        )
        outcomes = Outcomes() if has_django_tasks() else None
        parent.recorder.on_recorded = outcomes  # Of runners that died.
        try:
            code = run_on_fast_loop(parent.run())
        except CannotStart as problem:
            self.stderr.write(str(problem.facts.get("traceback") or ""))
            raise CommandError(f"the worker cannot start: {problem}", returncode=3) from problem
        except HeadwayError as problem:
            raise CommandError(str(problem)) from problem
        finally:
            if outcomes is not None:
                outcomes.close()
        if code:
            raise CommandError("the database was unreachable for longer than the leases last", returncode=code)


def _log_up(up: RunnerReady, _: Store) -> None:
    tasks = len(tasks_in(up.worker.offers))
    facts = {"worker": up.worker.worker_id, "store": mask(up.store), "slots": up.worker.slots, "tasks": tasks}
    log.info(LogEvent("worker.up", **facts))
