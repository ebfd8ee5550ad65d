"""The search language for jobs: ``state:failed task:reports.* error:Timeout after:2h``. Lists and bulk actions use it.

A search is a list of words. A word with the name of a field and a colon restricts that field, and a whole id names a
job. Any other word must appear in the arguments of a job. Quotes keep spaces together, and make a word of an id. All
words must fit, and of several values of a field one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from headway.core.errors import ConfigError
from headway.core.job import JobId, JobRecord, State
from headway.core.policy.units import parse_length
from headway.core.policy.why import CODES
from headway.core.suggest import did_you_mean
from headway.core.timestamps import write_moment

FIELDS = ("state", "task", "lane", "tenant", "worker", "why", "error", "id", "after", "before")
ALIASES = {"status": "state", "task_type": "task", "priority": "lane", "task_id": "id"}  # The names of the HTTP API.
TEXT_MAX = 2_000  # Characters of a search, so that a list of ids fits.
VALUES_MAX = 1_000  # Values of one field.
MOMENT = "a length such as 2h before now, or a time such as 2030-01-31T08:00:00Z"

# A word: a name with a colon or nothing, then text, in which quotes enclose spaces.
_WORD = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^\s"])+')
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_JOB_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class JobSearch(NamedTuple):
    """The conditions on a job. An empty field matches every job."""

    states: tuple[State, ...] = ()
    tasks: tuple[str, ...] = ()  # Names that may contain ``*``.
    lanes: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()  # Codes of ``why``: the job waits, and this is its first reason.
    errors: tuple[str, ...] = ()  # The type of an error, or a part of its message.
    ids: tuple[str, ...] = ()  # Ids, or their beginnings or ends.
    after_at: int | None = None  # Submitted at this moment or later.
    before_at: int | None = None  # Submitted before this moment.
    words: tuple[str, ...] = ()  # Parts of the arguments.

    @property
    def whole_ids(self) -> tuple[JobId, ...]:
        """Return the ids, if the search names jobs by their whole ids only."""
        return tuple(map(JobId, self.ids)) if all(len(one) == _ID_LENGTH for one in self.ids) else ()


_ID_LENGTH = 36
_LISTS = {
    "state": "states", "task": "tasks", "lane": "lanes", "tenant": "tenants", "worker": "workers", "why": "reasons",
    "error": "errors", "id": "ids",
}  # fmt: skip


def parse_search(text: str, now_at: int) -> JobSearch:
    """Read a search as an operator writes it. Raises ``ConfigError`` that says what is wrong."""
    if len(text) > TEXT_MAX:
        raise ConfigError(f"a search has at most {TEXT_MAX:,} characters, this one has {len(text):,}")
    fields: dict[str, list[str]] = {}
    words: list[str] = []
    for match in _WORD.finditer(text):
        name, colon, value = match[0].partition(":")
        if colon and name.isidentifier():
            values = [value] if name in ("after", "before", "error") else _split(value)
            fields.setdefault(_known(name), []).extend(map(_unquoted, values))
        elif _JOB_ID.fullmatch(match[0]):
            fields.setdefault("id", []).append(match[0])
        else:
            words.append(_unquoted(match[0]))
    return build_search(fields, now_at, words)


def build_search(fields: Mapping[str, Sequence[str]], now_at: int, words: Iterable[str] = ()) -> JobSearch:
    """Return the search for values by field. Raises ``ConfigError``."""
    found: dict[str, Any] = {"words": tuple(word for word in words if word)}
    for given, values in fields.items():
        name = _known(given)
        if not values or not all(values):
            raise ConfigError(f"{name}: needs a value, as in {name}:{_EXAMPLES[name]}")
        if len(values) > VALUES_MAX:
            raise ConfigError(f"{name}: takes at most {VALUES_MAX:,} values, got {len(values):,}")
        if name in ("after", "before"):
            if len(values) > 1:
                raise ConfigError(f"{name}: takes one time, got {len(values)}")
            found[f"{name}_at"] = read_time(name, values[0], now_at)
        else:
            found[_LISTS[name]] = tuple(dict.fromkeys(map(_state, values) if name == "state" else values))
    search = JobSearch(**found)
    for code in search.reasons:
        if code not in CODES:
            raise ConfigError(f"why: no reason {code!r}{did_you_mean(code, CODES)} (reasons: {', '.join(CODES)})")
    if search.reasons and not search.states:
        search = search._replace(states=(State.QUEUED,))
    return search


def write_search(search: JobSearch) -> str:
    """Return a search as text that ``parse_search`` reads, with moments instead of lengths of time."""
    found = [f"state:{','.join(state.value for state in search.states)}"] if search.states else []
    for name, attribute in _LISTS.items():
        if name != "state" and (values := getattr(search, attribute)):
            found += [f"{name}:{_quoted(value)}" for value in values]
    for name, at in (("after", search.after_at), ("before", search.before_at)):
        if at is not None:
            found.append(f"{name}:{write_moment(at)}")
    return " ".join([*found, *(_quoted(word, bare=True) for word in search.words)])


def stored_arguments(job: JobRecord) -> bytes:
    """Return the arguments of a job as the store has them."""
    return job.payload


def matches(
    search: JobSearch,
    job: JobRecord,
    reason_of: Callable[[JobRecord], str | None],
    arguments_of: Callable[[JobRecord], bytes] = stored_arguments,
) -> bool:
    """Return whether a job fits a search.

    ``reason_of`` returns the code of the first reason why a job waits, and ``arguments_of`` the arguments as JSON, in
    which words are looked for.
    """
    return (
        (not search.states or job.state in search.states)
        and (not search.tasks or any(fnmatchcase(job.task, task) for task in search.tasks))
        and (not search.lanes or job.lane in search.lanes)
        and (not search.tenants or job.tenant in search.tenants)
        and (not search.workers or job.worker_id in search.workers)
        and (not search.ids or any(job.job_id.startswith(one) or job.job_id.endswith(one) for one in search.ids))
        and (search.after_at is None or job.submitted_at >= search.after_at)
        and (search.before_at is None or job.submitted_at < search.before_at)
        and (not search.errors or any(_has_error(job, error) for error in search.errors))
        and (not search.words or _has_words(arguments_of(job), search.words))
        and (not search.reasons or reason_of(job) in search.reasons)
    )


def read_time(name: str, text: str, now_at: int) -> int:
    """Read a moment: a length before now, or an RFC 3339 time with a zone. Raises ``ConfigError``."""
    try:
        return now_at - parse_length(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ConfigError(f"{name} takes {MOMENT}; got {text[:60]!r}")
    return round(moment.timestamp() * 1_000)


def _has_error(job: JobRecord, error: str) -> bool:
    found = job.error
    return found is not None and (found.type == error or error.casefold() in found.message.casefold())


def _has_words(arguments: bytes, words: Sequence[str]) -> bool:
    text = arguments.decode(errors="replace").casefold()
    return all(any(form in text for form in _forms(word)) for word in words)


def _forms(word: str) -> set[str]:
    """Return how JSON may write a word: as it is, with quotes and backslashes escaped, or in ASCII alone."""
    escaped = (json.dumps(word, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True))
    return {form.casefold() for form in (word, *escaped)}


def plain_words(words: Sequence[str]) -> list[str]:
    """Return the words that JSON writes in one form only, in lower case, so that a store can look for them."""
    return [word.lower() for word in words if word.isascii() and word.isprintable() and not set(word) & set('"\\')]


def _known(name: str) -> str:
    found = ALIASES.get(name, name)
    if found not in FIELDS:
        raise ConfigError(
            f"no field {name[:60]!r} to search by{did_you_mean(name[:60], FIELDS)} (fields: {', '.join(FIELDS)}; put "
            "text with a colon into quotes)"
        )
    return found


def _state(name: str) -> State:
    try:
        return State(name)
    except ValueError:
        known = [state.value for state in State]
        raise ConfigError(f"no state {name[:60]!r}{did_you_mean(name, known)} (states: {', '.join(known)})") from None


def _split(value: str) -> list[str]:
    return [value] if '"' in value else value.split(",")


def _unquoted(text: str) -> str:
    return _QUOTED.sub(lambda match: re.sub(r"\\(.)", r"\1", match[1]), text)


def _quoted(text: str, *, bare: bool = False) -> str:
    if text and not re.search(r'[\s",\\]', text) and not (bare and (":" in text or _JOB_ID.fullmatch(text))):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


_EXAMPLES = {
    "state": "failed", "task": "reports.export", "lane": "high", "tenant": "acme", "worker": "web-1:4711:a1b2c3",
    "why": "slots_full", "error": "TimeoutError", "id": "22334455", "after": "2h", "before": "1d",
}  # fmt: skip
