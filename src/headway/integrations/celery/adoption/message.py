"""A message of Celery as the arguments of a job: JSON, with Celery's own encoding of dates, decimals and UUIDs."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from kombu.utils import json as kombu_json

from headway.client.codec import REFERENCES_VERSION, Signature, payload_body, too_large
from headway.core.errors import PayloadError
from headway.core.job import PAYLOAD_VERSION

dumps: Callable[..., str] = kombu_json.dumps
loads: Callable[..., Any] = kombu_json.loads

MESSAGE = "celery.message"  # No parameter of a task can have this name.
HEADER_RESULTS = "$results"  # In the place of an argument: results of jobs, by an id or by nested lists of ids.
CHORD_HEADER = "chord_header"  # In ``embed``: the ids of a header whose results the body of a chord does not take.
CALL = "celery.call"  # The key of a whole message among the named arguments of a call.

# Headers that a worker does not need, or that Headway keeps itself.
_MADE_PROPERTIES = frozenset({"correlation_id", "reply_to", "priority", "expiration"})
_DROPPED = frozenset({"lang", "task", "id"})


class TaskMessage(NamedTuple):
    """The message that Celery sends to a worker. ``headers`` and ``embed`` have no empty values."""

    args: list[Any]
    kwargs: dict[str, Any]
    headers: dict[str, Any]
    embed: dict[str, Any]  # callbacks, errbacks, chain, chord and chord_header.
    queue: str = ""
    priority: int | None = None
    properties: Mapping[str, Any] = MappingProxyType(
        {}
    )  # Properties of the message that the caller set, such as ``app_id``.

    def stored(self) -> dict[str, Any]:
        """Return the message as the value that a job stores."""
        about: dict[str, Any] = {"headers": self.headers, "queue": self.queue}
        if self.embed:
            about["embed"] = self.embed
        if self.priority is not None:
            about["priority"] = self.priority
        if self.properties:
            about["properties"] = dict(self.properties)
        return {"args": self.args, "kwargs": self.kwargs, MESSAGE: about}


def make_message(
    body: tuple[Sequence[Any], Mapping[str, Any], Mapping[str, Any]],
    headers: Mapping[str, Any],
    queue: str,
    properties: Mapping[str, Any],
) -> TaskMessage:
    """Return the message of a job from the parts that Celery has made."""
    args, kwargs, embed = body
    kept = {name: value for name, value in headers.items() if value and name not in _DROPPED}
    if kept.get("timelimit") in ([None, None], (None, None)):
        del kept["timelimit"]
    kept["headway_sent_at"] = time.time_ns()  # A second call with the same id is not the same submit.
    if headers.get("ignore_result") is not None:  # False overrides the task's own option.
        kept["ignore_result"] = headers["ignore_result"]
    own = {name: value for name, value in properties.items() if value and name not in _MADE_PROPERTIES}
    used = {name: value for name, value in embed.items() if value}
    return TaskMessage(list(args), dict(kwargs), kept, used, queue, properties.get("priority"), own)


def second_protocol(message: Any) -> Any:
    """Return a message of ``task_protocol`` 1 in the form of protocol 2, whose body has arguments and callbacks."""
    body = dict(message.body)
    args, kwargs = body.pop("args"), body.pop("kwargs")
    embed = {name: body.pop(name) for name in ("callbacks", "errbacks", "chord")}
    return message._replace(headers={**body, **message.headers}, body=(args, kwargs, embed))


class MessageSignature(Signature):
    """The parameters of an adopted task. Its jobs store a message, or the named arguments of another client."""

    def __init__(self, name: str, function: Any) -> None:
        super().__init__(name, function)
        self._task_name = name

    def encode(self, values: Mapping[str, Any], *, largest: int) -> bytes:
        """Return the payload of a call: its message, or for a call by name its arguments."""
        message: TaskMessage | None = values.get(CALL)
        if message is None:
            message = self._named(dict(values))
        stored = message.stored()
        try:
            payload = dumps(stored, allow_nan=False).encode()
        except Exception as problem:
            raise self._refusal(message, problem) from None
        if len(payload) > largest:
            raise too_large(self._task_name, len(payload), largest)
        return PAYLOAD_VERSION + payload

    def encode_usual(self, args: tuple[Any, ...], *, largest: int) -> bytes | None:
        return None

    def decode(self, payload: bytes) -> tuple[list[Any], dict[str, Any]]:
        """Return the message of a job as the one argument of the function that runs it."""
        message = read_message(payload)
        if not message.queue and not message.headers and not message.args:
            message = self._named(message.kwargs)
        return [message], {}

    def _named(self, values: dict[str, Any]) -> TaskMessage:
        """Return the message of a call that has its arguments by name."""
        if not set(values) <= set(self.parameters):
            return TaskMessage([], values, {}, {})
        args, kwargs = self._spread(values)
        return TaskMessage(args, kwargs, {}, {})

    def bind_loosely(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name as far as they fit. Celery has checked them if it knows the task."""
        try:
            bound = self.signature.bind_partial(*args, **kwargs).arguments
        except TypeError:
            return dict(kwargs)
        named: dict[str, Any] = {}
        for name, value in bound.items():
            if self.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                named |= value
            else:
                named[name] = value
        return named

    def _refusal(self, message: TaskMessage, problem: Exception) -> PayloadError:
        """Return an error that names the argument which JSON cannot hold."""
        positional = [p.name for p in self.signature.parameters.values() if p.kind in _POSITIONAL]
        named = [
            *(
                (positional[at] if at < len(positional) else f"args[{at}]", value)
                for at, value in enumerate(message.args)
            ),
            *message.kwargs.items(),
            *((f"header {name}", value) for name, value in message.headers.items()),
            *((f"option {name}", value) for name, value in message.embed.items()),
        ]
        for name, value in named:
            try:
                dumps(value, allow_nan=False)
            except Exception as found:
                text = f"argument {name!r} is a {type(value).__name__} that JSON cannot hold: {found}"
                return PayloadError(
                    f"task {self._task_name}: {text}; Headway never pickles, so pass text, numbers, lists or dicts",
                    task=self._task_name,
                    argument=name,
                )
        return PayloadError(f"task {self._task_name}: the arguments cannot be stored as JSON: {problem}")


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def read_message(payload: bytes) -> TaskMessage:
    """Return the message of a job. The arguments of a job that was submitted by name are keyword arguments."""
    stored = loads(bytes(payload_body(payload)).decode())
    about = stored.get(MESSAGE)
    if about is None:
        return TaskMessage([], stored, {}, {})
    return TaskMessage(
        stored["args"],
        stored["kwargs"],
        about.get("headers", {}),
        about.get("embed", {}),
        about.get("queue", ""),
        about.get("priority"),
        about.get("properties", {}),
    )


def plain_result(value: Any) -> Any:
    """Return a result as plain JSON values. Raises ``TypeError`` or ``ValueError`` for what JSON cannot hold."""
    return None if value is None else msgspec.json.decode(dumps(value, allow_nan=False))


def read_result(value: Any) -> Any:
    """Return the result that ``plain_result`` has made plain."""
    return value if isinstance(value, (str, int, float, type(None))) else loads(dumps(value))


def with_references(payload: bytes) -> bytes:
    """Return a payload whose ``{"$out": n}`` the worker replaces by the result of the n-th source."""
    return REFERENCES_VERSION + payload[len(PAYLOAD_VERSION) :]
