"""A small evaluator of alerting rules: the part of PromQL that Headway's alerts use, as Prometheus evaluates it.

It exists because promtool is no wheel: with it the alerts are evaluated wherever the tests run. `make proof` compares
it with promtool on the same series. It raises ``ValueError`` for whatever it cannot read, so a rule that uses more
of the language fails the tests instead of passing by.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

LOOKBACK = 300.0  # Seconds for which a sample stands for its series; Prometheus' default.
STALE = math.nan  # A series that ended says so, and is gone at once.

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]

_TOKEN = re.compile(
    r'\s*(?:("(?:[^"\\]|\\.)*")|(\d+(?:\.\d+)?(?:[smhd])?)|([a-zA-Z_:][\w:]*)|(=~|!~|!=|==|>=|<=|[-+*/(){}\[\],=<>]))'
)
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": lambda a, b: a / b if b else math.nan,
}  # fmt: skip
_AGGREGATE: dict[str, Callable[[Sequence[float]], float]] = {"sum": sum, "max": max, "min": min, "count": len}
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def seconds(text: str | None) -> float:
    """Return the seconds of a length of time such as ``2m``. None is 0."""
    if text is None:
        return 0.0
    if not re.fullmatch(r"\d+[smhd]", text):
        raise ValueError(f"cannot read the length of time {text!r}")
    return float(int(text[:-1]) * _UNITS[text[-1]])


# ---------------------------------------------------------------------- series


class Series:
    """Samples by series, in order of time."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[Labels, list[tuple[float, float]]]] = {}

    def add(self, name: str, labels: Mapping[str, str], at: float, value: float) -> None:
        self._by_name.setdefault(name, {}).setdefault(frozenset(labels.items()), []).append((at, value))

    def end(self, at: float, **labels: str) -> None:
        """Mark every series with these labels as stale, as Prometheus does when a scrape fails."""
        for by_labels in self._by_name.values():
            for found, samples in by_labels.items():
                if found >= labels.items():
                    samples.append((at, STALE))

    @property
    def names(self) -> set[str]:
        return set(self._by_name)

    def values(self, name: str, label: str) -> set[str]:
        """Return the values of a label of a metric."""
        return {value for labels in self._by_name.get(name, ()) for key, value in labels if key == label}

    def select(self, name: str, matchers: Sequence[Matcher]) -> Iterator[tuple[Labels, list[tuple[float, float]]]]:
        for labels, samples in self._by_name.get(name, {}).items():
            if all(matcher.fits(dict(labels)) for matcher in matchers):
                yield labels, samples


# ---------------------------------------------------------------------- expressions


class Matcher(NamedTuple):
    label: str
    how: str  # = | != | =~ | !~
    value: str

    def fits(self, labels: Mapping[str, str]) -> bool:
        given = labels.get(self.label, "")
        same = bool(re.fullmatch(self.value, given)) if "~" in self.how else given == self.value
        return same is not self.how.startswith("!")


@dataclass(frozen=True)
class Number:
    value: float

    def at(self, _series: Series, _now: float) -> Vector:
        raise ValueError("a number alone is no vector")


@dataclass(frozen=True)
class Selector:
    name: str
    matchers: tuple[Matcher, ...]
    span: float | None = None

    def at(self, series: Series, now: float) -> Vector:
        if self.span is not None:
            raise ValueError(f"{self.name}: a range needs a function")
        found: Vector = {}
        for labels, samples in series.select(self.name, self.matchers):
            last = next((sample for sample in reversed(samples) if sample[0] <= now), None)
            if last is not None and last[0] > now - LOOKBACK and not math.isnan(last[1]):
                found[labels | {("__name__", self.name)}] = last[1]
        return found

    def window(self, series: Series, now: float) -> Iterator[tuple[Labels, list[tuple[float, float]]]]:
        if self.span is None:
            raise ValueError(f"{self.name}: increase needs a range")
        for labels, samples in series.select(self.name, self.matchers):
            yield labels, [(at, v) for at, v in samples if now - self.span < at <= now and not math.isnan(v)]


