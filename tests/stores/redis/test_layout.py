"""The layouts that Python and the scripts share: how references are replaced, and that scripts use nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headway.stores import redis
from headway.stores.redis.layout import ATTEMPT, LAYOUTS, LEASE, OUTCOME, REQUEUE, Layout, expand, read_text
from tests.servers import Valkey

SCRIPTS = Path(redis.__file__).parent / "scripts"


@pytest.mark.parametrize(
    "script, lua",
    [
        ("$lease.token(held)", "sub(held, 1, 16)"),
        ("$lease.epoch(held)", "i4(held, 17)"),
        ("$lease.flags(rows[i + 1] or '')", "byte(rows[i + 1] or '', 81)"),
        ("$report.body(args[at + 1])", "sub(args[at + 1], 18)"),
        ("$lease[timeout](held)", "sub(held, 75, 80)"),
        ("$lease[..flags](held)", "sub(held, 1, 80)"),
        ("$requeue[timeout..](f(back))", "sub(f(back), 75)"),
        ("at = $lease.size + 1", "at = 81 + 1"),
        ("band(flags, $lease.FAIR)", "band(flags, 2)"),
        ("$job.class($transient.job(entry))", "i4(sub(entry, 17), 16)"),
        ("$attempt{epoch = 1, number = n(2, 3), started = now15}", "pack('>I4I2', 1, n(2, 3)) .. now15"),
        ("$lease{class = bytes packed, order_key = key}", "packed .. key"),
        ("x = '^%d+$'", "x = '^%d+$'"),
    ],
)
def test_references_become_lua(script: str, lua: str) -> None:
    assert expand(script) == lua


@pytest.mark.parametrize(
    "script",
    [
        "$nothing.token(held)",
        "$lease.tokens(held)",
        "$lease[tokens](held)",
        "$lease.SHARED",
        "$lease.timeout(held)",  # No script function reads six bytes.
        "$lease{token = t, attempts = 1}",
        "$lease{epoch = 1, token = t}",
    ],
)
def test_a_reference_to_what_no_layout_has_fails(script: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        expand(f"\n{script}")


def test_layouts_are_what_stores_hold_already() -> None:
    # A change here is a change of the store's format.
    assert {layout.name: layout.size for layout in LAYOUTS.values()} == {
        "job": 22, "new_job": 3, "lease": 81, "requeue": 81, "outcome": 19, "notes": 15, "attempt": 36, "report": 17,
        "member": 16, "transient": 16, "blocked": 15, "blocked_head": 16, "share": 32, "completed": 15,
        "idempotency": 15, "wait_interval": 30, "direct_lease": 47, "edge": 4, "step": 2, "steps": 6,
    }  # fmt: skip
    for field in ("token", "epoch", "class"):  # Scripts read these of either without asking which it is.
        assert LEASE[field] == REQUEUE[field]


def test_python_reads_what_a_script_wrote(server: Valkey) -> None:
    layout = Layout("sample", "one:u8 two:u16 four:u32 six:u48 letters:3 rest:*")
    LAYOUTS["sample"] = layout
    try:
        written = expand("$sample{one = 1, two = 2, four = 4, six = 6, letters = 'abc', rest = 'end'}")
        fields = expand("$sample.one(r) .. $sample.two(r) .. $sample.four(r) .. $sample.letters(r) .. $sample.rest(r)")
    finally:
        del LAYOUTS["sample"]
    helpers = (SCRIPTS / "common.lua").read_text().partition("local function i4")[2].partition("local function push")[0]
    script = f"local sub, byte, pack = string.sub, string.byte, struct.pack\nlocal function i4{helpers}"
    script += f"local r = {written}\nreturn {{r, {fields}}}"
    raw, read = server.ask("EVAL", script, "0").split(b"\r\n")[2::2][:2]
    assert layout.unpack(raw) == (1, 2, 4, bytes([0, 0, 0, 0, 0, 6]), b"abc")
    assert raw[layout["rest"]] == b"end"
    assert read == b"124abcend"


def test_a_text_behind_its_length_and_what_follows() -> None:
    assert read_text(b"..\x00\x03abcd", 2) == (b"abc", 7)


def test_fields_are_where_the_ones_before_them_end() -> None:
    assert (OUTCOME["finished"], OUTCOME.at("length")) == (slice(1, 16), 17)
    assert ATTEMPT.unpack(ATTEMPT.pack(3, 2, b"1" * 15, b"2" * 15)) == (3, 2, b"1" * 15, b"2" * 15)


def test_no_script_has_a_place_in_a_record_as_a_number() -> None:
    place = re.compile(r"\b(?:sub|byte|i2|i4)\([^$\n]*?, (?:\d+ \+ )*\d\d")
    found = [
        f"{file.name}:{number}: {line.strip()}"
        for file in sorted(SCRIPTS.glob("*.lua"))
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if place.search(line)
    ]
    assert found == []
