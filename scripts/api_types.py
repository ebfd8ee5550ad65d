"""Write TypeScript types of the bodies and replies of the HTTP interface, from its OpenAPI document.

`python scripts/api_types.py > web/src/api.gen.ts` keeps the dashboard's types in step with the routes.
"""

import json
import re
from typing import Any

from headway import Headway
from headway.server.api import headway_api

NAME = re.compile(r"^[A-Za-z_$][\w$]*$")
PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def type_of(schema: dict[str, Any] | bool) -> str:
    """Return the TypeScript type of a JSON Schema, as far as our document uses it."""
    if isinstance(schema, bool) or not schema:
        return "unknown"
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " | ".join(dict.fromkeys(type_of(choice) for choice in choices))
    if "allOf" in schema:
        return " & ".join(type_of(part) for part in schema["allOf"])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(type_of(schema | {"type": one}) for one in kind)
    if kind == "array":
        return f"({type_of(schema.get('items', True))})[]"
    if kind == "object" or "properties" in schema:
        return object_type(schema)
    return PLAIN.get(str(kind), "unknown")


def object_type(schema: dict[str, Any]) -> str:
    """Return the type of an object with its members, or of a map."""
    members = [
        f"{name if NAME.match(name) else json.dumps(name)}{'' if is_given(name, schema) else '?'}: {type_of(part)};"
        for name, part in schema.get("properties", {}).items()
    ]
    more = schema.get("additionalProperties", not members)
    if more and not members:
        return f"Record<string, {type_of(more)}>"
    if more is True:
        members.append("[name: string]: unknown;")
    return f"{{ {' '.join(members)} }}"


def is_given(name: str, schema: dict[str, Any]) -> bool:
    """Return whether a member is always present. In replies, that includes members with a default other than null."""
    return name in schema.get("required", ())


def main() -> None:
    schemas = headway_api(Headway("memory://")).openapi()["components"]["schemas"]
    print("// Made by scripts/api_types.py of the OpenAPI document. Not kept in git.\n")
    for name, schema in sorted(schemas.items()):
        print(f"export type {name} = {type_of(schema)};\n")


if __name__ == "__main__":
    main()
