"""Releases of the server without known fixes."""

from __future__ import annotations

import pytest

from headway.stores.redis.server_versions import lacks_fixes


@pytest.mark.parametrize(
    "server, version, safe",
    [
        ("redis", "6.2.19", "6.2.20"),
        ("redis", "6.2.20", None),
        ("redis", "7.0.15", "7.2.11"),  # A branch that got no fixes.
        ("redis", "7.4.5", "7.4.6"),
        ("redis", "8.2.2", None),
        ("redis", "9.0.0", None),
        ("valkey", "8.0.5", "8.0.6"),
        ("valkey", "8.1.4", None),
        ("valkey", "9.0.1", None),
        ("valkey", "unknown", None),
        ("dragonfly", "1.0.0", None),
    ],
)
def test_a_server_that_lacks_fixes_is_named_with_the_release_that_has_them(
    server: str, version: str, safe: str | None
) -> None:
    # S-29
    assert lacks_fixes(server, version) == safe
