"""Declaring and calling commands: parameters in braces, choices, names of files."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import Headway, Output, PayloadError
from headway.client.codec import decode_result, encode_result, read_payload
from headway.client.programs.argv import read_argv
from headway.client.programs.files import File
from headway.client.remote_task import task_from_catalogue
from headway.core.errors import BadArguments, ConfigError, UnknownOption
from headway.policy_store.catalogue import TaskEntry
from headway.testing import Testbed
from headway.worker.manifest import catalogue_entry


@pytest.fixture
def app() -> Headway:
    return Headway("memory://")


# ---------------------------------------------------------------------- declaring


def test_what_stands_in_braces_is_the_signature(app: Headway) -> None:
    render = app.command(["asy", "-f", "{format}", "--scale={scale}", "{{x}}.asy"], name="asy.render")
    assert list(render.signature.parameters) == ["format", "scale", "files"]
    assert render.executor == "async"
    assert render.signature.schema()["required"] == ["format", "scale"]
    assert app.find_task("asy.render") is render


@pytest.mark.parametrize(
    "argv, options, words",
    [
        ("asy a", {}, "a list of text"),
        ([], {}, "a list of text"),
        (["{program}"], {}, "the program cannot be a parameter"),
        (["./run"], {}, "an absolute path"),
        (["run", "{0}"], {}, "a plain name in braces"),
        (["run", "{}"], {}, "a plain name in braces"),
        (["run", "{a!r}"], {}, "a plain name in braces"),
        (["run", "{a:>4}"], {}, "a plain name in braces"),
        (["run", "{a.b}"], {}, "a plain name in braces"),
        (["run", "{class}"], {}, "a plain name in braces"),
        (["run", "{files}"], {}, "carries the files"),
        (["run", "{a"], {}, "cannot be read"),
        (["run", "a\0"], {}, "NUL"),
        (["run", "-{flag}"], {}, "lets callers choose the option"),
        (["run", "--{flag}=1"], {}, "lets callers choose the option"),
        (["run", "{a}"], {"choices": {"b": ["1"]}}, "no parameter"),
        (["run", "{a}"], {"choices": {"a": "xy"}}, "a list of text or whole numbers"),
        (["run", "{a}"], {"choices": {"a": []}}, "a list of text or whole numbers"),
        (["run", "{a}"], {"choices": {"a": [True]}}, "a list of text or whole numbers"),
        (["run"], {"collect": "out"}, "a list of names"),
        (["run"], {"collect": ["../x"]}, "in the working folder"),
        (["run"], {"stdin": "/etc/passwd"}, "a path inside the folder"),
        (["run"], {"env": {"A=B": "c"}}, "without NUL and ="),
        (["run"], {"cpu": 0}, "cpu is a number above 0"),
        (["run"], {"memory": -1}, "memory is a number above 0"),
        (["run"], {"output": True}, "output is a number above 0"),
        (["run"], {"executor": "process"}, "neither an executor nor a context"),
        (["run"], {"context": True}, "neither an executor nor a context"),
    ],
)
def test_a_command_that_makes_no_sense_is_refused(app: Headway, argv: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        app.command(argv, name="run", **options)
    assert app.tasks == {}


def test_options_are_those_of_a_task(app: Headway) -> None:
    made = app.command(["run", "{user}"], name="run", priority="low", max_retries=0, fair_by="user", timeout=5)
    assert (made.template.lane, made.template.max_retries, made.template.timeout_ms) == ("low", 0, 5_000)
    assert made.using(priority="high").call(user="ann").new.tenant == "ann"
    with pytest.raises(UnknownOption, match="did you mean 'priority'"):
        app.command(["run"], name="other", prioritty="low")


def test_a_name_belongs_to_one_command(app: Headway) -> None:
    app.command(["run", "{a}"], name="run")
    app.command(["run", "{a}"], name="run")  # A module that is imported twice.
    with pytest.raises(ConfigError, match="two commands want the task name 'run'"):
        app.command(["run", "{b}"], name="run")

    async def run() -> None: ...

    with pytest.raises(ConfigError, match="two functions want the task name 'run'"):
        app.task(name="run")(run)


# ---------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    "template, values, filled",
    [
        ("{a}", {"a": "x y; $(z) `w` * 'q'"}, "x y; $(z) `w` * 'q'"),
        ("{a}-{b}", {"a": 1, "b": 0.5}, "1-0.5"),
        ("--scale={a}", {"a": -2}, "--scale=-2"),
        ("--title={a}", {"a": ""}, "--title="),
        ("-f{a}", {"a": "svg"}, "-fsvg"),
        ("./{a}", {"a": "-rf"}, "./-rf"),
        ("{{{a}}}", {"a": "x"}, "{x}"),
        ("{a}", {"a": ""}, ""),
    ],
)
def test_values_fill_their_place_and_nothing_else(
    app: Headway, template: str, values: dict[str, Any], filled: str
) -> None:
    made = app.command(["run", template], name="run")
    assert made.signature.command.fill(made.call(**values).values) == ["run", filled]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "template, values, words",
    [
        ("{a}", {"a": "-rf"}, "an option of the program"),
        ("{a}", {"a": -5}, "an option of the program"),
        ("{a}", {"a": "-"}, "an option of the program"),
        ("{a}{b}", {"a": "", "b": "--delete"}, "an option of the program"),
        ("{a}.txt", {"a": "--x"}, "an option of the program"),
        ("-f{a}", {"a": ""}, "must not be empty"),
        ("{a}", {"a": "x\0y"}, "NUL"),
        ("{a}", {"a": True}, "text or a number"),
        ("{a}", {"a": None}, "text or a number"),
        ("{a}", {"a": ["x"]}, "text or a number"),
        ("{a}", {"a": "\ud800"}, "lone surrogates"),
    ],
)
def test_no_value_becomes_an_option(app: Headway, template: str, values: dict[str, Any], words: str) -> None:
    made = app.command(["run", template], name="run")
    with pytest.raises(BadArguments, match=words):
        made.call(**values)
    with pytest.raises(BadArguments, match=words):
        made.call_named(values)


def test_choices_are_the_authors_own_words(app: Headway) -> None:
    made = app.command(["run", "{a}", "-{b}"], name="run", choices={"a": ["-x", "y"], "b": [1, 2]})
    assert made.signature.command.fill({"a": "-x", "b": 1}) == ["run", "-x", "-1"]  # type: ignore[attr-defined]
    for wrong in ({"a": "-z", "b": 1}, {"a": "y", "b": "1"}, {"a": "y", "b": 1.0}, {"a": "y", "b": True}):
        with pytest.raises(BadArguments):
            made.call(**wrong)


@given(
    literals=st.lists(st.sampled_from(["", "x", "--out=", "."]), min_size=2, max_size=2),
    values=st.lists(st.text(alphabet="-ab=", max_size=3), min_size=2, max_size=2),
)
@settings(deadline=None)
def test_an_argument_that_is_no_option_by_its_author_never_is_one(literals: list[str], values: list[str]) -> None:
    template = f"{literals[0]}{{a}}{literals[1]}{{b}}"
    (_, argument) = read_argv(["run", template], ())
    try:
        filled = argument.fill(dict(zip("ab", values, strict=True)), ())
    except ValueError:
        return
    assert not filled.startswith("-") or literals[0].startswith("-") or (not values[0] and literals[1][:1] == "-")


def test_arguments_are_checked_as_those_of_other_tasks(app: Headway) -> None:
    made = app.command(["run", "{format}"], name="run", choices={"format": ["svg"]})
    with pytest.raises(BadArguments, match="missing a required"):
        made.call()
    with pytest.raises(BadArguments, match=r"no parameter 'fromat', did you mean 'format'|no parameter 'fromat'"):
        made.call_named({"fromat": "svg"})
    with pytest.raises(BadArguments, match=r"give the arguments by name, as in enqueue\(format=…\)"):
        made.call("svg")
    with pytest.raises(BadArguments, match="is one of svg, not 'pdf'"):
        made.call(format="pdf")


# ---------------------------------------------------------------------- files


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "a/../x",
        "/etc/passwd",
        "a//b",
        "a/",
        "a\\b",
        "a\0b",
        ".bashrc",
        "a/.b",
        "é" * 128,
        "\ud800",
        7,
    ],
    ids=ascii,
)
def test_a_file_stays_in_its_folder(app: Headway, name: Any) -> None:
    made = app.command(["run"], name="run")
    with pytest.raises(BadArguments, match="has a file"):
        made.call(files={name: "x"})


def test_a_name_is_not_both_a_file_and_a_folder(app: Headway) -> None:
    made = app.command(["run"], name="run")
    with pytest.raises(BadArguments, match="one name is both file and folder"):
        made.call(files={"a": "x", "a/b": "x"})


def test_files_are_text_or_bytes(app: Headway) -> None:
    # R3.43
    made = app.command(["run"], name="run")
    payload = made.call(files={"a.txt": "é", "b.bin": b"\xff\0", "c.txt": b"plain"}).new.payload
    assert read_payload(payload)["files"] == {
        "a.txt": "é",
        "b.bin": {"base64": base64.b64encode(b"\xff\0").decode()},
        "c.txt": "plain",
    }
    _, values = made.signature.decode(payload)
    assert values == {"files": {"a.txt": "é".encode(), "b.bin": b"\xff\0", "c.txt": b"plain"}}
    named = made.call_named({"files": {"b.bin": {"base64": "/wA="}}}).values
    assert named is not None
    assert named["files"]["b.bin"] == b"\xff\0"


@pytest.mark.parametrize("wrong", [3, None, ["x"], {"base64": "%"}, {"base64": 1}, {"base64": "", "more": 1}, {}])
def test_other_contents_are_refused(app: Headway, wrong: Any) -> None:
    with pytest.raises(BadArguments, match="argument 'files' has a file 'a'"):
        app.command(["run"], name="run").call(files={"a": wrong})


def test_files_are_bounded(app: Headway) -> None:
    made = app.command(["run"], name="run")
    made.call(files={f"{number}": "" for number in range(100)})
    with pytest.raises(BadArguments, match="101 files, more than the 100"):
        made.call(files={f"{number}": "" for number in range(101)})
    with pytest.raises(PayloadError, match="payload_max"):
        made.call(files={"a": "x" * (2 << 20)})
    with pytest.raises(BadArguments, match="an object of names"):
        made.call(files=["a"])


def test_a_program_that_reads_a_file_needs_it(app: Headway) -> None:
    made = app.command(["cat"], name="run", stdin="in.txt")
    with pytest.raises(BadArguments, match="missing a required"):
        made.call()
    with pytest.raises(BadArguments, match=r"lacks 'in\.txt'"):
        made.call(files={"other.txt": ""})


def test_the_same_call_has_the_same_key(headway: Testbed) -> None:
    made = headway.app.command(["run"], name="run")
    one = made.using(idempotency_key="k").enqueue(files={"a": "x"})
    assert made.using(idempotency_key="k").enqueue(files={"a": b"x"}).id == one.id
    headway.assert_enqueued(made, files={"a": "x"})


# ---------------------------------------------------------------------- elsewhere


def test_who_knows_it_from_the_catalogue_checks_it_too(app: Headway) -> None:
    # R3.91
    made = app.command(["asy", "-f", "{format}", "{page}"], name="asy", choices={"format": ["svg", "pdf"]})
    entry = msgspec.json.decode(msgspec.json.encode(catalogue_entry(made)), type=TaskEntry)
    assert entry.doc == "Run asy -f {format} {page}"
    known = task_from_catalogue(Headway("memory://"), entry)
    values = {"format": "svg", "page": 3, "files": {"a": "x", "b": {"base64": "/w=="}}}
    assert read_payload(known.call_named(values).new.payload) == values
    assert made.signature.decode(known.call_named(values).new.payload)[1]["files"] == {"a": b"x", "b": b"\xff"}
    for wrong in ({"format": "png", "page": 1}, {"format": "svg", "page": True}, {"page": 1}, {**values, "more": 1}):
        with pytest.raises(BadArguments):
            known.call_named(wrong)


def test_an_output_survives_its_way_through_a_store() -> None:
    output = Output(
        exit_code=0, stdout="é", stderr="", files={"a.svg": File(b"<svg/>"), "b.png": File(b"\x89PNG")}, seconds=0.25
    )
    payload = encode_result(output, typed=True, largest=1_000)
    assert payload is not None
    assert decode_result(payload, Output) == output
    assert decode_result(payload) == {
        "exit_code": 0,
        "stdout": "é",
        "stderr": "",
        "files": {"a.svg": "<svg/>", "b.png": {"base64": "iVBORw=="}},
        "seconds": 0.25,
    }
