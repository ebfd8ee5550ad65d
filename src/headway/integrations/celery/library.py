"""The functions that keep the ledger, as a library of the server."""

from __future__ import annotations

from functools import cache

from headway.stores.redis.library import Library, join_scripts

FORMAT = 1
_PARTS = ("common", "counting", "running", "query", "broker", "register")


@cache
def library() -> Library:
    """Join the scripts. Servers may hold the libraries of several versions beside each other."""
    return join_scripts(__name__.rpartition(".")[0], _PARTS, f"headway_celery_{FORMAT}")
