"""The queue: a task for every drawing program of this machine, and a shell of the best one."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from programs import programs_here

from headway import Context, Headway
from headway.terminal import run_in_terminal

queue = Headway(policy=str(Path(__file__).resolve().parent / "policy.toml"), slots=6, reserved=0)
programs = programs_here()


for program in programs:  # Each gets files and gives files; what it may take of this machine is bounded.
    queue.command(
        program.argv,
        name=f"{program.name}.draw",
        collect=["drawing.svg", "drawing.pdf"],
        choices={"format": ["svg", "pdf"]},
        memory=2 << 30,
        output=512 << 10,
        env={"LANG": "C.UTF-8"},
        priority="normal",
        duration="default",
        max_retries=0,
    )

talker = next(program for program in programs if program.prompt)


@queue.task(name="shell", duration="interactive", context=True, priority="normal", timeout=600)
async def shell(ctx: Context) -> int:
    """Connect a client to a program, in a folder that is removed afterwards. Waiting drawings come first."""
    with TemporaryDirectory(prefix="headway-shell-") as folder:
        quiet = {"TERM": "dumb", "HOME": folder}  # The page shows plain text.
        return await run_in_terminal(ctx, talker.prompt, env=quiet, cwd=folder, cpu=60, memory=2 << 30)
