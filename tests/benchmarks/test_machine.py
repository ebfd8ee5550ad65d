"""CPU time of processes, as the benchmarks read it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.machine import TICKS, cpu_seconds

TICK = 1 / TICKS  # Seconds.
# Each prints the CPU time that it has used, of which the last part is a fraction of a tick.
OWN = f"""
import time
while not 0.6 < time.process_time() / {TICK} % 1 < 0.8: pass
print(time.process_time(), flush=True)
"""
OF_ENDED_CHILDREN = """
import resource, subprocess, sys, time
subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.1: pass"], check=True)
children = resource.getrusage(resource.RUSAGE_CHILDREN)
print(time.process_time() + children.ru_utime + children.ru_stime, flush=True)
"""


@pytest.mark.parametrize("script, error", [(OWN, 0.5 * TICK), (OF_ENDED_CHILDREN, 2.5 * TICK)])
def test_cpu_is_exact_but_for_ended_children(script: str, error: float) -> None:
    command = [sys.executable, "-c", f"{script}\nimport sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        used = float(process.stdout.readline())
        found = cpu_seconds(process.pid)
        process.kill()
    assert used == pytest.approx(found, abs=error)
