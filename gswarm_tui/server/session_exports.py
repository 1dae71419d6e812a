"""JSON exports of sessions, written by ``gswarm-tui export`` in a process of lower priority."""

from __future__ import annotations

import asyncio
import logging
import os
from itertools import count

from gswarm_tui.common.paths import file_name
from gswarm_tui.common.processes import run_command
from gswarm_tui.control.recorder import Recorder
from gswarm_tui.fleet.sessions import Session

_LOG = logging.getLogger(__name__)


class SessionExports:
    """Exports of the sessions of a recording that gswarm-profiler's calls stop.

    Names of files are known until the server ends.
    """

    def __init__(self, attached: Recorder) -> None:
        self._attached = attached
        self._files: dict[str, str] = {}
        self._writing: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()

    @property
    def newest_file(self) -> str:
        """Name of the newest session's file, empty without one."""
        return next(reversed(self._files.values()), "")

    def file_of(self, session: Session) -> str | None:
        """Return the name of a session's file, None without one."""
        return self._files.get(session.session_id)

    def reserve(self, session: Session) -> str:
        """Return the name of the file that the session is written to when it is stopped."""
        if (known := self.file_of(session)) is None:
            stem = file_name(session.name)
            names = (f"{stem}.json" if number == 1 else f"{stem}-{number}.json" for number in count(1))
            taken, folder = set(self._files.values()), self._attached.path.parent
            known = next(name for name in names if name not in taken and not os.path.lexists(folder / name))
            self._files[session.session_id] = known
        return known

    def write(self, session: Session) -> str:
        """Write a stopped session's file in the background, one after the other; return its name."""
        file = self.reserve(session)
        task = asyncio.create_task(self._write(session, file), name=f"export {file}")
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        return file

    async def _write(self, session: Session, file: str) -> None:
        db, output = f"--db={self._attached.path}", f"--output={self._attached.path.parent / file}"
        async with self._one_at_a_time:
            try:
                why = await run_command("export", db, "--format=json", output, "--", session.session_id)
            except OSError as error:
                why = str(error)
        if why:
            _LOG.warning("%s could not be written: %s", file, why)

    async def finish(self) -> None:
        """Wait for the files that are being written."""
        await asyncio.gather(*self._writing, return_exceptions=True)
