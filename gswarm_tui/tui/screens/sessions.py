"""Sessions screen: all sessions of the recording, running ones first."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from functools import partial
from typing import TYPE_CHECKING

from textual.app import ComposeResult

from gswarm_tui.common.errors import UserError
from gswarm_tui.common.quantities import brief_time, duration, elapsed, energy, percent, plural, watts
from gswarm_tui.fleet.node import stale_after_s
from gswarm_tui.fleet.session_texts import check_name, check_note
from gswarm_tui.fleet.sessions import Session
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.tui.actions import SESSIONS
from gswarm_tui.tui.drawing.spans import Span
from gswarm_tui.tui.drawing.text import clean, width
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.screens.dialogs import FormDialog, FormField, ask
from gswarm_tui.tui.screens.titles import joined
from gswarm_tui.tui.widgets.table import Row, TableColumn, TableView

if TYPE_CHECKING:
    from gswarm_tui.analysis.profiles import Profile
    from gswarm_tui.analysis.queries import RecordingQueries

NAME, START = 1, 2
READ_EVERY_S = 5.0
"""Seconds between looks for profiles that were imported meanwhile."""
PROFILED = "■"
"""Sign of a profile."""
SESSION_TABLE = (
    TableColumn("", 1, left=True, frozen=True),
    TableColumn("session", 20, left=True, frozen=True),
    TableColumn("started", 8, left=True),
    TableColumn("duration", 10),
    TableColumn("util", 6, "mean"),
    TableColumn("power", 7, "per GPU"),
    TableColumn("energy", 9),
    TableColumn("note", 8, left=True, grows=True),
)

NAME_LEAST = 12
"""Least cells of a name; columns that have no room left are scrolled to."""


def session_row(session: Session, fleet: Fleet, now: float, zone: tzinfo | None) -> Row:
    """Return a session's row: state, name, start, duration, means, energy, missing data and note.

    The fleet lacks the figures of a session that ended before its history begins.
    """
    measured, silent_s = bool(session.util_s or session.power_s), stale_after_s(fleet.interval_s)
    partial = session.partial(fleet.nodes, now, silent_s) if measured or session.running else ""
    later = "" if session.running or session.started_at <= now else "starts later"
    energy_j = session.energy_j if measured else None
    figures = percent(session.mean_util), watts(session.mean_power_w), energy(energy_j)
    begun = started(session.started_at, now, zone)
    lasted = (elapsed if session.running else duration)(session.seconds(now))
    role = "text" if session.running else "dim"
    return (
        Span("●", "good") if session.running else Span("○", "dim"),
        *(Span(clean(text), role) for text in (session.name, begun, lasted, *figures)),
        Span(joined((partial, later, clean(session.note))), "warning" if partial else "dim"),
    )


def profile_row(profile: Profile, now: float, zone: tzinfo | None) -> Row:
    """Return a row of an imported report: its name, time, tool, node and rank."""
    begun = started(profile.started_at.replace(tzinfo=UTC).timestamp(), now, zone)
    lasted, words = brief_time(profile.seconds * 1e9), f"profile: {profile.origin}"
    texts = (PROFILED, profile.file, begun, lasted, "", "", "", words)
    return tuple(Span(clean(text), "dim") for text in texts)


def session_columns(rows: Sequence[Row], cells: int) -> tuple[TableColumn, ...]:
    """Return the columns; names get up to a third of the width, and starts as many cells as they need."""
    longest, start = (max((width(row[at].text) for row in rows), default=0) for at in (NAME, START))
    columns = list(SESSION_TABLE)
    columns[NAME] = replace(columns[NAME], width=max(NAME_LEAST, min(longest, cells // 3)))
    columns[START] = replace(columns[START], width=max(columns[START].width, start))
    return tuple(columns)


def started(at: float, now: float, zone: tzinfo | None) -> str:
    """Format a start as a time, with the date if it isn't today."""
    begun, today = datetime.fromtimestamp(at, zone), datetime.fromtimestamp(now, zone)
    return f"{begun:%H:%M:%S}" if begun.date() == today.date() else f"{begun:%d %b %H:%M:%S}"


