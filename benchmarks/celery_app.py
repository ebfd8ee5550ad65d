"""The app that workers of ``benchmarks.celery`` load. Environment variables choose the variant."""

from __future__ import annotations

import os

from benchmarks.celery import make

app = make(os.environ["BENCHMARK_KIND"], os.environ["BENCHMARK_BROKER"])
