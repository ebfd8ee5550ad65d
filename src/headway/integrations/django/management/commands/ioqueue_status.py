"""``manage.py ioqueue_status``: the queue in numbers."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from headway.core.errors import HeadwayError
from headway.integrations.django.queue import queue
from headway.integrations.django.status import Status, read_status


class Command(BaseCommand):
    """Show how many jobs there are, what waits for how long, and which workers live."""

    help = "Shows how many jobs are pending, running and ended, how long the oldest has waited, and which workers live."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON document")

    def handle(self, *_: Any, **given: Any) -> None:
        try:
            status = read_status(queue())
        except (HeadwayError, ImproperlyConfigured) as problem:
            raise CommandError(str(problem)) from problem
        if given["json"]:
            self.stdout.write(json.dumps(status.values()))
        else:
            self._print(status)

    def _print(self, status: Status) -> None:
        for name, count in status.counts.items():
            self.stdout.write(f"{name:<8} {count:>8,}")
        oldest = "nothing waits" if status.oldest_wait is None else f"the oldest has waited {status.oldest_wait:,.1f} s"
        self.stdout.write(f"last minute: {status.done_last_minute:,} done; {oldest}")
        if not status.workers:
            self.stdout.write("no worker lives; start one: manage.py run_ioqueue")
        for name in status.unknown_tasks:
            self.stdout.write(f"no live worker knows the task {name}, and jobs of it wait")
        for worker in status.workers:
            self.stdout.write(
                f"{worker['picked_by']}  {worker['running']} of {worker['slots']} slots  {worker['state']}"
            )
