"""The page of requirements agrees with the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import requirements

TESTS = requirements.ROOT / "tests"


def test_every_id_that_a_test_names_has_a_sentence() -> None:
    known = requirements.sentences()
    wrong = {
        name: [f"{file.relative_to(TESTS)}:{line}" for file, line in places]
        for name, places in requirements.references(TESTS).items()
        if name not in known
    }
    assert wrong == {}, "add these to docs/reference/requirements.toml, or correct the tests"


def test_every_requirement_is_named_by_a_test_or_says_why_not() -> None:
    named, notes = requirements.references(TESTS), requirements.read()["notes"]
    assert [name for name in requirements.sentences() if name not in named and name not in notes] == []


def test_every_security_requirement_is_named_by_a_test() -> None:
    named = requirements.references(TESTS)
    assert [name for name in requirements.sentences() if name.startswith("S-") and name not in named] == []


def test_every_note_belongs_to_a_requirement() -> None:
    assert requirements.read()["notes"].keys() <= requirements.sentences().keys()


def test_the_page_is_up_to_date() -> None:
    assert requirements.PAGE.read_text(encoding="utf-8") == requirements.page(), "run `make requirements`"


@pytest.mark.parametrize(
    "text, named",
    [
        ("# R5.57, S-4", ["R5.57", "S-4"]),
        ("# I1 to I3: all", ["I1", "I2", "I3"]),
        ("# R3.13 to R3.15, R3.26", ["R3.13", "R3.14", "R3.15", "R3.26"]),
        ("# W10: the reply is lost.", ["W10"]),
        ("# R15, not R1.5 nor R1", ["R15", "R1.5", "R1"]),
        ("# noqa: S608, UTF-8, 1.25, SSH-2, XR5.57", []),
    ],
)
def test_the_ids_of_a_comment_are_found(text: str, named: list[str]) -> None:
    assert list(requirements.ids(text)) == named


def test_comments_and_labels_are_read_and_other_strings_are_not(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(
        '# R1.1\nCASE = "R1.2 all low"\nWORKER = "W10"\nTEXT = "see R1.3"\n"""I1: held."""\n'
    )
    places = requirements.references(tmp_path)
    assert {name: [line for _, line in found] for name, found in places.items()} == {
        "R1.1": [1],
        "R1.2": [2],
        "I1": [5],
    }


def test_a_requirement_without_a_test_says_so() -> None:
    assert requirements.answer([], None) == "**No test names it.**"
    assert requirements.answer([], "Declined.") == "**No test names it.** Declined."
    assert requirements.answer([(TESTS / "tidy" / "test_x.py", 3)], "Also here.") == "`tidy/test_x.py`. Also here."
