"""Find the sender of a task: a user, by the value of a parameter, or the bulk that the task belongs to."""

from __future__ import annotations

import inspect
from typing import NamedTuple

from celery import Celery  # type: ignore[import-untyped]

from headway.integrations.celery.messages import USER_HEADER, Envelope
from headway.integrations.celery.options import BalancerOptions, By
from headway.integrations.celery.sharding import shard_of


class TaskSender(NamedTuple):
    """The sender of a task: a ``user``, or a bulk without a name. ``text`` is hashed to choose queues."""

    text: str = ""
    user: str = ""


NOBODY = TaskSender()


class TaskSenders:
    """Finds the sender of each task."""

    def __init__(self, app: Celery, rules: BalancerOptions) -> None:
        self._app = app
        self._rules = rules
        self._places: dict[str, int | None] = {}

    def of(self, name: str, envelope: Envelope) -> TaskSender:
        """Return the user of a task, else the root task that it was sent from, else its group, else no sender."""
        if self._rules.by is not None:
            user = self._value(self._rules.by, name, envelope)
            if user is None:
                sender = self._app.current_worker_task
                inherited = None if sender is None else sender.request.get(USER_HEADER)
                user = envelope.headers.get(USER_HEADER) or inherited
            if user is not None and user != "":
                return TaskSender(f"user:{user}", str(user))
        if envelope.parent_id and envelope.root_id:
            return TaskSender(f"root:{envelope.root_id}")
        if envelope.group_id:
            return TaskSender(f"group:{envelope.group_id}")
        return NOBODY

    def queues_of(self, source: TaskSender) -> tuple[int, ...]:
        """Return the numbers of the queues that a sender's tasks may use. () means all."""
        if not source.text:
            return ()
        width = self._rules.width(user=bool(source.user))
        return () if width >= self._rules.queues else shard_of(source.text, queues=self._rules.queues, width=width)

    def _value(self, by: By, name: str, envelope: Envelope) -> object:
        if callable(by):
            return by(name, envelope.args, envelope.kwargs)
        if by in envelope.kwargs:
            return envelope.kwargs[by]
        place = self._place(by, name)
        return envelope.args[place] if place is not None and place < len(envelope.args) else None

    def _place(self, by: str, name: str) -> int | None:
        """Return the index of a positional parameter, or None if this process does not know the task or parameter."""
        if name not in self._places:
            task = self._app.tasks.get(name)
            if task is None:
                return None
            positional = [
                parameter.name
                for parameter in inspect.signature(task.run).parameters.values()
                if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            ]
            self._places[name] = positional.index(by) if by in positional else None
        return self._places[name]
