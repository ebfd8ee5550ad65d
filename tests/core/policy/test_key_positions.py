"""Lines and columns of the keys in TOML and JSON files."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.policy.key_positions import json_positions, toml_positions
from headway.core.policy.table_reader import key_path
from headway.core.text_position import BadByte, Position, find_bad_byte

TOML = '''\
# [lanes.high] is a comment, and "an open quote too
top = 1 # level = 2
[lanes.high]
level = 0
  weight = { least = 1, most.of = [1, [2, { x = 3 }]] }
[ lanes . "a.b" ]
level = 1979-05-27 07:32:00
promote_after = [
  30, # thirty ]
  "5m",
]
[[streams]]
rate.text = """
[lanes.no]
level = 1 \\""" "quoted""""
tail = \'\'\'
rate = 2\'\'\'
[[streams]]
[streams.seconds]
mean = 'a # b'
[[streams.steps]]
at = "\\"]"
[[streams.steps]]
"\\u0061t" = inf
[lanes]
'''


@pytest.mark.parametrize(
    "key, line, column",
    [
        ("top", 2, 1),
        ("lanes.high", 3, 8),
        ("lanes.high.level", 4, 1),
        ("lanes.high.weight", 5, 3),
        ("lanes.high.weight.least", 5, 14),
        ("lanes.high.weight.most.of", 5, 30),
        ("lanes.high.weight.most.of[0]", 5, 36),
        ("lanes.high.weight.most.of[1][1].x", 5, 45),
        ('lanes."a.b"', 6, 11),
        ('lanes."a.b".promote_after', 8, 1),
        ('lanes."a.b".promote_after[1]', 10, 3),
        ("streams", 12, 3),
        ("streams[0]", 12, 3),
        ("streams[0].rate.text", 13, 6),
        ("streams[0].tail", 16, 1),
        ("streams[1]", 18, 3),
        ("streams[1].seconds.mean", 20, 1),
        ("streams[1].steps[0].at", 22, 1),
        ("streams[1].steps[1].at", 24, 1),
        ("lanes", 25, 2),
    ],
)
def test_a_key_of_a_toml_file_has_a_line_and_a_column(key: str, line: int, column: int) -> None:
    tomllib.loads(TOML.removesuffix("[lanes]\n"))
    assert toml_positions(TOML)(key) == (line, column)


def test_a_missing_key_is_missing_in_the_innermost_table_that_the_file_has() -> None:
    find = toml_positions(TOML)
    assert find("streams[1].rate") == find("streams[1]")
    assert find('lanes."a.b"."c.d[0]".e') == find('lanes."a.b"')
    assert find("none") is None
    assert find("none[3].x") is None
    assert find("") is None


def test_a_key_of_a_json_file_has_a_line_and_a_column() -> None:
    find = json_positions('{"top": 1,\n "a.b\\/": {"x": [true, {"y": "}"}],\n  "z": {}}, "end": []}\n')
    assert find("top") == Position(1, 2)
    assert find('"a.b/".x[1].y') == Position(2, 25)
    assert find('"a.b/".z') == Position(3, 3)
    assert find("end") == Position(3, 13)
    assert json_positions("[1]")("") is None


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
values = st.recursive(
    texts | st.integers() | st.booleans() | st.none() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(data=st.dictionaries(texts, values, max_size=4), indent=st.none() | st.integers(0, 3), ascii_only=st.booleans())
def test_every_key_of_a_json_file_is_found_where_it_is(
    data: dict[str, Any], indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps(data, indent=indent, ensure_ascii=ascii_only)
    find, lines = json_positions(text), text.split("\n")

    def check(outer: str, inner: object) -> None:
        if isinstance(inner, dict):
            for key, value in inner.items():
                path = key_path(outer, key)
                position = find(path)
                assert position is not None
                written = lines[position.line - 1][position.column - 1 :]
                assert written.startswith(json.dumps(key, ensure_ascii=ascii_only) + ":")
                check(path, value)
        elif isinstance(inner, list):
            for number, value in enumerate(inner):
                check(f"{outer}[{number}]", value)

    check("", data)


def test_a_text_that_nests_too_deeply_has_no_positions() -> None:
    deep = "[" * 5_000 + "]" * 5_000
    assert toml_positions(f"top = 1\ndeep = {deep}")("top") is None


# ---------------------------------------------------------------------- bytes that are not UTF-8


@pytest.mark.parametrize(
    "content, expected",
    [
        (b"a = 1\n", None),
        (b"\xff", (1, 1, 0xFF)),
        (b"\xef\xbb\xbfab\xff", (1, 3, 0xFF)),
        ("é = 'ü'\nä".encode() + b"\xe9x", (2, 2, 0xE9)),
        ("ab\n€".encode()[:-1], (2, 1, 0xE2)),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_the_first_byte_that_is_not_utf_8_has_a_line_and_a_column(
    content: bytes, expected: tuple[int, int, int] | None, size: int
) -> None:
    found = find_bad_byte(content[at : at + size] for at in range(0, len(content), size))
    assert found == (None if expected is None else BadByte(Position(*expected[:2]), expected[2]))
