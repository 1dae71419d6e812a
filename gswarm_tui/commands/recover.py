"""``gswarm-tui recover``: list interrupted recordings, resume one, or complete and close it."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from gswarm_tui.common.errors import quote
from gswarm_tui.common.paths import working_folder
from gswarm_tui.options.arguments import (
    CONNECTION,
    CommandParser,
    Options,
    UsageError,
    add_connection,
    given_flags,
    is_recording,
    parse,
)
from gswarm_tui.store.duckdb_internals import share_one_arena

if TYPE_CHECKING:
    from gswarm_tui.run.headless import OpenRecording
    from gswarm_tui.run.interrupted import InterruptedRun
    from gswarm_tui.run.plan import Plan


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """List interrupted recordings, or resume one. Raises UserError, StoreError."""
    parser = CommandParser(
        "recover",
        "[ID] [options]",
        "List interrupted recordings, or resume one with its sessions and the frames that wait on its nodes.",
        usual="all in this folder",
    )
    parser.add_argument("recording", nargs="?", default="", metavar="ID", help="ID of a recording, as listed")
    for flag, text in (
        ("--finish", "fetch the frames left on the nodes, then close the recording"),
        ("--abandon", "close the recording even if unreachable nodes may hold frames"),
        ("--trust", "connect with the recording's options even if it was made elsewhere"),
    ):
        parser.add_argument(flag, action="store_true", help=text)
    add_connection(parser, "connection (overrides the recording's options)", defaults=False)
    arguments = parser.read(args)
    if is_recording(arguments.recording):
        raise UsageError(f"recover takes an ID; name the file {quote(arguments.recording)} with --db.")
    if arguments.finish and not arguments.recording:
        raise UsageError("--finish needs the ID of a recording; gswarm-tui recover lists them.")
    if arguments.abandon and not arguments.finish:
        raise UsageError("--abandon closes a recording, so it needs --finish.")
    given = frozenset(key for key in CONNECTION if getattr(arguments, key) is not None)
    settings = parse(given_flags(arguments, CONNECTION), environ)
    if (arguments.trust or given) and not arguments.recording:
        raise UsageError(
            "--trust and connection options need the ID of a recording; gswarm-tui recover lists them."
        )

    where = working_folder(), arguments.db, settings.db
    if arguments.recording and not arguments.finish:
        # In a process of its own, so that this one, which supervises the recorder, starts no threads. It
        # ignores Ctrl-C, which ends this one, as it would print a traceback.
        ignoring = signal.signal, (signal.SIGINT, signal.SIG_IGN)
        with ProcessPoolExecutor(1, get_context("fork"), *ignoring) as child:
            restored = child.submit(_restored, where, arguments, given, settings).result()
        from gswarm_tui.run.headless import Headless
        from gswarm_tui.run.screen import record_and_show

        options, plan, recording = restored
        return record_and_show(Headless(options, plan, ["recover", *args], for_screen=True), recording)
    share_one_arena(os.environ)
    from gswarm_tui.run import interrupted, log_file
    from gswarm_tui.run.finish import finish

    if not arguments.recording:
        found, unreadable = interrupted.find(*where)
        searched = arguments.db or where[0]
        return interrupted.show(found, unreadable, sys.stdout, searched)
    chosen = _chosen(where, arguments, given)
    log_file.begin()
    return asyncio.run(finish(chosen, settings, sys.stdout, abandon=arguments.abandon))


def _chosen(
    where: tuple[Path, Path | None, Path | None], arguments: argparse.Namespace, given: frozenset[str]
) -> InterruptedRun:
    """Return the recording that the command line names."""
    from gswarm_tui.run import interrupted

    found, unreadable = interrupted.find(*where)
    chosen = interrupted.choose(found, unreadable, arguments.recording)
    return replace(chosen, trusted=arguments.trust, given=given)


def _restored(
    where: tuple[Path, Path | None, Path | None],
    arguments: argparse.Namespace,
    given: frozenset[str],
    settings: Options,
) -> tuple[Options, Plan, OpenRecording]:
    """Return the options and the plan of the recording that the command line names, and where it is."""
    from gswarm_tui.run.headless import OpenRecording

    chosen = _chosen(where, arguments, given)
    options, plan = chosen.restore(settings)
    recording = OpenRecording(chosen.interrupted.uid, chosen.path.absolute())
    return options, plan, recording
