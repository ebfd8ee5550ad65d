"""A live run, recorded and replayed: the simulator is believed because this holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headway.simulate.calibration import calibrate
from headway.simulate.replay import replay
from headway.simulate.trace_file import read_trace

ROOT = Path(__file__).parents[2]


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_a_recorded_live_run_replays_within_a_tenth_in_every_lane(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    command = [sys.executable, "-m", "benchmarks.calibration", "--warm", "200", "--seconds", "0", "--trace", str(file)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=500)
    trace = read_trace(file)
    assert trace.policy is not None
    assert trace.capacity is not None
    assert (len(trace.jobs) > 300, trace.left_out) == (True, {})
    found = calibrate(trace.jobs, replay(trace.jobs, trace.policy, trace.capacity))
    assert found is not None
    assert {lane.lane for lane in found.lanes} == {"high", "medium", "low"}
    for lane in found.lanes:
        assert lane.p50_error <= 0.1, lane
        assert lane.p90_error <= 0.1, lane
