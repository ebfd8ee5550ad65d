"""Metrics: each process records its own, publishes them through the store, and any process exports the sum."""
