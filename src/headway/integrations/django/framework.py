"""Which Django Tasks there is: Django's own since 6.0, before that the package ``django-tasks``."""

from __future__ import annotations

import django

FRAMEWORK = "django.tasks" if django.VERSION[0] >= 6 else "django_tasks"
