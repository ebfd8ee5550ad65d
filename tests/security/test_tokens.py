"""Tokens: shown once, stored as digests, and valid or revoked as soon as servers read the change."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from headway.core.errors import ConfigError, StoreUnavailable
from headway.security import tokens as module
from headway.security.audit import AUDIT, AuditRecord, read_audit
from headway.security.tokens import (
    TOKENS,
    USES,
    TokenGrant,
    Tokens,
    any_tokens,
    create_token,
    forget_token,
    id_of,
    list_tokens,
    revoke_token,
)
from headway.stores.base import Document, Store
from headway.stores.memory import MemoryStore
from headway.testing.clock import ManualClock


def opener(store: Store) -> Callable[[], Awaitable[Store]]:
    async def give() -> Store:
        return store

    return give


def known(store: Store, *, may_open: bool = True, every: float = 0) -> Tokens:
    """Return a server's view of the tokens. By default it reads them each time."""
    return Tokens(opener(store), may_open=may_open, every=every, clock_every=0)


async def checked(tokens: Tokens, text: str) -> TokenGrant | None:
    await tokens.refresh()
    return tokens.check(text)


# ---------------------------------------------------------------------- verbs


async def test_a_token_is_shown_once_and_kept_as_a_digest(store: Store) -> None:
    # S-1
    token, text = await create_token(store, ["read", "submit"], tenant="acme", note="ci", now_at=17)
    assert re.fullmatch(r"hw_[0-9a-f]{10}_[A-Za-z0-9_-]{43}", text)  # 43 letters of 6 bits hold 256.
    assert id_of(text) == token.token_id
    assert await list_tokens(store) == [token]
    assert (token.scopes, token.tenant, token.note, token.created_at) == (("submit", "read"), "acme", "ci", 17)
    secret = text.rpartition(token.token_id)[2].strip("_").encode()
    for kind in (TOKENS, USES, AUDIT):
        for document in await store.read(kind):
            assert secret not in document.body
            assert secret.decode() not in document.name


async def test_no_two_tokens_are_alike(store: Store) -> None:
    made = [await create_token(store, ["read"], now_at=number) for number in range(20)]
    assert len({token.token_id for token, _ in made} | {text for _, text in made}) == 40
    assert [token for token, _ in made] == await list_tokens(store)


@pytest.mark.parametrize(
    "scopes, tenant, note, expires_ms, message",
    [
        pytest.param([], None, "", None, "at least one scope", id="no scope"),
        pytest.param(["amdin"], None, "", None, "did you mean 'admin'?", id="misspelt scope"),
        pytest.param(["public"], None, "", None, "no scope 'public'", id="public is no scope of tokens"),
        pytest.param(["read"], "", "", None, "tenant", id="empty tenant"),
        pytest.param(["read"], "a\x1b[2J", "", None, "printable", id="escapes in a tenant"),
        pytest.param(["read"], None, "x" * 201, None, "at most 200", id="long note"),
        pytest.param(["read"], None, "", 0, "in the future", id="expired at once"),
    ],
)
async def test_a_token_that_makes_no_sense_is_not_made(
    scopes: list[str], tenant: str | None, note: str, expires_ms: int | None, message: str
) -> None:
    store = MemoryStore(clock=ManualClock())
    with pytest.raises(ConfigError, match=re.escape(message)):
        await create_token(store, scopes, tenant=tenant, note=note, expires_ms=expires_ms, now_at=1)
    assert await store.read(TOKENS) == await store.read(AUDIT) == []


async def test_a_token_is_revoked_once(store: Store) -> None:
    token, _ = await create_token(store, ["read"], now_at=1)
    answers = await asyncio.gather(*(revoke_token(store, token.token_id, now_at=at) for at in range(5, 15)))
    (kept,) = await list_tokens(store)
    assert kept.revoked_at is not None
    assert {answer.revoked_at for answer in answers if answer is not None} == {kept.revoked_at}
    assert [entry.what for entry in await read_audit(store)] == ["token.revoke", "token.create"]
    assert await revoke_token(store, "0123456789", now_at=9) is None


