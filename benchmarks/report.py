"""The report of a run: a table of contenders with their configuration, the limits, and the verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.verdicts import Verdict, best_peer

Row = dict[str, Any]

# Title, figure, how it is shown, whether less is better.
COLUMNS: tuple[tuple[str, str, Callable[[float], str], bool], ...] = (
    ("bulk/s", "bulk", "{:,.0f}".format, False),
    ("one/s", "enqueue", "{:,.0f}".format, False),
    ("drain/s", "drain", "{:,.0f}".format, False),
    ("two/s", "two", "{:,.0f}".format, False),
    ("worker µs", "drain_worker_us", "{:,.1f}".format, True),
    ("store µs", "drain_store_us", "{:,.1f}".format, True),
    ("ops/job", "drain_store_ops", "{:.3g}".format, True),
    ("p50 ms", "p50_ms", "{:.2f}".format, True),
    ("p99 ms", "p99_ms", "{:.2f}".format, True),
    ("naps", "naps", "{:.1%}".format, False),
    ("MiB", "idle_mib", "{:.0f}".format, True),
    ("idle CPU", "idle_cpu", "{:.2%}".format, True),
    ("ops/s", "idle_ops", "{:.1f}".format, True),
    ("asks/s", "idle_requests", "{:.1f}".format, True),
    ("bytes", "job_bytes", "{:,.0f}".format, True),
)
LOGGING = "Every worker logs as it does by default, into a file. The part features says where it does not."
LEGEND = """\
bulk/s, one/s: jobs submitted a second by the bulk call, and one by one. drain/s, two/s: no-op jobs run a second by one
worker process, and by two. worker µs, store µs, ops/job: CPU and store operations (Redis commands, those in scripts
included; PostgreSQL commits) of a job in that drain by one. p50, p99: from the call that submits to the start, idle
worker. naps: 2,000 jobs of 50 ms with 100 slots, as a share of the ideal rate. MiB, idle CPU, ops/s, asks/s: an idle
worker with all its processes; asks are requests, however many operations each comes to.
bytes: what a waiting job with 200 bytes of text takes in its store. ×: how many times as good as
the best peer on the same store."""


def report(figures: dict[str, Any], verdicts: list[Verdict]) -> str:
    parts = [_machine(figures), *_table(figures["contenders"]), *_failures(figures["contenders"])]
    parts += [*_ours(figures["contenders"]), *_limits(figures), *_setups(figures["contenders"])]
    if any(verdict.outcome != "not measured" for verdict in verdicts):
        parts += _verdicts(verdicts)
    return "\n".join(parts)


def _machine(figures: dict[str, Any]) -> str:
    facts = figures["machine"]
    stores = "; ".join(facts["stores"])
    spin = f"spin {facts['spin_ms']:.1f} ms before, {facts['spin_after_ms']:.1f} after; load {facts['load']:.1f} before"
    return f"{facts['processor']}, {facts['cores']} cores, Python {facts['python']}; {spin}\n{stores}\n{LOGGING}"


def _table(rows: dict[str, Row]) -> Iterator[str]:
    shown = [column for column in COLUMNS if any(column[1] in row for row in rows.values())]
    if not shown:
        return
    yield ""
    lines: list[list[str]] = [["", *(title for title, *_ in shown)]]
    for store in dict.fromkeys(row["store"] for row in rows.values()):
        peers = {name: row for name, row in rows.items() if row["store"] == store and not row["ours"]}
        for name, row in rows.items():
            if row["store"] != store:
                continue
            lines.append([name, *(_cell(row, figure, show) for _, figure, show, _ in shown)])
            if row["ours"] and peers:
                lines.append(["  × the best peer", *(_ratio(row, peers, figure, less) for _, figure, _, less in shown)])
    yield from _aligned(lines)
    yield LEGEND


def _cell(row: Row, figure: str, show: Callable[[float], str]) -> str:
    if figure in row:
        return show(row[figure])
    return "failed" if _part_of(figure) in row["failed"] else "—"


def _part_of(figure: str) -> str:
    if figure.startswith(("idle_", "p50", "p99")):
        return "latency"
    return {"two": "two workers", "job_bytes": "memory"}.get(figure, figure.partition("_")[0])


def _ratio(row: Row, peers: dict[str, Row], figure: str, less: bool) -> str:
    best = best_peer(peers, figure, min if less else max)
    if best is None or not row.get(figure) or not peers[best][figure]:
        return ""
    found = peers[best][figure] / row[figure] if less else row[figure] / peers[best][figure]
    return f"{found:.2g}×" if found < 10 else f"{found:,.0f}×"


def _failures(rows: dict[str, Row]) -> Iterator[str]:
    parts: dict[tuple[str, str], list[str]] = {}
    for name, row in rows.items():
        for part, reason in row["failed"].items():
            parts.setdefault((name, reason), []).append(part)
    if parts:
        yield "\nFailed"
        yield from (f"  {name} ({', '.join(found)}): {reason}" for (name, reason), found in parts.items())


def _ours(rows: dict[str, Row]) -> Iterator[str]:
    """Return the figures that are measured only for Headway."""
    titles = {
        "5 slots/s": "default",
        "worker µs": "default_worker_us",
        "store µs": "default_store_us",
        "2,000 at once/s": "together",
        "shallow/s": "shallow",
        "deep/s": "deep",
        "deep alone/s": "deep_drain",
        "usual/s": "usual_drain",
        "tenths: first/s": "tenths_alone_first",
        "last/s": "tenths_alone_last",
        "beside idle: first/s": "tenths_idle_in_transaction_first",
        "last/s ": "tenths_idle_in_transaction_last",
    }
    lines = [["", *titles]]
    for name, row in rows.items():
        if row["ours"]:
            lines.append([name, *(f"{row[figure]:,.0f}" if figure in row else "—" for figure in titles.values())])
    if any(cell != "—" for line in lines[1:] for cell in line[1:]):
        yield "\nHeadway alone (drains; 5 slots: the worker without flags; 2,000 at once: submitted by as many callers)"
        yield from _aligned(lines)


def _limits(figures: dict[str, Any]) -> Iterator[str]:
    if limits := figures.get("limits"):
        yield "\nLimits of this machine, each a second"
        yield from (f"  {title:<58}{rate:>12,.0f}" for title, rate in limits.items())


def _setups(rows: dict[str, Row]) -> Iterator[str]:
    yield "\nSet up as"
    for name, row in rows.items():
        if "versions" in row:
            versions = ", ".join(f"{package} {version}" for package, version in row["versions"].items())
            yield f"  {name}: {row['configuration']} ({versions})"


def _verdicts(verdicts: list[Verdict]) -> Iterator[str]:
    yield "\nTargets (above 1.00 is better than asked)"
    lines = [["", "asked", "measured", "ratio", "outcome"]]
    for verdict in verdicts:
        if verdict.outcome == "not measured":
            continue
        ratio = "—" if verdict.ratio is None else f"{verdict.ratio:.2f}"
        lines.append([verdict.target, verdict.asked, verdict.measured, ratio, verdict.outcome])
    yield from _aligned(lines, left=frozenset({0, 1, 4}))
    if left_out := len(verdicts) - len(lines) + 1:
        yield f"{left_out} more targets were not measured in this run."


def _aligned(lines: list[list[str]], left: frozenset[int] = frozenset({0})) -> Iterator[str]:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        cells = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
