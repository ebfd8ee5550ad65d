"""Read messages of the worker protocol from requests, and describe them in the OpenAPI document."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from msgspec import inspect

from headway.protocol import worker
from headway.server.problems import invalid
from headway.server.routing import read_json

T = TypeVar("T")

_END = repr(worker.END)[1:-1]  # As msgspec writes it in errors, and JSON in a schema.
_AT = re.compile(r"(?P<text>.*?)(?: - at (?:`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)
_NAMED = re.compile(r"Object (?P<what>contains unknown|missing required) field `(?P<name>.*)`", re.DOTALL)


async def read_message(request: Request, kind: type[T]) -> T:
    """Read the body of a request as a message. Raises ``Problem`` naming the field that is wrong."""
    body = await request.body()
    if not body:
        raise invalid([{"loc": ("body",), "msg": "this request needs a body"}])
    return as_message(read_json(body), kind)


def as_message(values: Any, kind: type[T]) -> T:
    """Convert JSON values to a message. Raises ``Problem`` naming the field that is wrong."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        place, text = _explain(str(error), kind)
        raise invalid([{"loc": ("body", *place), "msg": text}]) from None
    except ValueError:  # A member's name cannot be encoded.
        raise invalid([{"loc": ("body",), "msg": "unknown member"}]) from None


def _explain(error: str, kind: type) -> tuple[list[str], str]:
    """Return the place of an error in the body and what is wrong there, without the value, which may be secret."""
    found = _AT.fullmatch(error)
    text, path = (error, "") if found is None else (found["text"], found["path"] or "")
    place = re.findall(r"[^.\[\]]+", path)
    if named := _NAMED.fullmatch(text):
        missing = named["what"] == "missing required"
        return [*place, named["name"]], "required, but missing" if missing else "unknown member"
    expected = _type_at(inspect.type_info(kind), place)
    if text.startswith("Invalid enum value"):
        allowed = expected.values if isinstance(expected, inspect.LiteralType) else ()
        return place, f"expected one of {', '.join(map(str, allowed))}"
    if text.startswith("Expected `object`") and isinstance(expected, inspect.StructType):
        members = ", ".join(f'"{field.encode_name}": "…"' for field in expected.fields)
        return place, f"{text}; send {{{members}}}"
    return place, text.replace(_END, "$")


def _type_at(kind: inspect.Type, place: list[str]) -> inspect.Type:
    """Return the type that a message has at a place."""
    if isinstance(kind, inspect.Metadata):
        return _type_at(kind.type, place)
    if isinstance(kind, inspect.UnionType):
        return _type_at(next(one for one in kind.types if not isinstance(one, inspect.NoneType)), place)
    if not place:
        return kind
    if isinstance(kind, inspect.StructType):
        return _type_at(next(one.type for one in kind.fields if one.encode_name == place[0]), place[1:])
    if isinstance(kind, inspect.ListType):
        return _type_at(kind.item_type, place[1:])
    return inspect.AnyType()


def describe_messages() -> dict[str, Any]:
    """Return the JSON Schema components of all messages and of what they contain."""
    found = [kind for kind in vars(worker).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
    kinds = [
        kind for kind in found if kind.__module__ == worker.__name__ and kind not in (worker.Request, worker.AboutTask)
    ]
    _, described = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    components: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(described).replace(_END.encode(), b"$"))
    for kind in kinds:
        component, config = components[kind.__name__], kind.__struct_config__
        if not config.forbid_unknown_fields and not config.omit_defaults:
            component["required"] = list(component["properties"])  # The server sends every member of a reply.
        if (example := getattr(kind, "example", None)) is not None:
            component["examples"] = [example]
    return components
