"""Ended jobs in PostgreSQL, when the store itself keeps them for a while only."""
