"""Encodes the parts of the enforced rules as documents, and joins them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headway.core.policy.enforced import EnforcedRules, join
from headway.stores.base import RULES
from headway.stores.unreadable import DocumentReader

_encode = msgspec.json.Encoder().encode
read_rules = msgspec.json.Decoder(EnforcedRules).decode


def rules_body(rules: EnforcedRules) -> bytes:
    """Return one part as the body of a document."""
    return _encode(rules)


class RuleReader(DocumentReader[EnforcedRules]):
    """Reads the parts of the enforced rules."""

    def __init__(self) -> None:
        super().__init__(RULES, read_rules)

    def join(self, parts: Iterable[tuple[str, bytes]]) -> EnforcedRules:
        """Read parts as one, in the order given: their names and bodies."""
        return join(rules for name, body in parts if (rules := self.read(name, body)) is not None)
