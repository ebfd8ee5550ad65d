"""The settings. The variable ``BENCH_DATABASE`` names the database."""

from __future__ import annotations

import json
import os

SECRET_KEY = "measured"  # noqa: S105
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["headway.integrations.django", "benchmarks.django_shop"]
DATABASES = {"default": json.loads(os.environ["BENCH_DATABASE"])}
IOQUEUE_TASK_MODULES = ["benchmarks.django_shop.tasks"]
