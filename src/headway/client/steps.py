"""Steps of a running job: what it has done under a name is kept, and skipped when the job runs again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from headway.client.codec import decode_result, encode_result, result_type
from headway.client.members import MemberReader
from headway.core.errors import LeaseLost, StepError
from headway.core.lease import Lease
from headway.core.workflow import Step, check_step

if TYPE_CHECKING:
    from headway.client.app import Headway

KEY_MAX = 255  # Characters of a step's key.
MISSING: Any = object()  # The job has not kept this step yet.


class JobRuntime(Protocol):
    """The functions of a worker that the context of a running job calls."""

    app: Headway

    @property
    def read_members(self) -> MemberReader | None:
        """How to read the results of a batch, if not from the app's store."""
        ...

    async def steps(self, lease: Lease) -> dict[str, bytes]:
        """Read the steps that the job has kept."""
        ...

    async def record_step(self, step: Step) -> bool:
        """Keep a step. Return False if the lease has ended."""
        ...

    def wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine for a task that blocks."""
        ...


class InlineRuntime:
    """Keeps the steps of a task that the caller runs directly, for as long as it runs."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    async def steps(self, lease: Lease) -> dict[str, bytes]:
        return dict(self._kept)

    async def record_step(self, step: Step) -> bool:
        check_step(step.key, step.value, len(self._kept), sum(map(len, self._kept.values())))
        self._kept.setdefault(step.key, step.value)
        return True

    def wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(coroutine)


class StepLog:
    """The steps of one attempt. Reads the kept steps at the first use."""

    def __init__(self, runtime: JobRuntime | InlineRuntime, lease: Lease) -> None:
        self._runtime = runtime
        self._lease = lease
        self._kept: dict[str, bytes] | None = None
        self._used: set[str] = set()

    async def find(self, key: str, function: Callable[..., Any]) -> Any:
        """Return the kept value of a step, or ``MISSING``. Raises ``StepError`` for a key that this run has used."""
        if not isinstance(key, str) or not 0 < len(key) <= KEY_MAX:
            raise StepError(f"the name of a step must be text of 1 to {KEY_MAX} characters, got {key!r:.100}")
        if key in self._used:
            raise StepError(f"step {key!r} is used twice in one run; give each step a name of its own")
        self._used.add(key)
        if self._kept is None:
            self._kept = await self._runtime.steps(self._lease)
        if key not in self._kept:
            return MISSING
        return decode_result(self._kept[key] or None, _kind(function))

    async def keep(self, key: str, value: Any, function: Callable[..., Any]) -> None:
        """Keep the value of a step. Raises ``StepError``, ``PayloadError``, ``LeaseLost``."""
        what, typed = f"the value of step {key!r}", _kind(function) is not Any
        encoded = encode_result(value, typed=typed, largest=sys.maxsize, what=what) or b""
        check_step(key, encoded, 0, 0)  # The store knows the other steps.
        lease = self._lease
        if not await self._runtime.record_step(Step(lease.job_id, lease.seq, lease.token, key, encoded)):
            raise LeaseLost(f"job {lease.job_id} has lost its lease, so step {key!r} was not kept")

    def find_blocking(self, key: str, function: Callable[..., Any]) -> Any:
        return self._wait(self.find(key, function))

    def keep_blocking(self, key: str, value: Any, function: Callable[..., Any]) -> None:
        self._wait(self.keep(key, value, function))

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if asyncio._get_running_loop() is not None:
            coroutine.close()
            raise StepError("ctx.step would block the event loop; in an async task, write `await ctx.astep(…)`")
        return self._runtime.wait(coroutine)


def _kind(function: Callable[..., Any]) -> Any:
    try:
        return result_type(function)
    except (TypeError, ValueError):  # A built-in function without a signature.
        return Any
