"""Wake-ups between processes that share a file. Each subscription has a named pipe in a folder beside the file.

Unlike a Unix socket, a named pipe has no limit on the length of its path. A write of at most 4 KiB arrives whole.
Opening a pipe without a reader fails at once, so the notifying process can remove pipes of dead processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from urllib.parse import quote
from uuid import UUID, uuid4

from headway.core.errors import StoreError
from headway.core.job import JobId
from headway.stores.base import JOB_CHANNEL

_EVERYTHING = bytes(16)  # "Something changed", with no job named.
_STEP_NS = 100_000_000
_BATCH = 256  # Ids of 16 bytes in one write that arrives whole.


class PipeNotifier:
    """Wakes the subscriptions beside one store file."""

    def __init__(self, store_path: Path) -> None:
        self._store_path = store_path
        self._folder = store_path.with_name(store_path.name + "-wake")
        self._watchers: list[Path] = []
        self._watchers_seen_ns = -1

    def check(self) -> None:
        """Raise ``StoreError`` if another user could have written to the folder.

        The folder must belong to this user or to the owner of the store, and no other user may enter it.
        """
        try:
            found = os.lstat(self._folder)
        except FileNotFoundError:
            return
        owners = {os.geteuid()}
        with contextlib.suppress(OSError):
            owners.add(os.stat(self._store_path).st_uid)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners or found.st_mode & 0o077:
            raise StoreError(
                f"{self._folder} must be a folder of the store's owner with mode 0700, but it is "
                f"{stat.filemode(found.st_mode)} of user {found.st_uid}; remove it, Headway makes another",
                path=str(self._folder),
            )

    def subscribe(self, name: str) -> PipeSubscription:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self.check()
        return PipeSubscription(self._folder / quote(name, safe=""))

    def notify(self, name: str) -> None:
        """Wake one subscription, if it is there."""
        _write(self._folder / quote(name, safe=""), _EVERYTHING)

    def notify_watchers(self, job_ids: Iterable[JobId]) -> None:
        """Send the changed jobs to every watcher. Without watchers this costs one ``stat`` of the folder."""
        watchers = self._find_watchers()
        if not watchers:
            return
        packed = [_pack(job_id) for job_id in job_ids]
        for start in range(0, len(packed), _BATCH):
            message = b"".join(packed[start : start + _BATCH])
            for path in watchers:
                _write(path, message)

    def _find_watchers(self) -> list[Path]:
        try:
            changed_ns = os.stat(self._folder).st_mtime_ns
        except FileNotFoundError:
            return []
        if changed_ns != self._watchers_seen_ns:
            try:
                with os.scandir(self._folder) as entries:
                    self._watchers = [Path(entry.path) for entry in entries if entry.name.startswith(JOB_CHANNEL)]
            except OSError:  # No free descriptor; new watchers rely on their periodic reads.
                return self._watchers
            # A folder's mtime has a resolution of milliseconds, so a recent one may hide a later change.
            settled = time.time_ns() - changed_ns > _STEP_NS
            self._watchers_seen_ns = changed_ns if settled else -1
        return self._watchers


class PipeSubscription:
    """The reading end of a named pipe, which exists as long as the subscription."""

    call = None

    def __init__(self, path: Path) -> None:
        self._path = path
        # Other processes remove a pipe without a reader, so the pipe gets its name after it has one.
        unborn = path.with_name(f".{uuid4().hex}")
        os.mkfifo(unborn, 0o600)
        # Opened for writing too, so that the pipe does not report its end when a notifier closes it.
        self._descriptor = os.open(unborn, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        unborn.rename(path)
        self._waiting: asyncio.AbstractEventLoop | None = None  # The loop that reads the pipe now.

    async def wait(self, timeout: float) -> Sequence[JobId] | None:
        heard = self._read()
        if heard is not None or self._descriptor < 0:
            return heard
        loop = asyncio.get_running_loop()
        rung: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._descriptor, _settle(rung))
        self._waiting = loop
        try:
            async with asyncio.timeout(timeout):
                await rung
        except TimeoutError:
            return None
        finally:
            self._leave_loop()
        return self._read()

    def close(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                self._path.unlink()
            self._leave_loop()
            os.close(self._descriptor)
            self._descriptor = -1

    def _leave_loop(self) -> None:
        """Remove the pipe from the loop before it is closed, because another file may get its descriptor."""
        loop, self._waiting = self._waiting, None
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # The loop itself is closed.
                loop.remove_reader(self._descriptor)

    def _read(self) -> Sequence[JobId] | None:
        if self._descriptor < 0:
            return ()
        try:
            data = os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            return None
        records = {data[start : start + 16] for start in range(0, len(data), 16)}
        if _EVERYTHING in records:
            return ()
        return [JobId(str(UUID(bytes=record))) for record in records]


def _settle(future: asyncio.Future[None]) -> Callable[[], None]:
    def settle() -> None:
        if not future.done():
            future.set_result(None)

    return settle


def _write(path: Path, message: bytes) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as problem:
        if problem.errno == errno.ENXIO:  # Its reader is gone: a process that was killed.
            with contextlib.suppress(OSError):
                path.unlink()
        return
    try:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):  # Anything else was put there by another program.
            os.write(descriptor, message)
    except BrokenPipeError:
        pass  # Its reader has just left.
    except BlockingIOError:
        pass  # Full, so the reader wakes anyway; its periodic reads find the rest.
    finally:
        os.close(descriptor)


def _pack(job_id: JobId) -> bytes:
    try:
        return UUID(job_id).bytes
    except ValueError:
        return _EVERYTHING
