"""The way from a command to its store or app."""

from __future__ import annotations

import asyncio
import functools
import getpass
import os
import socket
import traceback
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from cyclopts import Parameter

from headway.cli.help import StoreUrl, flag, option
from headway.cli.operator import JobReport, Operator, StoreOperator
from headway.client.settings import Settings, gather, load_settings
from headway.core.errors import ConfigError, HeadwayError, JobNotFound, NotAStore
from headway.core.job import JobId, State
from headway.security.audited_store import audited
from headway.stores.base import JobQuery, Store
from headway.stores.open import mask, open_store

if TYPE_CHECKING:
    from headway.client.app import Headway

T = TypeVar("T")

JobWord = Annotated[str, option("The job's id, or its last characters.", name="ID")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """The options that name a store and its namespace."""

    store: StoreUrl = None
    namespace: Annotated[
        str | None, option("Namespace of an app in a shared store; else the app's or HEADWAY_NAMESPACE.", "NAME")
    ] = None
    app: Annotated[
        str | None, option("Use the store of this app, module:attribute; else of HEADWAY_APP, if set.", "APP")
    ] = None

    def settings(self) -> Settings:
        """Read the settings: a flag, then ``--app``, then a ``HEADWAY_`` variable, then ``HEADWAY_APP``."""
        app = self.named_app()
        return load_settings(self._flags()) if app is None else app.settings

    def sources(self) -> dict[str, str]:
        """Return where each setting comes from that has not its default value."""
        flags, app = self._flags(), self.named_app()
        found = {name: where for name, (_, where) in gather(flags if app is None else app.given).items()}
        path = self.app or os.environ.get("HEADWAY_APP", "")
        for name, where in found.items():
            if where == "argument":
                variable = f"HEADWAY_{name.upper()}"
                overridden = self.app is None and name in flags and os.environ.get(variable)
                found[name] = "command line" if flags.get(name) else variable if overridden else path
        return found

    def named_app(self) -> Headway | None:
        """Import the app that ``--app`` or ``HEADWAY_APP`` names; None if neither does.

        An app that cannot be imported is an error, unless only ``HEADWAY_APP`` names it and the store is named
        without it. Then the command warns and uses that store.
        """
        path = self.app or os.environ.get("HEADWAY_APP")
        if not path:
            return None
        settings = self._flags()
        if self.app is None:
            settings = {
                name: value or os.environ.get(f"HEADWAY_{name.upper()}") or None for name, value in settings.items()
            }
        try:
            return _load_once(path, os.getcwd(), settings["store"], settings["namespace"])
        except HeadwayError as problem:
            if self.app is not None or not settings["store"]:
                raise
            warnings.warn(f"HEADWAY_APP={path} cannot be used: {problem}", stacklevel=2)
            return None

    def _flags(self) -> dict[str, str | None]:
        return {"store": self.store, "namespace": self.namespace}

    def server(self) -> tuple[str, str | None] | None:
        """Return the address of the server to go through and the token for it, or None for the store itself."""
        return None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TargetOptions(StoreOptions):
    """The options that name a store and its namespace, or a server instead."""

    server_url: Annotated[
        str | None,
        option(
            "Go through this server, with HEADWAY_TOKEN; else HEADWAY_SERVER, else the store.", "URL", name="--server"
        ),
    ] = None

    def server(self) -> tuple[str, str | None] | None:
        here = any(flag is not None for flag in (self.store, self.namespace, self.app))
        if here and self.server_url is not None:
            raise ConfigError(
                "give --server, or --store, --namespace and --app, not both: a server has a store of its own"
            )
        settings = load_settings({"server": self.server_url})
        return None if here or settings.server is None else (settings.server, settings.token)


PART_LEAST = 4  # Characters of an id that a command looks for.
PART_SURE = 8  # Characters; this many random ones fit two of the newest jobs once in a million times.
WHOLE = 36  # Characters of an id.
COMPARED = 5_000  # The newest jobs, which a part of an id is compared with.
PAGE = 500
CANDIDATES = 10

HERE = TargetOptions()
STORE_HERE = StoreOptions()

JsonFlag = Annotated[bool, flag("Print one JSON document.", name="--json")]


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a command's work to its end."""
    return asyncio.run(coroutine)


@asynccontextmanager
async def opened(place: StoreOptions, *, create: bool = False) -> AsyncGenerator[Store]:
    """Open the store that the settings name, and close it afterwards.

    Unless ``create``, a file that does not exist is an error: an operator who mistypes a path should be
    told so, not shown an empty store.
    """
    store = make_store(place.settings(), create=create)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def reading(place: TargetOptions, *, history: bool = False, who: str | None = None) -> AsyncGenerator[Operator]:
    """Open the store or the server of a command, and close it afterwards.

    ``history``: also find jobs that the store has moved to its history. ``who``: for the audit of what the command
    changes in the store. A server records by itself.
    """
    if (server := place.server()) is not None:
        from headway.cli.remote import HttpOperator

        remote = HttpOperator(*server, history=history)
        await remote.open()
        try:
            yield remote
        finally:
            await remote.close()
        return
    async with opened(place) as store:
        operator = StoreOperator(audited(store, who), history_of(place, store) if history else None, who)
        try:
            yield operator
        finally:
            await operator.close()


def ask(
    place: TargetOptions, work: Callable[[Operator], Awaitable[T]], *, history: bool = False, who: str | None = None
) -> T:
    """Run a function on the store or the server of a command. ``history`` and ``who``: as in ``reading``."""

    async def work_there() -> T:
        async with reading(place, history=history, who=who) as operator:
            return await work(operator)

    return run(work_there())


def change(place: TargetOptions, work: Callable[[Operator], Awaitable[T]]) -> T:
    """Run a function that changes something in the store or on the server of a command."""
    return ask(place, work, who=cli_user())


def cli_user() -> str:
    """Return the name by which the audit knows who runs a command."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # Containers run under numbers that have no name.
        user = str(os.getuid())
    return f"cli:{user}@{socket.gethostname()}"


def watched_store(place: TargetOptions) -> Store:
    """Make what a ``Client`` watches jobs through, unopened: the store, or the server in its place."""
    server = place.server()
    if server is None:
        return make_store(place.settings())
    from headway.cli.remote import HttpOperator

    return cast("Store", HttpOperator(*server))


def history_of(place: StoreOptions, store: Store) -> str | None:
    """Return where the jobs are kept that a store has forgotten, if it is one that forgets."""
    return place.settings().history if place.server() is None and store.abilities.archive_source else None


async def whole_ids(operator: Operator, words: Sequence[str], states: tuple[State, ...] = ()) -> list[JobId]:
    """Return the ids that words stand for: each is an id, or the beginning or end of one.

    Only the newest jobs are compared with a part of an id. A part that fits none of them is returned as it is, so the
    command reports that there is no such job. Raises ``ConfigError`` with all candidates if a part fits several.
    """
    known = {job.job_id for job in await operator.get([JobId(word) for word in words]) if job is not None}
    return [
        JobId(word) if word in known or not _may_be_part(word) else await _whole_id(operator, word, states)
        for word in words
    ]


async def find_report(operator: Operator, word: str) -> JobReport:
    """Read the job that a word stands for, and where it stands. Raises ``JobNotFound``."""
    (job_id,) = await whole_ids(operator, [word])
    report = await operator.report(job_id)
    if report is None:
        raise JobNotFound.of(word)
    return report


def _may_be_part(word: str) -> bool:
    return PART_LEAST <= len(word) < WHOLE and all(letter in "0123456789abcdef-" for letter in word.lower())


async def _whole_id(operator: Operator, word: str, states: tuple[State, ...]) -> JobId:
    part = word.lower()
    # What runs or is dead may be older than the newest jobs of all states.
    scopes = [states] if states else [(), (State.EXECUTING,), (State.DEAD_LETTER,), (State.FAILED,)]
    for scope in scopes:
        fitting: set[JobId] = set()
        before, left = None, COMPARED
        while left > 0 and not (fitting and len(part) >= PART_SURE):
            page = await operator.find(JobQuery(states=scope, before=before, limit=min(PAGE, left)))
            fitting |= {job.job_id for job in page if job.job_id.startswith(part) or job.job_id.endswith(part)}
            if not page:
                break
            before, left = page[-1].seq, left - len(page)
        if len(fitting) > 1:
            shown = ", ".join(sorted(fitting)[:CANDIDATES]) + (", …" if len(fitting) > CANDIDATES else "")
            raise ConfigError(f"{word!r} is the beginning or end of {len(fitting)} ids; give more of it: {shown}")
        if fitting:
            return fitting.pop()
    return JobId(word)


def make_store(settings: Settings, *, create: bool = False) -> Store:
    """Make an unopened store. Raises ``NotAStore`` if its file does not exist and is not to be created."""
    store = open_store(
        settings.store, settings.namespace, transient=settings.transient_store, timeout=settings.store_timeout
    )
    check_shared(store, settings)
    path = store.abilities.path
    if path is not None and not create and not path.exists():
        raise NotAStore(
            f"there is no store at {path.absolute()}; start `headway up` or `headway worker` to "
            "create it, or name another one with --store, HEADWAY_STORE, --app or HEADWAY_APP",
            path=str(path),
        )
    return store


def check_shared(store: Store, settings: Settings) -> None:
    """Refuse a store that lives inside one process: a command would only see its own, empty one."""
    if not store.abilities.shared:
        inside = settings.store if settings.store.startswith("memory:") else settings.transient_store or settings.store
        raise ConfigError(
            f"{mask(inside)} lives inside one process, so the command line cannot use it; "
            "give another store with --store or HEADWAY_STORE"
        )


@functools.lru_cache(maxsize=1)
def _load_once(path: str, folder: str, store: str | None, namespace: str | None) -> Headway:
    """Import an app with other settings over its own. Commands ask for their settings more than once.

    Raises ``CannotStart`` with the module's traceback.
    """
    from headway.client.loading import load_app
    from headway.worker.runner_process import CannotStart

    try:
        app = load_app(path, folder)
    except HeadwayError:
        raise
    except (Exception, SystemExit) as problem:
        message = f"the app {path} cannot be imported: {type(problem).__name__}: {problem}"
        raise CannotStart(message, traceback=traceback.format_exc()) from problem
    app.configure(store=store, namespace=namespace)
    return app
