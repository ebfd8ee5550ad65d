"""The function library that servers run: the scripts, joined, under a name that changes when they do."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from headway.stores.base import FORMAT

_PARTS = (
    "common", "lines", "caps", "ending", "claiming", "submit", "exchange", "reading", "keeping", "documents", "pruning",
    "register",
)  # fmt: skip


class Library(NamedTuple):
    """A name, and the text that ``FUNCTION LOAD`` wants."""

    name: str
    text: str


@cache
def library() -> Library:
    """Join the scripts. Servers may hold the libraries of several versions beside each other."""
    folder = files(__name__.rpartition(".")[0]) / "scripts"
    text = "\n".join((folder / f"{part}.lua").read_text() for part in _PARTS)
    name = f"headway_{FORMAT}_{hashlib.sha256(text.encode()).hexdigest()[:10]}"
    return Library(name, f"#!lua name={name}\n{text.replace('@LIBRARY@', name)}")
