"""JSON exports of sessions, written in the background when they end, as gswarm-profiler's users expect."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from itertools import count

from fastapi import HTTPException

from gswarm_tui.common.paths import file_name
from gswarm_tui.control.attached import AttachedRun
from gswarm_tui.fleet.sessions import Session
from gswarm_tui.server.export_notes import (
    NUMBER,
    WAITING,
    WRITING,
    WRITTEN,
    ExportNotes,
    SessionExport,
    find_number,
    write_export,
)
from gswarm_tui.server.requests import RecorderRequests
from gswarm_tui.store.errors import StoreError

COMMITTED_S = 60.0
"""A session's end is in the file within this time."""
RETRIES_S = (2.0, 10.0)
"""Pauses before an export is tried again, because the recorder may be restarting; none after its end."""
_POLL_S = 0.5
_LOG = logging.getLogger(__name__)


class SessionExports:
    """Exports of a recording's sessions, into its folder; call ``check`` whenever the fleet has changed."""

    def __init__(self, attached: AttachedRun, requests: RecorderRequests) -> None:
        self._attached = attached
        self._requests = requests
        self._notes = ExportNotes(attached.uid)
        self._exports = {export.key: export for export in self._notes.read()}
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()

    @property
    def newest_file(self) -> str:
        """Name of the newest session's file, empty without one."""
        return next((export.file for export in reversed(self._exports.values())), "")

    def of(self, session: Session) -> SessionExport | None:
        """Return a session's export, None without one."""
        return self._exports.get(session.key)

    def promise(self, session: Session) -> str:
        """Return the name of the file that the session will be written to when it ends."""
        if (known := self.of(session)) is not None:
            return known.file
        stem = file_name(session.name)
        taken = {export.file for export in self._exports.values()}
        names = (f"{stem}.json" if number == 1 else f"{stem}-{number}.json" for number in count(1))
        folder = self._attached.path.parent
        file = next(name for name in names if name not in taken and not os.path.lexists(folder / name))
        self._exports[session.key] = SessionExport(*session.key, file)
        self._notes.write(list(self._exports.values()))
        return file

    def check(self) -> None:
        """Start to write the files of sessions that have ended."""
        waiting = {key for key, export in self._exports.items() if export.state == WAITING}
        if not waiting:
            return
        for session in self._attached.fleet.sessions.sessions.values():
            if session.key in waiting and not session.running:
                export = self._exports[session.key]
                export.state = WRITING
                task = asyncio.create_task(self._write(export), name=f"export {export.file}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """After the recording's end, write the files that are left; else leave them to the next server."""
        if self._attached.ended:
            self.check()
        else:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._attached.ended:
            self._notes.remove()

    async def _write(self, export: SessionExport) -> None:
        async with self._one_at_a_time:
            for pause_s in (*RETRIES_S, None):
                export.state = await self._attempt(export)
                if export.state == WRITTEN or pause_s is None or self._attached.ended:
                    break
                _LOG.warning("%s: %s", export.file, export.state)
                export.state = WRITING
                await asyncio.sleep(pause_s)
            self._notes.write(list(self._exports.values()))

    async def _attempt(self, export: SessionExport) -> str:
        """Write the file; return the new state."""
        try:
            return await write_export(self._attached.path, export, await self._number(export))
        except TimeoutError:
            return "it could not be written: the session's end isn't in the recording"
        except OSError as error:
            return f"it could not be written: {error}"

    async def _number(self, export: SessionExport) -> int:
        """Return the session's number in the file, once its end is there."""
        async with asyncio.timeout(COMMITTED_S):
            while True:
                # The recorder may be busy, restarting, or have ended just now.
                with suppress(HTTPException, StoreError):
                    if self._attached.ended:
                        found = await asyncio.to_thread(
                            find_number, self._attached.path, self._attached.uid, export
                        )
                    else:
                        found = await self._query_recorder(export)
                    if found is not None:
                        return found
                await asyncio.sleep(_POLL_S)

    async def _query_recorder(self, export: SessionExport) -> int | None:
        values = self._attached.uid, export.name, export.started_ms
        rows = (await self._requests.query(NUMBER, *values, most=1, timeout_s=COMMITTED_S)).rows
        return int(rows[0][0]) if rows else None
