"""``manage.py flush``: Django's own command, which here deletes the project's jobs too."""

from __future__ import annotations

from typing import Any

from django.core.management.commands import flush

from headway.integrations.django.flush import flush_jobs


class Command(flush.Command):
    """Empty the database. Django's signal does not come in some tests, and then the jobs are deleted here."""

    def handle(self, **options: Any) -> None:
        super().handle(**options)
        if options.get("inhibit_post_migrate"):
            flush_jobs(options["database"])