async def test_who_made_and_ended_a_token_is_noted_with_before_and_after(store: Store) -> None:
    # S-35
    token, _ = await create_token(store, ["read"], tenant="acme", now_at=1, who="aaaaaaaaaa")
    await revoke_token(store, token.token_id, now_at=2)
    ended, made = await read_audit(store)
    told: dict[str, object] = {"scopes": ["read"], "tenant": "acme", "tasks": None, "note": ""}
    told |= {"rate": None, "expires_at": None, "revoked_at": None}
    assert made == AuditRecord(at=1, who="aaaaaaaaaa", what="token.create", target=token.token_id, after=told)
    assert (ended.who, ended.before, ended.after) == ("local", told, told | {"revoked_at": 2})


async def test_a_revoked_token_keeps_the_server_closed_until_it_is_forgotten(store: Store) -> None:
    token, text = await create_token(store, ["admin"], now_at=1)
    tokens = known(store)
    await revoke_token(store, token.token_id, now_at=2)
    assert await checked(tokens, text) is None
    assert (tokens.open, await any_tokens(store)) == (False, True)
    await forget_token(store, token.token_id, now_at=3)
    await tokens.refresh()
    assert (tokens.open, await any_tokens(store)) == (True, False)
    assert await list_tokens(store) == []


# ---------------------------------------------------------------------- what a server knows


async def test_a_token_grants_its_scopes_and_tenant(store: Store) -> None:
    token, text = await create_token(store, ["submit", "read"], tenant="acme", now_at=1)
    assert await checked(known(store), text) == TokenGrant(token.token_id, frozenset({"submit", "read"}), "acme")


async def test_a_worker_token_may_be_bound_to_tasks(store: Store) -> None:
    token, text = await create_token(store, ["worker", "read"], tasks=["b.*", "a", "a"], now_at=1)
    assert [one.tasks for one in await list_tokens(store)] == [("a", "b.*")]
    grant = await checked(known(store), text)
    assert grant == TokenGrant(token.token_id, frozenset({"worker", "read"}), None, ("a", "b.*"))
    [made] = await read_audit(store)
    assert made.after["tasks"] == ["a", "b.*"]


@pytest.mark.parametrize(
    "scopes, tasks",
    [
        (["read"], ["a"]),
        (["worker", "submit"], ["a"]),
        (["worker", "admin"], ["a"]),
        (["worker"], []),
        (["worker"], [""]),
        (["worker"], ["a\n"]),
        (["worker"], ["a" * 256]),
        (["worker"], [f"t{number}" for number in range(101)]),
    ],
)
async def test_tasks_that_a_token_cannot_be_bound_to_are_refused(
    store: Store, scopes: list[str], tasks: list[str]
) -> None:
    with pytest.raises(ConfigError):
        await create_token(store, scopes, tasks=tasks, now_at=1)
    assert await list_tokens(store) == []


async def test_a_token_may_have_a_rate_of_its_own(store: Store) -> None:
    _, text = await create_token(store, ["submit"], rate="100/min", now_at=1)
    grant = await checked(known(store), text)
    assert grant is not None
    assert grant.rate == "100/min"
    with pytest.raises(ConfigError, match="rate"):
        await create_token(store, ["submit"], rate="often", now_at=1)


