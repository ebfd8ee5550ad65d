"""Rules as documents: how their parts are written, and how a store makes a rulebook of them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headway.core.policy.enforced import Rulebook, Rules, join

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Rules).decode


def rules_body(rules: Rules) -> bytes:
    """Write one part."""
    return _encode(rules)


def read_rules(body: bytes) -> Rules:
    """Read one part."""
    return _decode(body)


def read_rulebook(bodies: Iterable[bytes]) -> Rulebook:
    """Make a rulebook of all parts, in the order of their names."""
    return Rulebook(join(_decode(body) for body in bodies))
