"""Real programs: their arguments and files, how they are stopped, and that they leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from headway import CommandFailed, Headway, Job, JobFailed, Output, Worker
from headway.client.programs.output_files import matches
from headway.client.task import Task
from headway.testing import Testbed

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]

Script = Task[..., Output, Coroutine[Any, Any, Output]]

# Ignores SIGTERM, and so do a child, a grandchild and one that leaves the group.
STUBBORN = """
trap '' TERM
(while :; do :; done) &
(sleep 1000 & sleep 1000) &
setsid sh -c "trap '' TERM; sleep 1000; sleep 1000" &
echo up > up
while :; do sleep 1; done
"""


class Shell:
    """Scripts that run as commands. A mark in the environment identifies their processes."""

    def __init__(self, app: Headway, temporary: Path) -> None:
        self.app = app
        self.temporary = temporary
        self.mark = uuid.uuid4().hex

    def command(self, **options: Any) -> Script:
        name = options.pop("name", "sh")
        options["env"] = {"MARK": self.mark, **options.get("env", {})}
        return self.app.command(["sh", "-c", "{script}"], name=name, **options)

    async def run(self, script: str, *, files: dict[str, Any] | None = None, **options: Any) -> Output:
        return await self.command(**options)(script=script, files=files or {})

    @property
    def alive(self) -> list[int]:
        """Return the processes of programs that still run. An ended process has no environment."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"MARK={self.mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found

    @property
    def guard(self) -> int:
        """Return the process that is the parent of a program and is not itself one."""
        alive = set(self.alive)
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in alive]
        (found,) = {int(fields[1]) for fields in stats} - alive
        return found

    @property
    def folders(self) -> list[Path]:
        return list(self.temporary.iterdir())

    async def until_up(self, file: str = "up") -> None:
        async with asyncio.timeout(20):
            while not any((folder / file).exists() for folder in self.folders):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def until_guarded(self) -> None:
        """Wait until the guard has reported the program and waits for its end, which it does in ticks."""
        guard = self.guard
        first = _switches(guard)
        async with asyncio.timeout(20):
            while _switches(guard) < first + 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def check_nothing_is_left(self) -> None:
        assert (self.alive, self.folders) == ([], [])


