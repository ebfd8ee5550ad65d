"""The layout of help: usage, examples, and families of commands such as ``headway dlq``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar

from cyclopts import App, Group, Parameter

F = TypeVar("F", bound=Callable[..., Any])

OPTIONS = Group("Options")  # The heading in every help.


def family(name: str, about: str, *examples: str, **more: Any) -> App:
    """Build a command that has commands of its own."""
    return App(
        name=name,
        help=about,
        group_commands=Group("Commands"),
        group_parameters=OPTIONS,
        help_epilogue=_written(examples),
        **more,
    )


def command(within: App, words: str, *examples: str, **more: Any) -> Callable[[F], F]:
    """Add a function to a family. ``words``: its name, then what follows the name in its usage."""
    name = words.partition(" ")[0]
    add: Callable[[F], F] = within.command(name=name, **usage(f"{within.name[0]} {words}", *examples), **more)
    return add


def usage(words: str, *examples: str) -> dict[str, Any]:
    """Return the usage and the examples of a command, as keywords for ``App.command``."""
    return {"usage": f"Usage: headway {words}", "help_epilogue": _written(examples)}


def _written(examples: tuple[str, ...]) -> str:
    title = "Example:" if len(examples) == 1 else "Examples:"
    return "\n\n".join([title, "\n".join(f"    {line}" for line in examples)])


def option(about: str, value: str | None = None, **more: Any) -> Parameter:
    """Describe a parameter. ``value`` is what the help calls its value."""
    return Parameter(help=about, metavar=value, **more)


def split_names(values: Iterable[str]) -> list[str]:
    """Return the names that an option has, separated by commas or given several times."""
    return [name.strip() for part in values for name in part.split(",") if name.strip()]


def flag(about: str, **more: Any) -> Parameter:
    """Describe a flag, which is off by default."""
    return Parameter(help=about, show_default=False, **more)


StoreUrl = Annotated[
    str | None, option("Address of the store; else the app's, HEADWAY_STORE or sqlite:///headway.db.", "URL")
]
