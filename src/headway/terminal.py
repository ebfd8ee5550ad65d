"""Programs under a terminal, for interactive tasks. Not on Windows, which has no such terminals."""

from headway.engine.terminal import run_in_terminal

__all__ = ["run_in_terminal"]