def _switches(pid: int) -> int:
    """Return how often a process has waited for something."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["voluntary_ctxt_switches"])


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = Shell(Headway("memory://"), tmp_path)
    yield found
    left = found.alive
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


# ---------------------------------------------------------------------- in and out


async def test_files_go_in_and_come_out(shell: Shell) -> None:
    # R3.43, R3.57, R3.85
    output = await shell.run(
        "tr a-z A-Z < in.txt > out.txt; printf '\\377' > out.bin; echo said; echo warned >&2; cp in.txt other",
        files={"in.txt": "text é", "b.bin": b"\xff"},
        collect=["out.*"],
    )
    assert output.files == {"out.bin": b"\xff", "out.txt": "TEXT é".encode()}
    assert list(output.files) == ["out.bin", "out.txt"]
    assert (output.exit_code, output.stdout, output.stderr) == (0, "said\n", "warned\n")
    assert 0 < output.seconds < 30
    shell.check_nothing_is_left()


async def test_what_it_says_need_not_be_text(shell: Shell) -> None:
    assert (await shell.run("printf 'a\\377b'")).stdout == "a\ufffdb"


async def test_the_environment_is_empty_but_for_what_is_said(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hush")
    output = await shell.run("pwd; stat -c %a .; umask; env", env={"LANG": "C.UTF-8"})
    folder, mode, mask, *lines = output.stdout.split("\n")
    env = dict(line.split("=", 1) for line in lines if line)
    assert (mode, mask) == ("700", "0077")
    assert Path(folder).parent == shell.temporary
    assert env.pop("PWD", folder) == folder  # A shell's own.
    assert {name: value for name, value in env.items() if name not in ("_", "SHLVL", "OLDPWD")} == {
        "HOME": folder,
        "LANG": "C.UTF-8",
        "MARK": shell.mark,
        "PATH": env["PATH"],
    }
    assert all(place.startswith("/") for place in env["PATH"].split(":"))


async def test_it_inherits_no_file_of_the_worker(shell: Shell) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    # A shell may keep a copy of its own as 10 or above.
    found = (await shell.run("ls /proc/$$/fd")).stdout.split()
    os.close(reading)
    os.close(writing)
    assert [number for number in found if int(number) < 10] == ["0", "1", "2"]
    assert str(writing) not in found or writing == 10


async def test_a_file_can_be_what_it_reads(shell: Shell) -> None:
    assert (await shell.run("cat", stdin="in.txt", files={"in.txt": "hello"})).stdout == "hello"
    assert (await shell.run("cat", name="nothing")).stdout == ""


async def test_what_came_in_comes_out_only_by_name(shell: Shell) -> None:
    files = {"a.txt": "1", "b.txt": "2"}
    output = await shell.run("echo 3 > c.txt; echo 4 > a.txt", files=files, collect=["*.txt", "a.txt"])
    assert output.files == {"a.txt": b"4\n", "c.txt": b"3\n"}


async def test_only_regular_files_come_out(shell: Shell, tmp_path: Path) -> None:
    script = "ln -s /etc/passwd out.link; mkdir out.dir; mkfifo out.pipe; echo 1 > out.txt"
    assert (await shell.run(script, collect=["out.*"])).files == {"out.txt": b"1\n"}
    shell.check_nothing_is_left()


async def test_it_runs_on_uvloop_as_well(shell: Shell) -> None:
    def on_uvloop() -> Output:
        return uvloop.run(shell.run("echo 1 > out; echo 2 > /dev/stdout", collect=["out"]))

    output = await asyncio.to_thread(on_uvloop)
    assert (output.files, output.stdout) == ({"out": b"1\n"}, "2\n")


# ---------------------------------------------------------------------- failing


async def failure(shell: Shell, script: str, **options: Any) -> CommandFailed:
    with pytest.raises(CommandFailed) as caught:
        await shell.run(script, **options)
    shell.check_nothing_is_left()
    return caught.value


async def test_a_program_that_fails_says_why(shell: Shell) -> None:
    # R3.91
    error = await failure(shell, "seq 100 >&2; echo out; exit 3")
    assert str(error).startswith("sh exited with code 3: 81\n")
    assert str(error).endswith("\n100")
    assert (error.exit_code, error.retriable, error.stdout, error.code) == (3, True, "out\n", "command_failed")


async def test_without_errors_its_other_words_are_told(shell: Shell) -> None:
    assert str(await failure(shell, "echo no such drawing; exit 1")) == "sh exited with code 1: no such drawing"


async def test_a_program_that_makes_nothing_has_failed(shell: Shell) -> None:
    # R3.91
    error = await failure(shell, "echo 'nothing to draw' >&2", collect=["out.svg", "*.png"])
    assert str(error) == "no output: sh made no file out.svg, *.png: nothing to draw"
    assert (error.exit_code, error.retriable) == (0, True)


async def test_a_program_that_is_not_there(shell: Shell) -> None:
    made = shell.app.command(["no-such-program"], name="none", env={"PATH": "/usr/bin:relative::/bin"})
    with pytest.raises(CommandFailed, match=r"program 'no-such-program' not found .*\(PATH /usr/bin:/bin\)") as caught:
        await made()
    assert (caught.value.retriable, caught.value.exit_code) == (False, None)


async def test_a_program_that_cannot_be_started(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> None:
    script = tmp_path_factory.mktemp("bin") / "broken"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o700)
    with pytest.raises(CommandFailed, match="broken could not be started: No such file") as caught:
        await shell.app.command([str(script)], name="broken")()
    assert not caught.value.retriable
    shell.check_nothing_is_left()


async def test_a_program_that_is_killed_gets_a_hint(shell: Shell) -> None:
    assert str(await failure(shell, "kill -SEGV $$", memory=1 << 30)) == (
        "sh was killed by SIGSEGV (its memory limit is 1073741824 bytes)"
    )
    assert str(await failure(shell, "kill -HUP $$", name="other")) == "sh was killed by SIGHUP"


async def test_arguments_are_checked_when_called_here_and_now(shell: Shell) -> None:
    with pytest.raises(TypeError, match="missing a required"):
        await shell.command()()
    with pytest.raises(TypeError, match="an option of the program"):
        await shell.command()(script="-x")


# ---------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    "script",
    [
        "yes",
        "yes >&2",
        "trap 'exit 0' TERM; while :; do echo 0123456789; done",
        "yes > out",
        "yes > out; exit 1",
        "trap '' XFSZ; yes > out; exit 1",
        "mkdir -p deep/er; i=0; while :; do i=$((i+1)); head -c 40000 /dev/zero > deep/er/$i; done",
        "i=0; while :; do i=$((i+1)); : > f$i; done",
        "while :; do mkdir d; cd d; done",
        "mkdir shut; cd shut; chmod 000 .; i=0; while :; do i=$((i+1)); head -c 40000 /dev/zero > f$i; done",
        "head -c 60000 /dev/zero; head -c 60000 /dev/zero > out",
    ],
)
async def test_no_program_fills_the_disk_or_the_memory(shell: Shell, script: str) -> None:
    # R3.91
    error = await failure(shell, script, output=100_000, collect=["out"])
    assert (str(error), error.retriable) == ("output limit (100000 bytes)", False)


async def test_what_is_within_the_limit_is_fine(shell: Shell) -> None:
    script = "head -c 40000 /dev/zero; head -c 40000 /dev/zero >&2; head -c 20000 /dev/zero > out"
    output = await shell.run(script, output=100_000, collect=["out"], files={"in": "x" * 50_000})
    assert (len(output.stdout), len(output.stderr), len(output.files["out"])) == (40_000, 40_000, 20_000)


async def test_a_result_that_cannot_be_kept_is_no_success(shell: Shell) -> None:
    shell.app.configure(payload_max=50_000)
    for name, script in {"raw": "head -c 60000 /dev/zero > out", "written": "head -c 20000 /dev/zero > out"}.items():
        error = await failure(shell, script, collect=["out"], name=name)
        assert str(error).startswith("output limit (50000 bytes): the result takes ")
        assert not error.retriable


async def test_limits_are_the_kernels_and_signals_as_usual(shell: Shell) -> None:
    script = "cat /proc/self/limits; grep -E '^Sig(Ign|Blk)' /proc/self/status"
    said = " ".join((await shell.run(script, cpu=1.5, memory=1 << 30, output=100_000)).stdout.split())
    for limit in ("cpu time 2 3 ", "file size 100001 100001 ", "core file size 0 0 ", "open files 256 256 "):
        assert f"Max {limit}" in said
    assert f"Max address space {1 << 30} {1 << 30} " in said
    ignored = int(said.rpartition("SigIgn: ")[2], 16)
    assert ignored & (1 << 31) - 1 == 0  # Those of the system's own threads are no affair of programs.
    assert "SigBlk: 0000000000000000 " in said


async def test_a_program_that_computes_too_long(shell: Shell) -> None:
    # R3.5, R3.91
    for name, script in {"plain": "while :; do :; done", "stubborn": "trap '' XCPU; while :; do :; done"}.items():
        error = await failure(shell, script, cpu=1, name=name)
        assert (str(error), error.retriable) == ("time limit (1 s)", False)


async def test_a_program_that_wants_too_much_memory(shell: Shell) -> None:
    made = shell.app.command([sys.executable, "-c", "bytearray(1 << 30)"], name="greedy", memory=512 << 20)
    with pytest.raises(CommandFailed, match=r"(?s)exited with code 1: .*MemoryError"):
        await made()


# ---------------------------------------------------------------------- stopping


async def test_a_cancelled_program_is_gone_before_its_task_is(shell: Shell) -> None:
    # R3.34
    running = asyncio.create_task(shell.run(STUBBORN))
    async with asyncio.timeout(20):
        while len(shell.alive) < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    began = time.monotonic()
    running.cancel()
    await asyncio.sleep(0.1)
    running.cancel()  # Once more changes nothing.
    await asyncio.wait([running])
    assert running.cancelled()
    assert 0.4 < time.monotonic() - began < 5
    shell.check_nothing_is_left()


async def test_a_program_may_end_in_peace(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> None:
    last = tmp_path_factory.mktemp("words") / "last"
    script = f"trap 'sleep 0.1; echo peace > {last}; exit' TERM; echo > up; while :; do sleep 0.01; done"
    running = asyncio.create_task(shell.run(script))
    await shell.until_up()
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert last.read_text() == "peace\n"
    shell.check_nothing_is_left()


@pytest.mark.parametrize("after", [0.0, 0.001, 0.005, 0.01, 0.02, 0.04])
async def test_it_can_be_cancelled_at_any_moment(shell: Shell, after: float) -> None:
    running = asyncio.create_task(shell.run("sleep 1000"))
    await asyncio.sleep(after)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    shell.check_nothing_is_left()


async def test_what_a_program_leaves_behind_is_killed(shell: Shell) -> None:
    began = time.monotonic()
    script = (
        "sleep 1000 & setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000' &) ; trap '' HUP; nohup sleep 999 &"
    )
    output = await shell.run(script)
    assert output.exit_code == 0
    assert time.monotonic() - began < 5
    shell.check_nothing_is_left()


async def test_a_guard_that_is_killed_takes_the_program_along(shell: Shell) -> None:
    running = asyncio.create_task(shell.run("echo > up; sleep 1000 & wait"))
    await shell.until_up()
    await shell.until_guarded()  # Before that, the worker does not know the program.
    os.kill(shell.guard, signal.SIGKILL)
    with pytest.raises(CommandFailed, match="the process that guards the program died") as caught:
        await running
    assert caught.value.retriable
    async with asyncio.timeout(20):
        while shell.alive:  # noqa: ASYNC110  (what a signal has killed takes a moment to be gone)
            await asyncio.sleep(0.01)
    shell.check_nothing_is_left()


async def test_many_run_at_once(shell: Shell) -> None:
    made = shell.command(collect=["out"])
    outputs = await asyncio.gather(*(made(script=f"echo {number} > out") for number in range(20)))
    assert [output.files["out"] for output in outputs] == [f"{number}\n".encode() for number in range(20)]
    shell.check_nothing_is_left()


@pytest.mark.parametrize(
    "folder",
    [
        "mkdir -p a/b; touch a/b/c; chmod 000 a/b a",
        "d=x; for i in $(seq 30); do mkdir $d; cd $d; d=$(printf %0200d 1); done",
        "mkdir a .a; ln -s / a/root; ln -s .. .a/up; mkfifo a/pipe",
    ],
)
async def test_whatever_is_in_the_folder_it_is_removed(shell: Shell, folder: str) -> None:
    await shell.run(folder)
    shell.check_nothing_is_left()


# ---------------------------------------------------------------------- as jobs


def test_a_job_ends_as_its_program_does(headway: Testbed) -> None:
    made = headway.app.command(["sh", "-c", "{script}"], name="sh", output=1_000, max_retries=2, collect=["out"])
    good, bad = made.enqueue(script="cat in > out", files={"in": b"\xff"}), made.enqueue(script="exit 1")
    big = made.enqueue(script="yes")
    headway.drain(advance=True)
    assert good.result().files == {"out": b"\xff"}
    with pytest.raises(JobFailed, match="exited with code 1"):
        bad.result()
    assert (bad.status(), bad.record().attempts) == ("dead_letter", 3)
    with pytest.raises(JobFailed, match=r"output limit \(1000 bytes\)") as caught:
        big.result()
    assert (big.status(), big.record().attempts) == ("failed", 1)
    assert caught.value.error.type.endswith("CommandFailed")


@pytest.fixture
async def worker(shell: Shell) -> AsyncIterator[Worker]:
    shell.app = Headway("memory://", slots=1, reserved=0)
    made = Worker(shell.app)
    shell.command(timeout=2, max_retries=0)

    @shell.app.task(name="look")
    async def look() -> int:
        return len(shell.alive)

    async with made:
        yield made


@pytest.mark.parametrize("by", ["cancel", "timeout"])
async def test_a_slot_is_free_when_the_work_has_stopped(shell: Shell, worker: Worker, by: str) -> None:
    # R3.5, R3.34
    job = await shell.app.tasks["sh"].aenqueue(script=STUBBORN)
    await shell.until_up()
    after = await shell.app.tasks["look"].aenqueue()
    if by == "cancel":
        await job.acancel()
    assert await after.aresult(timeout=20) == 0
    record = await job.arecord()
    if by == "cancel":
        assert record.state == "cancelled"
    else:
        assert record.error is not None
        assert record.error.message == "time limit (2 s)"
    shell.check_nothing_is_left()


async def test_a_program_that_is_lowered_on_the_ladder_is_stopped(
    shell: Shell, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # R3.5, R3.34
    policy = tmp_path_factory.mktemp("policy") / "policy.toml"
    policy.write_text('[ladder]\nrungs = [{name = "fast", seconds = 1}, {name = "slow", seconds = 30, limit = 1}]\n')
    shell.app = Headway("memory://", policy=str(policy), slots=2, reserved=0)
    program = shell.command(duration="default", max_retries=0)
    quick = shell.command(name="quick", duration="slow")
    async with Worker(shell.app):
        job = await program.aenqueue(script=STUBBORN)
        await shell.until_up()
        assert (await (await quick.aenqueue(script="echo done")).aresult(timeout=20)).stdout == "done\n"
        with pytest.raises(JobFailed, match=r"time limit \(1 s\)"):
            await job.aresult(timeout=20)
        shell.check_nothing_is_left()


# ---------------------------------------------------------------------- what is left of a run that went wrong


async def partial_of(job: Job[Output]) -> Output:
    with pytest.raises(JobFailed) as caught:
        await job.aresult(timeout=30)
    assert isinstance(caught.value.partial, Output)
    return caught.value.partial


async def test_a_run_that_fails_leaves_its_output_and_files(shell: Shell, worker: Worker) -> None:
    program = shell.command(name="keeps", collect=["out.txt", "log/*"], max_retries=0)
    script = "echo precious; echo trouble >&2; mkdir log; echo 1 > log/a; echo half > out.txt; exit 3"
    found = await partial_of(await program.aenqueue(script=script))
    assert (found.exit_code, found.stdout, found.stderr) == (3, "precious\n", "trouble\n")
    assert (found.files, found.cut) == ({"log/a": b"1\n", "out.txt": b"half\n"}, False)
    shell.check_nothing_is_left()


async def test_a_run_that_is_too_long_leaves_its_output_and_files(shell: Shell, worker: Worker) -> None:
    program = shell.command(name="keeps", collect=["out.txt"], timeout=1, max_retries=0)
    job = await program.aenqueue(script="echo so far; echo half > out.txt; sleep 1000")
    found = await partial_of(job)
    assert (found.stdout, found.files) == ("so far\n", {"out.txt": b"half\n"})
    assert found.exit_code < 0
    assert (await job.ainfo()).status == "dead_letter"
    shell.check_nothing_is_left()


async def test_a_run_that_writes_too_much_leaves_what_a_store_keeps(shell: Shell, worker: Worker) -> None:
    program = shell.command(name="keeps", collect=["*.txt"], output=4 << 20, max_retries=0)
    script = "yes | head -c 1500000; echo last; echo small > a.txt; head -c 3000000 /dev/zero > b.txt; exit 1"
    found = await partial_of(await program.aenqueue(script=script))
    assert (found.cut, found.files) == (True, {"a.txt": b"small\n"})
    assert found.stdout.endswith("y\nlast\n")
    assert len(found.stdout) == 64 << 10
    assert found.size() <= shell.app.settings.payload_max


# ---------------------------------------------------------------------- folders and artifacts


async def test_files_may_lie_in_folders(shell: Shell) -> None:
    output = await shell.run(
        "mkdir -p out/deep/er; cp data/in.txt out/a.txt; echo x > out/deep/er/b.txt; echo no > out/c; ln -s /etc out",
        files={"data/in.txt": "hello", "data/sub/more.txt": "more"},
        collect=["out/**/*.txt"],
    )
    assert output.files == {"out/a.txt": b"hello", "out/deep/er/b.txt": b"x\n"}
    shell.check_nothing_is_left()


@pytest.mark.parametrize(
    "name, pattern, fits",
    [
        ("a.txt", "*.txt", True),
        ("d/a.txt", "*.txt", False),
        ("d/a.txt", "d/*.txt", True),
        ("d/e/a.txt", "d/*.txt", False),
        ("a.txt", "**/*.txt", True),
        ("d/e/a.txt", "**/*.txt", True),
        ("d/e/a.txt", "d/**", True),
        ("d", "d/**", False),
        ("d/e/a.txt", "d/**/e/*", True),
        ("x/e/a.txt", "d/**", False),
    ],
)
def test_a_pattern_fits_within_folders(name: str, pattern: str, fits: bool) -> None:
    assert matches(name, pattern) is fits


async def test_large_files_are_moved_to_the_artifacts_folder(
    shell: Shell, worker: Worker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("artifacts")
    program = shell.command(name="large", collect=["frames/*"], output=8 << 20, artifacts=place, max_retries=0)
    job = await program.aenqueue(script="mkdir frames; head -c 3000000 /dev/zero > frames/1; echo 2 > frames/2")
    output = await job.aresult(timeout=30)
    folder = place / f"{job.id}.1" / "frames"
    assert output.files == {}
    assert {name: (made.path, made.size) for name, made in output.artifacts.items()} == {
        "frames/1": (str(folder / "1"), 3_000_000),
        "frames/2": (str(folder / "2"), 2),
    }
    assert output.artifacts["frames/2"].read_bytes() == b"2\n"
    assert output.artifacts["frames/2"].sha256 == hashlib.sha256(b"2\n").hexdigest()
    assert sorted(path.name for path in folder.iterdir()) == ["1", "2"]
    failed = await program.aenqueue(script="mkdir frames; echo 3 > frames/3; exit 1")
    left = await partial_of(failed)
    assert left.artifacts["frames/3"].path == str(place / f"{failed.id}.1" / "frames" / "3")
    shell.check_nothing_is_left()
