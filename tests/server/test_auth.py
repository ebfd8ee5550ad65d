"""Authentication: bearer tokens, scopes, tenants, tickets, and the effects of failed attempts."""

from __future__ import annotations

import asyncio

import pytest

from headway.security.tokens import id_of, list_tokens, revoke_token
from headway.server.auth import FailureLimiter, Principal, Scope, tenant_for
from headway.server.problems import Problem
from tests.server.guarded_app import GuardedApp

SCOPES = [scope for scope in Scope if scope is not Scope.PUBLIC]


@pytest.fixture
def guarded_app() -> GuardedApp:
    return GuardedApp()


# ---------------------------------------------------------------------- scopes


@pytest.mark.parametrize("held", SCOPES)
@pytest.mark.parametrize("needed", list(Scope))
async def test_a_token_opens_the_routes_of_its_scopes_and_no_others(
    guarded_app: GuardedApp, held: Scope, needed: Scope
) -> None:
    # S-3, R5.106
    answer = await guarded_app.ask("GET", f"/{needed.value}", token=await guarded_app.token(held.value))
    if needed in (Scope.PUBLIC, held) or held is Scope.ADMIN:
        assert answer.status == 200
    else:
        assert (answer.status, answer.code, answer.json["scope"]) == (403, "forbidden", needed.value)


async def test_a_token_may_hold_several_scopes(guarded_app: GuardedApp) -> None:
    token = await guarded_app.token("submit", "worker")
    statuses = [(await guarded_app.ask("GET", f"/{scope.value}", token=token)).status for scope in SCOPES]
    assert dict(zip(SCOPES, statuses, strict=True)) == {
        scope: 200 if scope in ("submit", "worker") else 403 for scope in SCOPES
    }


@pytest.mark.parametrize("scope", SCOPES)
async def test_once_tokens_exist_nobody_gets_in_without(guarded_app: GuardedApp, scope: Scope) -> None:
    # S-3, R5.106
    await guarded_app.token()
    answer = await guarded_app.ask("GET", f"/{scope.value}")
    assert (answer.status, answer.code) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"] == 'Bearer realm="headway"'
    assert (await guarded_app.ask("GET", "/public")).status == 200


async def test_without_tokens_all_scopes_are_open(guarded_app: GuardedApp) -> None:
    answers = [await guarded_app.ask("GET", f"/{scope.value}") for scope in SCOPES]
    assert [answer.status for answer in answers] == [200] * len(SCOPES)
    assert answers[0].json == {"scopes": sorted(SCOPES), "tenant": None, "token": None, "open": True}


async def test_a_server_that_may_not_be_open_is_closed_without_tokens() -> None:
    guarded_app = GuardedApp(may_open=False)
    assert (await guarded_app.ask("GET", "/read")).status == 401
    assert (await guarded_app.ask("GET", "/read", token=await guarded_app.token())).status == 200


async def test_a_caller_is_known_by_token_and_tenant(guarded_app: GuardedApp) -> None:
    token = await guarded_app.token("read", tenant="acme")
    answer = await guarded_app.ask("GET", "/read", token=token)
    assert answer.json == {"scopes": ["read"], "tenant": "acme", "token": id_of(token), "open": False}
    (kept,) = await list_tokens(guarded_app.store)
    assert kept.last_used_at is not None


async def test_a_revoked_token_opens_nothing(guarded_app: GuardedApp) -> None:
    token = await guarded_app.token()
    assert (await guarded_app.ask("GET", "/read", token=token)).status == 200
    await revoke_token(guarded_app.store, id_of(token), now_at=2)
    assert (await guarded_app.ask("GET", "/read", token=token)).status == 401


async def test_a_token_is_good_at_once_though_the_store_was_looked_at_just_before(guarded_app: GuardedApp) -> None:
    guarded_app.tokens.every = 0.1
    assert (await guarded_app.ask("GET", "/read")).status == 200
    token = await guarded_app.token("read")
    assert (await guarded_app.ask("GET", "/read", token=token)).status == 200
    assert (await guarded_app.ask("GET", "/admin", token=token)).status == 403


