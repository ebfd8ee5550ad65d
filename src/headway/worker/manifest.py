"""The manifest of a worker's app for its backend: tasks, limits and schedules. Warns of mistakes in them."""

from __future__ import annotations

import inspect
import logging
from dataclasses import asdict
from typing import Any

from headway.client.app import Headway
from headway.client.job_template import cron_key
from headway.client.task import Task
from headway.core.log_event import LogEvent
from headway.core.policy.document import INTERACTIVE, Policy
from headway.core.policy.ladder import rung_index
from headway.policy_store.catalogue import JOB_FIELDS, CronDocument, TaskEntry
from headway.worker.backend.base import AppManifest

log = logging.getLogger("headway.worker")


def manifest(app: Headway, policy: Policy) -> AppManifest:
    """Build the manifest of the app's tasks under a policy."""
    if app.policy is not policy:  # A server's policy applies until the app reads its own store.
        app.in_force.policy = policy
    tasks = app.tasks.values()
    for task in tasks:
        if (problem := task.problem) is not None:
            log.warning(LogEvent("worker.task_refused", task=task.name, problem=problem))
    return AppManifest(
        [catalogue_entry(task) for task in tasks], {task.name: task.limits for task in tasks}, _crons(app)
    )


def catalogue_entry(task: Task[Any, Any, Any]) -> TaskEntry:
    template, options = task.template, task.options
    unique = options.unique
    return TaskEntry(
        name=task.name,
        lane=template.lane,
        executor=task.executor,
        needs=template.needs,
        fair_by=options.fair_by,
        persist=template.persist,
        max_retries=options.max_retries,
        timeout_ms=None if options.timeout is None else template.timeout_ms,
        retry=template.retry,
        duration=options.duration,
        limits=tuple(limit.rule(task.name) for limit in options.limits),
        unique=unique is not None,
        unique_by=tuple(unique.by) if unique is not None and unique.by is not None else None,
        redact=tuple(options.redact),
        parameters=task.signature.schema(),
        doc=(inspect.getdoc(task.fn) or "").partition("\n")[0],
    )


def _crons(app: Headway) -> list[CronDocument]:
    documents = []
    for entry in app.crons.values():
        new = app.tasks[entry.task].call_named({}).new
        job: dict[str, Any] = {name: getattr(new, name) for name in JOB_FIELDS}
        if entry.overlap == "skip":
            job["unique_key"] = cron_key(entry.task)
        documents.append(CronDocument(**asdict(entry), **job))
    return documents


def warn_of_threads(app: Headway, policy: Policy) -> None:
    """Warn of tasks with a time limit or a duration that a thread may not keep."""
    ladder = policy.ladder
    threads = [task for task in app.tasks.values() if task.executor == "thread"]
    timed = [task.name for task in threads if task.options.timeout is not None]
    if timed:
        hint = (
            "a thread cannot be stopped: if one ignores ctx.cancelled, its runner is killed after hard_grace, and "
            "the other jobs there run again; use executor='process'"
        )
        log.warning(LogEvent("task.thread_has_timeout", tasks=", ".join(timed), hint=hint))
    bounded = [task.name for task in threads if rung_index(ladder, task.template.rung) is not None]
    if bounded:
        hint = "a thread cannot be stopped: let the task look at ctx.budget, or use executor='process'"
        log.warning(LogEvent("task.thread_has_duration", tasks=", ".join(bounded), hint=hint))


def warn_of_durations(app: Headway, policy: Policy) -> None:
    """Log which tasks ask for a duration although the policy has no ladder."""
    if policy.ladder.rungs:
        return
    found = [task.name for task in app.tasks.values() if task.options.duration not in (None, INTERACTIVE)]
    if found:
        remedy = "add [ladder] to the policy, or remove duration= from these tasks"
        log.warning(LogEvent("task.duration_ignored", tasks=found, remedy=remedy))


def warn_of_fair_by(app: Headway, policy: Policy) -> None:
    """Warn of tasks that the policy shares by a parameter which they do not have."""
    for name, rule in policy.tasks.items():
        task = app.tasks.get(name)
        if task is not None and rule.fair_by is not None and rule.fair_by not in task.signature.parameters:
            known = ", ".join(task.signature.parameters) or "none"
            facts = {"task": name, "fair_by": rule.fair_by, "parameters": known}
            log.warning(LogEvent("task.fair_by_ignored", **facts))