@dataclass(frozen=True)
class Increase:
    of: Selector

    def at(self, series: Series, now: float) -> Vector:
        assert self.of.span is not None
        grown = {labels: _increase(samples, now - self.of.span, now) for labels, samples in self.of.window(series, now)}
        return {labels: value for labels, value in grown.items() if value is not None}


@dataclass(frozen=True)
class Absent:
    of: Selector

    def at(self, series: Series, now: float) -> Vector:
        named = frozenset((m.label, m.value) for m in self.of.matchers if m.how == "=")
        return {} if self.of.at(series, now) else {named: 1.0}


@dataclass(frozen=True)
class Aggregate:
    how: str
    by: tuple[str, ...]
    of: Expression

    def at(self, series: Series, now: float) -> Vector:
        groups: dict[Labels, list[float]] = {}
        for labels, value in self.of.at(series, now).items():
            kept = frozenset((key, given) for key, given in labels if key in self.by)
            groups.setdefault(kept, []).append(value)
        return {labels: float(_AGGREGATE[self.how](values)) for labels, values in groups.items()}


@dataclass(frozen=True)
class Binary:
    sign: str
    left: Expression
    right: Expression

    def at(self, series: Series, now: float) -> Vector:
        left = self.left.at(series, now)
        if isinstance(self.right, Number):
            pairs = [(labels, value, self.right.value) for labels, value in left.items()]
        else:
            right = {_bare(labels): value for labels, value in self.right.at(series, now).items()}
            pairs = [(labels, value, right[_bare(labels)]) for labels, value in left.items() if _bare(labels) in right]
        if self.sign == "and":
            return {labels: value for labels, value, _ in pairs}
        if self.sign in _COMPARE:
            return {labels: value for labels, value, other in pairs if _COMPARE[self.sign](value, other)}
        return {_bare(labels): _ARITHMETIC[self.sign](value, other) for labels, value, other in pairs}


Expression = Number | Selector | Increase | Absent | Aggregate | Binary


def _bare(labels: Labels) -> Labels:
    return frozenset((key, value) for key, value in labels if key != "__name__")


def _increase(samples: Sequence[tuple[float, float]], start: float, end: float) -> float | None:
    """Return the increase of a counter, extrapolated to the whole window as Prometheus does."""
    if len(samples) < 2:
        return None
    (first_at, first), (last_at, last) = samples[0], samples[-1]
    grown = last - first
    for (_, before), (_, after) in itertools.pairwise(samples):
        if after < before:  # The counter began again.
            grown += before
    covered = last_at - first_at
    apart = covered / (len(samples) - 1)
    to_start, to_end = first_at - start, end - last_at
    if grown > 0 and first >= 0:
        to_start = min(to_start, covered * first / grown)  # A counter was never below 0.
    whole = covered
    for gap in (to_start, to_end):
        whole += gap if gap < 1.1 * apart else apart / 2
    return grown * whole / covered


