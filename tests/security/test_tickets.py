"""Tickets: valid once, for one purpose, for a minute."""

from __future__ import annotations

import asyncio

from headway.security.tickets import TICKET_MS, TICKETS, make_ticket, prune_tickets, redeem_ticket
from headway.stores.base import Store
from headway.testing.clock import ManualClock

SUBJECT = "/api/v1/tasks/1"


async def test_of_many_who_use_a_ticket_at_once_one_gets_in(store: Store) -> None:
    text, _ = await make_ticket(store, token_id="0123456789", subject=SUBJECT)
    got = await asyncio.gather(*(redeem_ticket(store, text, subject=SUBJECT) for _ in range(20)))
    (ticket,) = [one for one in got if one is not None]
    assert (ticket.token_id, ticket.subject) == ("0123456789", SUBJECT)
    assert await redeem_ticket(store, text, subject=SUBJECT) is None
    assert await store.read(TICKETS) == []


async def test_a_ticket_is_kept_as_a_digest(store: Store) -> None:
    text, _ = await make_ticket(store, token_id=None, subject=SUBJECT)
    (document,) = await store.read(TICKETS)
    assert text[4:] not in document.name + document.body.decode()


async def test_a_ticket_is_good_for_its_own_subject_alone(store: Store) -> None:
    text, _ = await make_ticket(store, token_id=None, subject=SUBJECT)
    for subject in ("/api/v1/tasks/2", f"{SUBJECT}0", "/api/v1/interactive", ""):
        assert await redeem_ticket(store, text, subject=subject) is None
    for wrong in (text[:-1], f"{text}x", text.upper(), "", "hwt_", "\udcff", "x" * 100_000):
        assert await redeem_ticket(store, wrong, subject=SUBJECT) is None
    assert await redeem_ticket(store, text, subject=SUBJECT) is not None


async def test_a_ticket_expires_and_is_pruned(store: Store, clock: ManualClock) -> None:
    late, expires_at = await make_ticket(store, token_id=None, subject=SUBJECT)
    assert expires_at == clock() + TICKET_MS
    clock.advance(ms=TICKET_MS - 1)
    good, _ = await make_ticket(store, token_id=None, subject=SUBJECT)
    clock.advance(ms=1)
    assert await redeem_ticket(store, late, subject=SUBJECT) is None
    assert await prune_tickets(store, now_at=clock()) == 1
    assert await redeem_ticket(store, good, subject=SUBJECT) is not None
