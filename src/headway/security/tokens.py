"""Bearer tokens: who may do what over HTTP. The store keeps a digest of each token, never the token."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import math
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from headway.core.errors import ConfigError, StoreBusy, StoreError, StoreUnavailable
from headway.core.log_event import LogEvent
from headway.core.policy.document import SECOND
from headway.core.policy.units import parse_rate
from headway.core.suggest import did_you_mean
from headway.security.audit import LOCAL, record
from headway.stores.base import Document, Store

log = logging.getLogger("headway.tokens")

TOKENS = "token"
USES = "token_use"  # Documents of their own, so that using a token never collides with revoking it.
SCOPES = ("submit", "read", "worker", "publish", "admin")
UNBOUND = frozenset({"submit", "admin"})  # They reach every task, so a token bound to some tasks cannot have them.
NOTE_MAX = 200
TENANT_MAX = 255
PATTERN_MAX = 255
PATTERNS_MAX = 100
TRIES = 20
READ_EVERY = 1.0  # Seconds between reads of the store while requests come, so that a revocation applies within two.
STALE_AFTER = 30.0  # Seconds for which the tokens read last count while the store does not answer.
CLOCK_EVERY = 60.0  # Seconds between reads of the store's clock.
USE_EVERY = 60.0  # Seconds between records that a token was used.
PRESENTED_MAX = 200

_ID = re.compile(r"[0-9a-f]{10}")
_NOBODY = secrets.token_hex(32)  # The digest of an unknown token is compared with this, so that it takes as long.

TokenStatus = Literal["active", "expired", "revoked"]


class _TokenFields(msgspec.Struct, frozen=True, kw_only=True):
    scopes: tuple[str, ...]
    tenant: str | None = None
    note: str = ""
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None
    tasks: tuple[str, ...] | None = None  # Patterns of the tasks that it may run and publish; None for all.
    rate: str | None = None  # How often it may submit; None for the server's setting.


class _TokenRecord(_TokenFields, frozen=True, kw_only=True):
    digest: str


class Token(_TokenFields, frozen=True, kw_only=True):
    """A token as operators see it: everything but its secret."""

    token_id: str
    last_used_at: int | None = None

    def status(self, now_at: int) -> TokenStatus:
        """Return whether the token is active, expired or revoked now."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now_at else "active"


@dataclass(frozen=True, slots=True)
class TokenGrant:
    """The permissions of a valid token."""

    token_id: str
    scopes: frozenset[str]
    tenant: str | None
    tasks: tuple[str, ...] | None = None
    rate: str | None = None


_encode = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(_TokenRecord)


async def create_token(
    store: Store,
    scopes: Iterable[str],
    *,
    now_at: int,
    tenant: str | None = None,
    expires_ms: int | None = None,
    note: str = "",
    tasks: Iterable[str] | None = None,
    rate: str | None = None,
    who: str = LOCAL,
) -> tuple[Token, str]:
    """Make a token. Return it and its text ``hw_<id>_<secret>``, which is never stored.

    ``tasks``: patterns of task names. A worker with this token runs only these tasks, and may publish them.
    ``rate``: how often it may submit, such as ``100/s``, in place of the server's setting.
    """
    allowed = check_scopes(scopes)
    kept = _TokenRecord(
        digest="",
        scopes=allowed,
        tasks=None if tasks is None else check_tasks(tasks, allowed),
        rate=rate,
        tenant=_check_text(tenant, "tenant", TENANT_MAX) if tenant is not None else None,
        note=_check_text(note, "note", NOTE_MAX) if note else "",
        created_at=now_at,
        expires_at=None if expires_ms is None else now_at + expires_ms,
    )
    if expires_ms is not None and expires_ms <= 0:
        raise ConfigError("a token must expire in the future")
    try:
        if rate is not None:
            parse_rate(rate)
    except ValueError as problem:
        raise ConfigError(f"a token's rate: {problem}") from None
    for _ in range(TRIES):
        token_id = secrets.token_hex(5)
        text = f"hw_{token_id}_{secrets.token_urlsafe(32)}"
        body = _encode(msgspec.structs.replace(kept, digest=_digest(text)))
        if await store.write(TOKENS, token_id, body, if_version=0) is not None:
            token = _token(token_id, kept)
            await record(
                store, who=who, what="token.create", target=token_id, after=_audited_facts(token), now_at=now_at
            )
            return token, text
    raise StoreBusy("no token could be made; try again")


async def list_tokens(store: Store) -> list[Token]:
    """Read all tokens, the oldest first, including expired and revoked ones."""
    used = {document.name: int(document.body) for document in await store.read(USES) if document.body.isdigit()}
    found = [
        _token(document.name, kept, used.get(document.name))
        for document in await store.read(TOKENS)
        if (kept := _read_kept(document)) is not None
    ]
    return sorted(found, key=lambda token: (token.created_at, token.token_id))


