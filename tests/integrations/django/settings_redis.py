"""The same project with a Redis for its transient jobs."""

from __future__ import annotations

import os

from tests.integrations.django.settings import *  # noqa: F403

IOQUEUE_REDIS_URL = os.environ.get("DJANGO_TESTS_REDIS", "redis://localhost:1/5")
IOQUEUE_REDIS_QUEUE_KEY = "shop:previews"