class _Parser:
    """A recursive-descent parser. From the loosest to the tightest: and; comparisons; + and -; * and /."""

    _LEVELS: tuple[tuple[str, ...], ...] = (("and",), tuple(_COMPARE), ("+", "-"), ("*", "/"))

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        at, text = 0, text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise ValueError(f"cannot read {text[at:]!r}")
            self._tokens.append(match[0].strip())
            at = match.end()

    def parse(self) -> Expression:
        found = self._binary(0)
        if self._tokens:
            raise ValueError(f"cannot read {' '.join(self._tokens)!r} in {self._text!r}")
        return found

    def _binary(self, level: int) -> Expression:
        if level == len(self._LEVELS):
            return self._single()
        left = self._binary(level + 1)
        while self._tokens and self._tokens[0] in self._LEVELS[level]:
            left = Binary(self._tokens.pop(0), left, self._binary(level + 1))
        return left

    def _single(self) -> Expression:
        token = self._next()
        if token == "(":
            found = self._binary(0)
            self._expect(")")
            return found
        if re.fullmatch(r"\d+(\.\d+)?", token):
            return Number(float(token))
        if token in _AGGREGATE:
            return self._aggregate(token)
        if token in ("increase", "absent"):
            self._expect("(")
            inner = self._selector(self._next())
            self._expect(")")
            return Increase(inner) if token == "increase" else Absent(inner)
        return self._selector(token)

    def _aggregate(self, how: str) -> Aggregate:
        by: list[str] = []
        if self._tokens and self._tokens[0] == "by":
            self._next()
            by = self._list("(", ")")
        self._expect("(")
        inner = self._binary(0)
        self._expect(")")
        return Aggregate(how, tuple(by), inner)

    def _selector(self, name: str) -> Selector:
        if not re.fullmatch(r"[a-zA-Z_:][\w:]*", name) or (self._tokens and self._tokens[0] == "("):
            raise ValueError(f"{name!r} is no metric that can be read here")
        matchers: list[Matcher] = []
        if self._tokens and self._tokens[0] == "{":
            words = self._list("{", "}")
            matchers = [Matcher(*word) for word in zip(words[::3], words[1::3], words[2::3], strict=True)]
            matchers = [m._replace(value=m.value[1:-1].replace(r"\"", '"').replace(r"\\", "\\")) for m in matchers]
        span = None
        if self._tokens and self._tokens[0] == "[":
            self._next()
            span = seconds(self._next())
            self._expect("]")
        return Selector(name, tuple(matchers), span)

    def _list(self, opening: str, closing: str) -> list[str]:
        self._expect(opening)
        words: list[str] = []
        while (token := self._next()) != closing:
            if token != ",":
                words.append(token)
        return words

    def _next(self) -> str:
        if not self._tokens:
            raise ValueError(f"{self._text!r} ends too early")
        return self._tokens.pop(0)

    def _expect(self, wanted: str) -> None:
        if (token := self._next()) != wanted:
            raise ValueError(f"{wanted!r} should stand in place of {token!r} in {self._text!r}")


def parse(text: str) -> Expression:
    """Parse an expression. Raises ``ValueError`` for syntax that alerts do not use."""
    return _Parser(text).parse()


# ---------------------------------------------------------------------- alerts


@dataclass
class Alert:
    """One alerting rule, evaluated repeatedly. ``since`` is the time at which each set of labels became active."""

    rule: Mapping[str, Any]
    since: dict[Labels, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.expression = parse(self.rule["expr"])
        self.held = seconds(self.rule.get("for"))

    def evaluate(self, series: Series, now: float) -> list[tuple[dict[str, str], dict[str, str]]]:
        """Evaluate the rule once. Return labels and annotations of the alerts that fire."""
        found = {_bare(labels): value for labels, value in self.expression.at(series, now).items()}
        self.since = {labels: self.since.get(labels, now) for labels in found}
        return [
            (
                {**dict(labels), **self.rule["labels"]},
                {key: fill_in(text, dict(labels), found[labels]) for key, text in self.rule["annotations"].items()},
            )
            for labels, since in self.since.items()
            if now - since >= self.held
        ]


def fill_in(text: str, labels: Mapping[str, str], value: float) -> str:
    """Fill in a template of an annotation."""

    def one(match: re.Match[str]) -> str:
        what, _, how = (part.strip() for part in match[1].partition("|"))
        if what.startswith("$labels."):
            return labels.get(what.removeprefix("$labels."), "")
        if what != "$value":
            raise ValueError(f"cannot fill in {match[0]!r}")
        return _SPELLED[how](value)

    return re.sub(r"\{\{(.*?)\}\}", one, text)


def _duration(value: float) -> str:
    whole = int(value)
    parts = [(whole // 86_400, "d"), (whole // 3_600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return " ".join(f"{count}{unit}" for count, unit in parts)


_SPELLED: dict[str, Callable[[float], str]] = {
    "": lambda value: f"{value:g}",
    "humanize": lambda value: f"{value:.4g}",  # Below 1000.
    "humanizePercentage": lambda value: f"{value * 100:.4g}%",
    "humanizeDuration": _duration,
}
