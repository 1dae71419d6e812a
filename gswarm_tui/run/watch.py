"""Runs the app: builds its parts from the options, and prints the result at the end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from gswarm_tui.common.errors import UserError, print_notice, printable
from gswarm_tui.common.paths import state_folder
from gswarm_tui.common.processes import own_command
from gswarm_tui.options.arguments import Options
from gswarm_tui.run import build, event_loop, log_file
from gswarm_tui.run.headless import OpenRecording
from gswarm_tui.run.monitoring import STOPPED_BY, monitor, problems_of, written_line
from gswarm_tui.run.plan import Plan, require_terminal
from gswarm_tui.run.resume_notes import remove_note
from gswarm_tui.run.session_files import write_session_files
from gswarm_tui.run.supervisor import ENDING, report_recording

if TYPE_CHECKING:
    from gswarm_tui.analysis.queries import RecordingQueries
    from gswarm_tui.link.hub import Hub
    from gswarm_tui.playback.player import Player
    from gswarm_tui.run.interrupted import InterruptedRun
    from gswarm_tui.run.lifetime import RunResult
    from gswarm_tui.store.recording.recorder import Recorder
    from gswarm_tui.tui.app import GswarmApp


QUIT, STOPPED, DETACHED = "quit", "stopped", "detached"
"""Return values of an app that its user quit, ended with ``gswarm-tui recording stop``, or left."""


def run_app(options: Options, plan: Plan, words: Sequence[str], chosen: InterruptedRun | None = None) -> int:
    """Run the app and return the exit status. Raises UserError without a terminal."""
    require_terminal(sys.stdin, sys.stdout)
    gc.disable()  # until the first paint: collections cost 5 % of the CPU of all imports, and free nothing
    try:
        return event_loop.run(watch(options, plan, words, log_file.begin(), chosen))
    finally:
        gc.enable()


async def watch(
    options: Options, plan: Plan, words: Sequence[str], log: Path, chosen: InterruptedRun | None = None
) -> int:
    """Run the app until it is quit; ``chosen`` is an interrupted recording to resume."""
    from gswarm_tui.store.errors import StoreError

    listener = None
    if options.server is not None:
        from gswarm_tui.run.http_server import Listener

        listener = Listener.open(options.server)
    signals = _cancel_at_signals()
    theme = build.choose_theme(options, os.environ)
    hub = build.build_hub(options, plan)
    uid = str(uuid.uuid4()) if chosen is None else chosen.interrupted.uid
    recorder: Recorder | None = None
    try:
        if chosen is not None:
            recorder = build.resume_recording(
                hub, options, plan, chosen.path, chosen.interrupted.recording_id
            )
        elif options.record:
            recorder = build.start_recording(hub, options, plan, words, uid)
    except StoreError as error:
        print_notice(str(error))
        return 1
    if recorder is not None:
        report_recording(uid[:8] or str(recorder.recording_id), recorder.path)
    try:
        app = _app(options, plan, hub, theme, recorder)
        ended = await monitor(
            options,
            plan,
            hub,
            recorder,
            app.run_async(),
            painted=app.painted,
            request_quit=app.request_quit,
            end_recording=lambda: app.request_quit(STOPPED),
            leaves_agents=lambda: app.return_value == DETACHED,
            listener=listener,
        )
    except asyncio.CancelledError:
        # A signal before the screen handles them.
        if recorder is not None:
            status = recorder.close(hub.now() if chosen is None else None)
            if chosen is None and not status.error:
                remove_note(uid)
        report_recording("", None)
        if not signals:
            raise
        return 128 + signals[0]
    if listener is not None:
        listener.socket.close()  # a detached recorder opens it again
    if app.return_value == DETACHED and recorder is not None:
        report_recording("", None)
        exit_status = _print_result(hub, ended, 0, log, uid)
        if recorder.queried and not exit_status:
            _detach_despite_query(uid, recorder.path)
        return exit_status or _detach(options, plan, OpenRecording(uid, recorder.path.absolute()))
    if ended.status is not None and not ended.status.error and not ended.holding:
        remove_note(uid)
    report_recording("", None)
    if app.return_value == STOPPED:
        print_notice(STOPPED_BY)
    figures, next_commands = None, ""
    complete = ended.status is not None and ended.status.closed and not ended.status.error
    if recorder is not None and complete and not recorder.queried and app.return_value in (QUIT, STOPPED):
        from gswarm_tui.run import quit_summary

        figures = quit_summary.recording_figures(recorder.path, recorder.recording_id)
        sampled = figures is None or figures.sampled
        next_commands = quit_summary.next_commands(recorder.path, sampled=sampled)
    if figures:
        print(figures.line)
    exit_status = _print_result(hub, ended, app.return_code or 0, log, uid)
    if next_commands:
        print(next_commands)
    if recorder is not None and recorder.queried:
        _exit_despite_query(recorder.path, exit_status)
    return exit_status


def _detach(options: Options, plan: Plan, recording: OpenRecording) -> int:
    """Start a recorder that resumes the closed recording; return the exit status."""
    from gswarm_tui.run.detach import detach

    try:
        print_notice(detach(options, plan, recording, os.environ))
    except UserError as error:
        print_notice(str(error))
        return 1
    return 0


def _detach_despite_query(uid: str, path: Path) -> NoReturn:
    """Replace this process by ``recover --detach``: its query, which can't be cancelled, has the file."""
    command = own_command("recover", uid, "--detach", "--db", str(path))
    sys.stdout.flush()
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # DuckDB's file, with its lock
    os.execv(sys.executable, command)  # noqa: S606


