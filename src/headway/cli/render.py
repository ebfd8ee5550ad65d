"""Rendering of values: safe text, times, lengths, JSON, tables. Rich is imported only when something is drawn."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headway.core.policy.document import BUILT_IN, Policy
from headway.core.policy.units import plural as plural
from headway.core.timestamps import write_moment
from headway.core.worker import WorkerInfo, capabilities_in, tasks_in
from headway.stores.base import Stats

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table
    from rich.text import Text

WIDE = 1_000  # Columns when the output is not a terminal: nothing is cut or folded.
NOTHING = "–"
ID_LEAST = 8  # Characters of a short id. The end of an id is random; its beginning is the time of the submit.

STYLES = {
    "completed": "green", "failed": "red", "dead_letter": "red", "cancelled": "yellow", "executing": "cyan",
    "started": "cyan", "retried": "yellow", "lost": "yellow", "active": "green", "draining": "yellow", "dead": "red",
    "ok": "green", "warning": "yellow", "fail": "bold red",
}  # fmt: skip


def clean(text: str, *, lines: bool = False) -> str:
    """Make text from elsewhere safe for a terminal: what cannot be printed becomes an escape.

    ``lines`` lets line breaks and tabs through. Escapes, bells, bidirectional marks and the like never pass.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or (lines and letter in "\n\t") else _escape(letter) for letter in text
    )


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode() if letter < "\ud800" or letter > "\udfff" else ascii(letter)[1:-1]


def cut(text: str, most: int) -> str:
    """Shorten text to this many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Return the end of each id, long enough to tell these ids apart and at least ``ID_LEAST`` characters."""
    known = list(dict.fromkeys(ids))
    length = ID_LEAST
    while len({job_id[-length:] for job_id in known}) < len(known):
        length += 1
    return {job_id: job_id[-length:] for job_id in known}


def compact(value: object) -> str:
    """Write a value as JSON on one line, safe for a terminal."""
    return _safe_json(json.dumps(value, ensure_ascii=False, default=str))


def print_json(value: object) -> None:
    print(_safe_json(json.dumps(value, ensure_ascii=False, indent=2, default=str)))


def _safe_json(text: str) -> str:
    """Escape what a terminal would obey. Only strings can hold such characters, so the document stays the same."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == "\n" else json.dumps(letter)[1:-1] for letter in text)


def local(at: int) -> str:
    """Write a moment for people here: date, time and zone."""
    return datetime.fromtimestamp(at / 1_000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def clock(at: int) -> str:
    """Write the time of day of a moment, for people here."""
    return datetime.fromtimestamp(at / 1_000, UTC).astimezone().strftime("%H:%M:%S")


def duration(length_ms: float | None) -> str:
    """Write a length of time in at most two units: ``12 ms``, ``2.5 s``, ``3 m 20 s``, ``2 d 4 h``."""
    if length_ms is None:
        return NOTHING
    length_ms = max(0, length_ms)
    if length_ms < 1_000:
        return f"{length_ms:.0f} ms"
    seconds = length_ms / 1_000
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller, small in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def age(at: int | None, now_at: int) -> str:
    """Write how long ago a moment was."""
    return NOTHING if at is None else duration(now_at - at)


def distance(at: int, now_at: int) -> str:
    """Write how long ago a moment was, or in how long it comes."""
    return f"{duration(now_at - at)} ago" if at <= now_at else f"in {duration(at - now_at)}"


def worker_values(worker: WorkerInfo) -> dict[str, Any]:
    return {
        "id": worker.worker_id,
        "state": worker.state.value,
        "host": worker.host,
        "pid": worker.pid,
        "slots": worker.slots,
        "reserved": worker.reserved,
        "running": worker.running,
        "capabilities": capabilities_in(worker.offers),
        "tasks": tasks_in(worker.offers),
        "version": worker.version,
        "started_at": write_moment(worker.started_at),
        "heartbeat_at": write_moment(worker.heartbeat_at),
        "lease_ends_at": write_moment(worker.lease_ends_at),
    }


def stats_values(stats: Stats, policy: Policy | None = None) -> dict[str, Any]:
    """Return the store's numbers as JSON values."""
    return {
        "at": write_moment(stats.now_at),
        "lanes": {
            name: {
                "waiting": lane.waiting,
                "delayed": lane.delayed,
                "held": lane.held,
                "executing": lane.executing,
                "oldest_at": write_moment(lane.oldest_at),
                "oldest_seconds": None if lane.oldest_at is None else max(0, stats.now_at - lane.oldest_at) / 1_000,
            }
            for name, lane in ordered_lanes(stats, policy)
        },
        "totals": dict(stats.totals),
        "last": {"seconds": round(lately_seconds(stats), 3), **stats.last_minute},
        "per_minute": per_minute(stats),
        "kept": dict(stats.kept),
        "workers": [worker_values(worker) for worker in stats.workers],
    }


