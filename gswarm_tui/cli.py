"""The command: what its words ask for is chosen here, and what that needs is imported only then."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gswarm_tui import commands
from gswarm_tui.errors import UserError, tell
from gswarm_tui.store.allocator import share_one_arena

if TYPE_CHECKING:
    from gswarm_tui.arguments import Options
    from gswarm_tui.plan import Plan
    from gswarm_tui.recover import Found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (None: the process's own); the exit status.

    2 stands for a wrong command line, 1 for a recording that could not be begun or completed.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        if words and words[0] in commands.WORDS:
            return _command(words[0], words[1:])
        share_one_arena(os.environ)
        return _recover(words[1:]) if words[:1] == ["recover"] else _watch(words)
    except UserError as error:
        tell(str(error))
        return 2
    except KeyboardInterrupt:
        return 130


def _command(word: str, words: Sequence[str]) -> int:
    """Do what needs no screen and no nodes."""
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
        tell(*f"{error}{'' if str(error).endswith(('.', '?', '!')) else '.'}".split("\n"))
        return 1


def _recover(words: Sequence[str]) -> int:
    """List interrupted recordings, or go on with one."""
    from gswarm_tui.arguments import parse, parse_recover

    asked = parse_recover(words)
    import asyncio

    from gswarm_tui import parts, recover

    settings = parse([], os.environ)
    where = parts.working_folder(), asked.db, settings.db
    found, unreadable = recover.find(*where)
    if not asked.recording:
        return asyncio.run(recover.show(found, unreadable, settings, sys.stdout))
    chosen = recover.choose(found, unreadable, asked.recording, recover.files(*where))
    if asked.finish:
        _keep_to_oneself()
        from gswarm_tui import logfile
        from gswarm_tui.finish import finish

        logfile.begin(os.environ)
        return asyncio.run(finish(chosen, settings, sys.stdout, abandon=asked.abandon))
    return _run(*chosen.recall(settings), ["recover", *words], chosen)


def _watch(words: Sequence[str]) -> int:
    """Watch nodes until the person quits."""
    from gswarm_tui.arguments import parse

    options = parse(words, os.environ)
    from gswarm_tui.plan import resolve_nodes
    from gswarm_tui.slurm import Slurm

    return _run(options, resolve_nodes(options, os.environ, Slurm()), words)


def _run(options: Options, plan: Plan, words: Sequence[str], chosen: Found | None = None) -> int:
    from gswarm_tui.plan import require_terminal

    require_terminal(sys.stdin, sys.stdout)
    _keep_to_oneself()
    gc.disable()  # what is imported makes a hundred thousand things and no garbage; see spare_searches
    from gswarm_tui import logfile, turns
    from gswarm_tui.watch import watch

    try:
        return turns.run(watch(options, plan, words, logfile.begin(os.environ), chosen))
    finally:
        gc.enable()


def _keep_to_oneself() -> None:
    """Let no file that is made from now on be anybody else's to read."""
    os.umask(os.umask(0o077) | 0o077)
