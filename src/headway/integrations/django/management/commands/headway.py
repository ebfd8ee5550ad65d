"""``manage.py headway …``: every operator's command of ``headway``, on the project's own store."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from headway.cli.main import main
from headway.integrations.django.address import store_address
from headway.integrations.django.conf import read_options

APP = "headway.integrations.django.operator_app:app"
# What the project's own commands do in another way.
INSTEAD = {
    "up": "manage.py headway worker, beside your web server",
    "serve": "your own views; or, on PostgreSQL, headway serve --store postgresql://…",
    "migrate": "manage.py migrate",
    "backup": "the backup of your database, which holds the jobs",
    "restore": "the restore of your database, which holds the jobs",
}
OF_DJANGO = ("--settings", "--pythonpath")  # Options that every manage.py command has; they were read already.


class Command(BaseCommand):
    """Run one of Headway's commands on the project's store."""

    help = "Runs one of Headway's commands on the project's store: jobs, why, top, stats, dlq, pause, cancel, worker …"
    requires_system_checks: Sequence[str] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Take all words as they are: Headway reads its own options."""
        code = self._run(_without_django_options(argv[2:]))
        if code:
            sys.exit(code)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("words", nargs=argparse.REMAINDER, help="the command and its options")

    def handle(self, *_: Any, **given: Any) -> None:
        code = self._run(given["words"])
        if code:
            raise CommandError(f"headway {' '.join(given['words'])} ended with {code}", returncode=code)

    def _run(self, words: list[str]) -> int:
        name = words[0] if words else ""
        if name in INSTEAD:
            self.stderr.write(f"error: in a Django project use {INSTEAD[name]} [usage]")
            return 2
        if name == "worker":
            call_command("run_ioqueue", *words[1:])
            return 0
        try:
            address = store_address()
        except ImproperlyConfigured as problem:
            raise CommandError(str(problem)) from problem
        place = {"HEADWAY_APP": APP, "HEADWAY_STORE": address, "HEADWAY_NAMESPACE": read_options()[0].namespace}
        before = {name: os.environ.get(name) for name in (*place, "HEADWAY_SERVER")}
        os.environ.update(place)
        os.environ.pop("HEADWAY_SERVER", None)  # The project's store is meant, not that of a server.
        try:
            return main(words)
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _without_django_options(words: list[str]) -> list[str]:
    kept, skip = [], False
    for word in words:
        if skip or word.partition("=")[0] in OF_DJANGO:
            skip = word in OF_DJANGO
        else:
            kept.append(word)
    return kept
