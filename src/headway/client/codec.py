"""Encodes arguments and results for the store: binds them to the signature, checks them, and writes JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
import re
import types
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec

from headway.client.options import Dependency
from headway.core.errors import BadArguments, PayloadError, PayloadTooLarge, UpstreamFailed
from headway.core.job import PAYLOAD_VERSION, State
from headway.core.suggest import did_you_mean, shown
from headway.core.workflow import Upstream, is_batch

REFERENCES_VERSION = (
    b"\x02"  # The first byte of a payload in which ``{"$out": n}`` stands for the n-th source's result.
)
SESSION = "headway.server"  # A session's first payload member. No parameter can have this name.
_SESSION = PAYLOAD_VERSION + b'{"headway.server":'
DEPTH_MAX = 64
COPIED_MAX = 4_096  # Bytes; a copy of a smaller payload costs less than a view.

_SCALARS: tuple[type, ...] = (
    str, int, bool, float, type(None), bytes, datetime, date, time, timedelta, Decimal, UUID,
)  # fmt: skip
_PLAIN = frozenset({str, int, bool, type(None)})
_EXACT = (str, int, bool)  # JSON restores values of these types exactly.
_TYPED_CONTAINERS = (list, dict, tuple, set, frozenset)


def _encode_other(value: Any) -> Any:
    if hasattr(value, "model_dump"):  # A pydantic model, without importing pydantic.
        return value.model_dump(mode="json")
    raise NotImplementedError(f"{type(value).__name__} objects are not JSON")


def _decode_other(kind: type, value: Any) -> Any:
    if kind is object:  # As in dict[str, object]: any value is valid.
        return value
    if hasattr(kind, "from_argument"):  # The results of a batch.
        return kind.from_argument(kind, value)
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    raise NotImplementedError(f"{kind.__name__} objects cannot be read from JSON")


def _describe_other(kind: type) -> dict[str, Any]:
    return {"title": kind.__name__}  # msgspec ignores an empty description.


_encoder = msgspec.json.Encoder(enc_hook=_encode_other)
_sorted_encoder = msgspec.json.Encoder(enc_hook=_encode_other, order="sorted")
_plain_decoder = msgspec.json.Decoder()
_raw_decoder = msgspec.json.Decoder(msgspec.Raw)


class Signature:
    """The parameters of a task that callers fill in, and the encoding of their values.

    The payload is an object by parameter name, in the order of the signature. Defaults are not stored, so a later
    version of the task may change them. ``*args`` is stored as a list and ``**kwargs`` as an object, each under the
    name of its parameter.
    """

    def __init__(self, name: str, function: Callable[..., Any], *, context: bool = False) -> None:
        self._name = name
        self.signature = _signature(function)
        parameters = list(self.signature.parameters.values())
        if context:
            if not parameters:
                raise BadArguments(f"task {name}: context=True, but the function takes no parameter for it")
            del parameters[0]
        self.dependencies = {p.name: p.default for p in parameters if isinstance(p.default, Dependency)}
        own = [p for p in parameters if p.name not in self.dependencies]
        self.parameters = {p.name: p for p in own}
        self._bindable = inspect.Signature(own)
        kinds = {p.kind for p in own}
        self._odd = bool(kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD})
        self._positional_only = any(p.kind is inspect.Parameter.POSITIONAL_ONLY for p in own)
        self._positional = [p.name for p in own if p.kind is not inspect.Parameter.KEYWORD_ONLY]
        self._names = frozenset(self.parameters)
        self._required = frozenset(p.name for p in own if p.default is p.empty and p.kind not in _VARIABLE)
        self.defaults = {p.name: p.default for p in own if p.default is not p.empty and _storable(p.default)}
        self._all_required = len(self._required) == len(own)
        simple = not self._odd and not self._positional_only and self._required <= set(self._positional)
        self._usual = len(self._positional) if simple else -1  # A call with this many positional arguments binds.
        annotations = {p.name: _annotation(p) for p in own}
        self._walked = frozenset(name for name, kind in annotations.items() if not _is_typed(kind))
        self._typed = len(self._walked) < len(annotations)
        # If every annotation is one of these types, a value of exactly that type fits without a trial decode.
        all_exact = all(any(kind is exact for exact in _EXACT) for kind in annotations.values())
        self._exact = annotations if all_exact else None
        self._struct, self._decoder = _make_decoder(name, annotations, self._required)
        by_place = simple and all_exact and len(self._positional) == len(own)
        self._placed = msgspec.defstruct("Arguments", list(annotations.items())) if by_place else None
        self._placed_kinds = tuple(annotations.values())

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name. Raises ``BadArguments`` with Python's own text for a wrong call."""
        if len(args) == self._usual and not kwargs:
            return dict(zip(self._positional, args, strict=True))
        if not self._odd and not self._positional_only and len(args) <= len(self._positional):
            values = dict(zip(self._positional, args, strict=False))
            if not kwargs:
                if self._required <= values.keys():
                    return values
            elif not (values.keys() & kwargs.keys()):
                values |= kwargs
                if self._required <= values.keys() <= self._names:
                    return {name: values[name] for name in self.parameters if name in values}
        try:
            return dict(self._bindable.bind(*args, **kwargs).arguments)
        except TypeError as problem:
            raise BadArguments(f"task {self._name}: {problem}", task=self._name) from None

    def encode(self, values: Mapping[str, Any], *, largest: int) -> bytes:
        """Return named arguments as a payload.

        Raises ``PayloadError`` naming the argument that JSON cannot hold, ``BadArguments`` for one that does
        not fit its annotation, ``PayloadTooLarge`` beyond ``largest`` bytes.
        """
        for name in self._walked:
            value = values.get(name)
            if type(value) not in _PLAIN:
                check_plain(value, f"task {self._name}: argument {name!r}")
        payload = self._encode(values)
        if len(payload) > largest:
            raise too_large(self._name, len(payload), largest)
        if self._typed and not self._fits(values):
            if b"null" in payload:
                self._check_numbers(values)
            self._check_types(payload)
        return PAYLOAD_VERSION + payload

    def encode_usual(self, args: tuple[Any, ...], *, largest: int) -> bytes | None:
        """Return what ``bind`` and ``encode`` return, in a third of the time, or None.

        This works for positional arguments whose types are exactly those of the annotations.
        """
        if self._placed is None or tuple(map(type, args)) != self._placed_kinds:
            return None
        try:
            payload = _encoder.encode(self._placed(*args))
        except Exception:  # ``encode`` raises the precise error.
            return None
        return PAYLOAD_VERSION + payload if len(payload) <= largest else None

    def encode_references(self, values: Mapping[str, Any], placed: frozenset[str], *, largest: int) -> bytes:
        """Return named arguments as a payload with results that do not exist yet in the arguments ``placed``.

        The other arguments are checked as in ``encode``. Raises the same errors.
        """
        others = {name: value for name, value in values.items() if name not in placed}
        for name in self._walked & others.keys():
            check_plain(others[name], f"task {self._name}: argument {name!r}")
        payload = self._encode(values)
        if len(payload) > largest:
            raise too_large(self._name, len(payload), largest)
        if b"null" in payload:
            self._check_numbers(others)
        # A task that is known by its name alone has no parameters to check.
        if kinds := {name: _annotation(self.parameters[name]) for name in others if name in self.parameters}:
            self._check_types(self._encode(others), _make_decoder(self._name, kinds, frozenset(kinds))[1])
        return REFERENCES_VERSION + payload

    def canonical(self, values: Mapping[str, Any]) -> bytes:
        """Return named arguments as JSON with sorted keys, so that the order of keys makes no difference."""
        return _sorted_encoder.encode(values)

    def decode(self, payload: bytes) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and keyword arguments of a payload, typed by their annotations.

        Raises ``BadArguments`` if the payload does not fit this version of the task.
        """
        body = payload_body(payload)
        try:
            found = self._decoder.decode(body)
        except (msgspec.DecodeError, NotImplementedError, ValueError) as problem:
            raise BadArguments(
                f"task {self._name}: the job's arguments do not fit this version of the task: {_locate(problem)}",
                task=self._name,
            ) from None
        values = msgspec.structs.asdict(found)
        if not self._all_required:
            values = {name: value for name, value in values.items() if value is not msgspec.UNSET}
        if not self._odd and not self._positional_only:
            return [], values
        return self._spread(values)

    def check_named(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return bound arguments that came by name, from the command line or over HTTP.

        Raises ``BadArguments`` for an unknown name and suggests the nearest parameter.
        """
        if not self._odd:
            for name in values:
                if name not in self._names:
                    known = ", ".join(self.parameters) or "none"
                    hint = did_you_mean(name, list(self.parameters))
                    raise BadArguments(f"task {self._name} has no parameter {shown(name)}{hint} (parameters: {known})")
        return self.bind((), values)

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the parameters for the catalogue."""
        try:
            (schema,), _ = msgspec.json.schema_components([self._struct], schema_hook=_describe_other)
            components = msgspec.json.schema(self._struct, schema_hook=_describe_other)
            described = components.get("$defs", {}).get(self._struct.__name__, schema)
        except TypeError:
            described = {"type": "object"}
        return {"properties": described.get("properties", {}), "required": sorted(self._required)}

    def _encode(self, values: Mapping[str, Any]) -> bytes:
        try:
            return _encoder.encode(values)
        except Exception:
            for name, value in values.items():
                try:
                    _encoder.encode(value)
                except Exception as problem:
                    raise PayloadError(
                        f"task {self._name}: argument {shown(name)} cannot be stored as JSON: {problem}",
                        task=self._name,
                        argument=name,
                    ) from None
            raise PayloadError(f"task {self._name}: argument names must be text", task=self._name) from None

    def _check_numbers(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if (lost := _lost_number(value)) is not None:
                raise PayloadError(
                    f"task {self._name}: argument {shown(name)} holds {lost}, which JSON cannot represent",
                    task=self._name,
                    argument=name,
                )

    def _fits(self, values: Mapping[str, Any]) -> bool:
        exact = self._exact
        if exact is None:
            return False
        for name, value in values.items():  # noqa: SIM110  (twice as fast as ``all``)
            if type(value) is not exact[name]:
                return False
        return True

    def _check_types(self, body: bytes, decoder: msgspec.json.Decoder[Any] | None = None) -> None:
        try:
            (decoder or self._decoder).decode(body)
        except (msgspec.DecodeError, NotImplementedError, ValueError) as problem:
            raise BadArguments(f"task {self._name}: {_locate(problem)}", task=self._name) from None

    def _spread(self, values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        bound = self._bindable.bind_partial()
        bound.arguments.update(
            {
                name: tuple(value) if self.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL else value
                for name, value in values.items()
            }
        )
        return list(bound.args), dict(bound.kwargs)


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def too_large(task: str, size: int, largest: int) -> PayloadTooLarge:
    """Return the error for arguments of more than ``largest`` bytes."""
    return PayloadTooLarge(
        f"task {task}: the arguments take {size:,} bytes, more than the {largest:,} allowed (payload_max); "
        "keep large data elsewhere and pass a reference",
        task=task,
        size=size,
    )


def encode_result(value: Any, *, typed: bool, largest: int, what: str = "the result") -> bytes | None:
    """Return a result as bytes, or None for None. Raises ``PayloadError``, which names the value as ``what``."""
    if value is None:
        return None
    if not typed and type(value) not in _PLAIN:
        check_plain(value, what)
    try:
        body = _encoder.encode(value)
    except Exception as problem:
        raise PayloadError(f"{what} cannot be stored as JSON: {problem}") from None
    if typed and b"null" in body and (lost := _lost_number(value)) is not None:
        raise PayloadError(f"{what} holds {lost}, which JSON cannot represent")
    if len(body) > largest:
        raise PayloadTooLarge(f"{what} takes {len(body):,} bytes, more than the {largest:,} allowed (payload_max)")
    return PAYLOAD_VERSION + body


def decode_result(payload: bytes | None, kind: Any = Any) -> Any:
    """Return the value of a stored result, typed by ``kind``.

    A task may return another type than its annotation says. Such a result is returned as plain JSON.
    """
    if payload is None:
        return None
    body = payload_body(payload)
    if kind is not Any:
        with contextlib.suppress(msgspec.DecodeError, NotImplementedError, ValueError):
            return msgspec.json.decode(body, type=kind, dec_hook=_decode_other)
    return _plain_decoder.decode(body)


def result_type(function: Callable[..., Any]) -> Any:
    """Return a function's return annotation, or Any if a decoder cannot check it."""
    annotation = _signature(function).return_annotation
    if annotation in (inspect.Signature.empty, None, type(None)) or not _is_typed(annotation):
        return Any
    return annotation if _readable(annotation) else Any


