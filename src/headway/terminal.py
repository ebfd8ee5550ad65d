"""Programs under a terminal, for interactive tasks. Not on Windows, which has no such terminals."""

from headway.client.programs.terminal import run_in_terminal

__all__ = ["run_in_terminal"]