def ordered_lanes(stats: Stats, policy: Policy | None = None) -> list[tuple[str, Any]]:
    """Return every lane of the policy and of the store, the first to be served first."""
    from headway.stores.base import LaneStats

    levels = {name: lane.level for name, lane in (policy or BUILT_IN).lanes.items()}
    names = sorted({*levels, *stats.lanes}, key=lambda name: (levels.get(name, 1_000_000), name))
    return [(name, stats.lanes.get(name, LaneStats())) for name in names]


def lately(stats: Stats) -> str:
    """Name the time that the latest counts cover: the last full minute and the part of this one that has passed."""
    return f"last {lately_seconds(stats):.0f} s"


def lately_seconds(stats: Stats) -> float:
    """Return how many seconds the latest counts cover: 60 to 120."""
    return 60 + stats.now_at % 60_000 / 1_000


def per_minute(stats: Stats) -> dict[str, float]:
    """Return the latest counts as rates."""
    minutes = lately_seconds(stats) / 60
    return {what: round(count / minutes, 1) for what, count in stats.last_minute.items()}


def moment(at: int | None, now_at: int) -> str | None:
    """Write a moment for people here, and how long ago it was or in how long it comes."""
    return None if at is None else f"{local(at)}, {distance(at, now_at)}"


def console(*, most: int = WIDE) -> Console:
    """Return a console that takes no text for markup. Not a terminal: ``most`` columns, so that nothing is cut."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else most
    return Console(file=sys.stdout, markup=False, emoji=False, highlight=False, soft_wrap=False, width=width)


def text(value: object, style: str = "", *, lines: bool = False) -> Text:
    """Return untrusted text as a rich value: cleaned, never markup."""
    from rich.text import Text

    return Text(clean(str(value), lines=lines), style=style)


def status_text(status: str) -> Text:
    """Return a status in its colour."""
    return text(status, STYLES.get(status, ""))


def table(*columns: str, right: Iterable[str] = (), flexible: Iterable[str] = ()) -> Table:
    """Make a table without lines. ``right`` names columns of numbers, ``flexible`` those that give way."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    numbers, giving = set(right), set(flexible)
    for name in columns:
        made.add_column(
            name, justify="right" if name in numbers else "left", no_wrap=name not in giving, overflow="ellipsis"
        )
    return made


class FittedTable:
    """A table with several drafts, the widest first. The first one that fits is drawn, else the last.

    A draft names the columns to show. ``id:short`` is the column ``id`` with other cells. ``flexible`` maps columns
    that may be folded to the number of characters they need at least. In the last draft ``kept`` may be folded, too.
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, str | Text]],
        *drafts: Sequence[str],
        kept: str,
        right: Iterable[str] = (),
        flexible: Mapping[str, int] | None = None,
    ) -> None:
        self._rows = rows
        self._drafts = drafts
        self._kept = kept
        self._right = tuple(right)
        self._flexible = flexible or {}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.measure import Measurement

        wide = options.update(width=WIDE)
        for columns in self._drafts:
            if Measurement.get(console, wide, self._draft(columns, measured=True)).maximum <= options.max_width:
                yield self._draft(columns)
                return
        folded = self._draft(self._drafts[-1])
        for column in folded.columns:
            if column.header == self._kept:
                column.no_wrap, column.overflow = False, "fold"
        yield folded

    def _draft(self, columns: Sequence[str], *, measured: bool = False) -> Table:
        made = table(*(name.partition(":")[0] for name in columns), right=self._right, flexible=self._flexible)
        for row in self._rows:
            made.add_row(*(str(row[name])[: self._flexible.get(name)] if measured else row[name] for name in columns))
        return made


def facts(pairs: Mapping[str, object]) -> Table:
    """Return names and values as a table, one pair a line. Values may be rich."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs.items():
        made.add_row(name, value if isinstance(value, Text) else text(value, lines=True))
    return made
