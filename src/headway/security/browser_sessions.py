"""Sessions of browsers: a cookie stands for a token, so that no script on a page ever holds the token itself.

The cookie is a random secret, and the store keeps its digest with the id of the token. Revoking the token, signing out
or 12 hours end the session.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import msgspec

from headway.core.policy.document import HOUR
from headway.stores.base import Store

BROWSER_SESSIONS = "browser_session"  # The kind of these documents.
SESSION_MS = 12 * HOUR
PRUNED_ONCE_IN = 8  # Sign-ins between two prunings of expired sessions, on average.
PRUNED_MAX = 1_000
READ_EVERY = 1.0  # Seconds for which a process counts on a session that it has read.
KNOWN_MAX = 10_000  # Sessions that a process remembers.

_WRITTEN = re.compile(r"hws_[A-Za-z0-9_-]{43}")


class BrowserSession(msgspec.Struct, frozen=True, kw_only=True):
    """The token whose rights a session has, and when it ends."""

    token_id: str
    expires_at: int


_encode = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(BrowserSession)


class BrowserSessions:
    """The sessions in the store, remembered for a moment by one process."""

    def __init__(self, opener: Callable[[], Awaitable[Store]], *, every: float = READ_EVERY) -> None:
        self._opener = opener
        self.every = every
        self._known: OrderedDict[str, tuple[float, BrowserSession | None, int]] = OrderedDict()

    async def start(self, token_id: str) -> tuple[str, BrowserSession]:
        """Start a session for a token. Return the secret of its cookie, which is stored nowhere."""
        store = await self._opener()
        now_at = (await store.snapshot()).now_at
        secret = f"hws_{secrets.token_urlsafe(32)}"
        session = BrowserSession(token_id=token_id, expires_at=now_at + SESSION_MS)
        await store.write(BROWSER_SESSIONS, _name(secret), _encode(session), if_version=0)
        if secrets.randbelow(PRUNED_ONCE_IN) == 0:
            await _prune(store, now_at)
        return secret, session

    async def find(self, secret: str) -> BrowserSession | None:
        """Return the session of a cookie, or None if it has ended or never was."""
        if _WRITTEN.fullmatch(secret) is None:
            return None
        name, now = _name(secret), time.monotonic()
        known = self._known.get(name)
        if known is None or now - known[0] >= self.every:
            store = await self._opener()
            found = await store.read(BROWSER_SESSIONS, name)
            session = _read.decode(found[0].body) if found else None
            known = self._known[name] = (now, session, (await store.snapshot()).now_at)
            self._known.move_to_end(name)
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
        _, session, now_at = known
        return session if session is not None and session.expires_at > now_at else None

    async def end(self, secret: str) -> None:
        """End the session of a cookie."""
        if _WRITTEN.fullmatch(secret) is not None:
            name = _name(secret)
            self._known.pop(name, None)
            await (await self._opener()).write(BROWSER_SESSIONS, name, None)


async def _prune(store: Store, now_at: int) -> None:
    """Remove a batch of expired sessions."""
    found = await store.read(BROWSER_SESSIONS)
    for document in [one for one in found if _read.decode(one.body).expires_at <= now_at][:PRUNED_MAX]:
        await store.write(BROWSER_SESSIONS, document.name, None)


def _name(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
