"""Lines: where a job that becomes eligible is put, and how the tenants of a class come to share it."""

from __future__ import annotations

from typing import Any

from headway.core.policy.order import order_key
from headway.stores.sqlite import rows
from headway.stores.sqlite.transaction import SqliteTransaction


class SqliteOrdering:
    """Assigns order keys in classes. Remembers, within one transaction, what it has read of them."""

    def __init__(self, tx: SqliteTransaction) -> None:
        self._tx = tx
        self._clocks: dict[int, int | None] = {}  # By class: its clock, or None if nobody shares it.
        self._last: dict[tuple[int, str], int | None] = {}
        self._plain: dict[int, tuple[int, int]] = {}  # By class: the first and last place given where nobody shares.

    def place(self, class_id: int, number: int, task: str, tenant: str | None, *, front: bool = False) -> int:
        """Return the order key of a job that becomes eligible.

        ``number``: its place where nobody shares; ``front``: before all that wait.
        """
        clock = self.clock(class_id)
        if clock is None:
            if tenant is None:
                first = self._plain.get(class_id)
                self._plain[class_id] = (number, number) if first is None else (first[0], number)
                return number
            clock = self._become_fair(class_id, number)
        sharer = tenant or ""
        key = clock
        if not front:
            last = self._last_key(class_id, sharer)
            key = order_key(clock, last, self._tx.rule_index.step_us(task, sharer))
        self._note(class_id, sharer, key)
        return key

    def put(
        self, class_id: int, seq: int, task: str, tenant: str | None, eligible_at: int, number: int,
        *counts: Any, front: bool = False,
    ) -> None:  # fmt: skip
        """Let a job wait that ran, ended or was delayed before."""
        task, tenant = rows.as_text(task) or "", rows.as_text(tenant)
        key = self.place(class_id, number, task, tenant, front=front)
        sharer = None if self.clock(class_id) is None else tenant or ""
        self._tx.db.run("ready_again", class_id, key, seq, eligible_at, *counts, sharer)
        self._tx.db.run("job_set_place", class_id, key, None, seq)
        self._tx.eligible.append(class_id)

    def clock(self, class_id: int) -> int | None:
        """Return the clock of a class, or None if its tenants do not share it."""
        if class_id not in self._clocks:
            fair, clock = self._tx.db.run("class_state", class_id).fetchone()
            self._clocks[class_id] = clock if fair else None
        return self._clocks[class_id]

    def _become_fair(self, class_id: int, number: int) -> int:
        """Begin to share a class. What waits or runs there already, or is about to wait, is one tenant's."""
        db = self._tx.db
        db.run("fair_ready", class_id)
        db.run("fair_leases", class_id)
        first, last = self._plain.get(class_id, (number, None))
        clock = int(db.first("fair_class", class_id, first))
        self._clocks[class_id] = clock
        if last is not None:
            self._note(class_id, "", last)
        return clock

    def _last_key(self, class_id: int, sharer: str) -> int | None:
        known = (class_id, sharer)
        if known not in self._last:
            last = int(self._tx.db.first("last_key", class_id, sharer))
            self._last[known] = None if last < 0 else last
        return self._last[known]

    def _note(self, class_id: int, sharer: str, key: int) -> None:
        last = self._last_key(class_id, sharer)
        self._last[class_id, sharer] = key if last is None else max(last, key)
