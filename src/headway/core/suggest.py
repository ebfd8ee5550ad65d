"""Suggestions for mistyped names, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

PREFIX_SIMILARITY = 0.7  # From 0 to 1, for a name that another one begins with: high enough to be suggested.
SHOWN_MAX = 100  # Characters of a name that an error repeats, so that the message stays on one line or two.
SIMILARITY_MIN = 0.65  # From 0 to 1. Suggestions less alike than this would mislead.


def shown(name: object) -> str:
    """Return a name for an error message: quoted, and cut if it is long."""
    if isinstance(name, str):
        return repr(cut(name, SHOWN_MAX))
    return cut(repr(name), SHOWN_MAX)


def cut(text: str, most: int) -> str:
    """Return a text, or its beginning and an ellipsis if it is longer than ``most`` characters."""
    return text if len(text) <= most else f"{text[:most]}…"


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return the text ``; did you mean 'x'?`` for the known name most like a wrong one, or an empty text.

    A module that both names share does not make them alike: then only the parts after the last dot are compared.
    """
    if len(name) > SHOWN_MAX:  # Comparing a huge name takes long, and it is no typing mistake.
        return ""
    found = max(((_similarity(name, other), other) for other in known), default=(0.0, ""))
    return f"; did you mean {found[1]!r}?" if found[0] >= SIMILARITY_MIN else ""


def _similarity(name: str, other: str) -> float:
    is_prefix = len(name) >= 4 and other.lower().startswith(name.lower())
    whole = max(_ratio(name, other), PREFIX_SIMILARITY if is_prefix else 0.0)
    (module, dot, last), (other_module, other_dot, other_last) = name.rpartition("."), other.rpartition(".")
    return min(whole, _ratio(last, other_last)) if dot and other_dot and module == other_module else whole


def _ratio(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio()
