"""Keeps what looks like a secret out of logs and traces, by the names of parameters and keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

HIDDEN = "…redacted…"
# A name is hidden that holds one of these between its underscores: ``token`` hides ``access_token``, not ``tokens``.
SECRETS = (
    "api_key", "apikey", "authorization", "card_number", "credential", "credentials", "cvv", "passphrase", "passwd",
    "password", "private_key", "pwd", "secret", "token",
)  # fmt: skip


def redact(value: Any, words: Sequence[str]) -> Any:
    """Return plain JSON values with those hidden whose name holds one of the words, however deep they lie."""
    if isinstance(value, dict):
        return {key: HIDDEN if is_secret(key, words) else redact(inner, words) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(inner, words) for inner in value]
    return value


def is_secret(name: object, words: Sequence[str]) -> bool:
    """Return whether a name holds one of the words."""
    if not isinstance(name, str):
        return False
    padded = f"_{''.join('_' if letter in '-. ' else letter for letter in name.lower())}_"
    return any(f"_{word.lower()}_" in padded for word in words)
