"""Runs a screen in a terminal or a browser: a client of a recorder, which it may have started."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import socket
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from gswarm_tui.common.errors import UserError, print_notice, printable
from gswarm_tui.control import registry
from gswarm_tui.control.client import Head, running_heads
from gswarm_tui.options.arguments import Options
from gswarm_tui.run import build, log_file
from gswarm_tui.run.lifetime import delay_garbage_collection, return_freed_arrays
from gswarm_tui.run.plan import Plan, require_terminal, title
from gswarm_tui.run.signals import call_at_signals
from gswarm_tui.run.start import recorder_log, start_recorder

if TYPE_CHECKING:
    from gswarm_tui.analysis.queries import RecordingQueries
    from gswarm_tui.control.recorder import Recorder, Route
    from gswarm_tui.run.headless import Headless, OpenRecording
    from gswarm_tui.tui.app import GswarmApp

SCREEN_ENDS_S = 5.0
RECORDER_ENDS_S = 60.0
"""Longest wait for a recorder that closes its recording: agents may take 15 s, then the file is sorted."""
QUIT, DETACHED, LEFT = "quit", "detached", "left"
"""Why a screen ended: its user quit, left the recorder running, or the terminal is gone."""

_LOG = logging.getLogger(__name__)


def record_and_show(headless: Headless, recording: OpenRecording | None = None) -> int:
    """Start a recorder, or resume ``recording``; show it until the user quits; return its exit status.

    Raises UserError.
    """
    require_terminal(sys.stdin, sys.stdout)
    uid = headless.uid if recording is None else recording.uid
    connection = start_recorder(headless, recording)
    log_file.begin()
    return asyncio.run(_record_and_show(headless, uid, connection))


async def _record_and_show(headless: Headless, uid: str, connection: socket.socket) -> int:
    from gswarm_tui.control.recorder import Recorder
    from gswarm_tui.control.routes import SocketRoute, recording_head

    options, plan = headless.options, headless.plan
    why_not_detached = "" if options.record else "nothing is recorded; start gswarm-tui without --no-record"
    if options.demo is not None:
        why_not_detached = "simulated nodes end with this screen; use gswarm-tui record --demo instead"
    route = SocketRoute(os.environ, partial(recording_head, uid, os.environ), connection)
    client = Recorder(route, screen=True, nodes=plan.nodes)
    client.uid = uid
    name = title(plan.label, plan.nodes)
    app = _app(client, route, options, name, starts_it=True, why_not_detached=why_not_detached)
    status = await _show(client, app)
    # The screen ended because its terminal is gone or because it failed.
    if app.return_value == LEFT or status:
        if headless.unattended_s != 0:
            print_notice(f"recording goes on: gswarm-tui attach {uid[:8]}")
        return status
    if app.return_value == DETACHED:
        print_notice(
            f"recording continues: gswarm-tui attach {uid[:8]} shows it, "
            f"gswarm-tui recording stop --recording {uid[:8]} ends it (log: {recorder_log(uid)})"
        )
        return status
    return _print_report(client, uid) or status


def find_running(options: Options, plan: Plan, environ: Mapping[str, str]) -> Head | None:
    """Return a recorder here that records the same file, or without a named file the same job or nodes.

    One on another host is named in a notice.
    """
    for head in running_heads(environ):
        if head.hangs or head.path is None:
            continue
        same = head.of_job(plan.job_id) if plan.job is not None else set(head.nodes) == set(plan.nodes)
        if head.records(options.db) if options.db is not None else same:
            return head
    for note in registry.remote_notes():
        same = note.job == plan.label if plan.job is not None else set(note.nodes) == set(plan.nodes)
        if options.db is None and same:
            print_notice(
                f"another gswarm-tui records the same nodes on {note.host}: gswarm-tui attach "
                f"{shlex.quote(f'{note.host}:{note.uid[:8]}')} shows it"
            )
    return None


def attach_instead(head: Head, options: Options, environ: Mapping[str, str]) -> int:
    """Show a recorder that runs already, and say so; return the exit status. Raises UserError."""
    from gswarm_tui.control.routes import SocketRoute

    what = head.job or str(head.path)
    notice = f"attached to the running recording of {what}; gswarm-tui --new starts another"
    print_notice(notice)
    return run_viewer(SocketRoute(environ, lambda: head), options, environ, notice=notice)


def run_viewer(
    route: Route, settings: Options, environ: Mapping[str, str], *, read_only: bool = False, notice: str = ""
) -> int:
    """Show the recorder at the end of a route until the screen is closed; return the exit status.

    With ``read_only``, screen and recorder refuse what would change the recording. Raises UserError.
    """
    log_file.begin()
    return asyncio.run(_view(route, settings, read_only, notice))


async def _view(route: Route, settings: Options, read_only: bool, notice: str) -> int:
    from gswarm_tui.control.recorder import Recorder

    client = Recorder(route, read_only=read_only, screen=True)
    try:
        await client.start()
        app = _app(client, route, settings, title(client.label, list(client.fleet.nodes)), notice=notice)
        return await _show(client, app)
    finally:
        client.close()
        await route.close()


async def _show(client: Recorder, app: GswarmApp) -> int:
    """Show the run until the screen ends; return the exit status. Raises UserError."""
    return_freed_arrays()
    delay_garbage_collection()
    signalled = asyncio.Event()
    call_at_signals(signalled.set)
    showing = asyncio.create_task(app.run_async(), name="screen")
    following = asyncio.create_task(client.run(), name="client")
    signals = asyncio.create_task(signalled.wait(), name="signals")
    await asyncio.wait({showing, signals, following}, return_when=asyncio.FIRST_COMPLETED)
    if following.done() and not showing.done() and following.exception() is None:
        await asyncio.wait({showing, signals}, return_when=asyncio.FIRST_COMPLETED)
    problem = following.exception() if following.done() else None
    if not showing.done():
        if problem is not None:
            app.exit(LEFT)
        # A terminal that was hung up takes no more output; an open one has to be restored.
        elif not os.isatty(1):
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in (1, 2):
                os.dup2(nowhere, descriptor)
            app.exit(LEFT)
        else:
            app.request_quit(QUIT)
        await asyncio.wait({showing}, timeout=SCREEN_ENDS_S + app.starts_it * RECORDER_ENDS_S)
    for task in (following, signals):
        task.cancel()
    await asyncio.gather(following, signals, return_exceptions=True)
    if isinstance(problem, UserError):
        raise problem
    if problem is not None:
        _LOG.error("the client failed", exc_info=problem)
        print_notice(f"internal error of the screen, see the log: {problem}")
        return 1
    return app.return_code or 0


def _print_report(client: Recorder, uid: str) -> int:
    """Print how the recording ended, and return its recorder's exit status."""
    if client.gone:
        print_notice(f"the recorder was killed; gswarm-tui recover {uid[:8]} resumes the recording")
        return 1
    if not client.ended:
        print_notice(f"the recorder doesn't answer; gswarm-tui attach {uid[:8]} shows it again")
        return 1
    from gswarm_tui.printing.table import print_labelled
    from gswarm_tui.tui.app import SCREEN_QUIT

    report = client.report
    if report.get("why", SCREEN_QUIT) != SCREEN_QUIT:
        print_notice(report["why"])
    print_labelled(report.get("note", ()), sys.stdout)
    for line in report.get("lines", ()):
        print(printable(line))
    for problem in report.get("problems", ()):
        print_notice(problem)
    if report.get("next"):
        print(printable(report["next"]))
    return int(report.get("status", 1))


def _app(
    client: Recorder,
    route: Route,
    settings: Options,
    name: str,
    *,
    starts_it: bool = False,
    why_not_detached: str = "",
    notice: str = "",
) -> GswarmApp:
    from gswarm_tui.common.query_history import QueryHistory, history_path
    from gswarm_tui.control.recorder_source import RecorderSource
    from gswarm_tui.run.all_runs import collect
    from gswarm_tui.tui.app import GswarmApp

    def queries() -> RecordingQueries:
        from gswarm_tui.analysis.queries import RecordingQueries

        return RecordingQueries(RecorderSource.of_recorder(client))

    recorded = settings.record or not starts_it
    return GswarmApp(
        client,
        starts_it=starts_it,
        why_not_detached=why_not_detached,
        notice=notice,
        title=name,
        theme=build.choose_theme(settings, os.environ),
        metric=settings.metric,
        runs=partial(collect, (), os.environ),
        past=(lambda: build.build_player(client, RecorderSource.of_recorder(client), client.recording_id))
        if recorded
        else None,
        open_queries=queries if recorded else None,
        history=QueryHistory(None if client.read_only else history_path()),  # it is the recorder's user's
    )
