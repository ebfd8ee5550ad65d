"""A clock that stands still until a test moves it."""

from __future__ import annotations

START_AT = 1_760_000_000_000  # A moment in October 2025; any other would do.


class ManualClock:
    """A store's clock for tests: calling it gives milliseconds since 1970 UTC, and only ``advance`` moves it."""

    def __init__(self, start_at: int = START_AT) -> None:
        self.now_at = start_at

    def __call__(self) -> int:
        return self.now_at

    def advance(self, seconds: float = 0, *, ms: int = 0) -> None:
        """Advance by these seconds and milliseconds together. Raises ``ValueError`` if that would go back."""
        step_ms = round(seconds * 1_000) + ms
        if step_ms < 0:
            raise ValueError(f"a clock does not go back, and this would be {step_ms} ms")
        self.now_at += step_ms
