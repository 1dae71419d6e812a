"""``gswarm-tui replay``: play a recording on the screens."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from gswarm_tui.analysis import periods
from gswarm_tui.analysis.profiles import load_profiles
from gswarm_tui.commands.recording_choice import (
    choose_session,
    open_source,
    parse_words,
    require_samples,
)
from gswarm_tui.common.errors import UserError, printable
from gswarm_tui.common.quantities import elapsed
from gswarm_tui.options.arguments import CommandParser, parse
from gswarm_tui.printing.progress import Progress
from gswarm_tui.run import build
from gswarm_tui.run.all_runs import collect
from gswarm_tui.run.plan import require_terminal
from gswarm_tui.run.signals import call_at_signals
from gswarm_tui.slurm import hosts
from gswarm_tui.store.querying.file_source import FileSource

if TYPE_CHECKING:
    from gswarm_tui.playback.player import Player

SOON_S = 0.3
MARGIN_SHARE, MARGIN_LEAST_S = 0.05, 5.0
"""Time shown before and after a session: this share of it, but at least these seconds."""


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Play a recording until the user quits. Raises UserError, StoreError."""
    parser = CommandParser(
        "replay",
        "[FILE] [SESSION] [--db PATH]",
        "Play a recording, or one of its sessions, on the screens: space pauses, ? shows all keys.",
    )
    parser.add_argument("what", nargs="*", metavar="FILE SESSION", help="recording, and one of its sessions")
    arguments = parser.read(args)
    wanted = parse_words(arguments.what, arguments.db)
    settings = parse([], environ)
    theme = build.choose_theme(settings, environ)
    with closing(open_source(wanted.file, environ, for_people=True)) as source:
        if not isinstance(source, FileSource):
            raise UserError(
                f"{source.path} is being recorded; press space there to look back, or replay it afterwards."
            )
        player, title, recording_id = open_player(source, wanted.name)
        require_terminal(sys.stdin, sys.stdout)
        with Progress(f"loading {printable(str(source.path))}", after_s=SOON_S):  # a slow disk takes seconds
            from gswarm_tui.analysis.queries import RecordingQueries
            from gswarm_tui.common.query_history import QueryHistory, history_path
            from gswarm_tui.store.recording.past_session import add_session, change_session, dismiss_finding
            from gswarm_tui.tui.replay import ReplayApp

        app = ReplayApp(
            player,
            source.path.name,
            partial(add_session, source, recording_id),
            partial(change_session, source),
            partial(dismiss_finding, source),
            title=title,
            theme=theme,
            metric=settings.metric,
            runs=partial(collect, (), environ),
            open_queries=lambda: RecordingQueries(source.second_source()),
            history=QueryHistory(history_path()),
        )

        async def play() -> None:
            try:
                with Progress(f"loading {printable(str(source.path))}"):
                    await player.advance()
                call_at_signals(app.exit)
                await app.run_async()
            finally:
                # asyncio waits at its end for queries that read ahead; closing the source ends them.
                source.close()

        asyncio.run(play())
    return app.return_code or 0


def open_player(source: FileSource, session: str) -> tuple[Player, str, int]:
    """Open a player at the start of a session or of the newest recording.

    Return it with a title and the recording's number. Raises UserError, StoreError.
    """
    from gswarm_tui.playback.player import Player, Playhead
    from gswarm_tui.playback.recorded_source import RecordedSource

    if session:
        period = choose_session(source, session)
    elif whole := periods.load_recordings(source):
        period = whole[-1]
    else:
        raise UserError(f"{source.path} has no recording.")
    require_samples(source, period, "replay")
    start, end = period.bounds
    with Progress(f"loading {elapsed(end - start)} of {printable(str(source.path))}"):
        replay = RecordedSource(source, period.recording_id)
        recording = replay.recording
        if not recording.has_frames(start, end) and not load_profiles(source):
            raise UserError(f"{period.name} in {source.path} has no samples to play.")
    margin = max(MARGIN_LEAST_S, MARGIN_SHARE * (end - start)) if period.session_id is not None else 0.0
    first, last = recording.excerpt or (recording.start, recording.end)
    playhead = Playhead(max(first, start - margin), min(last, end + margin), start, time.monotonic)
    playhead.play()
    title = hosts.fold(recording.names)
    if recording.job:
        title = f"job {recording.job} · {title}"
    return Player(replay, playhead, time.monotonic), title, period.recording_id
