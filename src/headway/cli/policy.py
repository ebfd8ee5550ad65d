"""``headway policy``: check, show, apply and roll back the policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from headway.cli import render
from headway.cli.help import command, family, flag, option
from headway.cli.operator import Operator, PolicyChange
from headway.cli.store_access import HERE, JsonFlag, TargetOptions, ask, change
from headway.cli.toml import toml_text
from headway.client.settings import load_settings
from headway.core.errors import ConfigError, PolicyError
from headway.core.policy.document import Policy
from headway.core.policy.guarantees import Guarantee
from headway.core.policy.lint import Finding, PolicyReport, check_policy
from headway.core.policy.writer import flat_data
from headway.policy_store.versions import PolicyVersion, load_policy

PolicyFile = Annotated[Path, option("A policy file, .toml or .json.", name="FILE")]

policy = family(
    "policy",
    "Check, show, apply or roll back the policy: lanes, reserve, limits, ladder, retries.",
    "headway policy check policy.toml",
    "headway policy apply policy.toml --note 'more for low'",
    "headway policy rollback",
    version_flags=[],
)


@command(policy, "check FILE [OPTIONS]", "headway policy check policy.toml --slots 10 --workers 4")
def check(
    file: PolicyFile,
    /,
    *,
    slots: Annotated[int | None, option("Slots of each worker; else HEADWAY_SLOTS, else 5.", "N")] = None,
    workers: Annotated[int, option("How many workers there are.", "N")] = 1,
    recorded: Annotated[bool, flag("Compare it with the load of the jobs that completed last.")] = False,
    json: JsonFlag = False,
    place: TargetOptions = HERE,
) -> int:
    """Check a policy file: print what it guarantees, errors and warnings.

    For each lane, prints the share of all slots that is guaranteed while every
    lane has work, and the longest wait of a job with ten minutes of work in
    front of it. Jobs that already run can add to that wait, one in each slot.

    Only --recorded needs a store. Warnings do not fail; errors do, and all of
    them are listed.
    """
    slots = load_settings().slots if slots is None else slots
    if slots < 1 or workers < 1:
        raise ConfigError(f"--slots and --workers must be at least 1, got {slots} and {workers}")
    try:
        read = load_policy(file)
        load = ask(place, lambda operator: operator.recent_load(read)) if recorded else None
        if recorded and load is None:
            raise ConfigError(
                "--recorded needs two completed jobs at least a second apart; the store has none, so leave it out"
            )
        checked = check_policy(read, slots=slots, workers=workers, load=load)
    except PolicyError as problem:
        if not json:
            raise
        found = [
            {"key": wrong.key, "text": wrong.text, **(wrong.position._asdict() if wrong.position else {})}
            for wrong in problem.problems
        ]
        render.print_json({"ok": False, "file": str(file), "problems": found})
        return 2
    if json:
        values = {
            "lanes": [_guarantee_values(sure) for sure in checked.guarantees],
            "warnings": [found._asdict() for found in checked.findings],
        }
        render.print_json({"ok": True, "file": str(file), "slots": slots, "workers": workers, **values})
    else:
        _print_check(checked, f"{render.plural(workers, 'worker')} with {render.plural(slots, 'slot')}")
    return 0


@command(
    policy, "show [OPTIONS]", "headway policy show > policy.toml", "headway policy show --history", version_flags=[]
)
def show_policy(
    *,
    version: Annotated[int | None, option("This version; else the one in force.", "N")] = None,
    history_: Annotated[bool, flag("List all versions.", name="--history")] = False,
    json: JsonFlag = False,
    place: TargetOptions = HERE,
) -> None:
    """Print the current policy as a complete policy file."""
    if history_ and version is not None:
        raise ConfigError("give --version or --history, not both")

    async def read(operator: Operator) -> tuple[list[PolicyVersion], int]:
        current = await operator.policy_version()
        if history_:
            return await operator.policy_versions(), current.version
        return [current if version is None else await operator.policy_version(version)], current.version

    found, current = ask(place, read)
    if json and history_:
        items = [applied.facts() | {"current": applied.version == current} for applied in found]
        render.print_json({"items": items, "next_cursor": None})
    elif json:
        [applied] = found
        render.print_json(applied.facts() | {"current": applied.version == current, "policy": applied.data})
    elif history_:
        _print_history(found, current)
    else:
        print(f"# {_title(found[0], current)}\n\n{toml_text(found[0].data)}", end="")


@command(policy, "apply FILE [OPTIONS]", "headway policy apply policy.toml --note 'more for low'")
def apply(
    file: PolicyFile,
    /,
    *,
    note: Annotated[str, option("The reason for the change; kept in the history.", "TEXT", show_default=False)] = "",
    place: TargetOptions = HERE,
) -> None:
    """Apply a policy file as a new version. Workers use it within seconds, without a restart.

    Prints what changes, and what `headway policy check` warns of for the workers
    that are alive. `headway policy rollback` undoes it, also after the first
    version.
    """
    wanted: Policy = load_policy(file)
    _print_change(change(place, lambda operator: operator.apply_policy(wanted, note)))


@command(policy, "rollback [OPTIONS]", "headway policy rollback", "headway policy rollback --to 3")
def rollback(
    *,
    to: Annotated[
        int | None, option("The version to go back to, 0 for the built-in policy; else the one before.", "N")
    ] = None,
    place: TargetOptions = HERE,
) -> None:
    """Apply an earlier policy again, as a new version."""
    _print_change(change(place, lambda operator: operator.roll_back(to)))


def _guarantee_values(sure: Guarantee) -> dict[str, Any]:
    return {
        "lane": sure.lane,
        "level": sure.level,
        "weight": sure.weight,
        "share": round(sure.share, 6),
        "slots": round(sure.slots, 6),
        "after_seconds": None if sure.after_ms is None else sure.after_ms / 1_000,
        "bound": sure.bound,
    }


def _print_check(checked: PolicyReport, size: str) -> None:
    console = render.console()
    numbers = ["level", "weight", "guaranteed"]
    table = render.table("lane", *numbers, "longest wait, about", right=numbers)
    for sure in checked.guarantees:
        share = f"{sure.share:.0%}" if sure.share else render.NOTHING
        table.add_row(render.text(sure.lane), str(sure.level), f"{sure.weight:g}", share, render.text(sure.bound))
    console.print(table)
    _print_warnings(checked.findings)
    print(
        f"ok, with {render.plural(len(checked.findings), 'warning') if checked.findings else 'no warnings'}, for {size}"
    )


def _print_warnings(findings: Sequence[Finding]) -> None:
    for found in findings:
        text = render.text(f"{found.key}: {found.text} [{found.code}]".removeprefix(": "))
        render.console().print(render.text("warning ", render.STYLES["warning"]) + text, soft_wrap=True)


def _title(applied: PolicyVersion, current: int) -> str:
    if not applied.version:
        return "the built-in policy; none was applied"
    note = f": {render.clean(applied.note)}" if applied.note else ""
    force = "in force" if applied.version == current else "not in force"
    return f"version {applied.version}, {force}, applied {render.local(applied.applied_at)}{note}"


def _print_history(found: list[PolicyVersion], current: int) -> None:
    if not found:
        print("No policy was applied; the built-in one is in force.")
        return
    table = render.table("version", "", "applied", "digest", "note", right=["version"], flexible=["note"])
    for applied in found:
        table.add_row(
            str(applied.version),
            render.text("in force", "green") if applied.version == current else "",
            render.local(applied.applied_at),
            render.text(applied.digest[:12]),
            render.text(applied.note or render.NOTHING),
        )
    render.console().print(table)


def _print_change(change: PolicyChange) -> None:
    before, after, findings = change
    if after.version == before.version:
        print(f"nothing changes: version {after.version}, which is in force, says the same")
        return
    old, new = ({path: render.compact(value) for path, value in flat_data(one.data)} for one in (before, after))
    table = render.table("key", "before", "now", flexible=["before", "now"])
    for key in [*old, *(key for key in new if key not in old)]:
        if old.get(key) != new.get(key):
            table.add_row(
                *(render.text(cell) for cell in (key, old.get(key, render.NOTHING), new.get(key, render.NOTHING)))
            )
    if table.row_count:
        render.console().print(table)
    _print_warnings(findings)
    was = f"version {before.version}" if before.version else "the built-in policy"
    print(f"version {after.version} is in force, after {was}")