async def test_unknown_and_wrong_are_the_same(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # S-1, S-5: each is compared once, in constant time, whatever is wrong with it.
    token, text = await create_token(store, ["read"], now_at=1)
    tokens = known(store)
    await tokens.refresh()
    compared: list[tuple[int, int]] = []

    def compare(one: str, other: str) -> bool:
        compared.append((len(one), len(other)))
        return one == other

    monkeypatch.setattr("headway.security.tokens.hmac.compare_digest", compare)
    wrong = [
        text[:-1] + ("A" if text[-1] != "A" else "B"),
        f"hw_0123456789_{text[14:]}",
        f"hw_{token.token_id}_",
        text + "x" * 1_000_000,
        f"{text}\n",
        text.upper(),
        token.token_id,
        "",
        "hw__",
        "\udcff\x00ü",
    ]
    assert [tokens.check(one) for one in wrong] == [None] * len(wrong)
    assert compared == [(64, 64)] * len(wrong)
    assert tokens.check(text) is not None


async def test_a_server_is_open_while_no_token_was_ever_made(store: Store) -> None:
    tokens, closed = known(store), known(store, may_open=False)
    assert (tokens.open, tokens.guarded) == (False, True)  # Not known yet.
    await tokens.refresh()
    await closed.refresh()
    assert (tokens.open, closed.open, closed.guarded) == (True, False, False)
    await create_token(store, ["read"], now_at=1)
    await tokens.refresh()
    assert (tokens.open, tokens.guarded) == (False, False)


async def test_a_token_expires_by_the_clock_of_the_store(store: Store, clock: ManualClock) -> None:
    # S-1; the clock of this machine is years away.
    _, text = await create_token(store, ["read"], expires_ms=60_000, now_at=clock())
    tokens = known(store)
    clock.advance(59)
    assert await checked(tokens, text) is not None
    clock.advance(2)
    assert await checked(tokens, text) is None
    (token,) = await list_tokens(store)
    assert [token.status(clock() - 2_000), token.status(clock())] == ["active", "expired"]


async def test_the_store_is_looked_at_once_in_a_while_and_only_when_asked(store: Store) -> None:
    tokens = known(store, every=3_600)
    await asyncio.gather(*(tokens.refresh() for _ in range(20)))
    _, text = await create_token(store, ["read"], now_at=1)
    assert await checked(tokens, text) is None
    tokens.every = 0
    assert await checked(tokens, text) is not None


async def test_a_look_that_is_waited_for_finds_what_was_made_just_before(store: Store) -> None:
    tokens = known(store, every=0.05)
    await tokens.refresh()
    token, text = await create_token(store, ["read"], now_at=1)
    await tokens.follow_anew()
    assert tokens.check(text) is not None
    await revoke_token(store, token.token_id, now_at=2)
    await tokens.follow_anew()
    assert tokens.check(text) is None


async def test_whoever_waits_for_the_end_of_a_token_is_told(store: Store) -> None:
    # S-2
    token, text = await create_token(store, ["read"], now_at=1)
    tokens = known(store, every=0.02)
    assert await checked(tokens, text) is not None
    waiting = asyncio.create_task(tokens.ended(token.token_id))
    await tokens.follow_anew()
    assert not waiting.done()
    await revoke_token(store, token.token_id, now_at=2)
    await asyncio.wait_for(waiting, 5)


async def test_whoever_waits_for_the_end_of_openness_is_told(store: Store) -> None:
    tokens = known(store, every=0.02)
    await tokens.refresh()
    waiting = asyncio.create_task(tokens.ended(None))
    await tokens.follow_anew()
    assert not waiting.done()
    await create_token(store, ["read"], now_at=1)
    await asyncio.wait_for(waiting, 5)


async def test_the_use_of_a_token_is_noted_once_a_minute(store: Store, clock: ManualClock) -> None:
    # S-1
    token, text = await create_token(store, ["read"], now_at=clock())
    tokens = known(store)
    assert await checked(tokens, text) is not None
    await asyncio.gather(*(tokens.note_use(token.token_id) for _ in range(10)))
    (document,) = await store.read(USES)
    assert document.version == 1
    (kept,) = await list_tokens(store)
    assert kept.last_used_at is not None
    assert abs(kept.last_used_at - clock()) < 10_000


async def test_a_token_that_only_a_newer_headway_reads_allows_nothing_and_opens_nothing(store: Store) -> None:
    await store.write(TOKENS, "0123456789", msgspec.json.encode({"digest": 7}))
    tokens = known(store)
    assert await checked(tokens, "hw_0123456789_x") is None
    assert not tokens.open
    assert await list_tokens(store) == []


class FlakyStore(MemoryStore):
    """A store whose reads can be made to fail."""

    down = False

    async def read(self, kind: str, name: str | None = None) -> list[Document]:
        if self.down:
            raise StoreUnavailable("down")
        return await super().read(kind, name)


async def test_while_the_store_is_away_what_was_seen_last_counts_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FlakyStore(clock=ManualClock())
    tokens = known(store)
    store.down = True
    with pytest.raises(StoreUnavailable):
        await tokens.refresh()
    assert not tokens.open
    store.down = False
    _, text = await create_token(store, ["read"], now_at=1)
    assert await checked(tokens, text) is not None
    store.down = True
    assert await checked(tokens, text) is not None
    monkeypatch.setattr(module, "STALE_AFTER", -1.0)
    with pytest.raises(StoreUnavailable):
        await checked(tokens, text)
