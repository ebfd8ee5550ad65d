"""Checks of the code base: imports, headers of files, and forbidden constructs."""

import ast
import inspect
import itertools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "headway"

IMPURE = frozenset(
    [
        "asyncio",
        "concurrent",
        "http",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "random",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "socketserver",
        "sqlite3",
        "ssl",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "uuid",
    ]
)
IMPURE_BUILTINS = frozenset({"open", "input", "print"})
CLOCK_READERS = frozenset({"now", "utcnow", "today"})

UNSAFE_MODULES = frozenset({"pickle", "marshal", "shelve", "dill", "cloudpickle"})
CODE_BUILDERS = frozenset({"compile", "exec"})
MAY_BUILD_CODE = SOURCE / "client" / "codec.py"

HOME_OF_DRIVER = {
    "apsw": "stores/sqlite",
    "redis": "stores/redis",
    "hiredis": "stores/redis",
    "asyncpg": "stores/postgres",
    "fastapi": "server",
    "uvicorn": "server",
    "django": "integrations",
    "celery": "integrations",
}

DJANGO_COMMANDS = SOURCE / "integrations" / "django" / "management" / "commands"  # Django asks for a class Command.

ONE_THING_TWICE = frozenset({"Row", "KnownAlready"})  # Each SQL database has its own.

# Written with one-letter classes so that this file does not match itself.
LOCAL_ADDRESS = re.compile(rb"(extra-)?index[-]url|/simpl[e]/|/package[s]/[0-9a-f]{2}/")


def python_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def asset_files() -> list[Path]:
    return sorted([*SOURCE.rglob("*.sql"), *SOURCE.rglob("*.lua")])


def repository_files() -> list[Path]:
    """Return every file that is tracked, or would be if added now."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    files = (ROOT / name for name in listing.stdout.decode().split("\0") if name)
    return sorted(file for file in files if file.is_file())


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


def place(file: Path, node: ast.AST | None = None) -> str:
    line = getattr(node, "lineno", None)
    return f"{file.relative_to(ROOT)}:{line}" if line else str(file.relative_to(ROOT))


def imports(file: Path) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the dotted name of every import in a file, with relative ones made absolute."""
    package = ("headway", *file.relative_to(SOURCE).parts[:-1])
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{module}.{alias.name}", node


def calls(file: Path) -> Iterator[tuple[str, ast.Call]]:
    """Yield the dotted name of every call in a file whose callee is a plain or dotted name."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Call) and (name := dotted(node.func)):
            yield name, node


def dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value)):
        return f"{owner}.{node.attr}"
    return None


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_core_imports_only_itself_and_the_pure_parts_of_the_standard_library() -> None:
    pure = sys.stdlib_module_names - IMPURE
    wrong = [
        f"{place(file, node)} imports {name}"
        for file in python_files(SOURCE / "core")
        for name, node in imports(file)
        if not within(name, "headway.core") and name.partition(".")[0] not in pure
    ]
    assert wrong == []


def test_core_reads_no_clock_and_touches_no_file() -> None:
    wrong = [
        f"{place(file, node)} calls {name}"
        for file in python_files(SOURCE / "core")
        for name, node in calls(file)
        if name in IMPURE_BUILTINS or reads_the_clock(name)
    ]
    assert wrong == []


def reads_the_clock(name: str) -> bool:
    owner, _, last = name.rpartition(".")
    return last in CLOCK_READERS and owner.rpartition(".")[2] in {"date", "datetime"}


def header(file: Path) -> list[str]:
    """Return the comment lines at the top of a file. A Lua file may have its flags above them."""
    lines = file.read_text(encoding="utf-8").splitlines()
    if lines and lines[0].startswith("#!"):
        lines = lines[1:]
    size = next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))
    return lines[:size]


def test_every_sql_and_lua_file_opens_with_its_name_and_purpose() -> None:
    wrong = [
        f"{place(file)} should open with `-- {file.stem}: ...`"
        for file in asset_files()
        if not any(re.match(rf"-- {re.escape(file.stem)}: \S", line) for line in header(file)[:1])
    ]
    assert wrong == []


def test_sql_and_lua_stay_within_the_width_of_python() -> None:
    wrong = [
        f"{place(file)}:{number} has {len(line)} columns"
        for file in asset_files()
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        if len(line) > 120
    ]
    assert wrong == []


def test_every_sql_and_lua_file_is_used_by_its_store() -> None:
    wrong = [
        f"{place(file)} is not referenced"
        for file in asset_files()
        if file.parent.name != "queries" and not is_referenced(file)
    ]
    assert wrong == []


def is_referenced(file: Path) -> bool:
    """Return whether the Python code of its store names the file, or the folder of a migration."""
    users = python_files(store_of(file))
    name = file.stem
    if file.parent.name == "migrations":
        users = [*users, *(SOURCE / "stores").glob("*.py")]
        name = "migrations"
    return names_word(users, name)


def store_of(file: Path) -> Path:
    return SOURCE.joinpath(*file.relative_to(SOURCE).parts[:2])


def names_word(users: list[Path], name: str) -> bool:
    word = re.compile(rf"\b{re.escape(name)}\b")
    return any(word.search(user.read_text(encoding="utf-8")) for user in users)


class Block(NamedTuple):
    """A statement, or one of its parts, in a file of a store's ``queries``."""

    file: Path
    kind: str
    name: str
    text: str

    @property
    def place(self) -> str:
        return f"{place(self.file)} {self.name}"

    @property
    def header(self) -> list[str]:
        return list(itertools.takewhile(lambda line: line.startswith("--"), self.text.splitlines()))


