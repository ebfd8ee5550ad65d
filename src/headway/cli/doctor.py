"""``headway doctor``: is everything as it should be, and what does it promise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from headway.cli import render
from headway.cli.store_access import STORE_HERE, JsonFlag, StoreOptions, make_store, run
from headway.client.health_checks import Check, examine, recovery
from headway.client.settings import Settings
from headway.core.errors import ConfigError, HeadwayError, NotAStore, StoreTooNew, StoreUnavailable
from headway.version import __version__

PIPED = 100  # Columns where the output is not a terminal.


def doctor(*, json: JsonFlag = False, place: StoreOptions = STORE_HERE) -> int:
    """Check settings, store and workers, and print what is guaranteed.

    Prints every setting and its source, which failures stored jobs survive, and
    how soon jobs run again after a crash. Exits with 1 if a check fails; each
    failed check says what to do.
    """
    settings, sources = place.settings(), place.sources()
    facts: dict[str, str] = {}
    checks = run(_examine_all(settings, facts))
    healthy = all(check.status != "fail" for check in checks)
    shown = {name: (value, sources.get(name, "default")) for name, value in settings.masked().items()}
    if json:
        render.print_json(
            {
                "ok": healthy,
                "version": __version__,
                "settings": {name: {"value": value, "source": source} for name, (value, source) in shown.items()},
                "store": facts,
                "checks": [asdict(check) for check in checks],
                "recovery": recovery(settings),
            }
        )
    else:
        _print(shown, facts, checks, settings)
    return 0 if healthy else 1


# ---------------------------------------------------------------------- the checks


async def _examine_all(settings: Settings, facts: dict[str, str]) -> list[Check]:
    return [check async for check in _examine(settings, facts)]


async def _examine(settings: Settings, facts: dict[str, str]) -> AsyncIterator[Check]:
    """Check one thing after another; what needs the store is left out when it cannot be opened."""
    try:
        store = make_store(settings)
        await store.open()
    except HeadwayError as problem:
        yield Check("store", "fail", str(problem), advice(problem))
        return
    try:
        async for check in examine(store, settings, facts):
            yield check
    finally:
        await store.close()


def advice(problem: HeadwayError) -> str:
    """Return what to do about a store that cannot be opened."""
    match problem:
        case StoreUnavailable(facts={"writes": False}):
            return "free room on its disk, or read its log; jobs go on by themselves once it writes again"
        case StoreUnavailable():
            return "start the server, or let this machine reach it; jobs go on by themselves once it answers"
        case NotAStore():
            return "name the right store with --store, --app or HEADWAY_STORE, or start a worker: it makes the file"
        case StoreTooNew():
            return "install the release of Headway that wrote the store, or a newer one"
        case ConfigError():
            return "correct the address of the store"
        case _:
            return "see to the store, then run `headway doctor` again"


# ---------------------------------------------------------------------- output


def _print(shown: dict[str, tuple[Any, str]], facts: dict[str, str], checks: list[Check], settings: Settings) -> None:
    console = render.console(most=PIPED)
    console.print("Settings", style="bold")
    table = render.table("name", "value", "from", flexible=["value", "from"])
    table.show_header = False
    for name, (value, source) in shown.items():
        written = value if isinstance(value, (str, bool)) else render.compact(value).strip('"')
        style = "dim" if source == "default" else ""
        table.add_row(
            render.text(name, style),
            render.text(render.NOTHING if written in ("null", "[]") else written, style),
            render.text(source, style),
        )
    console.print(table)
    if facts:
        console.print("\nStore", style="bold")
        console.print(render.facts(facts))
    console.print("\nRecovery, with these settings", style="bold")
    bounds = recovery(settings)
    console.print(
        render.facts(
            {
                "a runner crashes": f"its jobs are back in under {bounds['runner_crashed_seconds']:g} s",
                "a host is lost": f"its jobs are back within {bounds['host_lost_seconds']:g} s "
                f"(dead_after {settings.dead_after:g} s and one reap), if another worker is alive",
            }
        )
    )
    console.print("\nChecks", style="bold")
    for check in checks:
        line = render.text(f"{check.status:<8}", render.STYLES[check.status]) + render.text(
            f"{check.name}: {check.detail}"
        )
        console.print(line, soft_wrap=True)
        if check.advice and check.status != "ok":
            console.print(render.text(f"        → {check.advice}"), soft_wrap=True)
