"""The queue: for every program of this machine a task that draws with it."""

from __future__ import annotations

from pathlib import Path

from programs import Program, programs_here

from headway import Headway

queue = Headway(policy=str(Path(__file__).resolve().parent / "policy.toml"), slots=6, reserved=0)
programs = programs_here()


def add(program: Program, name: str, on_stop: str) -> None:
    """Make a program a task. It gets files and gives files; what it may take of this machine is bounded."""
    queue.command(
        program.argv,
        name=name,
        collect=["drawing.svg", "drawing.pdf"],
        choices={"format": ["svg", "pdf"]},
        memory=2 << 30,
        output=512 << 10,
        env={"LANG": "C.UTF-8"},
        priority="normal",
        duration="default",
        max_retries=0,
        on_stop=on_stop,
    )


for program in programs:
    add(program, f"{program.name}.draw", on_stop="fail")  # When its time is up, it has failed;
    add(program, f"{program.name}.insist", on_stop="retry_longer")  # or it tries again with more of it.
