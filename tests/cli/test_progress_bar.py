"""The progress bar on a terminal."""

from __future__ import annotations

import sys

import pytest

from headway.cli.progress_bar import progress_bar


def test_the_bar_is_removed_even_after_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    def fail_after_a_while() -> None:
        with progress_bar("lines") as draw:
            assert draw is not None
            draw(500, 1_000)
            raise ValueError("line 7")

    with pytest.raises(ValueError, match="line 7"):
        fail_after_a_while()
    assert capsys.readouterr().err == f"\r{'━' * 15}{'╌' * 15} 500 of 1,000 lines\r\x1b[K"


def test_nothing_is_drawn_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("lines") as draw:
        assert draw is None
    assert capsys.readouterr().err == ""
