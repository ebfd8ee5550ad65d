"""Reads the statements and functions of this store by name, and fills in the schema."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from importlib.resources import files

from headway.core.workflow import HELD_AT, SETTLED_MAX
from headway.stores.assets import Statement, load_migrations, load_queries

PACKAGE = "headway.stores.postgres"
MIGRATIONS = load_migrations(PACKAGE)

# Functions carry this number in their names: releases that share a schema each call their own.
FUNCTIONS_VERSION = 13
# In the order in which they are made: each calls only those before it.
FUNCTIONS = (
    "raw_ms",
    "now_ms",
    "count_up",
    "notify",
    "notify_jobs",
    "wake",
    "make_fair",
    "last_key",
    "snapshot",
    "begin",
    "partitions_maintain",
    "submit",
    "submit_one",
    "submit_within",
    "submit_many",
    "count_usage",
    "rung_room",
    "longest_rung",
    "is_list",
    "blocked_for",
    "verdict",
    "source_status",
    "end_queued",
    "release",
    "hold_again",
    "cancel_members",
    "count_batches",
    "mark_awaited",
    "settle",
    "settle_ended",
    "wake_any",
    "submit_graph",
    "finish",
    "claim",
    "exchange",
)

_PARAMETER = re.compile(r"(?<![:\w]):([A-Za-z_]\w*)")


@lru_cache(maxsize=64)
def queries(schema: str) -> dict[str, str]:
    """Return every statement, with its parameters numbered in the order of its header."""
    return {name: fill(_numbered(statement), schema) for name, statement in load_queries(PACKAGE).items()}


def functions(schema: str) -> list[str]:
    """Return the statements that create the functions."""
    folder = files(PACKAGE) / "functions"
    return [fill((folder / f"{name}.sql").read_text(), schema) for name in FUNCTIONS]


def fill(text: str, schema: str) -> str:
    """Replace the placeholders of a text by the schema's name and the numbers that follow from it."""
    for name, value in _values(schema).items():
        text = text.replace(f"{{{name}}}", value)
    return text


def channel(schema: str, namespace: str) -> str:
    """Return the channel on which a namespace's wake-ups are sent."""
    return "headway_" + blake2b(f"{schema}\0{namespace}".encode(), digest_size=12).hexdigest()


def lock_number(schema: str, what: str) -> int:
    """Return the number of one of a schema's advisory locks."""
    return int.from_bytes(blake2b(f"{schema}\0{what}".encode(), digest_size=4).digest(), "big", signed=True)


@lru_cache(maxsize=64)
def _values(schema: str) -> dict[str, str]:
    return {
        "schema": f'"{schema}"',
        "version": str(FUNCTIONS_VERSION),
        "lock": str(lock_number(schema, "lock")),
        "gate": str(lock_number(schema, "gate")),
        "days": str(lock_number(schema, "days")),
        "flow": str(lock_number(schema, "flow")),
        "held_at": str(HELD_AT),
        "settled_max": str(SETTLED_MAX),
    }


def _numbered(statement: Statement) -> str:
    return _PARAMETER.sub(lambda found: f"${statement.parameters.index(found[1]) + 1}", statement.text)
