"""Tickets: what a browser puts into the address of a stream, where no token may be. Valid once, for a minute."""

from __future__ import annotations

import hashlib
import re
import secrets

import msgspec

from headway.core.policy.document import SECOND
from headway.stores.base import Store

TICKETS = "ticket"
TICKET_MS = 60 * SECOND
PRUNED_ONCE_IN = 16  # Tickets made between two prunings of unused ones, on average.
PRUNED_MAX = 1_000

_WRITTEN = re.compile(r"hwt_[A-Za-z0-9_-]{43}")


class StreamTicket(msgspec.Struct, frozen=True, kw_only=True):
    """The token whose rights a ticket carries (None for an open server), and the one subject that it is valid for."""

    token_id: str | None
    subject: str
    expires_at: int
    used: str | None = None  # Random, so that a server recognises its own mark.


_encode = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(StreamTicket)


async def make_ticket(store: Store, *, token_id: str | None, subject: str) -> tuple[str, int]:
    """Make a ticket for one subject. Return its text, which is stored nowhere, and when it expires."""
    now_at = (await store.snapshot()).now_at
    text = f"hwt_{secrets.token_urlsafe(32)}"
    ticket = StreamTicket(token_id=token_id, subject=subject, expires_at=now_at + TICKET_MS)
    await store.write(TICKETS, _name(text), _encode(ticket), if_version=0)
    if secrets.randbelow(PRUNED_ONCE_IN) == 0:
        await prune_tickets(store, now_at=now_at)
    return text, ticket.expires_at


async def redeem_ticket(store: Store, text: str, *, subject: str) -> StreamTicket | None:
    """Use a ticket up. Of all callers that try at once, on any server, one gets it. None if it is not valid here."""
    if _WRITTEN.fullmatch(text) is None:
        return None
    name = _name(text)
    for document in await store.read(TICKETS, name):
        ticket = _read.decode(document.body)
        now_at = (await store.snapshot()).now_at
        if ticket.used or ticket.subject != subject or ticket.expires_at <= now_at:
            return None
        # It is marked before it is removed. After a lost reply a mark shows which server used it; an absence does not.
        marked = _encode(msgspec.structs.replace(ticket, used=secrets.token_hex(16)))
        version = await store.write(TICKETS, name, marked, if_version=document.version)
        if version is None:
            return None
        await store.write(TICKETS, name, None, if_version=version)
        return ticket
    return None


async def prune_tickets(store: Store, *, now_at: int) -> int:
    """Remove a batch of expired tickets. Return how many."""
    found = await store.read(TICKETS)
    gone = [document.name for document in found if _read.decode(document.body).expires_at <= now_at][:PRUNED_MAX]
    for name in gone:
        await store.write(TICKETS, name, None)
    return len(gone)


def _name(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
