"""Words for people who mistype a name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

BEGINNING = 0.7  # How alike a name is to one that it is the beginning of.
SHOWN_MAX = 100  # Letters of a name that an error repeats.
LIKE = 0.65  # The least likeness of two names, from 0 to 1. With less, a suggestion would only mislead.


def shown(name: object) -> str:
    """Return a name as errors repeat it: in quotes, and cut where it is long."""
    if isinstance(name, str):
        return repr(cut(name, SHOWN_MAX))
    return cut(repr(name), SHOWN_MAX)


def cut(text: str, most: int) -> str:
    """Return a text, or its beginning and an ellipsis where it is longer than ``most`` letters."""
    return text if len(text) <= most else f"{text[:most]}…"


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return the words ``; did you mean 'x'?`` for the known name closest to a wrong one, or nothing.

    What comes before the last dot counts only if it differs: two names of one module are not alike because of it.
    """
    if len(name) > SHOWN_MAX:  # To compare a huge one would take long, and it is no slip of the finger.
        return ""
    found = max(((_likeness(name, other), other) for other in known), default=(0.0, ""))
    return f"; did you mean {found[1]!r}?" if found[0] >= LIKE else ""


def _likeness(name: str, other: str) -> float:
    whole = max(_ratio(name, other), BEGINNING if len(name) >= 4 and other.lower().startswith(name.lower()) else 0.0)
    (module, dot, last), (other_module, other_dot, other_last) = name.rpartition("."), other.rpartition(".")
    return min(whole, _ratio(last, other_last)) if dot and other_dot and module == other_module else whole


def _ratio(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio()