def read_payload(payload: bytes) -> Any:
    """Return a payload's arguments as plain JSON values, for people and operators."""
    return _plain_decoder.decode(payload_body(split_server(payload)[0]))


def raw_payload(payload: bytes) -> msgspec.Raw:
    """Return the stored JSON of a payload or result. The JSON is checked but not decoded, to save memory.

    Raises ``PayloadError`` for an unknown version, ``ValueError`` for invalid JSON.
    """
    body = payload_body(split_server(payload)[0])
    str(body, "utf-8")
    return _raw_decoder.decode(body)


def add_server(payload: bytes, server: str) -> bytes:
    """Return a session's payload with the address of the admitting server before the arguments."""
    rest = payload[len(PAYLOAD_VERSION) + 1 :]
    return _SESSION + _encoder.encode(server) + (b"}" if rest == b"}" else b"," + rest)


def split_server(payload: bytes) -> tuple[bytes, str | None]:
    """Return the task's own payload and the address of the session's server, or None for other jobs."""
    if not payload.startswith(_SESSION):
        return payload, None
    members = msgspec.json.decode(payload[len(PAYLOAD_VERSION) :], type=dict[str, msgspec.Raw])
    server = msgspec.json.decode(members.pop(SESSION))
    return PAYLOAD_VERSION + _encoder.encode(members), server if isinstance(server, str) else None


