"""Drawings in SVG, without a script. Colours are CSS classes, so that a page can be light or dark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import ceil, log10

from headway.simulate.report import FigureChange
from headway.simulate.text_report import change_text, length_of, length_text

WIDTH = 760  # Units of a drawing. The page scales it.
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 10, 26
ROW = 26  # Height of a row of a dumbbell chart.
LEAST = 0.1  # Seconds; shorter waits are drawn at the edge of a logarithmic axis.
ROWS_MAX = 16  # Groups in a dumbbell chart.
ChartValues = Sequence[float | None]


def wait_chart(
    before: tuple[ChartValues, ChartValues] | None, after: tuple[ChartValues, ChartValues], span_ms: int, title: str
) -> str:
    """Draw the waits of one lane over time: a band from p50 to p90 for each policy, on a logarithmic axis."""
    height = 150
    series = [values for band in (before, after) if band for values in band]
    top = max((value for values in series for value in values if value is not None), default=1.0)
    decades = max(1, ceil(log10(max(top, 1.01) / LEAST)))

    def y_of(value: float) -> float:
        part = log10(max(value, LEAST) / LEAST) / decades
        return height - BOTTOM - part * (height - TOP - BOTTOM)

    levels = [LEAST * 10**step for step in range(decades + 1)]
    parts = [_grid([(length_text(level), y_of(level)) for level in levels])]
    for name, band in (("before", before), ("after", after)):
        if band is not None:
            parts.append(_band(band[0], band[1], name, y_of))
    return _svg(height, title, [*parts, _time_axis(span_ms, height)])


def slots_chart(lanes: Mapping[str, Sequence[float]], slots: int, span_ms: int, step_ms: int, title: str) -> str:
    """Draw how many slots each lane fills as stacked areas, and all slots as a line."""
    height = 190
    count = max(1, -(-span_ms // step_ms))
    top = max(slots, 1)

    def y_of(value: float) -> float:
        return height - BOTTOM - min(value, top) / top * (height - TOP - BOTTOM)

    below = [0.0] * count
    parts = [_grid([(f"{tick:,}", y_of(tick)) for tick in _whole_ticks(top)])]
    for number, values in enumerate(lanes.values()):
        above = [base + (values[at] if at < len(values) else 0.0) for at, base in enumerate(below)]
        points = [(_x(at + 0.5, count), y_of(value)) for at, value in enumerate(above)]
        points += [(_x(at + 0.5, count), y_of(value)) for at, value in reversed(list(enumerate(below)))]
        parts.append(f'<polygon class="lane{number % 6}" points="{_points(points)}"/>')
        below = above
    parts.append(f'<line class="all" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y_of(top):.1f}" y2="{y_of(top):.1f}"/>')
    return _svg(height, title, [*parts, _time_axis(span_ms, height)])


def dumbbell_chart(changes: Sequence[FigureChange], title: str) -> str:
    """Draw before and after of each group as two dots on a line, in the given order, on a logarithmic axis."""
    shown = changes[:ROWS_MAX]
    height = TOP + ROW * len(shown) + BOTTOM
    left, right = 170, 90
    top = max((max(change.before, change.after) for change in shown), default=1.0)
    decades = max(1, ceil(log10(max(top, 1.01) / LEAST)))

    def x_of(value: float) -> float:
        return left + log10(max(value, LEAST) / LEAST) / decades * (WIDTH - left - right)

    parts = []
    for step in range(decades + 1):
        x, bottom = x_of(LEAST * 10**step), height - BOTTOM
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>')
        text = length_text(LEAST * 10**step)
        parts.append(f'<text class="axis" text-anchor="middle" x="{x:.1f}" y="{bottom + 16}">{text}</text>')
    for number, change in enumerate(shown):
        y = TOP + ROW * (number + 0.5)
        kind = "same" if change.same else "worse" if change.after > change.before else "better"
        name = change.key if len(change.key) <= 24 else f"{change.key[:23]}…"
        parts += [
            f'<text class="name" text-anchor="end" x="{left - 12}" y="{y + 4:.1f}">{escape(name)}</text>',
            f'<line class="{kind}" x1="{x_of(change.before):.1f}" x2="{x_of(change.after):.1f}" '
            f'y1="{y:.1f}" y2="{y:.1f}"/>',
            f'<circle class="was" cx="{x_of(change.before):.1f}" cy="{y:.1f}" r="4.5"/>',
            f'<circle class="{kind}" cx="{x_of(change.after):.1f}" cy="{y:.1f}" r="5.5"/>',
            f'<text class="name" x="{WIDTH - right + 12}" y="{y + 4:.1f}">{escape(change_text(change))}</text>',
        ]
    return _svg(height, title, parts)


def _band(p50: ChartValues, p90: ChartValues, name: str, place: Callable[[float], float]) -> str:
    count = len(p50)
    known = [at for at in range(count) if p50[at] is not None and p90[at] is not None]
    top = [(_x(at + 0.5, count), place(p90[at] or 0.0)) for at in known]
    bottom = [(_x(at + 0.5, count), place(p50[at] or 0.0)) for at in known]
    return (
        f'<polygon class="band {name}" points="{_points([*top, *reversed(bottom)])}"/>'
        f'<polyline class="line {name}" points="{_points(bottom)}"/>'
        f'<polyline class="line {name} thin" points="{_points(top)}"/>'
    )


def _x(at: float, count: int) -> float:
    return LEFT + at / count * (WIDTH - LEFT - RIGHT)


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _whole_ticks(top: int) -> list[int]:
    """Return at most 7 whole numbers from 0 to the top of an axis: steps of 1, 2 or 5 times a power of ten."""
    step = next(size * 10**power for power in range(len(str(top))) for size in (1, 2, 5) if size * 10**power * 5 >= top)
    return [*(tick for tick in range(0, top, step) if 2 * (top - tick) >= step), top]


def _grid(levels: Sequence[tuple[str, float]]) -> str:
    parts = []
    for text, y in levels:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="axis" text-anchor="end" x="{LEFT - 8}" y="{y + 4:.1f}">{text}</text>')
    return "".join(parts)


def _time_axis(span_ms: int, height: int) -> str:
    parts = []
    for step in range(5):
        x = _x(step, 4)
        anchor = ("start", "middle", "middle", "middle", "end")[step]
        text = "0" if step == 0 else length_of(span_ms * step // 4)
        parts.append(f'<text class="axis" text-anchor="{anchor}" x="{x:.1f}" y="{height - 8}">{text}</text>')
    return "".join(parts)


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    label = escape(title, quote=True)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{label}"><title>{escape(title)}</title>'
        f"{''.join(parts)}</svg>"
    )
