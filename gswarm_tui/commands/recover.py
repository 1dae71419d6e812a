"""``gswarm-tui recover``: list interrupted recordings, resume one, or complete and close it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence

from gswarm_tui.common.errors import quote
from gswarm_tui.options.arguments import CommandParser, UsageError, parse
from gswarm_tui.store.duckdb_internals import share_one_arena


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """List interrupted recordings, or resume one. Raises UserError, StoreError."""
    parser = CommandParser(
        "recover",
        "[ID] [--finish [--abandon]] [--db PATH]",
        "List interrupted recordings, or resume one: its sessions continue, and frames that wait on the "
        "nodes arrive.",
        usual="all of this folder",
    )
    parser.add_argument("recording", nargs="?", default="", metavar="ID", help="the recording, as listed")
    parser.add_argument(
        "--finish", action="store_true", help="only fetch what the nodes still hold and close the recording"
    )
    parser.add_argument(
        "--abandon", action="store_true", help="close it even without what nodes out of reach may hold"
    )
    asked = parser.read(words)
    if asked.recording.endswith(".duckdb"):
        raise UsageError(f"recover takes an ID; name the file {quote(asked.recording)} with --db.")
    if asked.finish and not asked.recording:
        raise UsageError("--finish needs the ID of a recording; gswarm-tui recover lists them.")
    if asked.abandon and not asked.finish:
        raise UsageError("--abandon closes a recording, so it needs --finish.")

    share_one_arena(os.environ)
    from gswarm_tui.run import build, interrupted

    settings = parse([], environ)
    where = build.working_folder(), asked.db, settings.db
    found, unreadable = interrupted.find(*where)
    if not asked.recording:
        return asyncio.run(interrupted.show(found, unreadable, settings, sys.stdout))
    chosen = interrupted.choose(found, unreadable, asked.recording, interrupted.files(*where))
    if asked.finish:
        from gswarm_tui.run import log_file
        from gswarm_tui.run.finish import finish

        log_file.begin()
        return asyncio.run(finish(chosen, settings, sys.stdout, abandon=asked.abandon))

    from gswarm_tui.run.watch import run_app

    return run_app(*chosen.restore(settings), ["recover", *words], chosen)