def names_server(payload: bytes) -> bool:
    """Return whether a payload has the member for the address of a session's server, at any position."""
    return SESSION in msgspec.json.decode(payload_body(payload), type=dict[str, msgspec.Raw])


def has_inputs(payload: bytes) -> bool:
    """Return whether arguments contain results of other jobs, which ``fill_inputs`` puts in."""
    return payload[:1] == REFERENCES_VERSION


def fill_inputs(payload: bytes, upstreams: Sequence[Upstream]) -> bytes:
    """Return arguments with the results of other jobs. Raises ``UpstreamFailed`` for a job that has none."""

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            if value.keys() == {"$out"} and isinstance(value["$out"], int):
                return _input_of(upstreams[value["$out"]])
            return {key: filled(item) for key, item in value.items()}
        return [filled(item) for item in value] if isinstance(value, list) else value

    return PAYLOAD_VERSION + _encoder.encode(filled(_plain_decoder.decode(payload_body(payload))))


def _input_of(upstream: Upstream) -> Any:
    """Return the result of a job. The results of a batch are its id: the task reads them in pages."""
    if is_batch(upstream.source):
        return {"batch_id": upstream.source}
    if upstream.state is not State.COMPLETED:
        raise UpstreamFailed(
            f"an argument is the result of job {upstream.source}, which ended as {upstream.state or 'unknown'}",
            job_id=upstream.source,
        )
    return None if upstream.result is None else raw_payload(upstream.result)


