"""The executors by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headway.protocol.sessions import AddressSigner
from headway.worker.executors.base import Executor
from headway.worker.executors.inline import InlineExecutor
from headway.worker.executors.process import ProcessExecutor
from headway.worker.executors.thread import ThreadExecutor
from headway.worker.recycling import ChildBounds


class ExecutorConfig(NamedTuple):
    """The settings that executors need. ``app_path`` is None if no other process can import the app."""

    slots: int
    app_path: str | None
    payload_max: int
    log: str | None
    addresses: AddressSigner
    bounds: ChildBounds


FACTORIES: dict[str, Callable[[ExecutorConfig], Executor]] = {
    "async": lambda config: InlineExecutor(config.addresses),
    "thread": lambda config: ThreadExecutor(config.slots),
    "process": lambda config: ProcessExecutor(config.app_path, config.payload_max, config.log, config.bounds),
}


def make_executors(config: ExecutorConfig) -> dict[str, Executor]:
    return {name: make(config) for name, make in FACTORIES.items()}
