"""The subcommands of ``gswarm-tui``; each module has a function ``run``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import cast

from gswarm_tui.options.command_table import Command


def run(command: Command, args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a subcommand with the arguments ``args`` and return the exit status.

    Raises:
        UserError: the arguments are invalid, or what they name doesn't exist.
        StoreError: a file can't be read or written.
    """
    module = importlib.import_module(f"gswarm_tui.commands.{command.module or command.name}")
    return cast(int, module.run(args, environ))
