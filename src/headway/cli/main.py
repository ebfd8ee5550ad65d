"""Assembles the command line, and turns what goes wrong into one line and an exit code."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from io import TextIOWrapper

from cyclopts import App, CoercionError, CycloptsError, Group, Parameter, UnknownCommandError, UnusedCliTokensError
from cyclopts.exceptions import MissingArgumentError, UnknownOptionError

from headway.cli.help import OPTIONS, usage
from headway.cli.render import clean
from headway.core.errors import BadArguments, ConfigError, HeadwayError, PolicyError
from headway.core.suggest import did_you_mean
from headway.observability.logs import fill_closed_streams, flush_logs
from headway.version import __version__

FAILED = 1
USAGE = 2
CANNOT_START = 3
INTERRUPTED = 130

ABOUT = """A task queue that tells you when your job will run, why it waits and what would change.

Start with `headway up`: it makes a store in this folder and runs built-in demo tasks."""

_NUMBERS: dict[type | None, str] = {int: "whole number", float: "number"}

_RUN = Group("Run", sort_key=0)
_JOBS = Group("Jobs", sort_key=1)
_OPERATE = Group("Operate", sort_key=2)
_MORE = Group("More", sort_key=3)


# Each command: its module, with its name where that is another; its group, its usage, and its examples. The module is
# imported only when the command is called or described. A family of commands has help of its own.
COMMANDS: tuple[tuple[str, Group, *tuple[str, ...]], ...] = (
    ("init", _RUN, "[DIR]", "headway init shop"),
    ("up", _RUN, "[APP] [OPTIONS]", "headway up", "headway up tasks:app --slots 10"),
    (
        "worker",
        _RUN,
        "APP [OPTIONS]",
        "headway worker tasks:app",
        "headway worker tasks.py:app --processes 2 --slots 10",
        "headway worker tasks:app --server https://queue.example.com",
    ),
    ("serve", _RUN, "[APP] [OPTIONS]", "headway serve", "headway serve tasks:app --workers 2 --port 8080"),
    (
        "submit",
        _JOBS,
        "TASK [KEY=VALUE…] [OPTIONS]",
        "headway submit demo.sleep seconds=2 --wait",
        "headway submit reports.export account_id=7 --app tasks:app --delay 60",
        """headway submit demo.echo --json-args '{"value": [1, 2]}' --priority high""",
    ),
    (
        "jobs",
        _JOBS,
        "[OPTIONS]",
        "headway jobs",
        "headway jobs --status failed,dead_letter --task reports.export --json",
    ),
    (
        "status",
        _JOBS,
        "ID [OPTIONS]",
        "headway status 0198c1f2-7a3b-7c4d-8e5f-001122334455 --args",
        "headway status ID --follow",
    ),
    ("why", _JOBS, "ID [OPTIONS]", "headway why 0198c1f2-7a3b-7c4d-8e5f-001122334455"),
    ("estimate", _JOBS, "ID [OPTIONS]", "headway estimate 22334455"),
    ("cancel", _JOBS, "ID… [OPTIONS]", "headway cancel 0198c1f2-7a3b-7c4d-8e5f-001122334455"),
    ("cancel:retry", _JOBS, "ID… [OPTIONS]", "headway retry 0198c1f2-7a3b-7c4d-8e5f-001122334455"),
    ("bulk", _JOBS),
    ("batches", _JOBS, "[OPTIONS]", "headway batches", "headway batches --status running,failed --json"),
    ("batches:batch", _JOBS),
    ("dlq", _JOBS),
    ("crons", _JOBS),
    ("workers", _OPERATE, "[OPTIONS]", "headway workers", "headway workers --json"),
    ("workers:drain", _OPERATE, "WORKER [OPTIONS]", "headway drain web-1:4711:a1b2c3"),
    ("pause", _OPERATE, "[OPTIONS]", "headway pause --lane low", "headway pause --tenant acme"),
    ("pause:resume", _OPERATE, "[OPTIONS]", "headway resume --lane low", "headway resume"),
    ("scale", _OPERATE, "--lane LANE --within TIME [OPTIONS]", "headway scale --lane high --within 30"),
    ("stats", _OPERATE, "[OPTIONS]", "headway stats", "headway stats --json"),
    ("top", _OPERATE, "[OPTIONS]", "headway top", "headway top --once"),
    ("policy", _OPERATE),
    (
        "simulate",
        _OPERATE,
        "[OPTIONS]",
        "headway simulate --recorded 24h --policy new.toml",
        "headway simulate --recorded 7d --slots 16 --workers 2",
        "headway simulate --trace jobs.csv --slots 8 --policy new.toml --fail-if 'low.p99 > 600'",
    ),
    ("trace", _OPERATE),
    ("token", _OPERATE),
    ("celery", _OPERATE),
    ("migrate", _OPERATE, "[OPTIONS]", "headway migrate --dry-run", "headway migrate"),
    ("backup", _OPERATE, "FILE [OPTIONS]", "headway backup /backups/jobs-monday.db"),
    ("backup:restore", _OPERATE, "FILE [OPTIONS]", "headway restore /backups/jobs-monday.db"),
    ("doctor", _OPERATE, "[OPTIONS]", "headway doctor", "headway doctor --json"),
    (
        "completion",
        _MORE,
        "[SHELL]",
        "source <(headway completion bash)",
        "headway completion fish > ~/.config/fish/completions/headway.fish",
    ),
)


def build(*, described: bool = False) -> App:
    """Make the command line. It raises what goes wrong; ``main`` prints it.

    ``described`` imports every command, so that the list of commands can say what each is for.
    """
    app = App(
        name="headway",
        help=ABOUT,
        version=__version__,
        help_format="plaintext",
        help_epilogue="`headway COMMAND --help` explains a command and shows examples.",
        default_parameter=Parameter(negative=()),
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
        group_commands=_MORE,
        group_parameters=OPTIONS,
    )
    for number, (place, group, *words) in enumerate(COMMANDS):
        module, _, other = place.partition(":")
        name = other or module
        more = usage(f"{name} {words[0]}", *words[1:]) if words else {}
        app.command(f"headway.cli.{module}:{name}", name=name, group=group, sort_key=number, **more)
        if described:
            app[name]  # Resolved by being looked up.
    return app


def main(words: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 1 failed, 2 called wrongly, 3 could not start, 130 interrupted."""
    _prepare_streams()
    warnings.showwarning = lambda message, *_, **__: _complain(f"warning: {message}")
    words = sys.argv[1:] if words is None else words
    try:
        code = build(described=not words or words[0].startswith("-"))(list(words))
        sys.stdout.flush()
    except CycloptsError as problem:
        _complain(f"error: {_usage_error(problem)} [usage]")
        return USAGE
    except HeadwayError as problem:
        return _fail(problem)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed it. The interpreter must not fail over it again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return code if isinstance(code, int) else 0


