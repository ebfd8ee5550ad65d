"""A command: a task that runs a program instead of a function."""

from __future__ import annotations

import inspect
import math
import os
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from headway.client.codec import Signature
from headway.client.context import current
from headway.client.programs.argv import FILES, Argument, read_argv, value_text
from headway.client.programs.files import FILES_MAX, File, name_problem, read_files
from headway.client.programs.limits import Limits
from headway.client.programs.output import Output
from headway.core.errors import BadArguments, ConfigError
from headway.core.suggest import did_you_mean

if TYPE_CHECKING:
    from headway.client.programs.process import Program

OUTPUT = 16 << 20  # Bytes; the default maximum of a command's output.

Choices = Mapping[str, Sequence[str | int]]
Run = Callable[..., Coroutine[Any, Any, Output]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program with parameters, as ``app.command`` declares it. Raises ``ConfigError`` for invalid values."""

    name: str
    argv: Sequence[str]
    collect: Sequence[str] = ()
    stdin: str | None = None
    choices: Choices = field(default_factory=dict)
    cpu: float | None = None
    memory: int | None = None
    output: int = OUTPUT
    env: Mapping[str, str] = field(default_factory=dict)
    artifacts: str | None = None
    arguments: tuple[Argument, ...] = field(init=False, compare=False)
    parameters: tuple[str, ...] = field(init=False, compare=False)
    limits: Limits = field(init=False, compare=False)

    def __post_init__(self) -> None:
        try:
            arguments = read_argv(self.argv, self.choices)
            names = tuple(dict.fromkeys(name for argument in arguments for name in argument.parameters))
            _check_choices(self.choices, names)
            _check_env(self.env)
            _check_names(self.collect, self.stdin)
            if self.artifacts is not None and not os.path.isabs(self.artifacts):
                raise ValueError(f"artifacts is the absolute path of a folder, not {self.artifacts!r}")
            limits = Limits(
                None if self.cpu is None else math.ceil(_positive(self.cpu, "cpu")),
                None if self.memory is None else int(_positive(self.memory, "memory")),
                int(_positive(self.output, "output")),
            )
        except ValueError as problem:
            raise ConfigError(f"command {self.name}: {problem}") from None
        object.__setattr__(self, "arguments", arguments)
        object.__setattr__(self, "parameters", names)
        object.__setattr__(self, "limits", limits)

    def check(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the named arguments with ``files`` as ``File`` objects. Raises ``BadArguments``."""
        self.fill(values)
        return {name: self._files(value) if name == FILES else value for name, value in values.items()}

    def fill(self, values: Mapping[str, Any]) -> list[str]:
        """Return the program's argument list. Raises ``BadArguments``."""
        texts: dict[str, str] = {}
        for name in self.parameters:
            value = values[name]
            try:
                texts[name] = value_text(value)
            except ValueError as problem:
                raise BadArguments(f"task {self.name}: argument {name!r} {problem}", task=self.name) from None
            if name in self.choices and not any(
                one == value and type(one) is type(value) for one in self.choices[name]
            ):
                known = ", ".join(str(one) for one in self.choices[name])
                raise BadArguments(f"task {self.name}: argument {name!r} is one of {known}, not {value!r}")
        try:
            return [argument.fill(texts, self.choices) for argument in self.arguments]
        except ValueError as problem:
            raise BadArguments(f"task {self.name}: {problem}", task=self.name) from None

    def program(self, values: Mapping[str, Any], largest: int) -> Program:
        """Build the program for one run."""
        from headway.client.programs.process import Program  # Only workers need this import.

        files, folder = self._files(values.get(FILES, {})), None
        if self.artifacts is not None:  # No other attempt of any job uses the folder.
            context = current.get()
            run = uuid.uuid4().hex if context is None else f"{context.job_id}.{context.epoch}"
            folder = f"{self.artifacts}/{run}"
        return Program(self.fill(values), files, self.limits, self.env, self.collect, self.stdin, largest, folder)

    def _files(self, given: object) -> dict[str, File]:
        try:
            files = read_files(given)
        except ValueError as problem:
            raise BadArguments(f"task {self.name}: argument {FILES!r} {problem}", task=self.name) from None
        if self.stdin is not None and self.stdin not in files:
            raise BadArguments(f"task {self.name}: argument {FILES!r} lacks {self.stdin!r}, which the program reads")
        return files

    def function(self, largest: Callable[[], int]) -> Run:
        """Return the function of the task. ``largest`` returns the maximum bytes of a stored result."""
        signature = self._signature()

        async def run(**values: Any) -> Output:
            try:
                signature.bind(**values)
            except TypeError as problem:
                raise BadArguments(f"task {self.name}: {problem}", task=self.name) from None
            context = current.get()
            program = self.program(values, largest())
            if context is None:
                return await program.run()
            return await program.run(write_output=context.output, keep=context.partial)

        run.__name__ = run.__qualname__ = self.name
        run.__doc__ = f"Run {' '.join(self.argv)}"
        run.__signature__ = signature  # type: ignore[attr-defined]
        return run

    def _signature(self) -> inspect.Signature:
        keyword = inspect.Parameter.KEYWORD_ONLY
        kinds: dict[str, Any] = {name: Literal[tuple(values)] for name, values in self.choices.items()}
        parameters = [
            inspect.Parameter(name, keyword, annotation=kinds.get(name, str | int | float)) for name in self.parameters
        ]
        default: Any = {} if self.stdin is None else inspect.Parameter.empty
        parameters.append(inspect.Parameter(FILES, keyword, default=default, annotation=dict[str, File]))
        return inspect.Signature(parameters, return_annotation=Output)


class CommandSignature(Signature):
    """The parameters of a command. Checks values as program arguments, and files by name."""

    def __init__(self, command: Command, function: Run) -> None:
        super().__init__(command.name, function)
        self.command = command

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if args:
            named = ", ".join(f"{name}=…" for name in self.command.parameters) or f"{FILES}=…"
            raise BadArguments(f"task {self.command.name}: give the arguments by name, as in enqueue({named})")
        return self.command.check(super().bind(args, kwargs))

    def schema(self) -> dict[str, Any]:
        content = {
            "anyOf": [
                {"type": "string"},
                {"type": "object", "properties": {"base64": {"type": "string"}}, "required": ["base64"]},
            ]
        }
        properties: dict[str, Any] = {name: self._described(name) for name in self.command.parameters}
        properties[FILES] = {"type": "object", "maxProperties": FILES_MAX, "additionalProperties": content}
        return {"properties": properties, "required": sorted(self._required)}

    def _described(self, name: str) -> dict[str, Any]:
        choices = self.command.choices.get(name)
        if choices is not None:
            return {"enum": list(choices)}
        return {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "number"}]}


def _check_choices(choices: Choices, names: Sequence[str]) -> None:
    for name, values in choices.items():
        if name not in names:
            raise ValueError(f"choices names {name!r}, which is no parameter{did_you_mean(name, list(names))}")
        if isinstance(values, str) or not values or not all(type(value) in (str, int) for value in values):
            raise ValueError(f"the choices of {name!r} are a list of text or whole numbers, not {values!r}")
        for value in values:
            value_text(value)


def _check_env(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str) or not name or "=" in name or "\0" in name + value:
            raise ValueError(f"env has {name!r}: {value!r}; names and values are text, without NUL and = in a name")


def _check_names(collect: Sequence[str], stdin: str | None) -> None:
    if isinstance(collect, str):
        raise ValueError(f"collect is a list of names or patterns, not {collect!r}")
    for one in collect:
        if not isinstance(one, str) or not all(one.split("/")) or ".." in one.split("/") or "\0" in one:
            raise ValueError(f"collect has {one!r}; it is a list of names or patterns in the working folder")
    if stdin is not None and (wrong := name_problem(stdin)) is not None:
        raise ValueError(f"stdin is the name of a file that comes in, not {stdin!r}: {wrong}")


def _positive(value: float, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"{what} is a number above 0, not {value!r}")
    return value
