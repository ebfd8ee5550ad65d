"""Observability: logs, traces, job output, store outages and readiness."""
