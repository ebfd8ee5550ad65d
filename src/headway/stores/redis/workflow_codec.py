"""Turns graphs and batches into the arguments of the scripts, and their replies into values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headway.core.errors import BadEdge, BatchClosed, BatchNotFound, CycleError
from headway.core.workflow import (
    BatchId,
    BatchRecord,
    EdgeRule,
    Graph,
    GraphNode,
    GraphReply,
    SourceStatus,
    Upstream,
    foreign_member,
)
from headway.stores.redis import codec, replies
from headway.stores.redis.layout import STEP, pack_text

RULE_LETTERS: Mapping[EdgeRule, bytes] = {
    EdgeRule.CANCEL: b"C",
    EdgeRule.RUN: b"R",
    EdgeRule.HOLD: b"H",
    EdgeRule.ON_FAILURE: b"F",
    EdgeRule.ON_DONE: b"D",
}
_RULES = {letter: rule for rule, letter in RULE_LETTERS.items()}
STATUS_LETTERS: Mapping[SourceStatus, bytes] = {
    SourceStatus.LIVE: b"L",
    SourceStatus.COMPLETED: b"C",
    SourceStatus.FAILED: b"F",
}
_STATUSES = {letter: status for status, letter in STATUS_LETTERS.items()}


def pack_graph(graph: Graph) -> list[bytes | str | int]:
    """Write a graph as the arguments of ``submit_graph``."""
    new = graph.create
    batch: tuple[bytes | str | int, ...] = (0, graph.batch_id or "", "", "", "", "", 0)
    if new is not None:
        batch = (
            1, new.batch_id, new.name, _optional(new.key), _optional(new.tenant), _optional(new.parent), int(new.open),
        )  # fmt: skip
    nodes = [_pack_node(node) for node in graph.nodes]
    return [*batch, int(graph.back), len(nodes), *nodes, *codec.pack_jobs([node.job for node in graph.nodes])]


def _optional(text: str | None) -> str:
    return "" if text is None else f"={text}"


def _pack_node(node: GraphNode) -> bytes:
    edges = [RULE_LETTERS[rule] + pack_text(source.encode()) for source, rule in node.after]
    return b"".join((b"1" if node.member else b"0", *edges))


def read_graph_reply(graph: Graph, reply: Sequence[Any]) -> GraphReply:
    """Read the reply to ``submit_graph``. Raises what it says is wrong with the graph."""
    jobs = [node.job for node in graph.nodes]
    what = reply[0]
    if what == b"cycle":
        index, source = int(reply[1]), reply[2].decode()
        raise CycleError(f"job {index} of the graph waits for {source}, of which it is a member", index=index)
    if what == b"bad_edge":
        index, source = int(reply[1]), reply[2].decode()
        why = f"{source}, which the store does not have" if reply[3] == b"unknown" else f"{source} of another tenant"
        raise BadEdge(f"job {index} of the graph waits for {why}", index=index)
    if what == b"tenant":
        raise foreign_member(reply[1].decode(), int(reply[2]) if len(reply) > 2 else None)
    if what in (b"no_batch", b"closed"):
        batch_id = reply[1].decode()
        if what == b"no_batch":
            raise BatchNotFound(f"no batch {batch_id} in the store", batch_id=batch_id)
        raise BatchClosed(f"batch {batch_id} {reply[2].decode()} and takes no more jobs", batch_id=batch_id)
    if what == b"conflict":
        return GraphReply(replies.read_submitted(jobs, reply))
    _, batch_id, created, *others = reply
    answers = replies.read_submitted(jobs, [b"dup", *others])
    return GraphReply(answers, BatchId(batch_id.decode()) if batch_id else None, bool(created))


def read_batch(batch_id: str, fields: Sequence[bytes], now_at: int) -> BatchRecord:
    """Build a batch from its fields."""
    found = {fields[at].decode(): fields[at + 1].decode() for at in range(0, len(fields), 2)}
    parent = found.get("parent")
    return BatchRecord(
        batch_id=BatchId(batch_id),
        seq=int(found["seq"]),
        name=found["name"],
        key=found.get("key"),
        tenant=found.get("tenant"),
        parent=None if parent is None else BatchId(parent),
        open=found["open"] == "1",
        total=int(found["total"]),
        live=int(found["live"]),
        children=int(found["children"]),
        held=int(found["held"]),
        running=int(found["running"]),
        completed=int(found["completed"]),
        failed=int(found["failed"]),
        cancelled=int(found["cancelled"]),
        failing=found["failing"] == "1",
        round=int(found["round"]),
        created_at=int(found["created"]),
        cancel_requested_at=_moment(found, "cancel"),
        finished_at=_moment(found, "finished"),
        seen_at=now_at,
    )


def _moment(found: Mapping[str, str], field: str) -> int | None:
    return int(found[field]) if field in found else None


def read_upstreams(views: Sequence[Sequence[Any]]) -> list[Upstream]:
    found = []
    for source, rule, satisfied, status, state, outcome, is_batch, name, live, total in views:
        found.append(
            Upstream(
                source.decode(),
                _RULES[rule],
                bool(satisfied),
                _STATUSES[status],
                codec.STATES.get(state),
                codec.read_result(outcome) if outcome else None,
                name.decode() if is_batch else None,
                live,
                total,
            )
        )
    return found


def read_steps(flat: Sequence[bytes]) -> dict[str, bytes]:
    """Return steps in the order in which they were kept."""
    kept = [(STEP.unpack(flat[at + 1])[0], flat[at], flat[at + 1][STEP["value"]]) for at in range(0, len(flat), 2)]
    return {key.decode(): value for _, key, value in sorted(kept)}
