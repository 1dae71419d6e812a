"""Sessions that are added to a finished recording or changed in it, and findings that are dismissed there.

All functions raise StoreError if the file belongs to another user, is in use, or can't be written.
"""

from __future__ import annotations

from contextlib import closing

from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.recording.database import Database
from gswarm_tui.store.sql.schema import micros


def add_session(source: FileSource, recording_id: int, name: str, started_at: float, ended_at: float) -> None:
    """Add a session with start and end (Unix seconds) to a recording of the open file."""
    _change(
        source,
        "INSERT INTO sessions (session_id, recording_id, name, started_at, ended_at, status, note) "
        "SELECT coalesce(max(session_id), 0) + 1, ?, ?, make_timestamp(?), make_timestamp(?), 'stopped', '' "
        "FROM sessions",
        recording_id, name, micros(started_at), micros(ended_at),
    )  # fmt: skip


def change_session(source: FileSource, session_id: str, name: str | None, note: str | None) -> None:
    """Give a session of the open file another name or note; None leaves it."""
    renamed = "UPDATE sessions SET name = coalesce(?, name), note = coalesce(?, note) WHERE session_id = ?"
    _change(source, renamed, name, note, int(session_id))


def dismiss_finding(source: FileSource, finding_id: str, dismissed: bool) -> None:
    """Dismiss a finding of the open file, or undo that."""
    _change(source, "UPDATE findings SET dismissed = ? WHERE finding_id = ?", dismissed, int(finding_id))


def _change(source: FileSource, sql: str, *values: object) -> None:
    with source.released(), closing(Database(source.path)) as database:
        database.execute(sql, *values)
        # Opening the file for writing created its views again, without their comments.
        database.describe()
        database.checkpoint()
