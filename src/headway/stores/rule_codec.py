"""Rules as documents: how their parts are written, and how a store makes a rulebook of them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headway.core.policy.enforced import EnforcedRules, RuleIndex, join

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(EnforcedRules).decode


def rules_body(rules: EnforcedRules) -> bytes:
    """Write one part."""
    return _encode(rules)


def read_rules(body: bytes) -> EnforcedRules:
    """Read one part."""
    return _decode(body)


def read_rulebook(bodies: Iterable[bytes]) -> RuleIndex:
    """Make a rulebook of all parts, in the order of their names."""
    return RuleIndex(join(_decode(body) for body in bodies))