async def test_a_wrong_token_is_refused_even_where_none_is_needed(guarded_app: GuardedApp) -> None:
    # Else a token of one tenant, used in the moment after it was made, would open everything.
    assert (await guarded_app.ask("GET", "/read", token=f"hw_0123456789_{'x' * 43}")).status == 401


@pytest.mark.parametrize(
    "value",
    ["Basic dXNlcjpwYXNz", "Bearer", "Bearer ", "bearer hw_", "hw_0123456789_x", "Bearer \xff", "Token x", ""],
)
async def test_what_is_no_bearer_token_opens_nothing(guarded_app: GuardedApp, value: str) -> None:
    await guarded_app.token()
    assert (await guarded_app.ask("GET", "/read", [("Authorization", value)])).status == 401


async def test_the_scheme_may_be_written_in_any_case(guarded_app: GuardedApp) -> None:
    token = await guarded_app.token()
    assert (await guarded_app.ask("GET", "/read", [("Authorization", f"bEARER {token}")])).status == 200


async def test_two_tokens_at_once_are_refused(guarded_app: GuardedApp) -> None:
    token = await guarded_app.token()
    answer = await guarded_app.ask("GET", "/read", [("Authorization", "Bearer x")], token=token)
    assert (answer.status, answer.code) == (400, "malformed")


@pytest.mark.parametrize("query", ["token={}", "access_token={}", "anything={}", "Token=x", "a=b&api_key=x"])
async def test_a_token_in_an_address_is_refused(guarded_app: GuardedApp, query: str) -> None:
    # S-6
    token = await guarded_app.token()
    for given in (None, token):
        answer = await guarded_app.ask("GET", f"/read?{query.format(token)}", token=given)
        assert (answer.status, answer.code) == (400, "malformed")
        assert token not in answer.body.decode()
    assert (await guarded_app.connect(f"/api/v1/tasks/1/stream?{query.format(token)}")).status == 400


# ---------------------------------------------------------------------- failed attempts


async def test_unknown_wrong_expired_and_revoked_tokens_get_the_same_answer(guarded_app: GuardedApp) -> None:
    # S-5
    token, revoked = await guarded_app.token(), await guarded_app.token()
    await revoke_token(guarded_app.store, id_of(revoked), now_at=2)
    wrong = [f"hw_0123456789_{'x' * 43}", token[:-1] + "\x7f", revoked, "x"]
    answers = [await guarded_app.ask("GET", "/read", token=one) for one in wrong]
    assert len({(answer.status, answer.body, str(answer.headers)) for answer in answers}) == 1
    assert answers[0].status == 401
    assert answers[0].headers["www-authenticate"] == 'Bearer realm="headway", error="invalid_token"'


async def test_of_a_thousand_tries_most_are_told_to_come_back_later(guarded_app: GuardedApp) -> None:
    # S-5
    token = await guarded_app.token()
    wrong = [token[:-43] + f"{number:043}" for number in range(1_000)]
    answers = [await guarded_app.ask("GET", "/read", token=one) for one in wrong]
    assert [answer.status for answer in answers] == [401] * 20 + [429] * 980
    assert len({answer.body for answer in answers[20:]}) == 1
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 60
    assert (await guarded_app.ask("GET", "/read", token=token)).status == 200  # No client is locked out by another.
    elsewhere = ("192.0.2.7", 1)
    assert (await guarded_app.ask("GET", "/read", token=wrong[0], client=elsewhere)).status == 429  # The same id.
    other = f"hw_0123456789_{'x' * 43}"
    assert (await guarded_app.ask("GET", "/read", token=other, client=elsewhere)).status == 401


async def test_tries_at_once_are_counted_before_they_are_answered(guarded_app: GuardedApp) -> None:
    await guarded_app.token()
    asked = [guarded_app.ask("GET", "/read", token=f"hw_0123456789_{number:043}") for number in range(100)]
    statuses = [answer.status for answer in await asyncio.gather(*asked)]
    assert (statuses.count(401), statuses.count(429)) == (20, 80)


