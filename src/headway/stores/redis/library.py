"""The library of functions that servers run: the joined scripts, under a name with a digest of their text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from headway.stores.base import FORMAT
from headway.stores.redis.layout import expand

_PARTS = (
    "common", "ordering", "blocked_queue", "limits", "deferred_submit", "workflow", "finish", "claim", "snapshot",
    "exchange", "submit", "graph", "query", "batches", "diagnose", "heartbeat", "documents", "prune", "register",
)  # fmt: skip


class Library(NamedTuple):
    """A name, and the text for ``FUNCTION LOAD``."""

    name: str
    text: str


@cache
def library() -> Library:
    """Join the scripts. A server can hold the libraries of several versions at once."""
    return join_scripts(__name__.rpartition(".")[0], _PARTS, f"headway_{FORMAT}")


def join_scripts(package: str, parts: Sequence[str], stem: str) -> Library:
    """Join ``scripts/*.lua`` of a package into a library. Its name is the stem and a digest of the text."""
    folder = files(package) / "scripts"
    text = expand("\n".join((folder / f"{part}.lua").read_text() for part in parts))
    name = f"{stem}_{hashlib.sha256(text.encode()).hexdigest()[:10]}"
    return Library(name, f"#!lua name={name}\n{text.replace('@LIBRARY@', name)}")
