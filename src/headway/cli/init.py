"""``headway init``: write a small project that runs."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from headway.cli.help import option
from headway.cli.render import clean
from headway.core.errors import ConfigError

# Each file of the project, and what it is for. Their texts are in the folder ``project``, with the ending .txt.
PROJECT = {
    "tasks.py": "an app with two tasks",
    "headway.toml": "settings: jobs go to headway.db",
    "test_tasks.py": "tests that need no worker and no database",
    "compose.yaml": "the same project on PostgreSQL, in containers",
    "Dockerfile": "the image for compose.yaml",
    ".gitignore": "keeps jobs and passwords out of git",
}


def init(folder: Annotated[Path, option("The folder of the project; it may be new.", name="DIR")] = Path(), /) -> None:
    """Write a small project: tasks, settings, tests and a Compose file.

    It writes into the current folder, or into DIR. It changes no file that is
    there already: if one of its files exists, it writes nothing.
    """
    _check(folder)
    folder.mkdir(parents=True, exist_ok=True)
    texts = files("headway.cli") / "project"
    for name in PROJECT:
        with (folder / name).open("x", encoding="utf-8") as file:
            file.write((texts / f"{name}.txt").read_text(encoding="utf-8"))
    print(f"Wrote {len(PROJECT)} files into {clean(str(folder.resolve()))}:")
    for name, about in PROJECT.items():
        print(f"  {name:15}{about}")
    print("\nNext:")
    if folder.resolve() != Path.cwd():
        print(f"  cd {clean(shlex.quote(str(folder)))}")
    print("  headway up tasks:app                          # run the jobs of this folder, with a live view")
    print("  headway submit tasks.greet name=Ada --wait    # in another terminal")
    print("  python -m pytest                              # after: pip install pytest")


def _check(folder: Path) -> None:
    """Raise ``ConfigError`` if the project cannot be written there without a change to existing files."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; name a folder: headway init DIR")
    if taken := [name for name in PROJECT if (folder / name).is_symlink() or (folder / name).exists()]:
        raise ConfigError(
            f"{folder.resolve()} already contains {', '.join(taken)}, and nothing was written; "
            "name another folder: headway init DIR"
        )
