"""Tasks of other apps, known from the store's catalogue or only by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Union

from headway.client.codec import SESSION, Signature
from headway.client.options import Limit, Retry, TaskOptions, Unique
from headway.client.task import Task
from headway.core.errors import BadArguments
from headway.policy_store.catalogue import TaskEntry

if TYPE_CHECKING:
    from headway.client.app import Headway

_KINDS: dict[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "null": None}


def task_from_catalogue(app: Headway, entry: TaskEntry) -> Task[Any, Any, Any]:
    """Return a task built from its catalogue entry. Its calls are checked and built like those of a local task."""
    properties, required = entry.parameters.get("properties", {}), entry.parameters.get("required", ())

    async def elsewhere(**_: Any) -> None:
        raise AssertionError("a task of the catalogue runs in a worker")

    elsewhere.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                parameter,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if parameter in required else None,
                annotation=_kind(schema),
            )
            for parameter, schema in properties.items()
        ]
    )
    rule = entry.retry
    options = TaskOptions(
        priority=entry.lane,
        fair_by=entry.fair_by,
        max_retries=entry.max_retries,
        timeout=None if entry.timeout_ms is None else entry.timeout_ms / 1_000,
        retry=None if rule is None or rule.backoff == "policy" else Retry.of(rule),
        on_stop="fail" if rule is None else rule.on_stop,
        unique=Unique(by=entry.unique_by) if entry.unique else None,
        needs=entry.needs,
        persist=entry.persist,
        duration=entry.duration,
        limits=[Limit.of(rule) for rule in entry.limits],
    )
    return Task(app, elsewhere, entry.name, options)


def untyped_task(app: Headway, name: str) -> Task[Any, Any, Any]:
    """Return a task of which only the name is known. It accepts any arguments."""

    def elsewhere() -> None:
        raise AssertionError("a task known by its name alone runs in a worker")

    return Task(app, elsewhere, name, TaskOptions(), signature=_UntypedSignature(name, elsewhere))


class _UntypedSignature(Signature):
    """Accepts any JSON values by name. The worker that has the task checks them."""

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if args:
            raise BadArguments(f"task {self._name}: no worker has registered it yet, so give its arguments by name")
        return self.check_named(kwargs)

    def check_named(self, values: Mapping[str, Any]) -> dict[str, Any]:
        if SESSION in values:
            raise BadArguments(f"no task has a parameter {SESSION!r}")
        return dict(values)

    def encode(self, values: Mapping[str, Any], *, largest: int) -> bytes:
        payload = super().encode(values, largest=largest)
        if b"null" in payload:
            self._check_numbers(values)
        return payload


def _kind(schema: dict[str, Any]) -> Any:
    """Return the type of a parameter with a plain schema, else Any. The worker checks the other parameters."""
    match {key: value for key, value in schema.items() if key not in ("default", "title", "description")}:
        case {"type": str(kind), **others} if not others:
            return _KINDS.get(kind, Any)
        case {"enum": [_, *_] as values, **others} if not others and all(type(value) in (str, int) for value in values):
            return Literal[tuple(values)]
        case {"anyOf": [_, *_] as schemas, **others} if not others:
            kinds = [_kind(one) if isinstance(one, dict) else Any for one in schemas]
            return Any if Any in kinds else Union[tuple(kinds)]  # noqa: UP007
        case _:
            return Any
