"""Notes in the state folder on session exports that a server must still write.

A restarted server, or ``recover --finish``, keeps the promises of one that was killed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from gswarm_tui.common.private_files import PrivateFolder
from gswarm_tui.common.processes import run_in_background
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.file_source import FileSource

WAITING, WRITING, WRITTEN = "waiting", "writing", "written"
NUMBER = """
SELECT session_id FROM sessions JOIN recordings USING (recording_id)
WHERE uid = ? AND name = ? AND abs(epoch_ms(sessions.started_at) - ?) <= 1 AND sessions.ended_at IS NOT NULL
ORDER BY session_id DESC
"""
"""Query for the number of a session that has ended, with its recording's uid, name and start in ms."""

_LOG = logging.getLogger(__name__)


@dataclass
class SessionExport:
    """File of a session; ``state`` is waiting, writing, written, or why it could not be written."""

    name: str
    started_ms: int
    file: str
    state: str = WAITING

    @property
    def key(self) -> tuple[str, int]:
        """Key of the session, as ``Session.key``."""
        return self.name, self.started_ms


async def write_export(path: Path, export: SessionExport, number: int) -> str:
    """Write the file of a session of the recording ``path``, in another process; return the new state."""
    target = path.parent / export.file
    why = await run_in_background(
        "export", f"--db={path}", "--format=json", f"--output={target}", str(number)
    )
    return f"it could not be written: {why}" if why else WRITTEN


async def write_promised(path: Path, uid: str) -> AsyncIterator[SessionExport]:
    """Write the files that are left of a closed recording, and yield each with its new state."""
    notes = ExportNotes(uid)
    for export in notes.read():
        if export.state == WRITTEN:
            continue
        try:
            number = find_number(path, uid, export)
        except StoreError as error:
            export.state = f"it could not be written: {error}"
        else:
            found = "it could not be written: the session isn't in the recording"
            export.state = found if number is None else await write_export(path, export, number)
        yield export
    notes.remove()


def find_number(path: Path, uid: str, export: SessionExport) -> int | None:
    """Return the session's number in a closed recording, None if it isn't there. Raises StoreError."""
    with closing(FileSource(path, for_people=False)) as source:
        rows = source.query(NUMBER, uid, export.name, export.started_ms).rows()
        return int(rows[0][0]) if rows else None


class ExportNotes:
    """Private file that holds which sessions of a recording get which files."""

    def __init__(self, uid: str) -> None:
        self._folder = PrivateFolder("exports")
        self._name = f"{uid}.json"

    def read(self) -> Iterator[SessionExport]:
        """Yield the noted exports; interrupted ones start again."""
        with suppress(OSError, ValueError, TypeError):
            for values in json.loads(self._folder.read(self._name)):
                export = SessionExport(*values)
                export.state = WAITING if export.state == WRITING else export.state
                yield export

    def write(self, exports: list[SessionExport]) -> None:
        """Replace the notes; a failure is logged."""
        content = json.dumps([list(vars(export).values()) for export in exports]).encode()
        try:
            self._folder.write(self._name, content)
        except OSError as error:
            _LOG.warning("a restarted server won't write this recording's exports: %s", error)

    def remove(self) -> None:
        """Remove the notes."""
        with suppress(OSError):
            self._folder.remove(self._name)
