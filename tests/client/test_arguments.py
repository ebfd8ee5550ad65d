"""Arguments and results on their way through a store: which values come back equal, and which are refused."""

import enum
import math
import socket
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID, uuid4

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway import Depends, Headway, PayloadError
from headway.client.codec import DEPTH_MAX, Signature, read_payload
from headway.core.errors import BadArguments, PayloadTooLarge
from headway.testing import Testbed
from headway.worker.embedded import Worker


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Address:
    street: str
    since: date | None = None


@dataclass
class Person:
    name: str
    born: datetime
    homes: list[Address] = field(default_factory=list)


class Point(msgspec.Struct):
    x: float
    y: float = 0.0


class Pair(NamedTuple):
    left: int
    right: str


class Options(TypedDict):
    depth: int


class Model:
    """A class with the public attributes of a pydantic model."""

    def __init__(self, amount: int, when: datetime) -> None:
        self.amount, self.when = amount, when

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return {"amount": self.amount, "when": self.when.isoformat()}

    @classmethod
    def model_validate(cls, value: dict[str, Any]) -> "Model":
        if not isinstance(value, dict):
            raise ValueError("not a model")
        return cls(value["amount"], datetime.fromisoformat(value["when"]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and (self.amount, self.when) == (other.amount, other.when)

    __hash__ = None  # type: ignore[assignment]


MOMENT = datetime(2026, 5, 17, 12, 30, 1, 250_000, tzinfo=timezone(timedelta(hours=2)))

TYPED: dict[str, tuple[Any, Any]] = {
    "text": (str, "naïve 🌍 \u202e\0\n"),
    "whole number": (int, 2**63 + 1),
    "huge number": (int, -(2**200)),
    "fraction": (float, 5e-324),
    "negative zero": (float, -0.0),
    "truth": (bool, True),
    "nothing": (str | None, None),
    "bytes": (bytes, b"\0\xff"),
    "datetime": (datetime, MOMENT),
    "naive datetime": (datetime, datetime(2026, 1, 1)),
    "date": (date, date(2026, 1, 1)),
    "timedelta": (timedelta, timedelta(days=1, microseconds=1)),
    "UUID": (UUID, uuid4()),
    "Decimal": (Decimal, Decimal("1.10")),
    "Enum": (Colour, Colour.BLUE),
    "Literal": (Literal["a", "b"], "b"),
    "dataclass": (Person, Person("Ada", MOMENT, [Address("Main", date(2020, 2, 29)), Address("Side")])),
    "Struct": (Point, Point(1.5, -2)),
    "NamedTuple": (Pair, Pair(1, "x")),
    "TypedDict": (Options, {"depth": 3}),
    "model": (Model, Model(3, MOMENT)),
    "list of models": (list[Model], [Model(1, MOMENT), Model(2, MOMENT)]),
    "list of moments": (list[datetime], [MOMENT]),
    "dict by number": (dict[int, UUID], {5: uuid4()}),
    "set": (set[int], {1, 2, 3}),
    "tuple": (tuple[int, str], (1, "x")),
    "union": (int | datetime, MOMENT),
    "object": (dict[str, object], {"a": [1, {"b": None}]}),
    "bare list": (list, [1, "x", None]),
    "anything": (Any, {"a": [1, 2.5, "x", None, True, []], "b": {}}),
}


@pytest.mark.parametrize("kind, value", TYPED.values(), ids=TYPED.keys())
@pytest.mark.parametrize("plain", [True, False], ids=["thread", "async"])
def test_a_value_of_an_annotated_type_comes_back_as_it_went(
    headway: Testbed, kind: Any, value: Any, plain: bool
) -> None:
    seen: list[Any] = []

    def echo(value: Any) -> Any:
        seen.append(value)
        return value

    async def aecho(value: Any) -> Any:
        return echo(value)

    function: Callable[..., Any] = echo if plain else aecho
    function.__annotations__ = {"value": kind, "return": kind}
    task = headway.app.task(name="echo")(function)
    job = task.enqueue(value)
    headway.drain(raise_errors=True)
    assert seen == [value]
    assert type(seen[0]) is type(value)
    result = job.result()
    assert result == value
    assert type(result) is type(value)
    assert math.copysign(1, value) == math.copysign(1, result) if isinstance(value, float) else True
    assert task.job(job.id).result() == value


def test_a_handle_without_the_task_gives_plain_json(headway: Testbed) -> None:
    @headway.app.task
    def work() -> Person:
        return Person("Ada", MOMENT)

    job = work.enqueue()
    headway.drain()
    assert work.job(job.id).result() == Person("Ada", MOMENT)
    assert headway.app.job(job.id).result() == {"name": "Ada", "born": MOMENT.isoformat(), "homes": []}


# ---------------------------------------------------------------------- the shape of a call


def test_arguments_are_passed_as_the_signature_wants_them(headway: Testbed) -> None:
    seen: list[Any] = []

    @headway.app.task
    def odd(first: int, /, second: str, *rest: float, only: bool, maybe: int = 5, **more: date) -> None:
        seen.append((first, second, rest, only, maybe, more))

    odd.enqueue(1, "x", 2.5, 3.5, only=True, on=date(2026, 1, 1), first=date(2026, 1, 2))
    odd.enqueue(1, second="x", only=False)
    odd.enqueue(1, "x", maybe=6, only=False)
    headway.drain(raise_errors=True)
    assert seen == [
        (1, "x", (2.5, 3.5), True, 5, {"on": date(2026, 1, 1), "first": date(2026, 1, 2)}),
        (1, "x", (), False, 5, {}),
        (1, "x", (), False, 6, {}),
    ]


def test_a_default_stays_behind_so_that_it_may_change(headway: Testbed) -> None:
    @headway.app.task
    def work(a: int, b: int = 2, *, c: object = object()) -> None: ...

    job = work.enqueue(1)
    assert read_payload(job.record().payload) == {"a": 1}
    headway.drain(raise_errors=True)
    assert job.status() == "completed"


@pytest.mark.parametrize(
    "args, kwargs, message",
    [
        ((), {}, "missing a required argument: 'a'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"c": 3}, "unexpected keyword argument 'c'"),
        ((1,), {"a": 1}, "multiple values for argument 'a'"),
        (("x",), {}, "argument 'a': expected int, got str"),
        ((True,), {}, "argument 'a': expected int, got bool"),
        ((None,), {}, "argument 'a': expected int, got null"),
        ((1,), {"b": [1, "x"]}, r"argument 'b' at \[1\]: expected int, got str"),
        ((1,), {"db": 5}, "unexpected keyword argument 'db'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_in_the_words_of_python(
    headway: Testbed, args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    @headway.app.task
    def work(a: int, b: list[int] | None = None, *, db: int = Depends(lambda: 1)) -> None: ...

    for refused in (work.call, work.enqueue):
        with pytest.raises(BadArguments, match=message):
            refused(*args, **kwargs)
    assert headway.app.jobs() == []


def test_wrong_arguments_are_both_a_type_error_and_a_value_error(headway: Testbed) -> None:
    @headway.app.task
    def work() -> None: ...

    wrong: Callable[..., Any] = work.enqueue
    with pytest.raises(BadArguments) as caught:
        wrong(1)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)


def test_arguments_that_a_newer_task_does_not_take_fail_without_a_retry(headway: Testbed) -> None:
    # J6
    @headway.app.task(name="work")
    def work(old: int) -> None: ...

    job = work.enqueue(1)
    del headway.app.tasks["work"]

    @headway.app.task(name="work")
    def renamed(new: int) -> None: ...

    headway.drain(advance=True)
    info = job.record()
    assert (info.state, info.attempts) == ("failed", 1)
    assert info.error is not None
    assert "do not fit this version of the task" in info.error.message


# ---------------------------------------------------------------------- what is refused


def cyclic() -> list[Any]:
    loop: list[Any] = [1]
    loop.append(loop)
    return loop


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@contextmanager
def a_socket() -> Iterator[socket.socket]:
    with socket.socket() as found:
        yield found


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "lambda": (lambda: lambda: 1, "is a function"),
    "set": (lambda: {1, 2}, "is a set.*annotate the parameter"),
    "tuple of sets": (lambda: ({1},), r"\[0\] is a set"),
    "cyclic list": (cyclic, "nested more than 64 deep"),
    "deep list": (lambda: nested(DEPTH_MAX + 1), "nested more than 64 deep"),
    "very deep list": (lambda: nested(100_000), "nested more than 64 deep"),
    "NaN": (lambda: math.nan, "is nan"),
    "infinity": (lambda: [-math.inf], r"\[0\] is -inf"),
    "keys that are numbers": (lambda: {1: 2}, "has the key 1"),
    "keys that are nothing": (lambda: {"a": {None: 2}}, r"\['a'\] has the key None"),
    "lone surrogate": (lambda: "a\ud800", "cannot be stored"),
    "lone surrogate as a key": (lambda: {"\udfff": 1}, "cannot be stored"),
    "endless number": (lambda: 10**5_000, "cannot be stored"),
    "datetime without annotation": (lambda: MOMENT, "is a datetime.*annotate the parameter"),
    "bytes without annotation": (lambda: b"x", "is a bytes.*annotate the parameter"),
    "complex number": (lambda: 1j, "is a complex"),
    "subclass of dict": (lambda: OrderedDict(a=1), "is a OrderedDict"),
    "class": (lambda: Person, "is a type"),
    "exception": (lambda: ValueError("x"), "is a ValueError"),
    "coroutine function": (lambda: aiter, "is a builtin_function_or_method"),
}


@pytest.mark.parametrize("make, message", REFUSED.values(), ids=REFUSED.keys())
def test_a_value_that_json_cannot_hold_is_refused_and_leaves_no_trace(
    headway: Testbed, make: Callable[[], Any], message: str
) -> None:
    # J1, R2.16
    @headway.app.task
    def work(good: Any, bad: Any) -> None: ...

    with pytest.raises(PayloadError, match="argument 'bad'") as caught:
        work.enqueue("fine", bad=make())
    assert caught.match(message)
    assert isinstance(caught.value, ValueError)
    assert headway.app.jobs() == []
    assert headway.app.stats().totals == {}


def test_a_socket_is_refused_whether_annotated_or_not(headway: Testbed) -> None:
    # J1
    @headway.app.task
    def loose(bad: Any) -> None: ...

    @headway.app.task
    def strict(bad: socket.socket) -> None: ...

    with a_socket() as found:
        for task in (loose, strict):
            with pytest.raises(PayloadError, match="argument 'bad'"):
                task.enqueue(found)
    assert headway.app.jobs() == []


@pytest.mark.parametrize(
    "kind, value",
    [
        (float, math.nan),
        (float | None, math.nan),
        (list[float | None], [1.0, math.inf]),
        (dict[str, float | None], {"a": -math.inf}),
        (Point, Point(math.nan)),
        (int, "5"),
        (datetime, "yesterday"),
        (Colour, "red-ish"),
        (Literal["a"], "b"),
        (list[int], (1, "2")),
        (Model, 5),
        (str, "\ud800"),
        (set[str], {"\ud800"}),
    ],
)
def test_a_value_that_does_not_fit_its_annotation_is_refused(headway: Testbed, kind: Any, value: Any) -> None:
    def work(bad: Any) -> None: ...

    work.__annotations__ = {"bad": kind, "return": None}
    task = headway.app.task(work)
    with pytest.raises(PayloadError, match="argument 'bad'"):
        task.enqueue(value)
    assert headway.app.jobs() == []


def test_a_batch_with_one_bad_call_is_never_sent(headway: Testbed) -> None:
    @headway.app.task
    def work(value: Any) -> None: ...

    with pytest.raises(PayloadError, match="argument 'value'"):
        headway.app.enqueue_many(work.call(value) for value in (1, {2}, 3))
    assert headway.app.jobs() == []


# R5.105
def test_arguments_may_not_be_larger_than_the_setting_says() -> None:
    # J2
    with Testbed(Headway("memory://", payload_max=1_000)) as bed:

        @bed.app.task
        def work(text: str) -> None: ...

        overhead = len('{"text":""}')
        work.enqueue("x" * (1_000 - overhead))
        with pytest.raises(PayloadTooLarge, match="take 1,001 bytes, more than the 1,000 allowed"):
            work.enqueue("x" * (1_001 - overhead))
        with pytest.raises(PayloadTooLarge):
            work.enqueue("é" * 600)
        assert len(bed.app.jobs()) == 1


# ---------------------------------------------------------------------- anything at all (J4)

texts = st.text(st.characters(exclude_categories=["Cs"]))
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
json_values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=20)
odd_texts = st.text(st.characters())  # Surrogates too.
odd_leaves = leaves | odd_texts | st.floats() | st.integers(min_value=-(2**70), max_value=2**70)
odd_values = st.recursive(odd_leaves, lambda inner: st.lists(inner) | st.dictionaries(odd_texts, inner), max_leaves=10)


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal and of equal form. Unlike ``==``, this separates 1, 1.0 and True."""
    return bool(one == other) and repr(one) == repr(other)


@pytest.fixture(scope="module")
def echo_bed() -> Iterator[tuple[Testbed, Any]]:
    with Testbed() as bed:

        @bed.app.task
        async def echo(value: Any) -> Any:
            return value

        yield bed, echo


@settings(max_examples=100)
@given(value=json_values)
def test_any_json_value_comes_back_equal(echo_bed: tuple[Testbed, Any], value: Any) -> None:
    bed, echo = echo_bed
    job = echo.enqueue(value)
    bed.drain(raise_errors=True)
    assert same(job.result(timeout=20), value)


@settings(max_examples=100)
@given(value=odd_values)
def test_any_odd_value_is_refused_or_comes_back_the_same(echo_bed: tuple[Testbed, Any], value: Any) -> None:
    bed, echo = echo_bed
    try:
        job = echo.enqueue(value)
    except PayloadError:
        return
    bed.drain(raise_errors=True)
    assert same(job.result(timeout=20), value)


# The worker lives inside the test: Hypothesis objects to threads that use random numbers while it draws.
@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(values=st.lists(json_values, min_size=10, max_size=40))
def test_any_json_value_comes_back_equal_from_a_file_too(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any]
) -> None:
    app = Headway(f"sqlite:///{tmp_path_factory.getbasetemp()}/echo.db?synchronous=normal")

    @app.task
    async def echo(value: Any) -> Any:
        return value

    with app:
        jobs = app.enqueue_many([echo.call(value) for value in values])
        with Worker(app):
            results = [job.result(timeout=20) for job in jobs]
    assert all(same(result, value) for result, value in zip(results, values, strict=True))


def test_a_model_hides_no_parameter_from_the_catalogue() -> None:
    def work(number: int, model: Model, models: list[Model] | None = None) -> None: ...

    described = Headway("memory://").task(work).signature.schema()
    assert list(described["properties"]) == ["number", "model", "models"]
    assert described["properties"]["number"] == {"type": "integer"}
    assert described["required"] == ["model", "number"]


def exact(number: int, text: str, flag: bool = False) -> None: ...
def named_flag(number: int, text: str, *, flag: bool = False) -> None: ...
def mixed(number: int, text: Any) -> None: ...


class Loud(str):
    """A subclass of str."""


@pytest.mark.parametrize("function", [exact, named_flag, mixed], ids=lambda function: function.__name__)
@given(args=st.tuples(
    st.integers() | st.booleans() | st.just(2**64), st.text() | st.builds(Loud) | st.just("\ud800") | st.none(),
    st.booleans() | st.integers(),
).flatmap(lambda values: st.integers(0, 3).map(lambda count: values[:count])))  # fmt: skip
def test_the_short_way_of_arguments_gives_what_the_long_way_gives_or_nothing(
    function: Callable[..., None], args: tuple[Any, ...]
) -> None:
    signature = Signature("short", function)
    short = signature.encode_usual(args, largest=1_000)
    if short is not None:
        assert short == signature.encode(signature.bind(args, {}), largest=1_000)


def test_the_short_way_is_taken_by_arguments_of_just_their_types_and_no_others() -> None:
    signature = Signature("short", exact)
    assert signature.encode_usual((1, "one", True), largest=1_000) == b'\x01{"number":1,"text":"one","flag":true}'
    for args in [(1, "one"), (True, "one", True), (1, Loud("one"), True), (1, "\ud800", True), (1, "x" * 1_000, True)]:
        assert signature.encode_usual(args, largest=1_000) is None
    assert Signature("short", named_flag).encode_usual((1, "one", True), largest=1_000) is None
    assert Signature("short", mixed).encode_usual((1, "one"), largest=1_000) is None
