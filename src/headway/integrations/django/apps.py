"""The Django app."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import post_migrate, pre_migrate


class IoQueueConfig(AppConfig):
    """IOQueue on Headway. The label stays ``ioqueue``, as in earlier releases."""

    name = "headway.integrations.django"
    label = "ioqueue"
    verbose_name = "IOQueue"

    def ready(self) -> None:
        from headway.integrations.django.checks import check_database, check_settings, check_tasks
        from headway.integrations.django.flush import flush_on_signal
        from headway.integrations.django.sqlite import SCHEME, claim_files, worker_store
        from headway.stores.open import register_scheme

        checks.register(check_settings, "ioqueue")
        checks.register(check_database, "ioqueue")
        checks.register(check_tasks, "ioqueue")
        pre_migrate.connect(prepare_tables, sender=self)
        post_migrate.connect(flush_on_signal, sender=self)
        claim_files()
        register_scheme(SCHEME.removesuffix("://"), worker_store)


def prepare_tables(*, using: str, verbosity: int = 1, stdout: Any = None, **_: object) -> None:
    """Migrate Headway's own tables before Django migrates the database of the jobs.

    Headway's migrations run in one transaction. On PostgreSQL the tables are in their own schema. On SQLite they have
    the prefix ``headway_``, and the migrations use Django's connection.
    """
    from django.db import connections

    from headway.integrations.django.conf import database
    from headway.integrations.django.queue import queue
    from headway.integrations.django.views import WITH_VIEWS

    if using != database() or connections[using].vendor not in WITH_VIEWS:
        return
    steps = queue().migrate()
    if steps and verbosity >= 1 and stdout is not None:
        stdout.write(f"  Headway's tables: now at schema {steps[-1]}\n")
