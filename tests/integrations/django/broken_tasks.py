"""A module of tasks that cannot be imported, because a dependency is missing."""

from __future__ import annotations

import nowhere  # type: ignore[import-not-found]  # noqa: F401
