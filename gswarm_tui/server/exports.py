"""JSON exports of sessions, written in the background when a session ends, as gswarm-profiler's users expect.

Which session gets which file is noted in the state folder, so that a restarted server still writes it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from fastapi import HTTPException

from gswarm_agent.folder import open_private
from gswarm_tui.common.paths import file_name, state_folder
from gswarm_tui.common.private_files import read_own, write_part
from gswarm_tui.control.attached import AttachedRun
from gswarm_tui.fleet.sessions import Session
from gswarm_tui.server.requests import RecorderRequests
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.file_source import FileSource

WAITING, WRITING, WRITTEN = "waiting", "writing", "written"
COMMITTED_S = 60.0
"""A session's end is in the file within this time."""
RETRIES_S = (2.0, 10.0)
"""Pauses before an export is tried again, because the recorder may be restarting; none after its end."""
_POLL_S = 0.5
_NICE = 10
_NUMBER = """
SELECT session_id FROM sessions JOIN recordings USING (recording_id)
WHERE uid = ? AND name = ? AND abs(epoch_ms(sessions.started_at) - ?) <= 1 AND sessions.ended_at IS NOT NULL
ORDER BY session_id DESC
"""

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


class SessionExports:
    """Exports of a recording's sessions, into its folder; call ``check`` whenever the fleet has changed."""

    def __init__(self, attached: AttachedRun, requests: RecorderRequests) -> None:
        self._attached = attached
        self._requests = requests
        self._notes = _Notes(attached.uid)
        self._exports = {export.key: export for export in self._notes.read()}
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()
        self.newest_file = next((export.file for export in reversed(self._exports.values())), "")

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
        self.newest_file = file
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
            return await self._export(export, await self._number(export))
        except TimeoutError:
            return "it could not be written: the session's end isn't in the recording"
        except OSError as error:
            return f"it could not be written: {error}"

    async def _number(self, export: SessionExport) -> int:
        """Return the session's number in the file, once its end is there."""
        values = self._attached.uid, export.name, export.started_ms
        async with asyncio.timeout(COMMITTED_S):
            while True:
                # The recorder may be busy, restarting, or have ended just now.
                with suppress(HTTPException, StoreError):
                    if self._attached.ended:
                        found = await asyncio.to_thread(_query_file, self._attached.path, values)
                    else:
                        found = await self._query_recorder(values)
                    if found is not None:
                        return found
                await asyncio.sleep(_POLL_S)

    async def _query_recorder(self, values: tuple[str, str, int]) -> int | None:
        rows = (await self._requests.query(_NUMBER, *values, most=1, timeout_s=COMMITTED_S)).rows
        return int(rows[0][0]) if rows else None

    async def _export(self, export: SessionExport, number: int) -> str:
        """Write the file in another process, which takes seconds and memory; return the new state."""
        target = self._attached.path.parent / export.file
        words = ["export", f"--db={self._attached.path}", "--format=json", f"--output={target}", str(number)]
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-P", "-m", "gswarm_tui", *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, child.pid, _NICE)
        try:
            _, errors = await child.communicate()
        finally:
            if child.returncode is None:
                child.kill()
        if child.returncode == 0:
            return WRITTEN
        lines = errors.decode(errors="replace").strip().splitlines() or [f"status {child.returncode}"]
        return f"it could not be written: {lines[-1].removeprefix('gswarm-tui: ')}"


def _query_file(path: Path, values: tuple[str, str, int]) -> int | None:
    with closing(FileSource(path, for_people=False)) as source:
        rows = source.query(_NUMBER, *values).rows()
        return int(rows[0][0]) if rows else None


class _Notes:
    """Private file that holds which sessions of a recording get which files."""

    def __init__(self, uid: str) -> None:
        self._folder = state_folder() / "exports"
        self._name = f"{uid}.json"

    def read(self) -> Iterator[SessionExport]:
        """Yield the noted exports; interrupted ones start again."""
        with suppress(OSError, ValueError, TypeError):
            above = open_private(str(self._folder))
            try:
                noted = json.loads(read_own(above, self._name))
            finally:
                os.close(above)
            for values in noted:
                export = SessionExport(*values)
                export.state = WAITING if export.state == WRITING else export.state
                yield export

    def write(self, exports: list[SessionExport]) -> None:
        """Replace the notes; a failure is logged."""
        content = json.dumps([list(vars(export).values()) for export in exports]).encode()
        try:
            self._folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            above = open_private(str(self._folder), create=True)
            try:
                os.rename(write_part(above, content), self._name, src_dir_fd=above, dst_dir_fd=above)
            finally:
                os.close(above)
        except OSError as error:
            _LOG.warning("a restarted server won't write this recording's exports: %s", error)

    def remove(self) -> None:
        """Remove the notes."""
        with suppress(OSError):
            (self._folder / self._name).unlink(missing_ok=True)