async def any_tokens(store: Store) -> bool:
    """Return whether a token was ever made here. A revoked one counts, so revoking the last one opens nothing."""
    return bool(await store.read(TOKENS))


async def revoke_token(store: Store, token_id: str, *, now_at: int, who: str = LOCAL) -> Token | None:
    """Revoke a token for good. Servers follow within two seconds. None if the token does not exist."""
    for _ in range(TRIES):
        found = await store.read(TOKENS, token_id)
        kept = _read_kept(found[0]) if found else None
        if kept is None:
            return None
        if kept.revoked_at is not None:
            return _token(token_id, kept)
        revoked = msgspec.structs.replace(kept, revoked_at=now_at)
        if await store.write(TOKENS, token_id, _encode(revoked), if_version=found[0].version) is not None:
            before, after = _token(token_id, kept), _token(token_id, revoked)
            await record(
                store,
                who=who,
                what="token.revoke",
                target=token_id,
                before=_audited_facts(before),
                after=_audited_facts(after),
                now_at=now_at,
            )
            return after
    raise StoreBusy("other processes keep changing this token; try again")


async def forget_token(store: Store, token_id: str, *, now_at: int, who: str = LOCAL) -> Token | None:
    """Revoke a token and remove its records. Without any token a server on this machine is open again."""
    token = await revoke_token(store, token_id, now_at=now_at, who=who)
    if token is not None:
        await store.write(TOKENS, token_id, None)
        await store.write(USES, token_id, None)
        await record(store, who=who, what="token.forget", target=token_id, before=_audited_facts(token), now_at=now_at)
    return token


def check_scopes(scopes: Iterable[str]) -> tuple[str, ...]:
    """Return the scopes in their order, each once. Raises ``ConfigError`` for an unknown scope, or for no scope."""
    wanted = set(scopes)
    for name in sorted(wanted - set(SCOPES)):
        raise ConfigError(f"no scope {name!r}{did_you_mean(name, SCOPES)} (scopes: {', '.join(SCOPES)})")
    if not wanted:
        raise ConfigError(f"a token needs at least one scope: {', '.join(SCOPES)}")
    return tuple(name for name in SCOPES if name in wanted)


def check_tasks(tasks: Iterable[str], scopes: Iterable[str]) -> tuple[str, ...]:
    """Return a token's patterns of task names, sorted. Raise ``ConfigError`` if its scopes do not allow patterns."""
    wanted, held = sorted(set(tasks)), set(scopes)
    if "worker" not in held:
        raise ConfigError("a token is bound to tasks with the scope worker only; add the scope, or leave out the tasks")
    for name in sorted(held & UNBOUND):
        raise ConfigError(
            f"a token bound to tasks cannot have the scope {name}, which reaches all tasks; make two tokens"
        )
    if not 1 <= len(wanted) <= PATTERNS_MAX:
        raise ConfigError(f"a token may have 1 to {PATTERNS_MAX} patterns of task names, got {len(wanted)}")
    return tuple(_check_text(pattern, "task pattern", PATTERN_MAX) for pattern in wanted)


def covers(patterns: Iterable[str], task: str) -> bool:
    """Return whether one of a token's patterns matches a task's name."""
    return any(fnmatchcase(task, pattern) for pattern in patterns)


def id_of(presented: str) -> str:
    """Return the id in a token's text, or an empty text if it is not a token's."""
    parts = presented[:PRESENTED_MAX].split("_", 2)
    return parts[1] if len(parts) == 3 and parts[0] == "hw" and _ID.fullmatch(parts[1]) else ""


