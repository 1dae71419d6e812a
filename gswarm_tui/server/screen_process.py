"""A viewer's process that draws into a browser: ``gswarm-tui attach`` with Textual's driver for browsers.

The driver's packets on standard input and output are a letter, a length of four bytes, and data: D is what a
terminal would read or write, M a JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from gswarm_tui.common.processes import LastLine, own_command, pipes

DRIVER = "gswarm_tui.tui.textual_internals.browser_driver:BrowserDriver"
BEGINNING = b"__GANGLION__\n"
"""What Textual's driver writes before its first packet."""
LEAST_SIZE, MOST_SIZE = (20, 5), (500, 200)
"""Columns and rows; the screen's process holds all cells in memory."""
ENDS_S = 5.0
"""A process whose page was closed is killed after this time."""
_ENVIRONMENT = {
    "TEXTUAL_DRIVER": DRIVER,
    "TEXTUAL_COLOR_SYSTEM": "truecolor",
    "TERM": "xterm-256color",
    "COLORTERM": "truecolor",
    "COLORFGBG": "",
    "LC_ALL": "C.UTF-8",
    "PYTHONUTF8": "1",
}
"""What the browser's terminal can show, whatever the terminal of ``gswarm-tui web`` can."""
_READ = 64 * 1024


class ScreenProcess:
    """Process of one page's screen; ``output`` ends when the process does."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._stdin, self._stdout, errors = pipes(process)
        self._errors = LastLine(errors)

    @classmethod
    async def start(cls, words: Sequence[str], columns: int, rows: int) -> ScreenProcess:
        """Start ``gswarm-tui`` with these words, in a session of its own. Raises OSError."""
        columns, rows = _bounded(columns, rows)
        environ = {**os.environ, **_ENVIRONMENT, "COLUMNS": str(columns), "ROWS": str(rows)}
        process = await asyncio.create_subprocess_exec(
            *own_command(*words),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=environ, start_new_session=True,
        )  # fmt: skip
        return cls(process)

    async def output(self) -> AsyncIterator[bytes]:
        """Yield what a terminal would get, until the process ends its screen."""
        with suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await self._stdout.readuntil(BEGINNING)
            while True:
                kind, size = await self._stdout.readexactly(1), await self._stdout.readexactly(4)
                data = await self._stdout.readexactly(int.from_bytes(size))
                if kind == b"D":
                    yield data
                elif kind == b"M" and json.loads(data).get("type") == "exit":
                    return

    async def type(self, text: str) -> None:
        """Send keys, as a terminal would. Raises OSError if the process has ended."""
        await self._send(b"D", text.encode("utf-8", "replace"))

    async def resize(self, columns: int, rows: int) -> None:
        """Change the size. Raises OSError."""
        columns, rows = _bounded(columns, rows)
        message = {"type": "resize", "width": columns, "height": rows}
        await self._send(b"M", json.dumps(message).encode())

    async def end(self) -> str:
        """End the process, by force if it takes long; return its last line on standard error."""
        self._stdin.close()
        draining = asyncio.create_task(self._drain())  # it may be waiting for its reader
        try:
            async with asyncio.timeout(ENDS_S):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        await asyncio.wait({draining, self._errors.reading}, timeout=ENDS_S)
        for task in (draining, self._errors.reading):
            task.cancel()
        return self._errors.text

    async def _send(self, kind: bytes, data: bytes) -> None:
        self._stdin.write(kind + len(data).to_bytes(4) + data)
        await self._stdin.drain()

    async def _drain(self) -> None:
        while await self._stdout.read(_READ):
            pass


def _bounded(columns: int, rows: int) -> tuple[int, int]:
    (least_columns, least_rows), (most_columns, most_rows) = LEAST_SIZE, MOST_SIZE
    return (max(least_columns, min(columns, most_columns)), max(least_rows, min(rows, most_rows)))