def query_blocks() -> list[Block]:
    found: list[Block] = []
    for file in SOURCE.glob("stores/*/queries/*.sql"):
        _, *pieces = re.split(r"^-- (name|part): (\w+)\n", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
        found += [Block(file, *piece) for piece in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True)]
    assert len(found) > 200
    return found


def test_every_query_says_its_purpose_and_has_a_name_of_its_own() -> None:
    blocks = query_blocks()
    counts = Counter((store_of(block.file), block.kind, block.name) for block in blocks)
    wrong = [f"{block.place} has no purpose" for block in blocks if not re.match(r"-- [A-Z].*\.\n", block.text)]
    wrong += [f"{store.name} has {name} {count} times" for (store, _, name), count in counts.items() if count > 1]
    assert wrong == []


def test_every_query_is_used_by_its_store() -> None:
    blocks = query_blocks()
    shared = SOURCE / "stores" / "sql"  # Both SQL databases use its parts.
    parts = {
        (store, part)
        for block in blocks
        for part in re.findall(r"^-- use (\w+)$", block.text, re.MULTILINE)
        for store in (store_of(block.file), shared)
    }
    wrong: list[str] = []
    for block in blocks:
        store = store_of(block.file)
        rooms = ("sql", "sqlite", "postgres") if store.name == "sql" else ("sql", store.name)
        users = [file for room in rooms for file in python_files(SOURCE / "stores" / room)]
        known = (store, block.name) in parts if block.kind == "part" else names_word(users, block.name)
        if not known:
            wrong.append(f"{block.place} is not used")
    assert wrong == []


def test_every_query_binds_exactly_the_parameters_its_header_names() -> None:
    blocks = query_blocks()
    parts = {(store_of(block.file), block.name): block.text for block in blocks if block.kind == "part"}
    wrong: list[str] = []
    for block in blocks:
        if block.kind == "part":  # Parts are read with the statements that use them.
            continue
        uses = re.findall(r"^-- use (\w+)$", block.text, re.MULTILINE)
        own = store_of(block.file)
        shared = {f"-- use {part}": parts.get((own, part)) or parts[own.with_name("sql"), part] for part in uses}
        text = "\n".join(shared.get(line, line) for line in block.text.splitlines())
        named, used = named_parameters(block.header), used_parameters(text)
        if named is None:
            wrong.append(f"{block.place} has no `-- params` line")
        elif sorted(named) != sorted(used):
            wrong.append(f"{block.place} names {sorted(named)} but uses {sorted(used)}")
    assert wrong == []


