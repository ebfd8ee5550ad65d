"""Write docs/reference/requirements.md: every requirement with the tests that name it.

The sentences stand in requirements.toml beside the page. A test names a requirement in a comment (`# R5.57, S-4`), or
at the start of a string such as a docstring or the id of a case. `python scripts/requirements.py R5.57` lists them.
"""

import re
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "docs" / "reference" / "requirements.toml"
PAGE = SOURCE.with_suffix(".md")

ID = r"(?:R[1-5]\.\d+|S-\d+|[HIJLNPRSTW]\d{1,2})"
NAMED = re.compile(rf"(?<![\w.-])({ID})(?: to ({ID}))?(?![\w-]|\.\d)")
LABEL = re.compile(rf"""[a-z]?["']{{1,3}}{ID}[ ,:]""")  # A string that is only an id may mean something else.

HEAD = """# Requirements

What Headway must do, and the tests that hold it to it. R1 to R5 come from five designs that Headway combines, the rest
from a study of how queues fail. Paths are below `tests/`.

This page is generated. `make requirements` writes it from [requirements.toml](requirements.toml) and from the ids that
tests name in comments (`# R5.57`). `python scripts/requirements.py R5.57` lists the tests of one requirement.
"""


def read() -> dict[str, Any]:
    """Read the sentences and notes."""
    return tomllib.loads(SOURCE.read_text(encoding="utf-8"))


def sentences() -> dict[str, str]:
    """Return the sentence of every id."""
    return {name: text for section in read()["section"] for name, text in section["entries"].items()}


def ids(text: str) -> Iterator[str]:
    """Yield the ids that a comment or label names; `I1 to I3` names three."""
    for first, last in NAMED.findall(text):
        yield first
        if last:
            family, start = re.fullmatch(r"(.*?)(\d+)", first).groups()  # type: ignore[union-attr]
            end = int(last.removeprefix(family))
            yield from (f"{family}{number}" for number in range(int(start) + 1, end + 1))


@cache
def references(folder: Path) -> dict[str, list[tuple[Path, int]]]:
    """Return where the tests below a folder name each id: files and lines."""
    found: dict[str, list[tuple[Path, int]]] = defaultdict(list)
    for file in sorted(folder.rglob("*.py")):
        with file.open("rb") as lines:
            for token in tokenize.tokenize(lines.readline):
                comment = token.type == tokenize.COMMENT
                if comment or (token.type == tokenize.STRING and LABEL.match(token.string)):
                    for name in ids(token.string):
                        found[name].append((file, token.start[0]))
    return dict(found)


def page() -> str:
    """Build the text of the page."""
    source, found = read(), references(ROOT / "tests")
    known = sentences()
    parts = [HEAD, f"Of {len(known)} requirements, tests name {len(known.keys() & found.keys())}.\n"]
    for section in source["section"]:
        parts.append(f"## {section['title']}\n")
        if "intro" in section:
            parts.append(f"{section['intro']}\n")
        rows = [
            f"| {name} | {text} | {answer(found.get(name, []), source['notes'].get(name))} |"
            for name, text in section["entries"].items()
        ]
        parts.append("\n".join(["| id | requirement | tests and notes |", "|---|---|---|", *rows]) + "\n")
    rows = [f"| {what} | {text} |" for what, text in source["expected"].items()]
    parts.append("## Expected by the designs without a number\n")
    parts.append("\n".join(["| expected | answer |", "|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def answer(places: list[tuple[Path, int]], note: str | None) -> str:
    """Return the tests and the note of one requirement."""
    files = sorted({file.relative_to(ROOT / "tests").as_posix() for file, _ in places})
    tests = ", ".join(f"`{file}`" for file in files) or "**No test names it.**"
    return f"{tests}. {note}" if note and files else f"{tests} {note}" if note else tests


def main(names: list[str]) -> None:
    """Write the page, or print where the tests name the given ids."""
    if not names:
        PAGE.write_text(page(), encoding="utf-8")
        return
    found = references(ROOT / "tests")
    for name in names:
        for file, line in found.get(name, []):
            print(f"{name} {file.relative_to(ROOT)}:{line}")


if __name__ == "__main__":
    main(sys.argv[1:])