def payload_body(payload: bytes) -> bytes | memoryview:
    if payload[:1] not in (PAYLOAD_VERSION, REFERENCES_VERSION):
        raise PayloadError(f"this payload has version {payload[:1].hex() or 'none'}; this Headway reads 01")
    return payload[1:] if len(payload) < COPIED_MAX else memoryview(payload)[1:]


def check_plain(value: Any, where: str, depth: int = 0) -> None:
    """Raise ``PayloadError`` for a value that JSON would lose or change, such as a set, NaN or a key that is not text.

    Values nested more than ``DEPTH_MAX`` deep are refused too.
    """
    if depth > DEPTH_MAX:
        raise PayloadError(f"{where} is nested more than {DEPTH_MAX} deep")
    kind = type(value)
    if kind in _PLAIN:
        return
    if kind is float:
        if not math.isfinite(value):
            raise PayloadError(f"{where} is {value}, which JSON cannot hold")
    elif kind is list or kind is tuple:
        for index, item in enumerate(value):
            check_plain(item, f"{where}[{index}]" if depth < 3 else where, depth + 1)
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise PayloadError(f"{where} has the key {shown(key)}; JSON objects have text as keys")
            check_plain(item, f"{where}[{key!r}]" if depth < 3 else where, depth + 1)
    else:
        hint = "; annotate the parameter with its type and it is restored on arrival" if _restorable(kind) else ""
        raise PayloadError(f"{where} is a {kind.__name__}, which is not a JSON value{hint}")


