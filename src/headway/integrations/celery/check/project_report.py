"""The report on a Celery project: each task, option, call, setting and schedule on Headway, and a proposed policy."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from celery.app.task import Task  # type: ignore[import-untyped]
from celery.schedules import crontab, maybe_schedule, schedule, solar  # type: ignore[import-untyped]

from headway.core.errors import ConfigError
from headway.integrations.celery.adoption.beat_tables import TABLES, read_rows, row_cron, tables_installed
from headway.integrations.celery.adoption.features import FEATURES, Feature, FeatureKind, FeatureStatus, find_feature
from headway.integrations.celery.adoption.queues import known_queues, routed_queue
from headway.integrations.celery.adoption.rates import rate_of
from headway.integrations.celery.app_import import import_celery_app, load_all_tasks
from headway.integrations.celery.check.policy_proposal import PolicyProposal, propose_policy
from headway.integrations.celery.check.source_scan import Use, scan_sources

UNKNOWN = "Celery has no such name; what your code does with it stays as it is"
PICKLE = (
    "Headway never pickles: arguments and results must be JSON, and a call with another value is refused by its name"
)
_ORDER = (FeatureStatus.AS_IS, FeatureStatus.DIFFERS, FeatureStatus.REFUSED)
_INTERNAL = frozenset({"name", "run", "app", "request_stack", "typing", "abstract"})


class UsedFeature(NamedTuple):
    """One name of Celery that the project uses."""

    kind: FeatureKind
    name: str
    status: FeatureStatus
    note: str
    places: tuple[str, ...]  # ``file.py:12``, or the name of a task, setting or entry of the schedule.


class TaskLine(NamedTuple):
    """One task of the project. Its status is the worst of what it uses."""

    name: str
    queue: str
    lane: str
    status: FeatureStatus
    reasons: tuple[str, ...]


class ScheduleLine(NamedTuple):
    """One entry of the beat schedule."""

    name: str
    task: str
    schedule: str
    status: FeatureStatus
    note: str


@dataclass(frozen=True, slots=True)
class ProjectReport:
    """Everything that ``headway celery check`` prints."""

    project: str
    folder: str
    tasks: list[TaskLine]
    findings: list[UsedFeature]
    schedule: list[ScheduleLine]
    proposal: PolicyProposal
    files: int
    unreadable: list[str] = field(default_factory=list)

    @property
    def refused(self) -> bool:
        """Whether anything that the project uses is refused."""
        statuses = [*(one.status for one in self.findings), *(one.status for one in self.schedule)]
        return FeatureStatus.REFUSED in statuses


def check_project(project: str, folder: Path) -> ProjectReport:
    """Import a Celery project as ``celery -A`` does, scan its sources, and report. Raises ``ConfigError``."""
    app = import_celery_app(project)
    load_all_tasks(app, project)
    tasks = {name: task for name, task in sorted(app.tasks.items()) if not name.startswith("celery.")}
    scanned = scan_sources(folder, (name.rpartition(".")[2] for name in tasks))
    plain = _plain_task(app)
    by_task = {name: list(_task_features(task, plain)) for name, task in tasks.items()}
    owners = _Owners(folder, tasks)
    collected = _Collected()
    for use in scanned.uses:
        feature = _feature_of(use.kind, use.name, use.value)
        collected.add(feature, f"{use.path}:{use.line}")
        owner = owners.task_at(use)
        if owner is not None and feature not in by_task[owner]:
            by_task[owner].append(feature)
    for name, features in by_task.items():
        for feature in features:
            collected.add(feature, name)
    for feature in _setting_features(app):
        collected.add(feature, "settings")
    if TABLES in sys.modules:  # One of Django's installed apps. The scheduler may only be named on a command line.
        collected.add(_feature_of(FeatureKind.SCHEDULE, TABLES), "installed apps")
    queues = {name: routed_queue(app, name) for name in tasks}
    proposal = propose_policy(app, tasks, queues, known_queues(app))
    lines = [_task_line(name, queues[name], proposal.lanes[name], by_task[name]) for name in tasks]
    schedule_lines = [_schedule_line(name, entry, tasks) for name, entry in sorted(app.conf.beat_schedule.items())]
    schedule_lines += _row_lines(app, tasks, collected)
    return ProjectReport(
        project, str(folder), lines, collected.findings(), schedule_lines, proposal, scanned.files, scanned.unreadable
    )


class _Collected:
    """The features that a project uses, with their places."""

    def __init__(self) -> None:
        self._places: dict[Feature, dict[str, None]] = {}

    def add(self, feature: Feature, place: str) -> None:
        self._places.setdefault(feature, {})[place] = None

    def findings(self) -> list[UsedFeature]:
        """Return what was found, the refused first."""
        found = [UsedFeature(*feature, tuple(places)) for feature, places in self._places.items()]
        return sorted(found, key=lambda one: (-_ORDER.index(one.status), one.kind, one.name))


class _Owners:
    """Finds the task in whose function a line of the sources is."""

    def __init__(self, folder: Path, tasks: dict[str, Any]) -> None:
        self._spans: dict[str, list[tuple[int, int, str]]] = {}
        for name, task in tasks.items():
            try:
                function = inspect.unwrap(task.run)
                lines, first = inspect.getsourcelines(function)
                path = Path(inspect.getsourcefile(function) or "").resolve().relative_to(folder.resolve()).as_posix()
            except (OSError, TypeError, ValueError):
                continue
            self._spans.setdefault(path, []).append((first, first + len(lines) - 1, name))

    def task_at(self, use: Use) -> str | None:
        return next((name for first, last, name in self._spans.get(use.path, ()) if first <= use.line <= last), None)


def _feature_of(kind: FeatureKind, name: str, value: Any = "") -> Feature:
    """Return what the table says of a name. A pickle serializer is refused, whatever its option does else."""
    if name.endswith("serializer") and value == "pickle":
        return Feature(kind, f"{name}='pickle'", FeatureStatus.REFUSED, PICKLE)
    if name == "beat_scheduler" and TABLES in str(value):
        kind, name = FeatureKind.SCHEDULE, TABLES
    return find_feature(kind, name) or Feature(kind, name, FeatureStatus.DIFFERS, UNKNOWN)


def _plain_task(app: Any) -> Any:
    """Return a task of the app that sets no option. It is not registered."""
    task = type("PlainTask", (app.Task,), {"name": "plain", "run": lambda self: None})()
    task.bind(app)
    return task


def _task_features(task: Any, plain: Any) -> Iterator[Feature]:
    """Yield the options that a task sets, and the methods that its base classes override."""
    for cls in type(task).__mro__:
        if cls is Task or cls is object:
            break
        generated = cls is type(task)
        for name, value in vars(cls).items():
            if name in _INTERNAL or (cls.__module__.startswith("celery.") and not generated):
                continue
            if not generated and find_feature(FeatureKind.TASK_METHOD, name) and callable(value):
                yield _feature_of(FeatureKind.TASK_METHOD, name)
            elif _is_option(name) and value is not None and value != getattr(plain, name, None):
                yield _option(name, value)


def _is_option(name: str) -> bool:
    return not name.startswith("__") and find_feature(FeatureKind.TASK_OPTION, name) is not None


def _option(name: str, value: Any) -> Feature:
    if name == "rate_limit":
        try:
            rate_of(value)
        except ConfigError as problem:
            return Feature(FeatureKind.TASK_OPTION, name, FeatureStatus.REFUSED, str(problem))
    return _feature_of(FeatureKind.TASK_OPTION, name, value)


def _setting_features(app: Any) -> Iterator[Feature]:
    """Yield the settings that the project sets, by their names of today, also if Django's settings hold them."""
    for name in (feature.name for feature in FEATURES if feature.kind is FeatureKind.SETTING):
        if not app.conf.value_set_for(name):
            continue
        value = app.conf.get(name)
        yield _feature_of(FeatureKind.SETTING, name, value)
        if name == "accept_content" and any("pickle" in str(one) for one in value or ()):
            yield Feature(FeatureKind.SETTING, "accept_content with pickle", FeatureStatus.DIFFERS, PICKLE)


