"""Runs a viewer: the screen on a recorder that is another process, here or on another host."""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from gswarm_tui.common.errors import UserError
from gswarm_tui.options.arguments import Options
from gswarm_tui.run import build, event_loop, log_file
from gswarm_tui.run.lifetime import SCREEN_ENDS_S, leave_closed_terminal
from gswarm_tui.run.plan import title

if TYPE_CHECKING:
    from gswarm_tui.control.attached import AttachedRun, Route
    from gswarm_tui.tui.app import AttachedApp

_LOG = logging.getLogger(__name__)


def run_viewer(
    route: Route, settings: Options, environ: Mapping[str, str], *, read_only: bool = False
) -> int:
    """Show the recorder at the end of a route until the viewer ends; return the exit status.

    With ``read_only``, screen and recorder refuse what would change the recording.

    Raises:
        UserError: it can't be reached.
    """
    log_file.begin()
    return event_loop.run(_view(route, settings, build.choose_theme(settings, environ), read_only))


async def _view(route: Route, settings: Options, theme: str, read_only: bool) -> int:
    from gswarm_tui.control.attached import AttachedRun

    attached = AttachedRun(route, read_only=read_only)
    try:
        await attached.start()
        return await _show(attached, _app(attached, route, settings, theme))
    finally:
        attached.close()
        await route.close()


async def _show(attached: AttachedRun, app: AttachedApp) -> int:
    """Show the run until the viewer ends; return the exit status. Raises UserError."""
    ended = asyncio.Event()

    def end() -> None:
        leave_closed_terminal()
        ended.set()

    event_loop.call_at_signals(end)
    showing = asyncio.create_task(app.run_async(), name="screen")
    following = asyncio.create_task(attached.run(), name="viewer")
    signals = asyncio.create_task(ended.wait(), name="signals")
    while not showing.done() and not signals.done():
        watched = {showing, signals, following} if not following.done() else {showing, signals}
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        if following.done() and (error := following.exception()) is not None:
            _LOG.error("the viewer failed", exc_info=error)
            app.request_quit("failed")
            await asyncio.wait({showing}, timeout=SCREEN_ENDS_S)
            raise UserError(f"internal error of the viewer, see the log; recording continues: {error}.")
    if not showing.done():
        app.request_quit("ended")
        await asyncio.wait({showing}, timeout=SCREEN_ENDS_S)
    for task in (following, signals):
        task.cancel()
    await asyncio.gather(following, signals, return_exceptions=True)
    return app.return_code or 0


def _app(attached: AttachedRun, route: Route, settings: Options, theme: str) -> AttachedApp:
    from gswarm_tui.analysis.queries import RecordingQueries
    from gswarm_tui.common.query_history import QueryHistory, history_path
    from gswarm_tui.control.attached_source import AttachedSource
    from gswarm_tui.run.session_files import write_session_files
    from gswarm_tui.tui.app import AttachedApp

    def write_elsewhere(session: str, _name: str) -> Sequence[str]:
        word = shlex.join(["gswarm-tui", "plot", f"--db={attached.path}", "--", session])
        raise UserError(f"the recording is on {route.place}, so plot it there: {word}")

    return AttachedApp(
        attached,
        title=title(attached.label, list(attached.fleet.nodes)),
        theme=theme,
        metric=settings.metric,
        past=lambda: build.build_player(attached, AttachedSource(attached), attached.recording_id),
        open_queries=lambda: RecordingQueries(AttachedSource(attached)),
        history=QueryHistory(None if attached.read_only else history_path()),  # it is the recorder's user's
        write_files=write_elsewhere if route.place else partial(write_session_files, attached.path),
    )
