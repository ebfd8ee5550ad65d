"""One contender on a fresh store: the process that submits for it, its workers, and its counts."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.contenders import Contender
from benchmarks.jobs import FIELDS
from benchmarks.machine import tree
from benchmarks.places import Place, PostgresPlace

ROOT = Path(__file__).parents[1]
PEERS_ENVIRONMENT = ROOT / ".venv-peers"
PATIENCE = 60.0


class ContenderError(Exception):
    """An operation of a contender failed or took too long."""


class Stand:
    """A contender under measurement. Use with ``with``, which ends its processes. Every wait is bounded."""

    def __init__(self, contender: Contender, place: Place, folder: Path, *, alone: bool = True) -> None:
        self.contender = contender
        self.place = place
        self._folder = folder
        self._alone = alone
        self._counts = folder / "counts"
        self._stamps = folder / "stamps"
        self._workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Stand:
        self._counts.mkdir(parents=True)
        self._stamps.touch()
        self.url = self.place.fresh(alone=self._alone)
        self._submitter = self._start(
            "submitter", ["-m", "benchmarks.submitter", self.contender.module], {}, pipes=True
        )
        try:
            self.facts = self._answer(PATIENCE)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_workers()
        _end(self._submitter, patience=0.5)
        if isinstance(self.place, PostgresPlace):
            self.place.drop(self.url)

    # ------------------------------------------------------------------ submitting

    def ask(self, do: str, *, patience: float = PATIENCE, **facts: Any) -> dict[str, float]:
        """Send a command to the submitter, and return its reply with ``seconds`` and ``cpu_seconds``."""
        assert self._submitter.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._submitter.stdin.write(json.dumps({"do": do, **facts}).encode() + b"\n")
            self._submitter.stdin.flush()
        return self._answer(patience)

    def _answer(self, patience: float) -> dict[str, Any]:
        out = self._submitter.stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], patience)
        if not ready:
            raise ContenderError(f"the submitter did not answer within {patience:.0f} s")
        line = out.readline()
        if not line:
            raise ContenderError(f"the submitter ended: {self._last_words('submitter')}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ContenderError(answer["error"])
        return answer

    # ------------------------------------------------------------------ working

    def start_worker(self, test: str, **environment: str) -> subprocess.Popen[bytes]:
        name = f"worker-{len(self._workers)}"
        worker = self._start(name, self.facts["commands"][test], self.facts["environment"] | environment)
        self._workers.append(worker)
        return worker

    def stop_workers(self) -> None:
        for worker in self._workers:
            with contextlib.suppress(ProcessLookupError):
                worker.send_signal(signal.SIGTERM)
        for worker in self._workers:
            _end(worker, patience=10.0 if self.contender.ours else 0.5)
        self._workers = []

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def done(self) -> int:
        """Return the number of jobs that have run so far."""
        return sum(done for done, _, _ in self._numbers().values())

    def all_at_work(self) -> bool:
        """Return whether each worker has run a job."""
        counted = set(self._numbers())
        return all(counted & set(tree(pid)) for pid in self.pids)

    def nap_seconds(self) -> float:
        """Return the time from the start of the first nap to the end of the last."""
        numbers = [number for number in self._numbers().values() if number[1]]
        return (max(last for _, _, last in numbers) - min(first for _, first, _ in numbers)) / 1e9

    def stamps(self) -> list[float]:
        """Return the milliseconds from submission to start of each stamped job, and forget them."""
        late = memoryview(self._stamps.read_bytes()).cast("q").tolist()
        os.truncate(self._stamps, 0)
        return [nanoseconds / 1e6 for nanoseconds in late]

    def wait(self, what: Callable[[], bool], patience: float, *, every: float = 0.01) -> bool:
        """Wait until a condition holds, at most this long. Raises ``ContenderError`` if a worker has ended."""
        deadline = time.monotonic() + patience
        while not what():
            for number, worker in enumerate(self._workers):
                if worker.poll() is not None:
                    raise ContenderError(f"a worker ended: {self._last_words(f'worker-{number}')}")
            if time.monotonic() > deadline:
                return False
            time.sleep(every)
        return True

    def need(self, what: Callable[[], bool], title: str, patience: float = 30.0) -> None:
        if not self.wait(what, patience):
            raise ContenderError(f"{title}: not within {patience:.0f} s; {self._last_words('worker-0')}")

    def _numbers(self) -> dict[int, tuple[int, int, int]]:
        found = {}
        for entry in os.scandir(self._counts):
            content = Path(entry.path).read_bytes()
            if len(content) == FIELDS.size:
                found[int(entry.name)] = FIELDS.unpack(content)
        return found

    # ------------------------------------------------------------------ processes

    def _start(
        self, name: str, command: list[str], extra: dict[str, str], *, pipes: bool = False
    ) -> subprocess.Popen[bytes]:
        python = sys.executable if self.contender.ours else str(PEERS_ENVIRONMENT / "bin" / "python")
        if not Path(python).exists():
            raise ContenderError("the peers are not installed; make bench does that")
        own_packages = PEERS_ENVIRONMENT / self.contender.name
        environment = dict(os.environ) | extra | {
            "BENCH_STORE": self.url,
            "BENCH_VARIANT": self.contender.variant,
            "BENCH_COUNTS": str(self._counts),
            "BENCH_STAMPS": str(self._stamps),
            "PYTHONPATH": os.pathsep.join([*([str(own_packages)] if own_packages.is_dir() else []), str(ROOT)]),
        }  # fmt: skip
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [python, *command],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else log,
                stderr=log,
                start_new_session=True,
            )

    def _last_words(self, name: str) -> str:
        lines = (self._folder / f"{name}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "it said nothing"


def _end(process: subprocess.Popen[bytes], patience: float) -> None:
    """Wait for a process to exit by itself, then kill it and its descendants."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)
    if process.stdout is not None:
        process.stdout.close()


@contextlib.contextmanager
def stands(made: list[Stand], failed: Callable[[Stand, Exception], None]) -> Iterator[list[Stand]]:
    """Open several stands at once. A stand that fails is reported and left out."""
    with contextlib.ExitStack() as stack:
        opened = []
        for stand in made:
            try:
                opened.append(stack.enter_context(stand))
            except Exception as problem:
                failed(stand, problem)
        yield opened