class SessionsScreen(ViewerScreen):
    """The sessions of this recording, running ones first, with means over all GPUs so far."""

    SCREEN = SESSIONS

    def __init__(self) -> None:
        super().__init__()
        self._shown: list[Session] = []
        self._read_at = -math.inf
        self._profiles: Sequence[Profile] = ()
        self._keys: list[object] = []

    def compose_body(self) -> ComposeResult:
        """The table."""
        yield TableView(SESSION_TABLE)

    def draw(self) -> None:
        """Draw the sessions; the cursor stays on its session or profile."""
        now = self.viewer.now()
        table = self.query_one(TableView)
        before = self._keys[table.cursor] if table.cursor < len(self._keys) else None
        self._shown = sorted(self.viewer.sessions, key=lambda s: (not s.running, -s.started_at))
        running = sum(s.running for s in self._shown)
        state = Span(f"  {running or 'none'} running", "good" if running else "dim")
        others = f"  {plural(len(self._profiles), 'profile')}" if self._profiles else ""
        number = Span(f" {plural(len(self._shown), 'session')}", "title")
        self.show_title([number, state, Span(others, "dim")])
        table.empty = "no session yet"
        if self.viewer.can_start_session:
            table.empty += "; s starts one, also in the past"
        elif self.viewer.open_queries is None:
            table.empty = "no sessions: nothing is recorded; start gswarm-tui without --no-record"
        zone = self.viewer.timezone
        rows = [session_row(one, self.fleet, now, zone) for one in self._shown]
        rows += [profile_row(one, now, zone) for one in self._profiles]
        table.show_columns(session_columns(rows, self.size.width), rows)
        self._keys = [*(s.session_id for s in self._shown), *(p.profile_id for p in self._profiles)]
        if before in self._keys:
            table.move_to(self._keys.index(before))
        if now - self._read_at >= READ_EVERY_S and (queries := self.open_queries()) is not None:
            self._read_at = math.inf
            self.run_worker(self._read_profiles(queries))

    async def _read_profiles(self, queries: RecordingQueries) -> None:
        """Read the imported profiles from the recording."""
        from gswarm_tui.analysis.profiles import load_profiles

        with suppress(UserError):
            self._profiles = await asyncio.to_thread(queries.load, load_profiles)
        self._read_at = self.viewer.now()
        self.update_view()

    def chosen_session(self) -> Session | None:
        """The session under the cursor."""
        cursor = self.query_one(TableView).cursor
        return self._shown[cursor] if cursor < len(self._shown) else None

    def on_table_view_chosen(self) -> None:
        """Open the session or profile."""
        session, cursor = self.chosen_session(), self.query_one(TableView).cursor
        if session is None and cursor - len(self._shown) < len(self._profiles):
            from gswarm_tui.tui.screens.profile import ProfileScreen, TraceScreen

            profile = self._profiles[cursor - len(self._shown)]
            self.viewer.show(TraceScreen(profile) if profile.tool == "pytorch" else ProfileScreen(profile))
        elif session is not None:
            from gswarm_tui.tui.screens.session import SessionScreen

            self.viewer.show(SessionScreen(session))

    def action_compare(self) -> None:
        """Ask for another session and compare both."""
        from gswarm_tui.tui.screens.session import compare_with_another

        if (session := self.chosen_session()) is not None:
            compare_with_another(self.viewer, session)

    def action_rename(self) -> None:
        """Ask for a new name."""
        if (session := self.chosen_session()) is not None:
            book = self.fleet.sessions
            check = partial(book.check_name, renamed=session) if session.running else check_name
            dialog = FormDialog("rename session", [FormField("name", session.name, check=check)])
            change = partial(self.viewer.change_session, session.session_id)
            ask(self.app, dialog, lambda answer: change(name=answer[0]) if answer[0].strip() else None)

    def action_note(self) -> None:
        """Ask for a note."""
        if (session := self.chosen_session()) is not None:
            field = FormField("note", session.note, check=check_note)
            dialog = FormDialog(f"note of {session.name}", [field])
            change = partial(self.viewer.change_session, session.session_id)
            ask(self.app, dialog, lambda answer: change(note=answer[0]))
