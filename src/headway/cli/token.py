"""``headway token``: make, list and revoke the tokens that open the service."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from msgspec.structs import asdict

from headway.cli import render
from headway.cli.help import command, family, flag, option, split_names
from headway.cli.store_access import STORE_HERE, JsonFlag, StoreOptions, cli_user, opened, run
from headway.core.errors import ConfigError
from headway.core.policy.units import parse_length
from headway.core.suggest import did_you_mean
from headway.core.timestamps import write_moment
from headway.security import tokens
from headway.security.audit import AuditRecord, read_audit
from headway.security.tokens import SCOPES, Token

STATUS_STYLES = {"active": "green", "expired": "yellow", "revoked": "red"}

token = family(
    "token",
    "Create, list or revoke tokens: who may submit, read, work or administer over HTTP.",
    "headway token create --scope submit --scope read --tenant acme --expires 30d",
    "headway token list",
    "headway token revoke 3f9c2b7a10",
)


@command(
    token,
    "create --scope SCOPE [OPTIONS]",
    "headway token create --scope worker --tasks 'reports.*' --note 'gpu hosts'",
    "headway token create --scope submit,read --tenant acme --expires 30d",
)
def create(
    *,
    scope: Annotated[
        list[str], option(f"What it allows: {', '.join(SCOPES)}; several with commas, or again.", "SCOPE")
    ],
    tenant: Annotated[str | None, option("Only for this tenant's jobs.", "TENANT")] = None,
    tasks: Annotated[
        list[str] | None,
        option(
            "Bind a worker token to these tasks: a name, or a pattern such as reports.*; it may publish them.", "TASK"
        ),
    ] = None,
    rate: Annotated[
        str | None, option("How often it may submit: 100/s, 5000/min; else HEADWAY_TOKEN_RATE.", "RATE")
    ] = None,
    expires: Annotated[str | None, option("How long the token is valid: 12h, 30d; else for ever.", "LENGTH")] = None,
    note: Annotated[str, option("Who uses the token.", "TEXT", show_default=False)] = "",
    json: JsonFlag = False,
    place: StoreOptions = STORE_HERE,
) -> None:
    """Create a token and print it once; the store keeps only its digest.

    Once a token exists, the server refuses requests without one. `admin`
    includes all other scopes. A worker needs `worker`. With `--tasks` the token
    is bound to these tasks and may publish them; without `--tasks` it may
    publish none.
    """
    scopes = tokens.check_scopes(split_names(scope))
    bound = None if tasks is None else tokens.check_tasks(split_names(tasks), scopes)
    expires_ms = None if expires is None else _read_expires(expires)

    async def make() -> tuple[Token, str, int]:
        async with opened(place, create=True) as store:
            now_at = (await store.snapshot()).now_at
            made, text = await tokens.create_token(
                store,
                scopes,
                tenant=tenant,
                expires_ms=expires_ms,
                note=note,
                tasks=bound,
                rate=rate,
                now_at=now_at,
                who=cli_user(),
            )
            return made, text, now_at

    made, text, now_at = run(make())
    if json:
        render.print_json({"token": text} | _values(made, now_at))
    else:
        print(text)
        until = "for ever" if made.expires_at is None else f"until {render.local(made.expires_at)}"
        whose = "" if made.tenant is None else f", for tenant {render.clean(made.tenant)} alone"
        whose += "" if made.tasks is None else f", for tasks {render.clean(', '.join(made.tasks))} alone"
        whose += "" if made.rate is None else f", {render.clean(made.rate)}"
        # On the other stream: what is printed above can be taken as it is.
        print(f"token {made.token_id} allows {', '.join(made.scopes)}{whose}, {until}", file=sys.stderr)
        print("Keep it safe: it is not shown again.", file=sys.stderr)


@command(token, "list [OPTIONS]", "headway token list --json")
def list_all(*, json: JsonFlag = False, place: StoreOptions = STORE_HERE) -> None:
    """List tokens: what they allow, and when they were last used (to the minute)."""

    async def read() -> tuple[list[Token], int]:
        async with opened(place) as store:
            return await tokens.list_tokens(store), (await store.snapshot()).now_at

    found, now_at = run(read())
    if json:
        render.print_json({"items": [_values(one, now_at) for one in found], "next_cursor": None})
    elif found:
        _print(found, now_at)
    else:
        print("No tokens: on this machine the service is open to all. Make one with `headway token create`.")


@command(token, "revoke ID… [OPTIONS]", "headway token revoke 3f9c2b7a10", "headway token revoke 3f9c2b7a10 --forget")
def revoke(
    token_id: Annotated[str, option("The token's id, as `headway token list` shows it.", name="ID")],
    /,
    *more: Annotated[str, option("Further ids.", name="MORE")],
    forget: Annotated[bool, flag("Also remove it from the list. Without any token, the server is open.")] = False,
    place: StoreOptions = STORE_HERE,
) -> int:
    """Revoke tokens for good; servers refuse them within two seconds.

    Streams that were opened with them end, too. Exits with 1 if there is no
    such token.
    """
    ids = [tokens.id_of(word) or word for word in dict.fromkeys([token_id, *more])]

    async def end() -> list[tuple[bool, str]]:
        async with opened(place) as store:
            now_at = (await store.snapshot()).now_at
            verb = tokens.forget_token if forget else tokens.revoke_token
            ended = [await verb(store, one, now_at=now_at, who=cli_user()) for one in ids]
            known = [one.token_id for one in await tokens.list_tokens(store)] if None in ended else []
        return [_answer(*pair, known, forgotten=forget) for pair in zip(ids, ended, strict=True)]

    answers = run(end())
    for one, (_, answer) in zip(ids, answers, strict=True):
        print(f"{render.clean(one)}  {answer}")
    return 0 if all(done for done, _ in answers) else 1


@command(token, "audit [OPTIONS]", "headway token audit --limit 20", "headway token audit --json")
def audit(
    *,
    limit: Annotated[int, option("List at most this many.", "N")] = 50,
    json: JsonFlag = False,
    place: StoreOptions = STORE_HERE,
) -> None:
    """Show which operator did what and when, newest first.

    Who: the id of a token, `cli:USER@HOST` for the command line, `python` for a
    program, or `open` for a caller on this machine while there were no tokens.
    """

    async def read_entries() -> tuple[list[AuditRecord], int]:
        async with opened(place) as store:
            return await read_audit(store, limit=max(1, limit)), (await store.snapshot()).now_at

    entries, now_at = run(read_entries())
    if json:
        items = [asdict(entry) | {"at": write_moment(entry.at)} for entry in entries]
        render.print_json({"items": items, "next_cursor": None})
        return
    table = render.table("when", "who", "what", "of", flexible=["of"])
    for entry in entries:
        table.add_row(
            f"{render.age(entry.at, now_at)} ago", render.text(entry.who), entry.what, render.text(entry.target)
        )
    render.console().print(table if entries else "nothing was done yet")


def _answer(token_id: str, ended: Token | None, known: list[str], *, forgotten: bool) -> tuple[bool, str]:
    if ended is None:
        return False, f"not found{did_you_mean(token_id, known)}"
    return True, "revoked and forgotten" if forgotten else "revoked"


def _read_expires(text: str) -> int:
    try:
        expires_ms = parse_length(text)
    except ValueError as problem:
        raise ConfigError(f"--expires: {problem}") from problem
    if expires_ms == 0:
        raise ConfigError(f"--expires: a token must expire in the future, got {text!r}; write a length such as 12h")
    return expires_ms


def _values(one: Token, now_at: int) -> dict[str, Any]:
    return {
        "id": one.token_id,
        "status": one.status(now_at),
        "scopes": list(one.scopes),
        "tenant": one.tenant,
        "tasks": None if one.tasks is None else list(one.tasks),
        "rate": one.rate,
        "note": one.note,
        "created_at": write_moment(one.created_at),
        "expires_at": write_moment(one.expires_at),
        "revoked_at": write_moment(one.revoked_at),
        "last_used_at": write_moment(one.last_used_at),
    }


def _print(found: list[Token], now_at: int) -> None:
    columns = ("id", "status", "scopes", "tenant", "tasks", "created", "expires", "last used", "note")
    table = render.table(*columns, flexible=["tasks", "note"])
    for one in found:
        status = one.status(now_at)
        table.add_row(
            one.token_id,
            render.text(status, STATUS_STYLES[status]),
            ", ".join(one.scopes),
            render.text(one.tenant or render.NOTHING),
            render.text(render.NOTHING if one.tasks is None else ", ".join(one.tasks)),
            f"{render.age(one.created_at, now_at)} ago",
            render.NOTHING if one.expires_at is None else render.distance(one.expires_at, now_at),
            render.NOTHING if one.last_used_at is None else f"{render.age(one.last_used_at, now_at)} ago",
            render.text(one.note),
        )
    render.console().print(table)