def _restorable(kind: type) -> bool:
    return (
        issubclass(kind, (*_SCALARS, set, frozenset, Enum, msgspec.Struct))
        or dataclasses.is_dataclass(kind)
        or hasattr(kind, "model_validate")
    )


def _lost_number(value: Any) -> float | None:
    """Return a number that JSON would turn into null, or None if there is no such number."""
    left: list[Any] = [msgspec.to_builtins(value, enc_hook=_encode_other, str_keys=True)]
    while left:
        item = left.pop()
        kind = type(item)
        if kind is float and not math.isfinite(item):
            return float(item)
        if kind in (list, tuple, set):
            left.extend(item)
        elif kind is dict:
            left.extend(item.values())
    return None


def _storable(value: Any) -> bool:
    try:
        _encoder.encode(value)
    except Exception:
        return False
    return True


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:  # One annotation has a name that only type checkers know; evaluate each by itself.
        found = inspect.signature(function)
    names = getattr(inspect.unwrap(function), "__globals__", {})
    parameters = [p.replace(annotation=_evaluated(p.annotation, names)) for p in found.parameters.values()]
    return found.replace(parameters=parameters, return_annotation=_evaluated(found.return_annotation, names))


def _evaluated(annotation: Any, names: dict[str, Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        return get_type_hints(types.SimpleNamespace(__annotations__={"it": annotation}), names, include_extras=True)[
            "it"
        ]
    except Exception:
        return annotation


def _annotation(parameter: inspect.Parameter) -> Any:
    annotation: Any = parameter.annotation
    if annotation is parameter.empty or isinstance(annotation, str) or not _readable(annotation):
        annotation = Any
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return types.GenericAlias(list, (annotation,))
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        return types.GenericAlias(dict, (str, annotation))
    return annotation


def _readable(annotation: Any) -> bool:
    try:
        msgspec.json.Decoder(annotation, dec_hook=_decode_other)
    except Exception:
        return False
    return not _is_foreign(annotation)


def _is_foreign(annotation: Any) -> bool:
    """Return whether neither JSON nor a model can restore a class."""
    if not isinstance(annotation, type) or annotation is object:
        return annotation is object
    return not (_restorable(annotation) or annotation in _TYPED_CONTAINERS or hasattr(annotation, "__annotations__"))


def _is_typed(annotation: Any) -> bool:
    """Return whether a decoder can fully check and restore a value from its annotation."""
    if annotation is Any:
        return False
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation not in _TYPED_CONTAINERS and annotation is not object and not _is_foreign(annotation)
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType) or origin in _TYPED_CONTAINERS:
        return all(part is Ellipsis or _is_typed(part) for part in get_args(annotation))
    return origin is not None and str(origin) in {"typing.Literal", "typing.Annotated"}


def _make_decoder(
    name: str, annotations: Mapping[str, Any], required: frozenset[str]
) -> tuple[type[msgspec.Struct], msgspec.json.Decoder[Any]]:
    fields: list[Any] = [
        (field, kind) if field in required else (field, Union[kind, msgspec.UnsetType], msgspec.UNSET)  # noqa: UP007
        for field, kind in annotations.items()
    ]
    struct = msgspec.defstruct(
        "Arguments", fields, kw_only=True, forbid_unknown_fields=True, namespace={"__doc__": f"Arguments of {name}."}
    )
    return struct, msgspec.json.Decoder(struct, dec_hook=_decode_other)


def _locate(problem: Exception) -> str:
    """Return an error text that names the argument: ``argument 'account_id': expected int, got str``."""
    text, _, path = str(problem).partition(" - at `$.")
    text = text.replace("`", "")
    if not path:
        return text[:1].lower() + text[1:]
    name = re.match(r"\w*", path)[0]  # type: ignore[index]
    rest = path.rstrip("`")[len(name) :].lstrip(".")
    return f"argument {shown(name)}{' at ' + rest if rest else ''}: {text[:1].lower() + text[1:]}"
