"""The app of the workers in ``celery_adopted``."""

from __future__ import annotations

import os

from benchmarks.celery_adopted import make

app = make(os.environ["BENCHMARK_KIND"], os.environ["BENCHMARK_URL"], os.environ["BENCHMARK_EXECUTOR"])
