"""The drawing program of the example."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.examples.service import ROOT, STAR

DRAW = ROOT / "examples" / "asymptote" / "draw.py"


def draw(folder: Path, text: str, kind: str = "svg") -> subprocess.CompletedProcess[str]:
    (folder / "drawing.txt").write_text(text)
    words = [sys.executable, "-I", str(DRAW), kind, "drawing.txt"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=30)


def test_a_star_has_five_strokes_and_is_closed(tmp_path: Path) -> None:
    assert draw(tmp_path, f"size 100 80 # wide\npen red 2\n{STAR}").returncode == 0
    root = ElementTree.parse(tmp_path / "drawing.svg").getroot()
    assert root.get("viewBox") == "-50 -40 100 80"
    [line] = list(root)
    points = [tuple(map(float, point.split(","))) for point in (line.get("points") or "").split()]
    assert len(points) == 6
    assert points[0] == points[-1] == (0.0, 0.0)
    assert points[1] == (60.0, 0.0)


def test_a_pdf_has_its_parts_where_its_table_says(tmp_path: Path) -> None:
    assert draw(tmp_path, STAR, "pdf").returncode == 0
    file = (tmp_path / "drawing.pdf").read_bytes()
    table = int(file.split(b"startxref\n")[1].split()[0])
    assert file[table:].startswith(b"xref\n0 5\n")
    for number, line in enumerate(file[table:].splitlines()[3:7], start=1):
        assert file[int(line[:10]) :].startswith(b"%d 0 obj" % number)


@pytest.mark.parametrize(
    "text, said",
    [
        ("repeat 2\nforward 1", "line 1: repeat has no end"),
        ("end", "line 1: nothing to end here"),
        ("\nfly 3", "line 2: 'fly' is none of"),
        ("turn", "line 1: turn wants 1 values, not 0"),
        ("turn nan", "line 1: nan is too much"),
        ("pen pink 1", "line 1: colours are"),
        ("repeat 999999\nforward 1\nend", "more than 200,000 points"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, text: str, said: str) -> None:
    done = draw(tmp_path, text)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_one_can_talk_to_it() -> None:
    typed = "forward 10\nrepeat 2\nturn 45\nend\nfly\n"
    done = subprocess.run(
        [sys.executable, "-I", str(DRAW), "talk"], input=typed, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0
    assert "at 10.0, 0.0, looking to 90; 2 points" in done.stdout
    assert "'fly' is none of" in done.stdout
