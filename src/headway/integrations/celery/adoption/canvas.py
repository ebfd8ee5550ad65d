"""Chains, groups and chords of adopted tasks, as graphs of jobs that are submitted in one step.

Celery's own code takes a canvas apart, adds callbacks and chooses ids. It sends the tasks inside ``collecting``, so
that the store gets all of them or none. The body of a chord waits for the jobs of its header in the store.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from celery import Task as CeleryTask  # type: ignore[import-untyped]
from celery import canvas, uuid
from celery.result import GroupResult  # type: ignore[import-untyped]

from headway.client.task import Call
from headway.core.errors import ConfigError
from headway.integrations.celery.adoption.message import CALL
from headway.integrations.celery.adoption.sender import HeaderResults

if TYPE_CHECKING:
    from headway.integrations.celery.adoption.adoption import Adoption

_MOMENTS = ("countdown", "eta", "expires")  # They count from the moment at which a step is sent.
_installed = False
_CHAIN, _GROUP, _CHORD = "chain", "group", "chord"


def install() -> None:
    """Wrap the two functions in which Celery sends groups and chords. Only calls of adopted tasks notice."""
    global _installed
    if _installed:
        return
    _installed = True
    canvas.group.apply_async = _sent_together(canvas.group.apply_async)
    canvas._chord.run = _with_body(canvas._chord.run)


def _sent_together(apply_async: Any) -> Any:
    @functools.wraps(apply_async)
    def send(self: Any, *args: Any, **kwargs: Any) -> Any:
        adoption = _adoption(self.app)
        if adoption is None or self.app.conf.task_always_eager:
            return apply_async(self, *args, **kwargs)
        with adoption.sender.collecting():
            return apply_async(self, *args, **kwargs)

    return send


def _with_body(run: Any) -> Any:
    @functools.wraps(run)
    def run_chord(self: Any, header: Any, body: Any, partial_args: Any, app: Any = None, **options: Any) -> Any:
        used = app or self._get_app(body)
        adoption = _adoption(used)
        if adoption is None or not _all_adopted(adoption, [header, body]):
            return run(self, header, body, partial_args, app=app, **options)
        options["task_id"] = options.get("task_id") or uuid()  # Before Celery 5.6 a chain as the body has none.
        with adoption.sender.collecting() as opened:
            known = len(opened.chords)
            before, opened.steps = opened.steps, deque()  # Only chains of the header must be complete here.
            result = run(self, header, body, partial_args, app=app, **options)
            adoption.sender.add_steps(opened)
            opened.steps = before
            for sent_body, ids in opened.chords[known:]:
                members = opened.members.pop(sent_body.options["task_id"])
                with adoption.sender.after_header(members, ids):
                    sent_body.apply_async((HeaderResults(ids),), **_origin(members))
            del opened.chords[known:]
            return result

    return run_chord


def begin_chord(adoption: Adoption, header_result_args: Any, body: Any) -> bool:
    """Note a chord that is being sent. Return False if its tasks are not adopted."""
    opened = adoption.sender.opened
    if opened is None or not _all_adopted(adoption, [body]):
        return False
    _, results = header_result_args
    opened.chords.append((body, [result_ids(result) for result in results]))
    opened.members[str(body.options["task_id"])] = []
    return True


def _origin(members: Sequence[Call[Any]]) -> dict[str, Any]:
    """Return the parent and the root of a chord's body: on Celery, the last task of the header sends it."""
    if not members:
        return {}
    last = members[-1]
    headers = (last.values or {})[CALL].headers
    return {"parent_id": str(last.new.job_id), "root_id": headers.get("root_id") or str(last.new.job_id)}


def result_ids(result: Any) -> Any:
    """Return the id of a result, or of a group's results as a list."""
    if isinstance(result, GroupResult):
        return [result_ids(one) for one in result.results or ()]
    return result.id


def signatures(app: Any, chain: Iterable[Any]) -> list[Any]:
    """Return the steps of a chain as signatures."""
    return [canvas.maybe_signature(step, app=app) for step in chain]


def can_hold(adoption: Adoption, step: Any) -> bool:
    """Return whether all tasks of a step are adopted and can be sent before the step before them has ended."""
    for sig in leaves(step):
        task = adoption.app.tasks.get(sig["task"])
        if not adoption.adopts_call(sig["task"], sig.get("kwargs") or {}):
            return False
        if task is not None and type(task).apply_async is not CeleryTask.apply_async:
            return False
        if any(sig.get("options", {}).get(name) for name in _MOMENTS):
            return False
    return "$out" not in str(step)


def leaves(step: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the signatures of the tasks in a signature."""
    kind = step.get("subtask_type")
    kwargs = step.get("kwargs") or {}
    if kind in (_CHAIN, _GROUP, _CHORD):
        for inner in _inner(kwargs, "tasks" if kind != _CHORD else "header"):
            yield from leaves(inner)
        if kind == _CHORD:
            yield from leaves(kwargs["body"])
    elif kind == "chunks":
        yield kwargs["task"]
    else:
        yield step


def _inner(kwargs: Mapping[str, Any], name: str) -> Iterable[Any]:
    tasks = kwargs.get(name) or ()
    if isinstance(tasks, Mapping):  # The header of a chord may be a group.
        return _inner(tasks.get("kwargs") or {}, "tasks")
    return tasks


def _all_adopted(adoption: Adoption, steps: list[Any]) -> bool:
    """Return whether all tasks of a chord are adopted. Raises ``ConfigError`` if only some are."""
    names = {
        sig["task"]: adoption.adopts_call(sig["task"], sig.get("kwargs") or {}) for s in steps for sig in leaves(s)
    }
    if names and not all(names.values()) and any(names.values()):
        stay = ", ".join(sorted(name for name, ours in names.items() if not ours))
        raise ConfigError(
            f"a chord has adopted tasks beside tasks that stay on Celery ({stay}); adopt all of them or none"
        )
    return bool(names) and all(names.values())


def _adoption(app: Any) -> Adoption | None:
    from headway.integrations.celery.adoption.adoption import find_adoption

    return find_adoption(app)
