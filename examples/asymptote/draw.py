"""A small drawing program for machines without any other: it moves a pen, and writes SVG or PDF.

``python draw.py svg drawing.txt`` writes ``drawing.svg``; ``python draw.py talk`` draws the commands that you type and
prints the position of the pen. One command a line; ``#`` begins a comment.

    size 200 120          the sheet; the pen begins in its middle and looks to the right
    pen teal 2            a colour and a width
    forward 50            draw; `jump 50` does not
    turn 144              degrees, to the left
    circle 20             around the pen
    repeat 5 ... end      also inside one another; `forever ... end` never ends
    wait 2                do nothing for this many seconds
"""

from __future__ import annotations

import math
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

COLOURS = {
    "black": (0, 0, 0),
    "blue": (37, 99, 235),
    "green": (22, 130, 70),
    "grey": (115, 115, 115),
    "orange": (217, 119, 6),
    "purple": (126, 58, 190),
    "red": (205, 40, 50),
    "teal": (13, 128, 128),
}
POINTS_MAX = 200_000
ARGUMENTS = {
    "size": 2,
    "pen": 2,
    "forward": 1,
    "jump": 1,
    "turn": 1,
    "circle": 1,
    "repeat": 1,
    "wait": 1,
    "forever": 0,
    "end": 0,
}

Point = tuple[float, float]


class DrawingError(Exception):
    """A drawing that cannot be read."""


class IncompleteDrawing(DrawingError):
    """A drawing whose end is missing."""


@dataclass(frozen=True)
class Step:
    """One line of a drawing. ``body`` holds the lines between it and its ``end``."""

    line: int
    word: str
    values: tuple[str, ...]
    body: tuple[Step, ...] = ()

    def number(self, place: int = 0) -> float:
        try:
            value = float(self.values[place])
        except ValueError:
            raise DrawingError(f"line {self.line}: {self.word} wants a number, not {self.values[place]!r}") from None
        if not abs(value) <= 1e6:
            raise DrawingError(f"line {self.line}: {self.values[place]} is too much")
        return value


@dataclass
class Stroke:
    """A line drawn without lifting the pen."""

    colour: tuple[int, int, int]
    width: float
    points: list[Point]


@dataclass
class Sheet:
    """The strokes so far, and the position of the pen."""

    width: float = 200.0
    height: float = 120.0
    x: float = 0.0
    y: float = 0.0
    angle: float = 0.0
    colour: tuple[int, int, int] = COLOURS["teal"]
    thickness: float = 1.5
    strokes: list[Stroke] = field(default_factory=list)
    points: int = 0

    def run(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            match step.word:
                case "size":
                    self.width, self.height = max(1.0, step.number()), max(1.0, step.number(1))
                case "pen":
                    if step.values[0] not in COLOURS:
                        raise DrawingError(
                            f"line {step.line}: colours are {', '.join(COLOURS)}, not {step.values[0]!r}"
                        )
                    self.colour, self.thickness = COLOURS[step.values[0]], abs(step.number(1))
                case "forward":
                    before = (self.x, self.y)
                    self._move(step.number())
                    self._draw(before, (self.x, self.y))
                case "jump":
                    self._move(step.number())
                case "turn":
                    self.angle = (self.angle + step.number()) % 360.0
                case "circle":
                    self._circle(step.number())
                case "wait":
                    time.sleep(max(0.0, step.number()))
                case "repeat":
                    for _ in range(int(step.number())):
                        self.run(step.body)
                case "forever":
                    while True:
                        self.run(step.body)

    def _move(self, length: float) -> None:
        self.x += length * math.cos(math.radians(self.angle))
        self.y += length * math.sin(math.radians(self.angle))

    def _draw(self, start: Point, *rest: Point) -> None:
        last = self.strokes[-1] if self.strokes else None
        if last is None or last.points[-1] != start or (last.colour, last.width) != (self.colour, self.thickness):
            last = Stroke(self.colour, self.thickness, [start])
            self.strokes.append(last)
        last.points += rest
        self.points += 1 + len(rest)
        if self.points > POINTS_MAX:
            raise DrawingError(f"more than {POINTS_MAX:,} points")

    def _circle(self, radius: float) -> None:
        turns = (math.radians(degrees) for degrees in range(0, 361, 10))
        self._draw(*((self.x + radius * math.cos(turn), self.y + radius * math.sin(turn)) for turn in turns))


def read(text: str) -> tuple[Step, ...]:
    """Read a drawing. Raises ``DrawingError``, which names the line."""
    open_blocks: list[tuple[Step | None, list[Step]]] = [(None, [])]
    for line, written in enumerate(text.splitlines(), start=1):
        words = re.sub("#.*", "", written).split()
        if not words:
            continue
        word, values = words[0], tuple(words[1:])
        if word not in ARGUMENTS:
            raise DrawingError(f"line {line}: {word!r} is none of {', '.join(ARGUMENTS)}")
        if len(values) != ARGUMENTS[word]:
            raise DrawingError(f"line {line}: {word} wants {ARGUMENTS[word]} values, not {len(values)}")
        step = Step(line, word, values)
        if word in ("repeat", "forever"):
            open_blocks.append((step, []))
        elif word == "end":
            head, body = open_blocks.pop()
            if head is None:
                raise DrawingError(f"line {line}: nothing to end here")
            open_blocks[-1][1].append(Step(head.line, head.word, head.values, tuple(body)))
        else:
            open_blocks[-1][1].append(step)
    head, steps = open_blocks[-1]
    if head is not None:
        raise IncompleteDrawing(f"line {head.line}: {head.word} has no end")
    return tuple(steps)


def svg(sheet: Sheet) -> bytes:
    """Return the drawing as SVG."""
    left, top = -sheet.width / 2, -sheet.height / 2
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{left:g} {top:g} {sheet.width:g} {sheet.height:g}" '
        'fill="none" stroke-linejoin="round" stroke-linecap="round">'
    ]
    for stroke in sheet.strokes:
        points = " ".join(f"{x:.2f},{-y:.2f}" for x, y in stroke.points)  # There y grows downwards.
        red, green, blue = stroke.colour
        lines.append(
            f'<polyline stroke="rgb({red},{green},{blue})" stroke-width="{stroke.width:g}" points="{points}"/>'
        )
    return "\n".join([*lines, "</svg>", ""]).encode()


