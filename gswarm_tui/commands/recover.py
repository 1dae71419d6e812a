"""``gswarm-tui recover``: list interrupted recordings, resume one, or complete and close it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gswarm_tui.common.errors import print_notice, quote
from gswarm_tui.common.paths import working_folder
from gswarm_tui.options.arguments import CommandParser, UsageError, is_recording, parse_connection
from gswarm_tui.store.duckdb_internals import share_one_arena


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """List interrupted recordings, or resume one. Raises UserError, StoreError."""
    parser = CommandParser(
        "recover",
        "[ID] [--detach] [--finish [--abandon]] [--trust] [--db PATH] [connection options]",
        "List interrupted recordings, or resume one with its sessions and the frames that wait on its nodes.",
        usual="all in this folder",
    )
    parser.add_argument("recording", nargs="?", default="", metavar="ID", help="ID of a recording, as listed")
    parser.add_argument(
        "--finish", action="store_true", help="fetch the frames left on the nodes, then close the recording"
    )
    parser.add_argument(
        "--abandon", action="store_true", help="close the recording even if unreachable nodes may hold frames"
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="connect without asking, even if the recording was made elsewhere",
    )
    parser.add_argument("--detach", action="store_true", help="resume it without a screen, in the background")
    parser.add_connection_options("connection (overrides the recording's options)")
    arguments = parser.read(args)
    if is_recording(arguments.recording):
        raise UsageError(f"recover takes an ID; name the file {quote(arguments.recording)} with --db.")
    if arguments.finish and not arguments.recording:
        raise UsageError("--finish needs the ID of a recording; gswarm-tui recover lists them.")
    if arguments.detach and (arguments.finish or not arguments.recording):
        raise UsageError("--detach resumes a recording: it needs its ID, and no --finish.")
    if arguments.abandon and not arguments.finish:
        raise UsageError("--abandon closes a recording, so it needs --finish.")
    settings, given = parse_connection(arguments, environ)
    if (arguments.trust or given) and not arguments.recording:
        raise UsageError(
            "--trust and connection options need the ID of a recording; gswarm-tui recover lists them."
        )

    share_one_arena(os.environ)
    from gswarm_tui.run import interrupted

    where = working_folder(), arguments.db, settings.db
    found, unreadable = interrupted.find(*where)
    if not arguments.recording:
        searched = interrupted.describe_search(*where)
        return asyncio.run(interrupted.show(found, unreadable, settings, sys.stdout, searched))
    chosen = interrupted.choose(found, unreadable, arguments.recording, interrupted.files(*where))
    chosen = replace(chosen, trusted=arguments.trust, given=given)
    if chosen.needs_consent:
        if not interrupted.confirm(chosen, settings, sys.stdin, sys.stdout):
            print("no node was contacted")
            return 1
        chosen = replace(chosen, trusted=True)
    if arguments.finish:
        from gswarm_tui.run import log_file
        from gswarm_tui.run.finish import finish

        log_file.begin()
        return asyncio.run(finish(chosen, settings, sys.stdout, abandon=arguments.abandon))

    from gswarm_tui.slurm.jobs import Slurm

    options, plan = chosen.restore(settings)
    plan = plan.with_current_job(Slurm())
    if arguments.detach:
        from gswarm_tui.run.detach import detach
        from gswarm_tui.run.headless import OpenRecording

        recording = OpenRecording(chosen.interrupted.uid, chosen.path.absolute())
        print_notice(detach(options, plan, recording, environ))
        return 0

    from gswarm_tui.run.watch import run_app

    return run_app(options, plan, ["recover", *args], chosen)