def _usage_error(problem: CycloptsError) -> str:
    """Return what is wrong with a command line. Suggest another word only if it is really alike."""
    path = " ".join(["headway", *(problem.command_chain or ())])
    words = problem.unused_tokens or ["?"]
    if isinstance(problem, UnknownCommandError):
        known = [] if problem.app is None else [name for name in problem.app if not name.startswith("-")]
        return f"unknown command {words[0]!r}{did_you_mean(words[0], known)} ({path} --help lists the commands)"
    if isinstance(problem, UnknownOptionError):
        word = (problem.token.keyword or problem.token.value).partition("=")[0]
        known = [name for argument in problem.argument_collection if argument.parse for name in argument.names]
        return f"unknown option {word!r}{did_you_mean(word, known)} ({path} --help lists the options)"
    if isinstance(problem, UnusedCliTokensError):
        which = "argument" if len(words) == 1 else "arguments"
        return f"{path} does not take the {which} {', '.join(map(repr, words))} ({path} --help lists what it takes)"
    if isinstance(problem, CoercionError) and problem.token is not None and problem.target_type in _NUMBERS:
        name = problem.token.keyword or "the argument"
        return f"{name} must be a {_NUMBERS[problem.target_type]}, got {problem.token.value!r}"
    if isinstance(problem, MissingArgumentError) and problem.argument is not None and not problem.argument.tokens:
        return f"{path} needs {problem.argument.name} ({path} --help shows an example)"
    problem.verbose = False
    return str(problem)


def _fail(problem: HeadwayError) -> int:
    traceback = problem.facts.get("traceback")
    if isinstance(traceback, str) and traceback:
        flush_logs()
        print(clean(traceback.rstrip(), lines=True), file=sys.stderr)
    # Only the problems of a policy take several lines, one each.
    _complain(f"error: {problem} [{problem.code}]", lines=isinstance(problem, PolicyError))
    if problem.code == "cannot_start":
        return CANNOT_START
    return USAGE if isinstance(problem, (ConfigError, BadArguments)) else FAILED


def _complain(text: str, *, lines: bool = False) -> None:
    flush_logs()
    print(clean(text, lines=lines), file=sys.stderr)


def _prepare_streams() -> None:
    """Make output streams escape characters that the terminal cannot show, instead of raising an error."""
    fill_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
