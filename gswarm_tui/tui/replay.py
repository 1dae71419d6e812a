"""App that plays a finished recording. It has no hub; it changes only sessions and findings in the file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Unpack

from gswarm_tui.common.errors import UserError
from gswarm_tui.common.quantities import duration
from gswarm_tui.common.time_input import TIME_FORMS
from gswarm_tui.fleet.session_texts import check_name
from gswarm_tui.fleet.sessions import suggest_name
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.playback.player import Player
from gswarm_tui.tui.actions import REPLAY
from gswarm_tui.tui.drawing.spans import Span
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.screens.base import ViewerOptions
from gswarm_tui.tui.screens.dialogs import FormDialog, FormField, ask
from gswarm_tui.tui.viewer import Viewer, ellipsis


class ReplayApp(Viewer):
    """App over a player; ``file`` names the recording in the header.

    ``add_session`` writes a session's name, start and end into the recording, ``change`` the new name or
    note of a session with a number, and ``dismiss`` whether a finding with a number is dismissed, in any
    thread. They raise an error where that isn't possible.
    """

    def __init__(
        self,
        player: Player,
        file: str,
        add_session: Callable[[str, float, float], None],
        change: Callable[[str, str | None, str | None], None],
        dismiss: Callable[[str, bool], None],
        **options: Unpack[ViewerOptions],
    ) -> None:
        super().__init__(REPLAY, **options)
        self._first_player = player
        self._file = clean(file)
        self._add_session = add_session
        self._change, self._dismiss = change, dismiss

    @property
    def fleet(self) -> Fleet:
        """The fleet at the player's position."""
        return self._first_player.fleet

    @property
    def ended(self) -> bool:
        """Whether the recording has ended."""
        return True

    def now(self) -> float:
        """Return the player's position."""
        return self._first_player.now()

    def recording_state(self) -> list[Span]:
        """Return time, speed and file of the replay."""
        player = self._first_player
        if player.problem:
            return [Span("╳ ", "error"), Span(clean(player.problem), "error")]
        moment, head = self.local(player.wanted), player.playhead
        stands = "end of the recording" if player.now() >= player.end else "paused"
        speed = stands if head.paused else f"{head.speed:g}×"
        time, day = Span(f" {moment:%H:%M:%S}", "title"), Span(f" {moment:%d %b %Y}{ellipsis(player)}")
        return [
            Span(" REPLAY ", "chip"),
            time,
            day,
            Span(f" · {speed}", "dim"),
            Span(f" · {self._file}", "dim"),
        ]

    def on_mount(self) -> None:
        """Start playing."""
        self.begin_playing(self._first_player)

    def action_start_session(self) -> None:
        """Ask for an interval, by default from the time shown to the end, and save it as a session."""
        start = f"{self.local(self._first_player.wanted):%Y-%m-%d %H:%M:%S}"
        suggested = suggest_name(session.name for session in self._first_player.timeline.sessions)
        fields = [
            FormField("name", suggested, check=check_name),
            FormField("from", start, TIME_FORMS, self.parse_time),
            FormField("to", "end", TIME_FORMS, self.parse_time),
        ]

        def save(answer: tuple[str, ...]) -> None:
            first, last = sorted(map(self.parse_time, answer[1:]))
            if first == last:
                self.show_notice("nothing saved: the session would end where it starts", error=True)
            else:
                self.run_worker(self._save_session(answer[0].strip() or suggested, first, last))

        ask(self, FormDialog("name this interval as a session", fields), save)

    async def _save_session(self, name: str, started_at: float, ended_at: float) -> None:
        """Write the session into the file and show it."""
        if await self._write(partial(self._add_session, name, started_at, ended_at)):
            self.show_notice(f"saved {name}, {duration(ended_at - started_at)}")
            self.update_view()

    def change_session(self, session_id: str, *, name: str | None = None, note: str | None = None) -> None:
        """Rename a session or replace its note, in the file."""
        self.run_worker(self._write(partial(self._change, session_id, name, note)))

    def dismiss_finding(self, finding_id: str, *, dismissed: bool) -> None:
        """Dismiss a finding in the file, or undo that."""
        self.run_worker(self._write(partial(self._dismiss, finding_id, dismissed)))

    async def _write(self, change: Callable[[], None]) -> bool:
        """Change the file and read it again; return whether that was possible."""
        try:
            await asyncio.to_thread(change)
        except UserError as error:
            self.show_notice(f"nothing was changed: {error}", error=True)
            return False
        self._first_player.reload()
        self.update_view()
        return True
