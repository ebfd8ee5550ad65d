"""``headway completion``: let the shell complete commands and options."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal, get_args

from headway.cli.help import option
from headway.core.errors import ConfigError

Shell = Literal["bash", "zsh", "fish"]


def completion(
    shell: Annotated[Shell | None, option("bash, zsh or fish; else the one that SHELL names.", name="SHELL")] = None, /
) -> None:
    """Print a script that completes commands and options in your shell.

    bash: add `source <(headway completion bash)` to ~/.bashrc. zsh: write it to
    a file called _headway in a folder of your fpath. fish: write it to
    ~/.config/fish/completions/headway.fish.
    """
    from headway.cli.main import build

    named = shell or Path(os.environ.get("SHELL", "")).name
    found: Shell | None = next((known for known in get_args(Shell) if known == named), None)
    if found is None:
        raise ConfigError(f"name the shell: bash, zsh or fish; SHELL is {os.environ.get('SHELL', 'not set')!r}")
    sys.stdout.write(build(described=True).generate_completion(prog_name="headway", shell=found))
