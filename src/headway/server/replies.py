"""JSON replies."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

encode = msgspec.json.Encoder().encode


def reply(values: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encode(values), status, headers, "application/json")
