"""The app that workers of ``benchmarks.celery`` load; which one, the environment says."""

from __future__ import annotations

import os

from benchmarks.celery import make

app = make(os.environ["BENCHMARK_KIND"], os.environ["BENCHMARK_BROKER"])
