"""Job ids: no process can guess the ids of another one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from headway.runtime import job_ids

MAKE = "from headway.runtime.job_ids import new_job_id\nfor _ in range(300): print(new_job_id())"


def test_two_fresh_processes_make_ids_with_nothing_random_in_common() -> None:  # R3.86
    made = [subprocess.run([sys.executable, "-c", MAKE], capture_output=True, check=True, text=True) for _ in range(2)]
    first, second = ([line[15:] for line in run.stdout.split()] for run in made)  # Behind the moment and the version.
    assert len({*first, *second}) == 600
    # Not even a place in the sequence is drawn alike: a generator with a fixed seed would repeat itself.
    assert not any(one == other for one, other in zip(first, second, strict=True))


def test_the_random_part_of_an_id_comes_from_the_system(monkeypatch: pytest.MonkeyPatch) -> None:  # R3.86
    drawn: list[int] = []

    def urandom(size: int) -> bytes:
        drawn.append(size)
        return b"\xab" * size

    monkeypatch.setattr(os, "urandom", urandom)
    monkeypatch.setattr(job_ids, "_ends", [])
    assert job_ids.new_job_id()[14:] == "7aba-baba-babababababa"
    assert sum(drawn) >= 10
