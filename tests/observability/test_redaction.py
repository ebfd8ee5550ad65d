"""What looks like a secret is hidden by its name, however deep it lies."""

from __future__ import annotations

import pytest

from headway.observability.redaction import HIDDEN, SECRETS, is_secret, redact


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
