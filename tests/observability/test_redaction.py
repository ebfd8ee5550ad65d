"""Values with the name of a secret are hidden at any depth."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.observability.redaction import HIDDEN, SECRETS, ArgumentRedactor, is_secret, redact
from tests.core.test_search import JOB


@pytest.mark.parametrize(
    "name, secret",
    [
        ("password", True),
        ("PASSWORD", True),
        ("user_password", True),
        ("access_token", True),
        ("api_key", True),
        ("stripe-api-key", True),
        ("Authorization", True),
        ("client.secret", True),
        ("tokens", False),
        ("tokenize", False),
        ("key", False),
        ("passwordless", False),
        ("secretary", False),
        (7, False),
    ],
)
def test_a_name_is_secret_by_its_words(name: object, secret: bool) -> None:
    assert is_secret(name, SECRETS) is secret


def test_values_are_hidden_wherever_they_lie() -> None:
    given = {"user": "ann", "token": {"a": 1}, "accounts": [{"iban": "DE99", "password": "x"}], "n": 1}
    assert redact(given, (*SECRETS, "iban")) == {
        "user": "ann",
        "token": HIDDEN,
        "accounts": [{"iban": HIDDEN, "password": HIDDEN}],
        "n": 1,
    }


def test_nothing_is_hidden_where_no_word_is_given() -> None:
    assert redact({"password": "x"}, ()) == {"password": "x"}


@pytest.mark.parametrize(
    "payload, shown",
    [
        (b'\x01{"to":"ann", "n":1.50}', b'\x01{"to":"ann", "n":1.50}'),  # As it was written.
        (b'\x01{"Api-Key":"k","to":"ann"}', f'\x01{{"Api-Key":"{HIDDEN}","to":"ann"}}'.encode()),
        (b'\x01{"tokens":3}', b'\x01{"tokens":3}'),
        (b'\x01{"iban":"DE99"}', f'\x01{{"iban":"{HIDDEN}"}}'.encode()),
        (b'\x01{"password":', b""),
        (b"", b""),
    ],
)
def test_stored_arguments_are_shown_without_secrets(payload: bytes, shown: bytes) -> None:
    redactor = ArgumentRedactor(SECRETS, {JOB.task: ("iban",)})
    assert redactor.arguments_of(replace(JOB, payload=payload)) == shown
    if b"iban" in payload:
        assert redactor.arguments_of(replace(JOB, payload=payload, task="other")) == payload
