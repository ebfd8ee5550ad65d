"""Interactive tasks: declarations that are refused, and the context of a session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headway import Context, Headway, Retry, SessionClosed, Unique
from headway.client.context import inline_lease
from headway.client.session import TaskSession
from headway.core.errors import ConfigError, HeadwayError
from headway.protocol.sessions import INPUT_MAX, OUTPUT_MAX, PIECE, Credit, Resize, read_from_worker
from headway.worker import session_transport


async def shell(ctx: Context) -> None: ...
async def without() -> None: ...
def plain(ctx: Context) -> None: ...


@pytest.mark.parametrize(
    "function, options, why",
    [
        (shell, {"context": False}, "context=True"),
        (without, {"context": False}, "context=True"),
        (plain, {}, "async def"),
        (shell, {"executor": "process"}, "async def"),
        (shell, {"persist": False}, "persist=False"),
        (shell, {"max_retries": 3}, "max_retries can only be 0"),
        (shell, {"retry": Retry()}, "max_retries can only be 0"),
        (shell, {"unique": Unique()}, "unique"),
        (shell, {"on_stop": "partial"}, "on_stop"),
    ],
)
def test_what_could_not_be_a_session_is_refused(
    function: Callable[..., Any], options: dict[str, Any], why: str
) -> None:  # R3.4
    app = Headway("memory://")
    declared: Any = {"duration": "interactive", "context": True, **options}
    with pytest.raises(ConfigError, match=why):
        app.task(**declared)(function)
    assert not app.tasks


def test_it_runs_once_whatever_its_lane_says() -> None:
    app = Headway("memory://")
    task = app.task(duration="interactive", context=True, priority="high")(shell)
    assert (task.template.max_retries, task.is_interactive) == (0, True)
    with pytest.raises(ConfigError, match="never queued"):  # R3.30
        task.call()


async def test_a_task_that_is_no_session_is_told_so() -> None:
    context = Context(inline_lease("report"))
    for call in (context.receive, lambda: context.send("x"), context.resized):
        with pytest.raises(ConfigError, match="task report has no client to talk to"):
            await call()
    with pytest.raises(ConfigError):
        _ = context.size


# ---------------------------------------------------------------------- a conversation


class MessageRecorder:
    """A receiver that records the messages of a session."""

    def __init__(self) -> None:
        self.heard: list[str | bytes] = []
        self.deaf = False

    async def hear(self, message: str | bytes) -> None:
        if self.deaf:
            raise ConnectionError
        self.heard.append(message)


async def test_what_is_long_goes_in_pieces() -> None:
    subscription = MessageRecorder()
    talk = TaskSession(subscription.hear)
    await talk.send(bytearray(b"x" * (2 * PIECE + 1)))
    assert [len(piece) for piece in subscription.heard] == [PIECE, PIECE, 1]
    subscription.heard.clear()
    await talk.send("é" * 10_000)
    assert "".join(read_from_worker(piece).data for piece in subscription.heard) == "é" * 10_000
    assert all(len(piece) < 64 << 10 for piece in subscription.heard)
    with pytest.raises(TypeError):
        await talk.send(5)  # type: ignore[arg-type]


async def test_sending_waits_for_credit() -> None:
    subscription = MessageRecorder()
    talk = TaskSession(subscription.hear)
    sending = asyncio.create_task(talk.send(b"x" * (OUTPUT_MAX + PIECE)))
    await asyncio.sleep(0.01)
    assert not sending.done()
    assert sum(map(len, subscription.heard)) == OUTPUT_MAX
    talk.deliver(Credit(1))
    await asyncio.wait_for(sending, 5)


async def test_whoever_waits_is_told_that_the_other_end_is_gone() -> None:
    subscription = MessageRecorder()
    talk = TaskSession(subscription.hear)
    waiting = [
        asyncio.create_task(talk.receive()),
        asyncio.create_task(talk.resized()),
        asyncio.create_task(talk.send(b"x" * (2 * OUTPUT_MAX))),
    ]
    await asyncio.sleep(0.01)
    talk.hang_up()
    for task in waiting:
        with pytest.raises(SessionClosed) as closed:
            await task
        assert isinstance(closed.value, EOFError)
        assert isinstance(closed.value, HeadwayError)


async def test_what_was_said_before_is_still_received() -> None:
    talk = TaskSession(MessageRecorder().hear)
    talk.deliver("last words")
    talk.deliver(Resize(5, 6))
    talk.hang_up()
    assert await talk.receive() == "last words"
    assert talk.size == (5, 6)
    with pytest.raises(SessionClosed):
        await talk.receive()
    with pytest.raises(SessionClosed):
        await talk.send("too late")


async def test_no_resize_is_missed_between_two_looks() -> None:
    talk = TaskSession(MessageRecorder().hear)
    talk.deliver(Resize(5, 6))
    assert await asyncio.wait_for(talk.resized(), 1) == (5, 6)
    waiting = asyncio.create_task(talk.resized())
    await asyncio.sleep(0)
    assert not waiting.done()
    talk.deliver(Resize(7, 8))
    assert await asyncio.wait_for(waiting, 1) == (7, 8)


async def test_a_line_that_breaks_while_sending_is_the_end() -> None:
    subscription = MessageRecorder()
    talk = TaskSession(subscription.hear)
    subscription.deaf = True
    with pytest.raises(SessionClosed):
        await talk.send("x")
    assert talk.gone


async def test_credit_is_given_back_as_messages_are_received() -> None:
    subscription = MessageRecorder()
    talk = TaskSession(subscription.hear)
    for _ in range(8):
        talk.deliver(b"x" * (INPUT_MAX // 8))
    for _ in range(8):
        await talk.receive()
    assert sum(read_from_worker(message).bytes for message in subscription.heard) == INPUT_MAX


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "websockets.asyncio.client", None)
    with pytest.raises(ConfigError, match=r"pip install 'headway-queue\[server\]'"):
        session_transport._library()
