"""The versions of Django and Django Tasks: part of Django since 6.0, before that the package ``django-tasks``."""

from __future__ import annotations

import django

RELEASE: tuple[int, ...] = tuple(int(part) for part in django.VERSION[:2])
FRAMEWORK = "django.tasks" if django.VERSION[0] >= 6 else "django_tasks"
