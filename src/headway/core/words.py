"""Words for people who mistype a name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def nearest(name: str, known: Sequence[str]) -> str:
    """Give the words ``; did you mean 'x'?`` for the known name closest to a wrong one, or nothing."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
