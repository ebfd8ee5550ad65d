"""What a running system shows: logs, traces, job output, store outages and readiness."""
