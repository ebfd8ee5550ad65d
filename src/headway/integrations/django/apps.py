"""The app that Django installs."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import pre_migrate


class IoQueueConfig(AppConfig):
    """IOQueue on Headway. Its label is ``ioqueue``, as it always was."""

    name = "headway.integrations.django"
    label = "ioqueue"
    verbose_name = "IOQueue"

    def ready(self) -> None:
        from headway.integrations.django.checks import check_database, check_settings

        checks.register(check_settings, "ioqueue")
        checks.register(check_database, "ioqueue")
        pre_migrate.connect(prepare_tables, sender=self)


def prepare_tables(*, using: str, verbosity: int = 1, stdout: Any = None, **_: object) -> None:
    """Before Django migrates the database that jobs are in, bring Headway's own tables to this release.

    They are in a schema of their own and have migrations of their own, which PostgreSQL runs in one transaction.
    """
    from django.db import connections

    from headway.integrations.django.conf import database
    from headway.integrations.django.queue import queue

    if using != database() or connections[using].vendor != "postgresql":
        return
    steps = queue().migrate()
    if steps and verbosity >= 1 and stdout is not None:
        stdout.write(f"  Headway's tables: now at schema {steps[-1]}\n")
