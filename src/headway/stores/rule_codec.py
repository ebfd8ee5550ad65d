"""Encodes the parts of the enforced rules as documents, and builds a rule index from them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headway.core.policy.enforced import EnforcedRules, RuleIndex, join

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(EnforcedRules).decode


def rules_body(rules: EnforcedRules) -> bytes:
    """Return one part as the body of a document."""
    return _encode(rules)


def read_rules(body: bytes) -> EnforcedRules:
    """Read one part."""
    return _decode(body)


def read_rulebook(bodies: Iterable[bytes]) -> RuleIndex:
    """Build the rule index from all parts, in the order of their names."""
    return RuleIndex(join(_decode(body) for body in bodies))
