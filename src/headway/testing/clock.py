"""A clock that moves only when a test advances it."""

from __future__ import annotations

START_AT = 1_760_000_000_000  # Milliseconds; an arbitrary moment in October 2025.


class ManualClock:
    """A store's clock for tests. A call returns milliseconds since 1970 UTC. Only ``advance`` moves the clock."""

    def __init__(self, start_at: int = START_AT) -> None:
        self.now_at = start_at

    def __call__(self) -> int:
        return self.now_at

    def advance(self, seconds: float = 0, *, ms: int = 0) -> None:
        """Advance the clock by ``seconds`` plus ``ms``. Raises ``ValueError`` for a negative sum."""
        step_ms = round(seconds * 1_000) + ms
        if step_ms < 0:
            raise ValueError(f"a clock cannot go back; got a step of {step_ms} ms")
        self.now_at += step_ms