class SecondsClock:
    """A clock in seconds that moves only when the test moves it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_failures_are_forgotten_after_a_while() -> None:
    clock = SecondsClock()
    limiter = FailureLimiter(most=2, seconds=10, clock=clock)
    assert [limiter.count("a", "") for _ in range(3)] == [0, 0, 10]
    clock.now = 7.5
    assert limiter.count("a", "") == 3
    assert limiter.count("b", "") == 0
    clock.now = 10
    assert limiter.count("a", "") == 0


def test_a_failure_that_was_none_is_taken_back() -> None:
    limiter = FailureLimiter(most=1)
    for _ in range(5):
        assert limiter.count("a", "1") == 0
        limiter.uncount("a", "1")


def test_the_limiter_remembers_a_bounded_number() -> None:
    limiter = FailureLimiter(most=1, remembered=100)
    for number in range(1_000):
        limiter.count("attacker", f"{number:010}")
        limiter.count(f"10.0.{number // 256}.{number % 256}", "")
    assert len(limiter._addresses) == len(limiter._ids) == 100
    assert limiter.count("10.0.3.231", "") > 0


async def test_addresses_of_one_ipv6_network_count_together() -> None:
    guarded_app = GuardedApp(may_open=False)
    asked = [
        await guarded_app.ask("GET", "/read", token=f"hw_{number:010}_x", client=(f"2001:db8::{number + 1:x}", 1))
        for number in range(21)
    ]
    assert [answer.status for answer in asked] == [401] * 20 + [429]


# ---------------------------------------------------------------------- tenants


@pytest.mark.parametrize(
    "bound, wanted, tenant",
    [
        pytest.param(None, None, None, id="nobody's"),
        pytest.param(None, "acme", "acme", id="the body's"),
        pytest.param("acme", None, "acme", id="the token's"),
        pytest.param("acme", "acme", "acme", id="both"),
        pytest.param("acme", "other", 403, id="mismatch"),
        pytest.param("acme", "", 403, id="empty is another one"),
    ],
)
async def test_the_tenant_is_the_tokens_else_the_bodys(
    guarded_app: GuardedApp, bound: str | None, wanted: str | None, tenant: str | int | None
) -> None:
    caller = Principal(frozenset({Scope.SUBMIT}), tenant=bound)
    if tenant == 403:
        with pytest.raises(Problem) as caught:
            tenant_for(caller, wanted)
        assert (caught.value.status, caught.value.code) == (403, "tenant_mismatch")
    else:
        assert tenant_for(caller, wanted) == tenant


async def test_a_body_cannot_name_another_tenant_than_the_token(guarded_app: GuardedApp) -> None:
    token = await guarded_app.token("submit", tenant="acme")
    json = [("content-type", "application/json")]
    answer = await guarded_app.ask("POST", "/tenant", json, b'{"tenant": "other"}', token=token)
    assert (answer.status, answer.code) == (403, "tenant_mismatch")
    assert (await guarded_app.ask("POST", "/tenant", json, b"{}", token=token)).json == {"tenant": "acme"}


# ---------------------------------------------------------------------- streams


async def test_a_websocket_takes_a_token_in_its_header_or_subprotocol(guarded_app: GuardedApp) -> None:
    # S-6
    token = await guarded_app.token("read")
    path, bearer = "/api/v1/tasks/1/stream", f"headway.bearer.{token}"
    assert (await guarded_app.connect(path, token=token)).status == 101
    both = await guarded_app.connect(path, subprotocols=["headway.v1", bearer])
    assert (both.status, both.body) == (101, b"headway.v1")  # The token is not sent back.
    alone = await guarded_app.connect(path, subprotocols=[bearer])
    assert (alone.status, alone.body) == (101, b"")  # A token never comes back in an answer.
    assert guarded_app.seen == [f"socket {id_of(token)}"] * 3


async def test_a_websocket_without_a_good_token_is_not_accepted(guarded_app: GuardedApp) -> None:
    # S-3
    token = await guarded_app.token("submit")
    path = "/api/v1/tasks/1/stream"
    bad = f"headway.bearer.{token[:-1]}"
    assert (await guarded_app.connect(path)).status == 401
    assert (await guarded_app.connect(path, subprotocols=[bad])).status == 401
    refused = await guarded_app.connect(path, subprotocols=[f"headway.bearer.{token}"])
    assert (refused.status, refused.code) == (403, "forbidden")
    old = await guarded_app.connect(path, denial=False)
    assert (old.status, old.code) == (0, "unauthenticated")
    assert guarded_app.seen == []


async def test_a_ticket_opens_one_stream_of_its_task_once(guarded_app: GuardedApp) -> None:
    # S-6, S-17
    token = await guarded_app.token("read", tenant="acme")
    for stream in ("stream", "events"):
        ticket = (await guarded_app.ask("POST", "/api/v1/tasks/7/ticket", token=token)).json["ticket"]

        async def use(path: str, ticket: str = ticket) -> int:
            if path.endswith("/stream"):
                return (await guarded_app.connect(f"{path}?ticket={ticket}")).status
            return (await guarded_app.ask("GET", f"{path}?ticket={ticket}")).status

        assert await use(f"/api/v1/tasks/8/{stream}") == 401
        assert await use("/read") == 401
        assert await use(f"/api/v1/tasks/7/{stream}") in (101, 200)
        assert await use(f"/api/v1/tasks/7/{stream}") == 401


async def test_a_ticket_carries_the_rights_of_its_token(guarded_app: GuardedApp) -> None:
    token = await guarded_app.token("read", tenant="acme")
    ticket = (await guarded_app.ask("POST", "/api/v1/tasks/7/ticket", token=token)).json["ticket"]
    answer = await guarded_app.ask("GET", f"/api/v1/tasks/7/events?ticket={ticket}")
    assert answer.json == {"scopes": ["read"], "tenant": "acme", "token": id_of(token), "open": False}


async def test_a_ticket_ends_with_its_token_and_with_openness(guarded_app: GuardedApp) -> None:
    open_ticket = (await guarded_app.ask("POST", "/api/v1/interactive/ticket")).json["ticket"]
    spare = (await guarded_app.ask("POST", "/api/v1/interactive/ticket")).json["ticket"]
    assert (await guarded_app.connect(f"/api/v1/interactive?ticket={spare}")).status == 101
    token = await guarded_app.token("read")
    assert (await guarded_app.connect(f"/api/v1/interactive?ticket={open_ticket}")).status == 401
    ticket = (await guarded_app.ask("POST", "/api/v1/interactive/ticket", token=token)).json["ticket"]
    await revoke_token(guarded_app.store, id_of(token), now_at=2)
    assert (await guarded_app.connect(f"/api/v1/interactive?ticket={ticket}")).status == 401


async def test_a_ticket_is_no_token_for_anything_that_changes(guarded_app: GuardedApp) -> None:
    token = await guarded_app.token()
    ticket = (await guarded_app.ask("POST", "/api/v1/tasks/7/ticket", token=token)).json["ticket"]
    assert (await guarded_app.ask("POST", f"/api/v1/tasks/7/events?ticket={ticket}")).status == 401
    assert (await guarded_app.ask("GET", "/read", token=ticket)).status == 401


async def test_wrong_tickets_are_failed_attempts(guarded_app: GuardedApp) -> None:
    await guarded_app.token()
    path = f"/api/v1/tasks/7/events?ticket=hwt_{'x' * 43}"
    statuses = [(await guarded_app.ask("GET", path)).status for _ in range(21)]
    assert statuses == [401] * 20 + [429]


async def test_what_is_held_open_is_told_when_its_token_is_revoked(guarded_app: GuardedApp) -> None:
    # S-2
    guarded_app.tokens.every = 0.02
    token = await guarded_app.token("read")
    assert (await guarded_app.ask("GET", "/read", token=token)).status == 200
    waiting = asyncio.ensure_future(guarded_app.tokens.ended(id_of(token)))
    await guarded_app.tokens.follow_anew()
    assert not waiting.done()
    await revoke_token(guarded_app.store, id_of(token), now_at=2)
    await asyncio.wait_for(waiting, 5)