def pdf(sheet: Sheet) -> bytes:
    """Return the drawing as PDF: one page, one stream of strokes."""
    drawn = [f"1 0 0 1 {sheet.width / 2:g} {sheet.height / 2:g} cm 1 J 1 j"]
    for stroke in sheet.strokes:
        red, green, blue = (part / 255 for part in stroke.colour)
        path = " ".join(f"{x:.2f} {y:.2f} {'l' if place else 'm'}" for place, (x, y) in enumerate(stroke.points))
        drawn.append(f"{red:.3f} {green:.3f} {blue:.3f} RG {stroke.width:g} w {path} S")
    content = "\n".join(drawn)
    parts = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {sheet.width:g} {sheet.height:g}] /Contents 4 0 R >>",
        f"<< /Length {len(content)} >>\nstream\n{content}\nendstream",
    ]
    file, places = "%PDF-1.4\n", []
    for number, part in enumerate(parts, start=1):
        places.append(len(file))
        file += f"{number} 0 obj\n{part}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    start, size = len(file), len(parts) + 1
    file += f"xref\n0 {size}\n0000000000 65535 f \n{table}"
    file += f"trailer\n<< /Size {size} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n"
    return file.encode("ascii")


def talk() -> int:
    """Draw the commands that are typed, until the input ends."""
    sheet, typed = Sheet(), ""
    while True:
        try:
            typed += input("pen> " if not typed else "...> ") + "\n"
            sheet.run(read(typed))
        except EOFError:
            return 0
        except IncompleteDrawing:
            continue
        except (DrawingError, RecursionError) as mistake:
            print(mistake or "too deep")
        except KeyboardInterrupt:
            print()
        else:
            print(f"at {sheet.x:.1f}, {sheet.y:.1f}, looking to {sheet.angle:g}; {sheet.points} points")
        typed = ""


def main() -> int:
    """Draw one file, or the commands that are typed."""
    if sys.argv[1:] == ["talk"]:
        return talk()
    kind, name = sys.argv[1:]
    source = Path(name)
    sheet = Sheet()
    try:
        sheet.run(read(source.read_text()))
    except (DrawingError, UnicodeDecodeError, RecursionError) as mistake:
        print(mistake or "too deep", file=sys.stderr)
        return 1
    source.with_suffix(f".{kind}").write_bytes({"svg": svg, "pdf": pdf}[kind](sheet))
    return 0


if __name__ == "__main__":
    sys.exit(main())
