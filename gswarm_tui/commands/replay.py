"""``gswarm-tui replay``: the screens, driven by a recording."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gswarm_tui.analysis import periods
from gswarm_tui.commands.finding import Reference, open_source, reference, session_named
from gswarm_tui.common.errors import UserError
from gswarm_tui.options.arguments import CommandParser, parse
from gswarm_tui.run import build
from gswarm_tui.run.plan import require_terminal
from gswarm_tui.slurm import hosts
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.file_source import FileSource

if TYPE_CHECKING:
    from gswarm_tui.playback.player import Player

MARGIN_SHARE, MARGIN_LEAST_S = 0.05, 5.0
"""What is shown before and after a session: this share of it, at least so many seconds."""


@dataclass(frozen=True)
class Wanted:
    """A recording's file, None for the usual one, and a session's name or number, empty for all of it."""

    file: Path | None
    session: str


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Play a recording until the person quits. Raises UserError, StoreError."""
    parser = CommandParser(
        "replay",
        "[FILE] [SESSION] [--db PATH]",
        "Play a recording, or a session of it, in the same screens: space pauses, ? shows all keys.",
    )
    parser.add_argument("what", nargs="*", metavar="FILE SESSION", help="a recording, and a session of it")
    asked = parser.read(words)
    wanted = read(asked.what, asked.db)
    settings = parse([], environ)
    theme = build.choose_theme(settings, environ)
    with closing(open_source(wanted.file, environ)) as source:
        if not isinstance(source, FileSource):
            raise UserError(
                f"{source.path} is being recorded: press space in that gswarm-tui to look back, "
                "or replay it when it has ended."
            )
        player, title = open_player(source, wanted.session)
        require_terminal(sys.stdin, sys.stdout)
        from gswarm_tui.analysis.queries import RecordingQueries
        from gswarm_tui.common.query_history import QueryHistory, history_path
        from gswarm_tui.tui.replay import ReplayApp

        app = ReplayApp(
            player,
            source.path.name,
            title=title,
            theme=theme,
            metric=settings.metric,
            open_queries=lambda: RecordingQueries(source.second_source()),
            history=QueryHistory(history_path()),
        )
        asyncio.run(app.run_async())
    return app.return_code or 0


def read(words: Sequence[str], db: Path | None) -> Wanted:
    """What is to be played. Raises UserError."""
    if len(words) > 2:
        raise UserError("replay plays one recording and one session; name a file, then a session.")
    file, name = db, ""
    for word in words:
        named = reference(word)
        if named.file is None and file is None and not name and Path(word).is_file():
            named = Reference(Path(word), "")
        if (named.file is not None and file is not None) or (named.name and name):
            raise UserError("replay plays one recording and one session; name a file, then a session.")
        file, name = named.file or file, named.name or name
    return Wanted(file, name)


def open_player(source: FileSource, session: str) -> tuple[Player, str]:
    """A player at the start of a session, or of the newest recording; and a title.

    Raises:
        UserError: there is nothing to play.
        StoreError: the file can't be read.
    """
    from gswarm_tui.playback.player import Player
    from gswarm_tui.playback.playhead import Playhead
    from gswarm_tui.playback.recorded_source import RecordedSource
    from gswarm_tui.store.history.recording_reader import require_recording

    require_recording(source)
    if session:
        period = session_named(source, session)
    elif whole := periods.load_recordings(source):
        period = whole[-1]
    else:
        raise UserError(f"{source.path} holds no recording.")
    replay = RecordedSource(source, period.recording_id)
    recording = replay.recording
    start, end = _unix(period.started_at), _unix(period.until)
    if not recording.has_frames(start, end):
        raise UserError(f"{period.name} in {source.path} holds no samples, so there is nothing to play.")
    margin = max(MARGIN_LEAST_S, MARGIN_SHARE * (end - start)) if period.session_id is not None else 0.0
    playhead = Playhead(
        max(recording.start, start - margin), min(recording.end, end + margin), start, time.monotonic
    )
    playhead.play()
    title = hosts.fold(recording.names)
    if recording.job:
        title = f"job {recording.job} · {title}"
    return Player(replay, playhead, time.monotonic, failures=(StoreError,)), title


def _unix(moment: datetime) -> float:
    return moment.replace(tzinfo=UTC).timestamp()
