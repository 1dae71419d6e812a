"""Entry point: runs a subcommand, or the app."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import cast

from gswarm_tui.common.errors import NO_PROCESS, UserError, lacks_processes, print_notice
from gswarm_tui.options.command_table import COMMANDS, Command

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (None: the process's own) and return the exit status.

    2 is an invalid command line, 1 a recording that could not be started or completed.
    """
    if not (sys.stdin and sys.stdout and sys.stderr):
        print_notice("a standard file is closed; use /dev/null in its place.")
        return 2
    # In every locale, because terminals show UTF-8 also where the locale isn't set.
    for file in (sys.stdout, sys.stderr):
        if isinstance(file, io.TextIOWrapper):
            file.reconfigure(encoding="utf-8", errors="backslashreplace")
    if "OPENBLAS_NUM_THREADS" not in os.environ:
        # NumPy would start a thread on each core. Not in os.environ, which commands of users start with.
        os.putenv("OPENBLAS_NUM_THREADS", "1")
    if "_ARGCOMPLETE" in os.environ and "COMP_LINE" in os.environ:  # the user presses the tab key
        from gswarm_tui.commands.completion import complete

        return complete(os.environ)
    args = sys.argv[1:] if argv is None else list(argv)
    try:
        for command in COMMANDS:
            if args[:1] == [command.name]:
                return _command(command, args[1:])
        return _watch(args)
    except UserError as error:
        # A signal during a query ends it by DuckDB's own error, whose text names the exception.
        if str(error.__cause__).startswith(("KeyboardInterrupt", "SystemExit")):
            return 130
        text = str(error)
        print_notice(*f"{text}{'' if text.endswith(('.', '?', '!')) else '.'}".split("\n"))
        return error.exit_status
    except KeyboardInterrupt:
        return 130
    except (RuntimeError, BlockingIOError) as error:
        from gswarm_tui.store.duckdb_internals import INTERRUPTED

        if lacks_processes(error):
            print_notice(f"{NO_PROCESS}.")
            return 1
        if str(error) != INTERRUPTED:
            raise
        return 130


def _command(command: Command, args: Sequence[str]) -> int:
    if not command.runs_another:
        _make_files_private()
    module = importlib.import_module(f"gswarm_tui.commands.{command.module or command.name}")
    status = 0
    try:
        status = cast(int, module.run(args, os.environ))
        # Output that can't be written fails here: at its exit Python would print a traceback for it.
        sys.stdout.flush()
    except BrokenPipeError:  # as with `| head`
        _print_nowhere()
    except OSError as error:
        if error.filename is not None or error.errno not in _DISK_ERRORS:
            raise
        _print_nowhere()
        print_notice(f"the output can't be written: {error.strerror}.")
        return 1
    return status


def _print_nowhere() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _watch(args: Sequence[str]) -> int:
    from gswarm_tui.options.arguments import parse

    options = parse(args, os.environ)
    from gswarm_tui.run.plan import require_terminal, resolve_nodes

    plan = resolve_nodes(options, os.environ)
    _make_files_private()
    require_terminal(sys.stdin, sys.stdout)
    if options.record and options.demo is None and not options.new:
        from gswarm_tui.run.screen import attach_instead, find_running

        if (found := find_running(options, plan, os.environ)) is not None:
            return attach_instead(found, options, os.environ)
    from gswarm_tui.run.headless import Headless
    from gswarm_tui.run.screen import record_and_show

    return record_and_show(Headless(options, plan, args, for_screen=True))


def _make_files_private() -> None:
    os.umask(os.umask(0o077) | 0o077)
