"""Needs something that is not installed."""

from __future__ import annotations

import nowhere  # type: ignore[import-not-found]  # noqa: F401
