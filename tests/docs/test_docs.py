"""The documentation agrees with the code: examples run, tables match."""

from __future__ import annotations

import pkgutil
import re
import subprocess
import sys
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from headway.client.options import TaskOptions
from headway.client.settings import ALIASES, Settings
from headway.core import errors
from headway.core.event import EVENT_KINDS
from headway.core.policy.retry import BACKOFFS
from headway.stores import base as stores_base
from headway.worker.backend import base as backend_base

ROOT = Path(__file__).parents[2]


CLI = ROOT / "src" / "headway" / "cli"
# Values of options that are ordinary words, and a verb of HTTP.
PLAIN = {
    "APP", "CHOICE", "CONDITION", "CURSOR", "DIR", "FILE", "HOST", "IDS", "INT", "ISO", "JSON", "KEY", "LENGTH",
    "LEVEL", "MIB", "MODE", "NAME", "NAMES", "NUMBER", "ORIGIN", "PORT", "POST", "PROJ", "REASON", "SECONDS", "STATUS",
    "STEPS", "STR", "TEXT", "TIME", "URL", "WHAT",
}  # fmt: skip


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_the_first_example_is_short_and_works_as_pasted(tmp_path: Path) -> None:
    example = python_blocks("README.md")[0]
    assert len(example.strip().splitlines()) <= 8
    (tmp_path / "hello.py").write_text(example)
    done = subprocess.run([sys.executable, "hello.py"], cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.returncode) == ("5\n", 0), done.stderr


def test_the_example_file_works(tmp_path: Path) -> None:
    file = ROOT / "examples" / "hello.py"
    done = subprocess.run([sys.executable, file], cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.returncode) == ("5\n", 0), done.stderr


def test_the_examples_of_the_api_reference_are_one_program(tmp_path: Path) -> None:
    program = "".join(python_blocks("docs/reference/api.md"))
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    shown = re.findall(r"print\(.*\) +# (.+)$", program, re.MULTILINE)
    assert len(shown) == 4
    assert [line for line in printed if line in shown] == shown


PAGES = [
    "README.md",
    "docs/start/first-job.md",
    "docs/reference/python.md",
    *(f"docs/how-to/{page.name}" for page in sorted((ROOT / "docs" / "how-to").glob("*.md"))),
]


@pytest.mark.parametrize("page", PAGES)
def test_every_python_example_can_be_read(page: str) -> None:
    for block in python_blocks(page):
        if ">>>" not in block:
            compile(block.replace("async with", "with") if "async with Worker" in block else block, page, "exec")


