"""One transaction: the connection, the moment it happens at, and whom to tell once it is durable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Protocol

from headway.core.job import ClassKey, JobId
from headway.core.policy.enforced import RuleIndex
from headway.core.worker import serves
from headway.stores.base import RULES
from headway.stores.rule_codec import read_rulebook
from headway.stores.sqlite import rows
from headway.stores.sqlite.connection import SqliteConnection
from headway.stores.sqlite.notifier import PipeNotifier

MINUTE = 60_000


class SqliteCache:
    """What a process remembers between transactions: the numbers of namespace and classes, the rules it read last."""

    def __init__(self) -> None:
        self.namespace_id = 0  # Until somebody writes in this namespace; a look at a wrong name leaves no trace.
        self.class_ids: dict[ClassKey, int] = {}
        self.rules_version = -1
        self.rule_index = RuleIndex()

    def forget_namespace(self) -> None:
        self.namespace_id = 0

    def forget_rules(self) -> None:
        self.rules_version = -1

    def copy(self) -> SqliteCache:
        """Return another one that knows the same, to learn what may yet be undone."""
        made = SqliteCache()
        made.namespace_id, made.class_ids = self.namespace_id, dict(self.class_ids)
        made.rules_version, made.rule_index = self.rules_version, self.rule_index
        return made

    def adopt(self, learned: SqliteCache) -> None:
        """Remember what a copy has learned, now that it is durable."""
        self.namespace_id = learned.namespace_id
        self.class_ids.update(learned.class_ids)
        self.rule_index, self.rules_version = learned.rule_index, learned.rules_version


class Hooks(Protocol):
    """What a transaction may leave to be done when it has ended."""

    def after_commit(self, action: Callable[[], None]) -> None:
        """Do something once it is durable, and only then."""
        ...

    def after_rollback(self, action: Callable[[], object]) -> None:
        """Undo something in memory if it is undone."""
        ...

    def borrow(self, memory: SqliteCache) -> SqliteCache:
        """Return the memory that it may write what it learns to."""
        ...


class SqliteTransaction:
    """Gathers what a verb changed; ``settle`` wakes and tells whoever that concerns, after the commit."""

    def __init__(
        self,
        db: SqliteConnection,
        *,
        now_at: int,
        namespace_id: int,
        memory: SqliteCache,
        notifier: PipeNotifier,
        hooks: Hooks,
    ) -> None:
        self.db = db
        self.now_at = now_at
        self.namespace_id = namespace_id
        self.eligible: list[int] = []  # The class of each job that became eligible.
        self.changed: list[JobId] = []
        self._memory = memory
        self._class_ids = memory.class_ids
        self._rule_index: RuleIndex | None = None
        self._parked: tuple[bool, bool] | None = None
        self._new_classes: list[ClassKey] = []
        self._notifier = notifier
        self._hooks = hooks

    @property
    def rule_index(self) -> RuleIndex:
        """The rules in force."""
        if self._rule_index is None:
            version = self.db.first("rules_version", self.namespace_id) or 0
            if version != self._memory.rules_version:
                parts = self.db.run("documents", self.namespace_id, RULES, None)
                self._memory.rule_index = read_rulebook(body for _, _, _, body in parts)
                self._memory.rules_version = version
                self._hooks.after_rollback(self._memory.forget_rules)
            self._rule_index = self._memory.rule_index
        return self._rule_index

    def adopt_rules(self) -> None:
        """A part of the rules was written: read them anew."""
        self.db.run("rules_changed", self.namespace_id)
        self._rule_index = None

    @property
    def parked(self) -> bool:
        """Whether any job waits for a limit of its own."""
        return self._parks()[0]

    @property
    def parks_open(self) -> bool:
        """Whether any of them may try again."""
        return self._parks()[1]

    def parks_changed(self) -> None:
        self._parked = None

    def _parks(self) -> tuple[bool, bool]:
        if self._parked is None:
            found = self.db.run("park_any", self.namespace_id).fetchone()
            self._parked = (False, False) if found is None else (True, found[1] is not None)
        return self._parked

    def known_class_id(self, key: tuple[str, tuple[str, ...], str | None, bool]) -> int | None:
        """Return the number of a class if this process knows it; a tuple equals the ClassKey of the same values."""
        return self._class_ids.get(key)  # type: ignore[call-overload, no-any-return]

    def forget_changes(self) -> None:
        """Take back what was gathered, since it was undone: new classes, too."""
        self.eligible.clear()
        self.changed.clear()
        while self._new_classes:
            self._class_ids.pop(self._new_classes.pop(), None)

    def class_id(self, key: ClassKey) -> int:
        """Return the number of a class; one that is new becomes known."""
        known = self._class_ids.get(key)
        if known is None:
            needs = rows.json_list(sorted(key.needs))
            known = int(
                self.db.first("class_add", self.namespace_id, key.lane, key.rung or "", needs, int(key.persist))
            )
            self._class_ids[key] = known
            self._new_classes.append(key)
            # A rollback takes a new class with it, and then its number must not be remembered.
            self._hooks.after_rollback(partial(self._class_ids.pop, key, 0))
        return known

    def classes(self) -> dict[int, ClassKey]:
        """Return all classes by their numbers, those of other processes too."""
        return {row[0]: rows.class_key(*row[1:]) for row in self.db.run("classes", self.namespace_id)}

    def count(self, counts: Mapping[str, int]) -> None:
        """Add to this minute's totals."""
        for what, count in counts.items():
            self.db.run("count", self.namespace_id, self.now_at // MINUTE, what, count)

    def notify(self, name: str) -> None:
        """Wake one ear once this is durable."""
        self._hooks.after_commit(partial(self._notifier.notify, name))

    def wake_all(self) -> None:
        """Wake every waiting worker: what they may claim has changed."""
        for worker_id, _, _ in self.db.run("workers_waiting", self.namespace_id, self.now_at).fetchall():
            self.db.run("worker_unwait", worker_id)
            self.notify(worker_id)

    def settle(self, *, but: str | None = None) -> None:
        """Wake waiting workers for what became eligible, except the one that asks, and tell watchers what changed."""
        if self.eligible:
            self._wake_workers(but)
        if self.changed:
            self._hooks.after_commit(partial(self._notifier.ring_watchers, self.changed))

    def _wake_workers(self, but: str | None) -> None:
        """Wake a waiting worker for each job that became eligible, as far as one can serve it."""
        waiting = self.db.run("workers_waiting", self.namespace_id, self.now_at).fetchall()
        if not waiting:
            return
        keys = self.classes()
        for class_id in self.eligible:
            key = keys[class_id]
            for index, (worker_id, offers, lanes) in enumerate(waiting):
                if worker_id == but or (lanes is not None and key.lane not in _names(lanes)):
                    continue
                if serves(key.needs, _names(offers)):
                    self.db.run("worker_unwait", worker_id)
                    self.notify(worker_id)
                    del waiting[index]
                    break
            if not waiting:
                return


@lru_cache(maxsize=256)
def _names(text: str) -> frozenset[str]:
    return frozenset(rows.read_strings(text))