def _task_line(name: str, queue: str, lane: str, features: Iterable[Feature]) -> TaskLine:
    worst = max((feature.status for feature in features), key=_ORDER.index, default=FeatureStatus.AS_IS)
    reasons = tuple(f"{one.name}: {one.note}" for one in features if one.status is worst is not FeatureStatus.AS_IS)
    return TaskLine(name, queue, lane, worst, reasons)


def _schedule_line(name: str, entry: Any, tasks: dict[str, Any]) -> ScheduleLine:
    """Return what becomes of an entry of the beat schedule."""
    task, when = entry["task"], maybe_schedule(entry["schedule"])
    status, note = FeatureStatus.AS_IS, ""
    if isinstance(when, solar) or not isinstance(when, (crontab, schedule)):
        feature = find_feature(FeatureKind.SCHEDULE, "solar")
        status, note = FeatureStatus.REFUSED, "" if feature is None else feature.note
    elif task not in tasks:
        status, note = FeatureStatus.DIFFERS, "no task of this name is registered, so Headway cannot start it"
    elif not isinstance(when, crontab) and when.run_every < timedelta(seconds=1):
        feature = find_feature(FeatureKind.SCHEDULE, "relative")
        status, note = FeatureStatus.DIFFERS, "" if feature is None else feature.note
    return ScheduleLine(name, task, str(when), status, note)


def _row_lines(app: Any, tasks: dict[str, Any], collected: _Collected) -> Iterator[ScheduleLine]:
    """Yield what becomes of the rows of django_celery_beat. Celery beat copies the settings there, too."""
    if not tables_installed():
        return
    from django.db import Error

    try:
        rows = read_rows()
    except Error as problem:
        note = f"its tables cannot be read here: {str(problem).strip()}"
        collected.add(Feature(FeatureKind.SCHEDULE, "PeriodicTask rows", FeatureStatus.DIFFERS, note), "database")
        return
    for row in sorted(rows, key=lambda row: row.name):
        if row.name in app.conf.beat_schedule or row.task.startswith("celery."):
            continue
        status, note = FeatureStatus.AS_IS, ""
        planned = row_cron(app, row)
        if row.solar_id is not None:
            feature = find_feature(FeatureKind.SCHEDULE, "solar")
            status, note = FeatureStatus.REFUSED, "" if feature is None else feature.note
        elif isinstance(planned, str):
            status, note = FeatureStatus.DIFFERS, f"celery beat has to send it: {planned}"
        elif row.task not in tasks:
            status, note = FeatureStatus.DIFFERS, "no task of this name is registered, so Headway cannot start it"
        yield ScheduleLine(row.name, row.task, str(row.scheduler), status, note)
