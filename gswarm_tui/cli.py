"""The entry point: runs the command that is named, or the app."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from gswarm_tui import commands
from gswarm_tui.common.errors import UserError, print_notice
from gswarm_tui.options.command_table import WORDS


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (None: the process's own); the exit status.

    2 stands for a wrong command line, 1 for a recording that could not be begun or completed.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        if words and words[0] in WORDS:
            return _command(words[0], words[1:])
        from gswarm_tui.store.duckdb_internals import share_one_arena  # before DuckDB is loaded

        share_one_arena(os.environ)
        return _watch(words)
    except UserError as error:
        print_notice(str(error))
        return 2
    except KeyboardInterrupt:
        return 130


def _command(word: str, words: Sequence[str]) -> int:
    """Run a command and report what went wrong with a recording."""
    _keep_to_oneself()
    try:
        return commands.run(word, words, os.environ)
    except BrokenPipeError:  # as of `| head`; what it wanted it has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        from gswarm_tui.store.errors import StoreError  # only now: a mark needs no database and is quick

        if not isinstance(error, StoreError):
            raise
        print_notice(*f"{error}{'' if str(error).endswith(('.', '?', '!')) else '.'}".split("\n"))
        return 1


def _watch(words: Sequence[str]) -> int:
    """Watch nodes until the user quits."""
    from gswarm_tui.options.arguments import parse

    options = parse(words, os.environ)
    from gswarm_tui.run.plan import resolve_nodes
    from gswarm_tui.slurm.jobs import Slurm

    plan = resolve_nodes(options, os.environ, Slurm())
    _keep_to_oneself()
    from gswarm_tui.run.watch import run_app

    return run_app(options, plan, words)


def _keep_to_oneself() -> None:
    """Let no file that is made from now on be anybody else's to read."""
    os.umask(os.umask(0o077) | 0o077)
