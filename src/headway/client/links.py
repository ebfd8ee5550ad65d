"""Links between calls: the calls that a call waits for, and future results as its arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from headway.core.errors import BadArguments, ConfigError, PayloadError
from headway.core.workflow import EdgeRule

if TYPE_CHECKING:
    from headway.client.batch import Batch
    from headway.client.job import Job
    from headway.client.task import Call

OnFailure = Literal["cancel", "run", "hold"]
ON_FAILURE: tuple[OnFailure, ...] = get_args(OnFailure)
DEPTH_MAX = 64  # How deep a value may be nested, as in ``codec``.


class Link(NamedTuple):
    """A source that a call waits for: another call, or the id of a job or batch that exists."""

    source: Call[Any] | str
    rule: EdgeRule = EdgeRule.CANCEL

    @property
    def source_id(self) -> str:
        return self.source if isinstance(self.source, str) else self.source.new.job_id


class Reference:
    """The result that a call or a batch will have. It can only be an argument of another call."""

    __slots__ = ("source",)

    def __init__(self, source: Call[Any] | str) -> None:
        self.source = source

    def __repr__(self) -> str:
        return f"the result of {self.source if isinstance(self.source, str) else self.source.task.name}"

    def __bool__(self) -> bool:
        raise BadArguments(f"{self!r} does not exist yet, so it is neither true nor false")

    def __iter__(self) -> Any:
        raise BadArguments(f"{self!r} does not exist yet, so it cannot be iterated")


class PlacedReferences(NamedTuple):
    """Arguments in which ``{"$out": n}`` stands for the result of the n-th link."""

    values: dict[str, Any]
    names: frozenset[str]  # The arguments that contain a result.
    links: tuple[Link, ...]


def place_references(values: Mapping[str, Any]) -> PlacedReferences:
    """Replace the references in arguments, also inside lists, tuples and dicts."""
    links: dict[str, Link] = {}
    names: set[str] = set()

    def replaced(name: str, value: Any, depth: int = 0) -> Any:
        if isinstance(value, Reference):
            link = Link(value.source)
            links.setdefault(link.source_id, link)
            names.add(name)
            return {"$out": list(links).index(link.source_id)}
        if depth > DEPTH_MAX:  # Encoding refuses the value.
            return value
        if isinstance(value, (list, tuple)):
            return [replaced(name, item, depth + 1) for item in value]
        if isinstance(value, dict):
            return {key: replaced(name, item, depth + 1) for key, item in value.items()}
        return value

    placed = {name: replaced(name, value) for name, value in values.items()}
    if links and any(map(_has_key, values.values())):
        raise PayloadError("beside the result of another call, no argument can have the key '$out'")
    return PlacedReferences(
        {name: placed[name] if name in names else values[name] for name in values},
        frozenset(names),
        tuple(links.values()),
    )


def _has_key(value: Any, depth: int = 0) -> bool:
    """Return whether a value contains a dict that looks like a placed reference."""
    if depth > DEPTH_MAX:
        return False
    if isinstance(value, dict):
        return "$out" in value or any(_has_key(item, depth + 1) for item in value.values())
    return isinstance(value, (list, tuple)) and any(_has_key(item, depth + 1) for item in value)


def merge_links(first: Iterable[Link], second: Iterable[Link]) -> tuple[Link, ...]:
    """Return the links of both. A source that is in both keeps its place and takes the later rule."""
    links = {link.source_id: link for link in first}
    for link in second:
        known = links.get(link.source_id)
        links[link.source_id] = link if known is None else known._replace(rule=link.rule)
    return tuple(links.values())


def read_links(sources: Iterable[Call[Any] | Job[Any] | Batch[Any] | str], on_failure: str) -> tuple[Link, ...]:
    """Return links to calls, jobs and batches. Raises ``ConfigError`` for anything else."""
    if on_failure not in ON_FAILURE:
        raise ConfigError(f"on_failure must be cancel, run or hold, got {on_failure!r}")
    if isinstance(sources, str) or not isinstance(sources, Iterable):
        raise ConfigError(f"after must be a list of calls, jobs or batches, got {sources!r}")
    return merge_links((), (Link(_source(source), EdgeRule(on_failure)) for source in sources))


def _source(source: Any) -> Call[Any] | str:
    if isinstance(source, str) or hasattr(source, "links"):
        return source  # type: ignore[no-any-return]
    found = getattr(source, "id", None)
    if not isinstance(found, str):
        raise ConfigError(f"a job can wait for calls, jobs and batches, got {source!r:.100}")
    return found
