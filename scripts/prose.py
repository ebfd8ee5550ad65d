"""Find forms of prose that CONTRIBUTING.md bans: docstrings with a vague verb, and sentences without an actor.

`python scripts/prose.py [FILE ...]` prints file, line and form. Without files it reads the package and the docs.
"""

import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "headway"

STRINGS_ARE_DATA = tuple(ROOT / room for room in ("tests", "benchmarks", "examples", "scripts"))

OPENING = re.compile(r"\s*(Give|Tell|Say|Hear|Lay|Bring)s?\b")
BANNED = re.compile(
    r"\b((?i:whoever|somebody|nobody|those\s+who|so\s+many|so\s+long|hangs\s+on)"
    r"|(?<![Tt]here\s)is\s+none|of\s+its(?=[.,;:!?)]|\s*$))\b"
)
WORTH_PARSING = re.compile(
    rf'"\s*(Give|Tell|Say|Hear|Lay|Bring)|of\s+its\s*["\']|{BANNED.pattern}'
)  # Parsing every file takes seconds.


def files() -> list[Path]:
    """Return every file whose prose is checked."""
    code = [file for suffix in ("py", "sql", "lua") for file in SOURCE.rglob(f"*.{suffix}")]
    code = [file for file in code if file.parent.name != "migrations"]  # A released migration never changes.
    code += [file for room in STRINGS_ARE_DATA for file in room.rglob("*.py")]
    return sorted([*code, *(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


def found(file: Path) -> Iterator[tuple[int, str]]:
    """Yield line and form of each banned form in a file."""
    for line, text, docstring in passages(file):
        if docstring and (opening := OPENING.match(text)):
            yield line, f"a docstring begins with {opening[0].strip()}"
        for match in BANNED.finditer(text):
            yield line + text.count("\n", 0, match.start()), " ".join(match[0].split())


def passages(file: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield line, text and whether it is a docstring: strings and comments of Python, the whole of other files."""
    source = file.read_text(encoding="utf-8")
    if file.suffix != ".py":
        yield 1, source, False
        return
    if not WORTH_PARSING.search(source):
        return
    tree = ast.parse(source)
    strings = not any(file.is_relative_to(room) for room in STRINGS_ARE_DATA)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (strings or id(node) in docstrings):
            yield node.lineno, node.value, id(node) in docstrings
    with file.open("rb") as lines:
        for token in tokenize.tokenize(lines.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string, False


def main(names: list[str]) -> int:
    """Print the banned forms and return the exit code."""
    wrong = [
        f"{file}:{line}: {form}" for file in ([Path(name) for name in names] or files()) for line, form in found(file)
    ]
    print("\n".join([*wrong, f"{len(wrong)} banned forms"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
