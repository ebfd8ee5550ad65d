"""Generators of odd inputs from good ones.

In the gate a fixed number of inputs is tried, the same ones each time. With ``FUZZ_SECONDS`` (`make fuzz`) all tests
together run for about that long. A failure prints its input; ``--seed`` repeats the same sequence.
"""

from __future__ import annotations

import copy
import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

IN_THE_GATE = 300  # Inputs for each test.
ROUNDS = 4  # Seven tests on two processes, one after the other.

ODD_TEXTS = [
    "", " ", "\0", "\x01", '\x01"x"', "\ud800", "\u2028", "é", "😀", "x" * 300, "-", "--", "*", "*/0", "0", "-1",
    "1e999", "9" * 40, "nan", "inf", "null", "true", "{}", "[]", "../../etc/passwd", "${x}", "{{x}}", "%00", "a=b",
    "=", ",", ";--",
    "2026-02-30", "high", "low", "Europe/Paris", "* * * * *", "@daily", "L", "#", "?", "1-0", "1/1/1", "headway.server",
]  # fmt: skip
ODD_VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 2**70, 0.1, -0.0, 1e308, [], {}, [[]], [None], {"": None},
]  # fmt: skip


def turns(seed: int) -> Iterator[random.Random]:
    """Yield a random source for each input."""
    seconds = float(os.environ.get("FUZZ_SECONDS", "0")) / ROUNDS
    ends = time.monotonic() + seconds
    turn = 0
    while turn < IN_THE_GATE or time.monotonic() < ends:
        yield random.Random(seed * 1_000_003 + turn)
        turn += 1


def odd_text(chance: random.Random, good: Sequence[str]) -> str:
    """Return a good text with small changes: parts cut, repeated, swapped or replaced, or an odd text inserted."""
    text = chance.choice(good)
    for _ in range(chance.randint(1, 4)):
        start, end = sorted(chance.randint(0, len(text)) for _ in range(2))
        match chance.randrange(5):
            case 0:
                text = text[:start] + text[end:]
            case 1:
                text = text[:end] + text[start:end] + text[end:]
            case 2:
                text = text[:start] + chance.choice(ODD_TEXTS) + text[end:]
            case 3:
                other = chance.choice(good)
                text = text[:start] + other[chance.randint(0, len(other)) :]
            case _:
                text = text[:start] + chr(chance.choice([chance.randrange(128), chance.randrange(0xD7FF)])) + text[end:]
    return text[:20_000]


def odd_value(chance: random.Random, good: Any) -> Any:
    """Return a good JSON value with a small change: a part becomes odd, is removed, or is repeated."""
    if isinstance(good, dict) and good and chance.random() < 0.8:
        changed = copy.copy(good)
        key = chance.choice(list(changed))
        match chance.randrange(4):
            case 0:
                del changed[key]
            case 1:
                changed[chance.choice(ODD_TEXTS)] = changed[key]
            case _:
                changed[key] = odd_value(chance, changed[key])
        return changed
    if isinstance(good, list) and good and chance.random() < 0.8:
        place = chance.randrange(len(good))
        return [*good[:place], odd_value(chance, good[place]), *good[place:]]
    if isinstance(good, str) and chance.random() < 0.5:
        return odd_text(chance, [good])
    return chance.choice([chance.choice(ODD_TEXTS), chance.choice(ODD_VALUES), good])


def odd_body(chance: random.Random, good: Any) -> bytes:
    """Return an odd JSON value as bytes, sometimes with bytes that are not JSON."""
    text = json.dumps(odd_value(chance, good) if chance.random() < 0.9 else good)
    body = text.encode()
    if chance.random() < 0.15:
        place = chance.randint(0, len(body))
        body = body[:place] + bytes(chance.randrange(256) for _ in range(chance.randint(0, 4))) + body[place + 1 :]
    return body
