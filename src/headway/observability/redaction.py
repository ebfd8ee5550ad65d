"""Hides values in logs and traces if the name of their parameter or key looks like a secret."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

HIDDEN = "…redacted…"
# A name is secret if it contains one of these between underscores: ``token`` hides ``access_token``, not ``tokens``.
SECRETS = (
    "api_key", "apikey", "authorization", "card_number", "credential", "credentials", "cvv", "passphrase", "passwd",
    "password", "private_key", "pwd", "secret", "token",
)  # fmt: skip


def redact(value: Any, words: Sequence[str]) -> Any:
    """Return plain JSON values, and hide at any depth each value whose name contains one of the words."""
    if isinstance(value, dict):
        return {key: HIDDEN if is_secret(key, words) else redact(inner, words) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(inner, words) for inner in value]
    return value


def is_secret(name: object, words: Sequence[str]) -> bool:
    if not isinstance(name, str):
        return False
    padded = f"_{''.join('_' if letter in '-. ' else letter for letter in name.lower())}_"
    return any(f"_{word.lower()}_" in padded for word in words)
