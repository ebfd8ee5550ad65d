"""The drawing programs on this machine, the best first."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
DRAW = [sys.executable, "-I", str(HERE / "draw.py")]
# Asymptote runs what it is given. It may start no programs, and read and write in its own folder only.
CONFINED = ("-safe", "-noglobalwrite", "-noglobalread", "-noV")


@dataclass(frozen=True)
class Program:
    """A program that makes ``drawing.svg`` or ``drawing.pdf`` of a file.

    ``prompt``: the command that starts its shell, if it has one. ``needs``: other programs that it starts.
    """

    name: str
    title: str
    file: str
    argv: tuple[str, ...]
    sample: str
    prompt: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


ASYMPTOTE = Program(
    name="asy",
    title="Asymptote",
    file="drawing.asy",
    argv=("asy", *CONFINED, "-f", "{format}", "-o", "drawing", "drawing.asy"),
    sample="""\
size(8cm);
pen[] colours = {deepgreen, royalblue, orange, purple, deepred};
for (int i = 0; i < 60; ++i) {
  path square = rotate(6 * i) * shift(0.4, 0) * unitsquare;
  draw(square, colours[i % 5] + linewidth(0.6) + opacity(0.8));
}
""",
    prompt=("asy", *CONFINED),
    needs=("latex", "dvisvgm"),
)
GRAPHVIZ = Program(
    name="dot",
    title="Graphviz",
    file="drawing.dot",
    argv=("dot", "-T{format}", "-odrawing.{format}", "drawing.dot"),
    sample="""\
digraph life {
  rankdir=LR; node [shape=box, style=rounded, fontname="sans-serif"];
  queued -> executing -> completed;
  executing -> queued [label="again"];
  executing -> failed;
  queued -> cancelled;
}
""",
)
GNUPLOT = Program(
    name="gnuplot",
    title="gnuplot",
    file="drawing.gp",
    argv=("gnuplot", "-e", "set terminal {format}; set output 'drawing.{format}'", "drawing.gp"),
    sample="""\
set polar
set samples 800
unset border; unset tics; unset key
plot [0:12*pi] exp(cos(t)) - 2*cos(4*t) + sin(t/12)**5 linewidth 1.5
""",
    prompt=("gnuplot",),
)
PEN = Program(
    name="draw",
    title="Walking pen",
    file="drawing.txt",
    argv=(*DRAW, "{format}", "drawing.txt"),
    sample="""\
size 240 160
pen teal 0.8
turn 90
repeat 36
  repeat 4
    forward 50
    turn 90
  end
  turn 10
end
pen orange 2
circle 74
""",
    prompt=(*DRAW, "talk"),
)


def programs_here() -> list[Program]:
    """Return the programs of this machine. The last is part of the example, so it is always there."""
    known = (ASYMPTOTE, GRAPHVIZ, GNUPLOT)
    return [one for one in known if all(map(shutil.which, (one.argv[0], *one.needs)))] + [PEN]