class Tokens:
    """The store's tokens, cached in a process. New and revoked ones take effect within two seconds.

    ``may_open``: whether everything is allowed until the first token is made. Only for servers that no other machine
    can reach.
    """

    def __init__(
        self,
        opener: Callable[[], Awaitable[Store]],
        *,
        may_open: bool = True,
        every: float = READ_EVERY,
        clock_every: float = CLOCK_EVERY,
    ) -> None:
        self.may_open = may_open
        self.every = every
        self.store = opener
        self._clock_every = clock_every
        self._known: dict[str, tuple[int, _TokenRecord | None]] = {}  # By id: the document's version and content.
        self._grants: dict[str, TokenGrant] = {}
        self._last_read = self._tried = self._read_clock = -math.inf
        self._ahead_ms = 0  # The store's clock minus this process's monotonic one.
        self._used: dict[str, float] = {}
        self._read_lock = asyncio.Lock()

    @property
    def seen(self) -> bool:
        """Return whether the store was ever read."""
        return self._last_read > -math.inf

    @property
    def open(self) -> bool:
        """Return whether no token exists and every caller that can reach the server may do everything."""
        return self.may_open and self.seen and not self._known

    @property
    def guarded(self) -> bool:
        """Return whether the server is open, or may be as far as this process knows."""
        return self.may_open and not self._known

    def fresh(self) -> bool:
        """Return whether the store was read a moment ago, so that a caller need not wait."""
        return time.monotonic() - self._tried < self.every

    async def refresh(self) -> None:
        """Read the store, unless that was done a moment ago. Raises ``StoreError`` if it was never read.

        While the store does not answer, the tokens read last count for a while.
        """
        if self.fresh():
            return
        async with self._read_lock:
            if self.fresh():
                return
            try:
                await self._read_tokens()
            except StoreError:
                self._tried = time.monotonic()
                if not self.seen:
                    raise

    async def follow_anew(self) -> None:
        """Wait until the store has been read once more, since an unknown token may have been made just before."""
        asked = self._tried
        while self._tried == asked:
            await asyncio.sleep(max(0.0, asked + self.every - time.monotonic()))
            await self.refresh()

    def check(self, presented: str) -> TokenGrant | None:
        """Return what a token allows, or None for an unknown, wrong, expired or revoked one, after the same steps.

        Raises ``StoreUnavailable`` if the store has not answered for too long to know.
        """
        if time.monotonic() - self._last_read > max(STALE_AFTER, 2 * self.every):
            raise StoreUnavailable("the store does not answer, so no token can be checked")
        token_id = id_of(presented)
        kept = self._kept(token_id)
        same = hmac.compare_digest(_digest(presented), _NOBODY if kept is None else kept.digest)
        return self.grant(token_id) if same else None

    def grant(self, token_id: str) -> TokenGrant | None:
        """Return what a token that was checked before allows, or None if it has expired or was revoked since."""
        kept = self._kept(token_id)
        if kept is None or kept.revoked_at is not None:
            return None
        if kept.expires_at is not None and kept.expires_at <= self._now_at():
            return None
        found = self._grants.get(token_id)
        if found is None:
            found = self._grants[token_id] = TokenGrant(
                token_id, frozenset(kept.scopes), kept.tenant, kept.tasks, kept.rate
            )
        return found

    def allows(self, token_id: str | None) -> bool:
        """Return whether a token is still valid. For None, return whether the server is open or may be."""
        return self.guarded if token_id is None else not self.seen or self.grant(token_id) is not None

    async def note_use(self, token_id: str) -> None:
        """Record in the store that a token was used, at most once a minute. It never fails."""
        now = time.monotonic()
        if now - self._used.get(token_id, -math.inf) < USE_EVERY:
            return
        self._used[token_id] = now
        try:
            await (await self.store()).write(USES, token_id, str(self._now_at()).encode())
        except StoreError as problem:
            log.warning(LogEvent("token.use_not_recorded", token=token_id, error=str(problem)))

    async def ended(self, token_id: str | None) -> None:
        """Wait until a token no longer allows anything; for None, until the server is no longer open.

        A route that holds a stream open waits for this beside the stream.
        """
        while self.grant(token_id) is not None if token_id is not None else self.open:
            await self.follow_anew()

    async def _read_tokens(self) -> None:
        store = await self.store()
        if time.monotonic() - self._read_clock >= self._clock_every:
            now_at = (await store.snapshot()).now_at
            self._read_clock = time.monotonic()
            self._ahead_ms = now_at - round(self._read_clock * SECOND)
        before, now = self._known, {}
        for document in await store.read(TOKENS):
            known = before.get(document.name)
            if known is None or known[0] != document.version:
                known = document.version, _read_kept(document)
                self._grants.pop(document.name, None)
            now[document.name] = known
        self._known = now
        self._last_read = self._tried = time.monotonic()
        for token_id in before.keys() - now.keys():
            self._grants.pop(token_id, None)
            self._used.pop(token_id, None)

    def _kept(self, token_id: str) -> _TokenRecord | None:
        known = self._known.get(token_id)
        return None if known is None else known[1]

    def _now_at(self) -> int:
        return self._ahead_ms + round(time.monotonic() * SECOND)


def _digest(text: str) -> str:
    return hashlib.sha256(text[:PRESENTED_MAX].encode("utf-8", "surrogatepass")).hexdigest()


def _read_kept(document: Document) -> _TokenRecord | None:
    """Read a token. A token that a newer Headway wrote and this one cannot read allows nothing here."""
    try:
        return _read.decode(document.body)
    except msgspec.MsgspecError as problem:
        log.warning(LogEvent("token.unreadable", token=document.name, error=str(problem)))
        return None


def _token(token_id: str, kept: _TokenRecord, last_used_at: int | None = None) -> Token:
    fields = msgspec.structs.asdict(kept)
    del fields["digest"]
    return Token(token_id=token_id, last_used_at=last_used_at, **fields)


def _audited_facts(token: Token) -> dict[str, object]:
    names = ("scopes", "tenant", "tasks", "rate", "note", "expires_at", "revoked_at")
    return {name: getattr(token, name) for name in names}


def _check_text(text: str, what: str, most: int) -> str:
    if not text or len(text) > most or not text.isprintable():
        raise ConfigError(f"a token's {what} must be printable text of at most {most} characters, got {text[:60]!r}")
    return text
