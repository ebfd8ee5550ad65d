"""The byte layouts that Python and the Lua scripts share. The scripts refer to a field by name:

``$lease.epoch(held)``  the value of a field: a number or a text
``$lease[class](held)``  the bytes of a field; ``[..class]`` all bytes before it, ``[class..]`` all from it on
``$lease{epoch = 1, attempts = 1}``  the bytes of consecutive fields; ``class = bytes x`` where x is packed already
``$lease.size``, ``$lease.FAIR``  the number of bytes of all fields; a flag

``expand`` replaces them by Lua when the library is built. They cost nothing at run time, and an unknown name fails.
"""

from __future__ import annotations

import re
import struct

# The code for Python's struct, and the function of common.lua that reads the number.
_NUMBERS = {"u8": ("B", "byte"), "u16": ("H", "i2"), "u32": ("I", "i4"), "u48": ("6s", None)}
_REST = "*"
_LENGTH = struct.Struct(">H")
_REFERENCE = re.compile(r"\$(?P<layout>\w+)(?:\.(?P<name>\w+)|\[(?P<range>[\w.]+)\]|(?={))")
_OPENING, _CLOSING = "({[", ")}]"


class Layout:
    """The fields at the start of a record, in order. Numbers are big-endian.

    A field is ``name:kind``. The kind is a number of bytes, one of ``u8 u16 u32 u48``, or ``*`` for the rest.
    """

    def __init__(self, name: str, fields: str, flags: type | None = None) -> None:
        self.name = name
        self._kinds = dict(field.split(":") for field in fields.split())
        self._flags = vars(flags) if flags is not None else {}
        self._slices: dict[str, slice] = {}
        codes, self.size = ">", 0
        for field, kind in self._kinds.items():
            code = "" if kind == _REST else _NUMBERS[kind][0] if kind in _NUMBERS else f"{kind}s"
            stop = None if kind == _REST else self.size + struct.calcsize(code)
            self._slices[field] = slice(self.size, stop)
            self.size = stop or self.size
            codes += code
        made = struct.Struct(codes)
        self.pack, self.unpack = made.pack, made.unpack_from

    def __getitem__(self, field: str) -> slice:
        """Return where a field is."""
        return self._slices[field]

    def at(self, field: str) -> int:
        """Return where a field begins."""
        return int(self._slices[field].start)

    # ------------------------------------------------------------------ as Lua

    def lua_constant(self, name: str) -> str:
        return str(self.size if name == "size" else self._flags[name])

    def lua_value(self, field: str, record: str) -> str:
        kind = self._kinds[field]
        if kind not in _NUMBERS:
            return self.lua_bytes(field, record)
        read = _NUMBERS[kind][1]
        if read is None:
            raise ValueError(f"{self.name}.{field} has more bytes than scripts can read as a number")
        return f"{read}({record}, {self.at(field) + 1})"

    def lua_bytes(self, fields: str, record: str) -> str:
        first, dots, last = fields.rpartition("..")
        if dots and last:
            return f"sub({record}, 1, {self.at(last)})"
        found = self[first or last]
        stop = f", {found.stop}" if found.stop is not None and not dots else ""
        return f"sub({record}, {found.start + 1}{stop})"

    def lua_record(self, assignments: str) -> str:
        pairs = [[word.strip() for word in pair.split("=", 1)] for pair in _split(assignments)]
        names, known = [name for name, _ in pairs], list(self._kinds)
        first = known.index(names[0])
        if names != known[first : first + len(names)]:
            raise ValueError(f"{self.name}: {', '.join(names)} are not consecutive fields")
        parts: list[str] = []
        numbers: list[tuple[str, str]] = []
        for name, value in [*pairs, ("", "")]:
            kind = self._kinds.get(name, "")
            if kind in _NUMBERS and not value.startswith("bytes "):
                numbers.append((kind, value))
                continue
            if numbers:
                codes = "".join(f"I{int(size[1:]) // 8}" for size, _ in numbers)
                parts.append(f"pack('>{codes}', {', '.join(number for _, number in numbers)})")
                numbers = []
            if value:
                parts.append(value.removeprefix("bytes "))
        return " .. ".join(parts)


class JobFlag:
    """What else a job's record holds."""

    TENANT, LIMITS, BATCH, EXPIRES, UNIQUE, KEYED, TIMED, TRACE = 1, 2, 4, 8, 16, 32, 64, 128
    WAITS, SOURCE = 256, 512  # It has edges from other jobs, it has edges to other jobs.
    TRANSIENT = 1024  # The highest, so that a script can compare.


class LeaseFlag:
    """What else a lease's record holds, and what scripts must know when it ends."""

    UNIQUE, FAIR, TERMS, NEVER_EXPIRES, BATCH, SOURCE, WAITS = 1, 2, 4, 8, 16, 32, 64


class RequeueFlag:
    """What is true of a job that came back to the queue."""

    NEVER_EXPIRES = 1


