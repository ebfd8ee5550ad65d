"""Proposes a policy for a Celery project: the lanes of its queues and priorities, its rates and time limits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from headway.core.errors import ConfigError
from headway.core.policy.document import BUILT_IN
from headway.integrations.celery.adoption.queues import lane_of_priority, transport_of
from headway.integrations.celery.adoption.rates import rate_of

# Words in the names of queues, and the lane that they suggest.
_WORDS = {
    "high": ("critical", "express", "fast", "high", "important", "interactive", "priority", "realtime", "urgent"),
    "low": ("background", "backfill", "batch", "bulk", "export", "exports", "import", "long", "low", "report",
            "reports", "slow"),
}  # fmt: skip
_LANES = {word: lane for lane, words in _WORDS.items() for word in words}


class QueueProposal(NamedTuple):
    """One queue, the lane proposed for it, and why."""

    queue: str
    lane: str
    tasks: int
    reason: str


class PolicyProposal(NamedTuple):
    """A proposed policy. ``tasks`` is the part of a policy file, and ``lanes`` has the lane of each task."""

    queues: list[QueueProposal]
    tasks: dict[str, dict[str, Any]]
    lanes: dict[str, str]
    worker_flags: list[str]

    @property
    def data(self) -> dict[str, Any]:
        """The policy as plain values. All that it does not name is as built in."""
        return {"tasks": self.tasks} if self.tasks else {}


def propose_policy(
    app: Any, tasks: Mapping[str, Any], queues: Mapping[str, str], known: Iterable[str]
) -> PolicyProposal:
    """Propose a policy for tasks, given the queue of each and all queues of the settings."""
    lanes: dict[str, str] = {}
    rules: dict[str, dict[str, Any]] = {}
    for name, task in tasks.items():
        lanes[name] = _lane(app, task, queues[name])
        rule = _rule(task, lanes[name])
        if rule:
            rules[name] = rule
    shown = [_queue_proposal(queue, queues) for queue in dict.fromkeys([*known, *queues.values()])]
    return PolicyProposal(shown, rules, lanes, _worker_flags(app))


def _queue_proposal(queue: str, queues: Mapping[str, str]) -> QueueProposal:
    lane, reason = lane_of_queue(queue)
    return QueueProposal(queue, lane, sum(one == queue for one in queues.values()), reason)


def lane_of_queue(queue: str) -> tuple[str, str]:
    """Return the lane that a queue's name suggests, and why."""
    if queue in BUILT_IN.lanes:
        return queue, "the lane has the same name"
    for word in re.split(r"[^a-z]+", queue.lower()):
        if word in _LANES:
            return _LANES[word], f"its name has the word {word!r}"
    return BUILT_IN.default_lane, "the default lane"


def _lane(app: Any, task: Any, queue: str) -> str:
    priority = getattr(task, "priority", None)
    if isinstance(priority, int):
        return lane_of_priority(priority, BUILT_IN, transport_of(app))
    return lane_of_queue(queue)[0]


def _rule(task: Any, lane: str) -> dict[str, Any]:
    """Return the table of a task, as far as it differs from the built-in policy."""
    rule: dict[str, Any] = {}
    if lane != BUILT_IN.default_lane:
        rule["priority"] = lane
    if isinstance(task.time_limit, (int, float)) and task.time_limit > 0:
        rule["timeout"] = task.time_limit
    try:
        rate = rate_of(task.rate_limit)
    except ConfigError:  # The report refuses it.
        rate = None
    if rate is not None:
        rule["limits"] = [{"rate": rate}]
    return rule


def _worker_flags(app: Any) -> list[str]:
    """Return the flags of ``headway worker`` that stand for settings of Celery's worker."""
    conf = app.conf
    flags = []
    if conf.worker_concurrency:
        flags.append(f"--slots {conf.worker_concurrency}")
    if conf.worker_max_tasks_per_child:
        flags.append(f"--max-jobs-per-child {conf.worker_max_tasks_per_child}")
    if conf.worker_max_memory_per_child:  # In KiB.
        flags.append(f"--max-memory-per-child {max(1, conf.worker_max_memory_per_child // 1_024)}")
    return flags
