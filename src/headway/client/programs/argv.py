"""The arguments of a program: text with parameters in braces, filled in without a shell.

A caller fills in values, never options. Only a parameter with ``choices``, whose values the author has listed, may
put a "-" at the start of an argument:

Rule 1: the program itself has no parameters.
Rule 2: an argument whose first character comes from a parameter without choices must not start with "-". The filled
        argument is checked, so an empty value before another parameter makes no difference.
Rule 3: after literal text of the author, as in ``--scale={scale}`` and ``-f{format}``, any value is allowed. Dashes
        alone are not enough: ``-{flag}`` would let the caller choose the option, so it needs choices.
Rule 4: an option without "=" needs a value that is not empty. ``-f{format}`` with an empty format would take the next
        argument as its value.
"""

from __future__ import annotations

import keyword
import string
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

FILES = "files"  # The parameter for input files; it cannot be part of an argument.


class Part(NamedTuple):
    """A part of an argument: literal text, or the name of a parameter."""

    text: str
    is_parameter: bool


class Argument(NamedTuple):
    """One argument: the author's template, and its parts."""

    template: str
    parts: tuple[Part, ...]

    @property
    def parameters(self) -> list[str]:
        return [part.text for part in self.parts if part.is_parameter]

    def fill(self, values: Mapping[str, str], chosen: Collection[str]) -> str:
        """Return the argument with values filled in. ``chosen``: the parameters with choices. Raises ``ValueError``."""
        filled = [values[part.text] if part.is_parameter else part.text for part in self.parts]
        first = next((index for index, text in enumerate(filled) if text), None)
        if first is not None and self.parts[first].is_parameter and filled[first].startswith("-"):  # Rule 2.
            name = self.parts[first].text
            if name not in chosen:
                raise ValueError(
                    f"argument {name!r} would make {''.join(filled)!r} an option of the program; "
                    "a value here must not begin with '-'"
                )
        if self.parts and not self.parts[0].is_parameter and self.parts[0].text.startswith("-"):  # Rule 4.
            for part, text in zip(self.parts, filled, strict=True):
                if part.is_parameter and not text and "=" not in self.parts[0].text and part.text not in chosen:
                    raise ValueError(f"argument {part.text!r} must not be empty in {self.template!r}")
        return "".join(filled)


def read_argv(argv: Sequence[str], chosen: Collection[str]) -> tuple[Argument, ...]:
    """Return the parsed arguments of an author's list. Raises ``ValueError``."""
    if isinstance(argv, str) or not argv or not all(isinstance(one, str) for one in argv):
        raise ValueError(
            f"a program and its arguments are a list of text, not {argv!r}; there is no shell to split them"
        )
    arguments = tuple(_read(one) for one in argv)
    program = arguments[0]
    if program.parameters:  # Rule 1.
        raise ValueError(f"the program cannot be a parameter, as in {program.template!r}")
    path = fixed(program)
    if not path or ("/" in path and not path.startswith("/")):
        raise ValueError(f"the program is a name to be found on PATH or an absolute path, not {path!r}")
    for argument in arguments:
        if len(argument.parts) > 1 and not argument.parts[0].is_parameter:
            first, second = argument.parts[:2]
            if set(first.text) == {"-"} and second.text not in chosen:  # Rule 3.
                raise ValueError(
                    f"{argument.template!r} lets callers choose the option; list {second.text!r} in choices="
                )
    return arguments


def fixed(argument: Argument) -> str:
    """Return the text of an argument that has no parameters."""
    return "".join(part.text for part in argument.parts)


def value_text(value: object) -> str:
    """Return a value as the text of an argument. Raises ``ValueError``."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"is text or a number, not {type(value).__name__}")
    text = str(value)
    if "\0" in text:
        raise ValueError("has NUL in it, which no argument of a program can hold")
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("has lone surrogates in it")
    return text


def _read(template: str) -> Argument:
    if "\0" in template:
        raise ValueError(f"{template!r} has NUL in it")
    parts: list[Part] = []
    try:
        for literal, name, form, conversion in string.Formatter().parse(template):
            if literal and parts and not parts[-1].is_parameter:  # The parser splits literals at doubled braces.
                parts[-1] = Part(parts[-1].text + literal, False)
            elif literal:
                parts.append(Part(literal, False))
            if name is not None:
                parts.append(Part(_parameter(name, form, conversion), True))
    except ValueError as problem:
        raise ValueError(f"{template!r} cannot be read: {problem}; write {{{{ and }}}} for braces themselves") from None
    return Argument(template, tuple(parts))


def _parameter(name: str, form: str | None, conversion: str | None) -> str:
    if form or conversion or not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise ValueError("a parameter is a plain name in braces")
    if name == FILES:
        raise ValueError(f"{FILES!r} is the parameter that carries the files")
    return name
