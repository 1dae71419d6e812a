"""The commands after ``gswarm-tui``: each is a module with ``run``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import cast

from gswarm_tui.options.command_table import COMMANDS


def run(word: str, words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command ``word`` with the arguments ``words``; the exit status.

    Raises:
        UserError: the arguments make no sense, or what they name isn't there.
        StoreError: a file can't be read or written.
    """
    name = next(command.module for command in COMMANDS if command.word == word) or word
    module = importlib.import_module(f"gswarm_tui.commands.{name}")
    return cast(int, module.run(words, environ))
