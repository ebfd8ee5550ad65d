"""Hides values in logs, traces and the dashboard if the name of their parameter or key looks like a secret."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headway.core.job import JobRecord

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


class ArgumentRedactor:
    """Hides secrets in the stored arguments of jobs. ``by_task``: further words that a task declares as secret."""

    def __init__(self, words: Sequence[str] = SECRETS, by_task: Mapping[str, Sequence[str]] = {}) -> None:
        self._words = tuple(words)
        self._by_task = by_task

    def arguments_of(self, job: JobRecord) -> bytes:
        """Return the payload of a job with its secrets hidden. One that cannot be read becomes empty."""
        words, payload = (*self._words, *self._by_task.get(job.task, ())), job.payload
        lower = payload.lower()
        if not any(_longest_part(word) in lower for word in words):
            return payload
        try:
            values = msgspec.json.decode(payload[1:])
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return b""
        hidden = redact(values, words)
        return payload if hidden == values else payload[:1] + msgspec.json.encode(hidden)


def _longest_part(word: str) -> bytes:
    """Return the part of a word that every name with this word contains, whatever stands between its parts."""
    return max(word.lower().replace("-", "_").split("_"), key=len).encode()