def _exit_despite_query(recording: Path, exit_status: int) -> NoReturn:
    """Exit at once: Python would wait for a query that DuckDB can't cancel, perhaps for hours."""
    from gswarm_tui.store.recording.files import has_log

    if has_log(recording):
        print_notice(
            f"a query could not be cancelled, so the newest samples are in {recording}.wal; "
            "keep it beside the file"
        )
    sys.stdout.flush()
    os._exit(exit_status)


def _cancel_at_signals() -> list[signal.Signals]:
    """Cancel this task at a signal to end until the screen handles them; return the signals received."""
    received: list[signal.Signals] = []
    loop, watching = asyncio.get_running_loop(), asyncio.current_task()

    def cancel(number: signal.Signals) -> None:
        received.append(number)
        if watching is not None:
            watching.cancel()

    for number in ENDING:
        loop.add_signal_handler(number, cancel, number)
    return received


def _app(options: Options, plan: Plan, hub: Hub, theme: str, recorder: Recorder | None) -> GswarmApp:
    from gswarm_tui.common.query_history import QueryHistory, history_path
    from gswarm_tui.tui.app import GswarmApp

    return GswarmApp(
        hub,
        title=plan.title,
        theme=theme,
        metric=options.metric,
        past=None if recorder is None else partial(_player, hub, recorder),
        open_queries=None if recorder is None else partial(_queries, recorder),
        history=QueryHistory(history_path()),
        write_files=None if recorder is None else partial(write_session_files, recorder.path),
        hints=options.demo is not None and is_first_demo(),
        why_not_detached=_why_not_detached(options),
    )


def _why_not_detached(options: Options) -> str:
    if options.demo is not None:
        return "simulated nodes end with this program; use gswarm-tui record --demo instead"
    return "" if options.record else "nothing is recorded; start gswarm-tui without --no-record"


def _player(hub: Hub, recorder: Recorder) -> Player:
    return build.build_player(hub, recorder.queries(), recorder.recording_id)


def _queries(recorder: Recorder) -> RecordingQueries:
    from gswarm_tui.analysis.queries import RecordingQueries

    return RecordingQueries(recorder.queries())


def _print_result(hub: Hub, ended: RunResult, return_code: int, log: Path, uid: str) -> int:
    """Print where the recording is and what failed; return the exit status."""
    problems = problems_of(ended, log, uid)
    if return_code and not ended.problem:  # Textual has printed the traceback
        problems.insert(0, "the screen failed; please report the traceback above")
    if (status := ended.status) is not None:
        print(printable(written_line(status, len(hub.fleet.sessions.sessions))))
        if not status.closed and not status.error:
            print_notice("everything is saved; the file is still being sorted, ctrl+c stops that")
    for problem in problems:
        print_notice(problem)
    return 1 if problems else 0


def is_first_demo() -> bool:
    """Return whether this is the user's first demo, and note it; without a state folder it never is."""
    try:
        note = state_folder() / "demo-seen"
        note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        note.touch(exist_ok=False)
    except (UserError, OSError):
        return False
    return True
