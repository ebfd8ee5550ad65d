"""Query plans of SQLite: no statement scans a large table where an index or a limit would do."""

from __future__ import annotations

import re
from pathlib import Path

import apsw
import pytest

from headway.stores.sqlite.own_file import OwnFileConnection, migrate
from headway.stores.sqlite.statements import QUERIES

# Tables that grow with the number of jobs. The others have a row for each lease, worker, class or minute.
LARGE = {
    "job",
    "ready",
    "delayed",
    "outcome",
    "attempt",
    "transient",
    "unique_key",
    "idempotency",
    "expiry",
    "document",
    "park",
    "rate",
    "stretch",
    "batch",
    "edge",
    "dependant",
    "step",
    "tenant_line",
}

# These have to look at everything in a table, or walk it in order until their limit; the reason stands beside each.
ALLOWED = {
    "find_queued": {"ready", "delayed"},  # No index by number is kept for what is queued: it would cost each claim.
    "purge_states": {"job"},  # An operator's verb, which may well remove everything.
    "set_aside": {"park"},  # The first entry of the index of open blocked queues, which are few.
    "stats_kept": {"outcome"},  # Only the index of what ended badly.
}


@pytest.fixture
def connection(tmp_path: Path) -> OwnFileConnection:
    made = OwnFileConnection(tmp_path / "plans.db", "NORMAL")
    migrate(made, tmp_path / "plans.db")
    return made


def plan_of(connection: OwnFileConnection, name: str) -> list[str]:
    statement = QUERIES[name]
    values = dict.fromkeys(re.findall(r":(\w+)", statement))
    return [row[3] for row in connection.raw.execute("EXPLAIN QUERY PLAN " + statement, values)]


def walked(connection: OwnFileConnection, name: str) -> set[str]:
    """Return the large tables that a statement scans in full."""
    aliases = dict(re.findall(r"\b(?:FROM|JOIN|INTO|UPDATE)\s+(\w+)(?:\s+AS)?\s+(\w+)", QUERIES[name]))
    tables = {alias: table for table, alias in aliases.items()} | {table: table for table in LARGE}
    scanned = re.findall(r"^SCAN (\w+)", "\n".join(plan_of(connection, name)), re.MULTILINE)
    return {tables.get(alias, alias) for alias in scanned} & LARGE


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_no_statement_walks_a_large_table_without_need(connection: OwnFileConnection, name: str) -> None:
    assert walked(connection, name) == ALLOWED.get(name, set())


@pytest.mark.parametrize(
    "name, step",
    [
        ("claim_head", "SEARCH r USING PRIMARY KEY (class_id=? AND park=? AND (order_key,seq)>(?,?))"),
        ("delayed_due", "SEARCH d USING PRIMARY KEY (namespace_id=? AND due_at<?)"),
        ("edges_from", "SEARCH e USING PRIMARY KEY (source_seq=? AND dependant_seq>?)"),
        ("edges_to", "SEARCH e USING INDEX edge_dependant (dependant_seq=?)"),
        ("members", "SEARCH j USING COVERING INDEX job_batch (batch_seq=? AND rowid>?)"),
        ("members_next", "SEARCH j USING COVERING INDEX job_batch (batch_seq=? AND rowid>?)"),
        ("batch_children", "SEARCH batch USING COVERING INDEX batch_parent (parent_seq=?)"),
        ("blocked_first", "SEARCH p USING COVERING INDEX park_open (class_id=? AND (head_key,head_seq)>(?,?))"),
        ("blocked_next", "SEARCH ready USING PRIMARY KEY (class_id=? AND park=? AND (order_key,seq)>(?,?))"),
        ("ahead_own", "CO-ROUTINE (subquery-4)"),
        ("known_ids", "SEARCH job USING INDEX sqlite_autoindex_job_1 (job_id=? AND namespace_id=?)"),
        ("last_waiting_key", "MERGE (UNION ALL)"),
        ("line_sweep", "SEARCH tenant_line USING PRIMARY KEY (class_id=? AND tenant=? AND order_key<?)"),
        ("leases_by_seq", "SEARCH lease USING INTEGER PRIMARY KEY (rowid=?)"),
        ("claim_taken", "SEARCH ready USING PRIMARY KEY (class_id=? AND park=? AND (order_key,seq)<(?,?))"),
        ("known_key", "SEARCH idempotency USING PRIMARY KEY (namespace_id=? AND tenant=? AND idempotency_key=?)"),
        ("find_any", "SEARCH j USING INTEGER PRIMARY KEY (rowid<?)"),
        ("find_completed", "SEARCH o USING INTEGER PRIMARY KEY (rowid<?)"),
        ("find_executing", "SEARCH l USING INTEGER PRIMARY KEY (rowid<?)"),
        ("find_bad", "SEARCH o USING INDEX outcome_bad (state=?)"),
        ("prune_bad", "SEARCH o USING COVERING INDEX outcome_bad (state=? AND finished_at<?)"),
        ("prune_scan", "SEARCH o USING INTEGER PRIMARY KEY (rowid>?)"),
    ],
)
def test_a_statement_begins_with_the_index_it_was_made_for(connection: OwnFileConnection, name: str, step: str) -> None:
    assert plan_of(connection, name)[0] == step


@pytest.mark.parametrize(
    "name",
    [
        *("claim_head", "delayed_due", "next_due", "find_any", "find_completed", "find_executing"),
        *("edges_from", "members", "members_next", "steps", "last_waiting_key", "ahead_own"),
    ],
)
def test_a_statement_in_the_order_of_its_index_sorts_nothing(connection: OwnFileConnection, name: str) -> None:
    assert not [step for step in plan_of(connection, name) if "TEMP B-TREE" in step]


def test_batches_come_in_the_order_of_their_index_beside_one_count_of_all_leases(connection: OwnFileConnection) -> None:
    counting, batches = ["MATERIALIZE r", "SCAN l", "USE TEMP B-TREE FOR GROUP BY"], plan_of(connection, "find_batches")
    assert batches[:3] == counting
    assert batches[3] == "SEARCH b USING INTEGER PRIMARY KEY (rowid<?)"
    assert not [step for step in batches[3:] if "TEMP B-TREE" in step]


def test_a_statement_is_planned_once_whatever_its_values(connection: OwnFileConnection) -> None:
    # Otherwise those whose values could matter to the planner are planned at every execution.
    planned: list[object] = []

    def note(action: int, *_: object) -> int:
        planned.append(action)
        return apsw.SQLITE_OK

    connection.raw.authorizer = note  # It is asked whenever a statement is planned.
    connection.run("delayed_due", 1, 0, 200).fetchall()
    planned.clear()
    for moment in range(1, 4):
        connection.run("delayed_due", 1, moment, 200).fetchall()
    assert planned == []


def test_the_jobs_of_a_worker_are_found_without_a_look_at_any_other_job(connection: OwnFileConnection) -> None:
    # R5.77: leases are as many as there are busy slots; jobs are looked up by their numbers.
    for name in ("leases_of", "leases_expired", "renew_held"):
        plan = plan_of(connection, name)
        assert any(step.startswith("SCAN l") for step in plan), plan
        assert any(step.startswith("SEARCH j USING INTEGER PRIMARY KEY") for step in plan), plan
        assert not any(step.startswith(("SCAN j", "SCAN o", "SCAN r")) for step in plan), plan