def named_parameters(header: list[str]) -> list[str] | None:
    """Return the parameters of the `-- params` line. A deeper indented line continues it."""
    found: str | None = None
    for line in header:
        if match := re.match(r"-- params\s+(.*)", line):
            found = match[1]
        elif found is not None and (match := re.match(r"--\s{3,}(.*)", line)):
            found = f"{found} {match[1]}"
        elif found is not None:
            break
    if found is None:
        return None
    return [name for name in re.split(r",\s*", found) if name != "none"]


def used_parameters(text: str) -> list[str]:
    """Return the `:name` parameters of a statement, without those in comments or quotes and without `::type` casts."""
    bare = re.sub(r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    return list(dict.fromkeys(re.findall(r"(?<![:\w]):([A-Za-z_]\w*)", bare)))


def test_nothing_loads_data_by_running_it() -> None:
    wrong: list[str] = []
    for file in python_files(SOURCE):
        wrong += [
            f"{place(file, node)} imports {name}"
            for name, node in imports(file)
            if name.partition(".")[0] in UNSAFE_MODULES or name in {"yaml.load", "builtins.eval"}
        ]
        wrong += [f"{place(file, node)} calls {name}" for name, node in calls(file) if runs_text(name, file)]
    assert wrong == []


def runs_text(name: str, file: Path) -> bool:
    name = name.removeprefix("builtins.")
    return name in {"eval", "yaml.load"} or (name in CODE_BUILDERS and file != MAY_BUILD_CODE)


def test_every_public_name_has_a_docstring() -> None:
    if not (SOURCE / "__init__.py").exists():
        return
    import headway

    public = {name: getattr(headway, name) for name in getattr(headway, "__all__", ())}
    wrong = [name for name, value in public.items() if can_have_docstring(value) and not has_docstring(value)]
    assert wrong == []


def can_have_docstring(value: object) -> bool:
    return inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)


def has_docstring(value: object) -> bool:
    doc = (value.__doc__ or "").strip()
    generated = f"{getattr(value, '__name__', '')}("  # what a dataclass writes when its author did not
    return bool(doc) and not doc.startswith(generated)


def test_no_file_holds_an_address_of_one_machine_or_registry() -> None:
    wrong = [
        f"{place(file)}:{number}"
        for file in repository_files()
        for number, line in enumerate(file.read_bytes().splitlines(), start=1)
        if LOCAL_ADDRESS.search(line)
    ]
    assert wrong == []


def test_no_module_is_called_utils() -> None:
    assert [place(file) for file in repository_files() if file.name == "utils.py"] == []


def test_drivers_and_frameworks_are_imported_only_in_their_own_folder() -> None:
    wrong: list[str] = []
    for file in python_files(SOURCE):
        for name, node in imports(file):
            home = HOME_OF_DRIVER.get(name.partition(".")[0])
            if home and not file.is_relative_to(SOURCE / home):
                wrong.append(f"{place(file, node)} imports {name}, which belongs in {home}/")
    assert wrong == []


def test_one_class_name_stands_for_one_thing() -> None:
    classes: dict[str, list[str]] = {}
    aliases: dict[str, list[str]] = {}
    parameters: dict[str, list[str]] = {}
    for file in python_files(SOURCE):
        for node in parsed(file).body:
            if isinstance(node, ast.ClassDef) and file.parent != DJANGO_COMMANDS:
                classes.setdefault(node.name, []).append(place(file, node))
            elif name := alias_name(node):
                (parameters if is_parameter(node) else aliases).setdefault(name, []).append(place(file, node))
    found = {name: [*classes.get(name, ()), *aliases.get(name, ())] for name in {*classes, *aliases} - ONE_THING_TWICE}
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
    assert {name: [*classes[name], *parameters[name]] for name in classes.keys() & parameters.keys()} == {}


def alias_name(node: ast.stmt) -> str | None:
    """Return the name of a type alias, which looks like that of a class."""
    match node:
        case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)):
            return name if re.fullmatch(r"[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*", name) else None
        case _:
            return None


def is_parameter(node: ast.stmt) -> bool:
    """Return whether an alias declares a parameter of a command or route. Several may declare the same name."""
    match node:
        case ast.Assign(value=ast.Subscript(value=ast.Name("Annotated"))):
            return True
        case _:
            return False