_STAMP = "submitted:15 class:u32"
_JOB = "flags:u16 id_length:u8"
# What never changes about a job, but for the flag SOURCE. Then its id, the length of the tail (4 bytes), extras in the
# order of the flags, a body, and the tail: the task's name behind its length, and the payload. Scripts never read the
# body or the payload.
JOB = Layout("job", f"{_STAMP} {_JOB}", JobFlag)
NEW_JOB = Layout("new_job", _JOB, JobFlag)  # The same as a client sends it.
# A job that executes. Then the worker. With FAIR the tenant. With BATCH the batch. With TERMS the rung assigned, the
# kind of limit that blocked the job and for how many milliseconds, and the limits that count the lease. A timeout of 0
# is the one that the job asked for.
LEASE = Layout(
    "lease",
    "token:16 epoch:u32 attempts:u16 crashes:u16 started:15 eligible:15 class:u32 order_key:16 timeout:u48 flags:u8",
    LeaseFlag,
)
# A queued job that ran before, or was delayed. The blob says why it came back, if it ran.
REQUEUE = Layout(
    "requeue",
    "token:16 epoch:u32 attempts:u16 crashes:u16 eligible:15 due:15 class:u32 order_key:16 timeout:u48 flags:u8 blob:*",
    RequeueFlag,
)
# How a job ended. Then its record before that, of this length, and a body. The kind names that record: E a lease, P a
# lease, with NOTES in front of the body, Q a requeue, - none, ~ none, and the job was delayed. The body is a blob from
# the worker, or plain text if the job never ran.
OUTCOME = Layout("outcome", "state:1 finished:15 kind:1 length:u16")
NOTES = Layout("notes", "cancel_asked:15")  # Then the progress behind its length.
ATTEMPT = Layout("attempt", "epoch:u32 number:u16 started:15 finished:15")  # Then the worker, and a blob.
REPORT = Layout("report", "token:16 state:1 body:*")
MEMBER = Layout("member", "digits:16")
TRANSIENT = Layout("transient", "member:16 job:*")
BLOCKED = Layout("blocked", "since:15 limit:*")
BLOCKED_HEAD = Layout("blocked_head", "member:16 limit:*")
SHARE = Layout("share", "order_key:16 member:16")  # Behind the tenant, in the order of text.
COMPLETED = Layout("completed", "finished:15 members:*")
IDEMPOTENCY = Layout("idempotency", "expires:15")  # Then the digest behind its length, and the job's id.
WAIT_INTERVAL = Layout("wait_interval", "started:15 ended:15 reason:*")
EDGE = Layout("edge", "rule:1 satisfied:1 place:u16")  # The rule is a letter, the place the one among the job's edges.
STEP = Layout("step", "place:u16 value:*")
STEPS = Layout("steps", "count:u16 bytes:u32")  # Of all steps of a job.
# A lease that the server sends with a wake-up. Then class, rung assigned and lease behind their lengths, and the job.
DIRECT_LEASE = Layout("direct_lease", "now:15 claim:16 member:16")

LAYOUTS: dict[str, Layout] = {
    layout.name: layout for layout in list(globals().values()) if isinstance(layout, Layout)
}  # fmt: skip


def pack_text(raw: bytes) -> bytes:
    """Write a text behind its length, as scripts read it. Raises ``struct.error`` beyond 65,535 bytes."""
    return _LENGTH.pack(len(raw)) + raw


def read_text(record: bytes, at: int) -> tuple[bytes, int]:
    """Return the text behind its length at a place, and the place after it."""
    start = at + 2
    stop = start + int.from_bytes(record[at:start], "big")
    return record[start:stop], stop


# ---------------------------------------------------------------------- in scripts


def expand(script: str) -> str:
    """Replace all references to layouts in a script by Lua. Raises ``ValueError`` for an unknown name."""
    done, at = [], 0
    while found := _REFERENCE.search(script, at):
        done.append(script[at : found.start()])
        at = found.end()
        argument = None
        if script[at : at + 1] in tuple("({"):
            stop = _closing(script, at)
            argument, at = expand(script[at + 1 : stop]), stop + 1
        try:
            done.append(_lua(LAYOUTS[found["layout"]], found["name"], found["range"], argument))
        except (KeyError, ValueError) as problem:
            line = script.count("\n", 0, found.start()) + 1
            raise ValueError(f"line {line}: {found[0]} names no field or flag of a layout: {problem}") from problem
    return "".join([*done, script[at:]])


def _lua(layout: Layout, name: str | None, fields: str | None, argument: str | None) -> str:
    if argument is None:
        return layout.lua_constant(name or "")
    if name is not None:
        return layout.lua_value(name, argument)
    return layout.lua_record(argument) if fields is None else layout.lua_bytes(fields, argument)


def _closing(script: str, start: int) -> int:
    depth = 0
    for at in range(start, len(script)):
        depth += (script[at] in _OPENING) - (script[at] in _CLOSING)
        if not depth:
            return at
    raise ValueError(f"no closing bracket for {script[start : start + 40]!r}")


def _split(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in _OPENING) - (letter in _CLOSING)
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