def test_the_settings_table_is_complete_and_true() -> None:
    # R2.31
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    rows = {
        match[1]: (match[2], match[3])
        for match in re.finditer(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|", page, re.MULTILINE)
    }
    for field in fields(Settings):
        variables, default = rows[field.name]
        assert f"`HEADWAY_{field.name.upper()}`" in variables
        for alias, name in ALIASES.items():
            assert (f"`{alias}`" in variables) == (name == field.name)
        assert field.default is not MISSING
        if isinstance(field.default, (int, float, str)) and field.name not in ("reserved", "log"):
            shown = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
            assert f"`{shown}`" == default.strip()


def test_the_python_reference_names_every_option_of_tasks_every_backoff_and_every_event() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    options = page.partition("### Options of a task\n")[2].partition("\n### ")[0]
    known = {"name", *(field.name for field in fields(TaskOptions))}
    assert set(re.findall(r"^\| `(\w+)` \|", options, re.MULTILINE)) == known
    (backoffs,) = re.findall(r"Retry\(backoff=(\S+),", options)
    assert re.findall(r'"(\w+)"', backoffs) == list(BACKOFFS)
    (events,) = re.findall(r"^\| `job.events\(\)` \| yield (.*) as they happen \|$", page, re.MULTILINE)
    assert re.findall(r"`(\w+)`", events) == list(EVENT_KINDS)


def test_every_error_code_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    # Never seen by users of the Python API.
    inside = {errors.HeadwayError, errors.LeaseLost, errors.WorkerUnknown, errors.TooMany}
    inside |= {errors.CountGrew, errors.ExpectNeeded}
    for error in classes:
        if issubclass(error, errors.HeadwayError) and error not in inside:
            assert f"`{error.code}`" in page, error.code


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_source_files_that_pages_name_exist() -> None:
    named = {
        (page.name, name)
        for page in [*ROOT.glob("docs/design/*.md"), *ROOT.glob("docs/explain/*.md")]
        for name in re.findall(r"`([a-z][\w/]*(?:\.py|\.lua|\.sql|/))`", page.read_text())
    }
    assert ("0009-store-time.md", "core/policy/clock.py") in named
    patterns = ("{}", "src/headway/**/{}", "tests/**/{}")
    missing = {one for one in named if not any(any(ROOT.glob(pattern.format(one[1]))) for pattern in patterns)}
    assert missing == set()


def anchors(page: Path) -> set[str]:
    """Return the anchors that the headings of a page get on GitHub."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_to_headings_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for target, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)]+)\)", page.read_text()):
            assert anchor in anchors(page.parent / target if target else page), f"{page.name}: {target}#{anchor}"


def test_the_first_job_page_is_true(tmp_path: Path) -> None:
    blocks = python_blocks("docs/start/first-job.md")
    (tmp_path / "shop.py").write_text(blocks[0])
    (tmp_path / "test_shop.py").write_text(next(block for block in blocks if "Testbed" in block))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_testing_example_is_true(tmp_path: Path) -> None:
    example = next(block for block in python_blocks("docs/reference/python.md") if "test_reminders" in block)
    (tmp_path / "test_reminders.py").write_text(example)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_reminders.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("page", ["write-a-store", "write-a-worker-backend"])
def test_every_name_on_the_pages_on_extending_exists(page: str) -> None:
    text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text()
    named = re.findall(r"`(headway\.[\w.]+)", text)
    assert named
    for name in named:
        pkgutil.resolve_name(name)
    for name in re.findall(r"^\| `([A-Z]\w+)` \|", text, re.MULTILINE):
        assert hasattr(backend_base, name), name
    for row in re.findall(r"^\| ((?:`[a-z_]+`(?:, )?)+) \|", text, re.MULTILINE):
        for method in re.findall(r"`([a-z_]+)`", row):
            assert hasattr(stores_base.Store, method) or hasattr(stores_base.Abilities, method), method


def test_the_example_of_an_own_store_works(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(python_blocks("docs/how-to/write-a-store.md")[0])
    done = subprocess.run([sys.executable, "own.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("localhost is there\n", 0), done.stderr


def test_the_commands_work_on_the_example_of_an_own_address(tmp_path: Path) -> None:
    for block in python_blocks("docs/how-to/write-a-store.md")[1:]:
        (tmp_path / block.splitlines()[0].removeprefix("# ")).write_text(block)
    words = [sys.executable, "own.py"]
    worker = subprocess.Popen([*words, "worker", "shop:app"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        submit = [*words, "submit", "shop.ping", "host=localhost", "--app", "shop:app", "--wait"]
        done = subprocess.run(submit, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.stdout.splitlines()[1:] == ['"localhost is there"'], done.stderr
        assert (tmp_path / "own.db").exists()
    finally:
        worker.terminate()
        worker.wait(60)


def test_the_example_of_an_own_backend_prints_what_the_page_shows(tmp_path: Path) -> None:
    page = "docs/how-to/write-a-worker-backend.md"
    (tmp_path / "own.py").write_text(python_blocks(page)[0])
    done = subprocess.run([sys.executable, "own.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("localhost is there True\n", 0), done.stderr
    assert f"```\n{done.stdout}```" in (ROOT / page).read_text()


def test_the_glossary_has_the_words_of_the_commands_and_of_the_dashboard() -> None:
    glossary = (ROOT / "docs" / "reference" / "glossary.md").read_text().lower()
    defined = re.findall(r"\*{1,2}([\w ]+)\*{1,2}", glossary)
    values = {found for file in CLI.glob("*.py") for found in re.findall(r'", "([A-Z]{3,})"[,)]', file.read_text())}
    assert {"LANE", "TENANT", "RUNG", "SCOPE", "WORKER", "SEARCH"} <= values
    assert {word for word in values - PLAIN if not any(word.lower() in one for one in defined)} == set()
    pages = (ROOT / "docs" / "how-to" / "dashboard.md").read_text().partition("## The pages")[2].partition("##")[0]
    named = re.findall(r"^\| ([A-Z][\w ]*) \|", pages, re.MULTILINE)
    assert {"Tenants", "Limits", "Crons", "Batches"} <= set(named)
    for page in set(named) - {"Now", "System"}:
        word = page.lower().removesuffix("es" if page == "Batches" else "s")
        assert any(word in one for one in defined), page
