"""Sessions that are added to a finished recording or changed in it, and findings that are dismissed there."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.recording.batch import array
from gswarm_tui.store.recording.database import Database
from gswarm_tui.store.sql.schema import FINDINGS, SESSIONS, TableSchema, micros


def add_session(source: FileSource, recording_id: int, name: str, started_at: float, ended_at: float) -> None:
    """Add a session with start and end (Unix seconds) to a recording of the open file.

    Raises StoreError if the file belongs to another user, is in use, or can't be written.
    """
    with source.released(), closing(Database(source.path)) as database:
        row = {
            "session_id": database.next_free("session_id", "sessions"),
            "recording_id": recording_id,
            "name": name,
            "started_at": micros(started_at),
            "ended_at": micros(ended_at),
            "status": "stopped",
            "note": "",
        }
        _write(database, row)


def change_session(source: FileSource, session_id: str, name: str | None, note: str | None) -> None:
    """Give a session of the open file another name or note; None leaves it. Raises StoreError likewise."""
    with source.released(), closing(Database(source.path)) as database:
        (row,) = database.rows(
            "SELECT * REPLACE (epoch_us(started_at) AS started_at, epoch_us(ended_at) AS ended_at) "
            "FROM sessions WHERE session_id = ?",
            int(session_id),
        )
        given = {key: text for key, text in (("name", name), ("note", note)) if text is not None}
        _write(database, row | given)


def dismiss_finding(source: FileSource, finding_id: str, dismissed: bool) -> None:
    """Dismiss a finding of the open file, or undo that. Raises StoreError likewise."""
    with source.released(), closing(Database(source.path)) as database:
        (row,) = database.rows(
            "SELECT * REPLACE (epoch_us(since) AS since, epoch_us(until) AS until) "
            "FROM findings WHERE finding_id = ?",
            int(finding_id),
        )
        _write(database, row | {"dismissed": dismissed}, FINDINGS)


def _write(database: Database, row: dict[str, Any], table: TableSchema = SESSIONS) -> None:
    database.write([(table, {key: array(table, key, [value]) for key, value in row.items()})])
    # Opening the file for writing created its views again, without their comments.
    database.describe()
    database.checkpoint()
