"""A channel over the pipes of a child process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence

from gswarm_tui.launch.base import LaunchError, clean, last_line

_CHUNK = 256 * 1024
_STDERR_KEPT = 8 * 1024
_PATIENCE_S = 2.0
_KILLING = (signal.SIGKILL,)
_ENDING = (signal.SIGTERM, *_KILLING)


class ProcessChannel:
    """Talks with a child that speaks the wire on its standard streams; see ``Channel``.

    ``leaves`` says that ``close`` ends only the child and the way to what it started elsewhere, which goes
    on: SIGTERM would be passed on to that.
    """

    leaves = False

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise ValueError("a channel needs a process with pipes")
        self._process = process
        self._stdin, self._stdout, self._stderr_pipe = process.stdin, process.stdout, process.stderr
        self._stderr = bytearray()
        self._reading_stderr = asyncio.create_task(self._read_stderr())

    @classmethod
    async def start(cls, command: Sequence[str]) -> ProcessChannel:
        """Run a command as a child in a session of its own, so that the terminal's Ctrl-C isn't for it."""
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=_CHUNK,
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(f"{command[0]} can't be run: {error.strerror}") from None
        return cls(process)

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    async def read(self) -> bytes:
        """The next bytes of its stdout, empty at the end."""
        return await self._stdout.read(_CHUNK)

    def write(self, data: bytes) -> None:
        """Send bytes to its stdin."""
        if not self._stdin.is_closing():
            self._stdin.write(data)

    async def explain_end(self) -> str:
        """How it ended: its exit status and the last line of its stderr."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await self._process.wait()
                await asyncio.shield(self._reading_stderr)
        return describe_end(describe_status(self._process.returncode), self.stderr())

    def stderr(self) -> bytes:
        """The end of what it wrote to stderr so far."""
        return bytes(self._stderr)

    async def close(self) -> None:
        """End the child and whatever it started here: by the end of its input, then SIGTERM, then SIGKILL."""
        self._stdin.close()
        # Nobody reads any more, but a child that is blocked in writing could not end.
        leftover = asyncio.create_task(self._read_away())
        await end_process(self._process, _KILLING if self.leaves else _ENDING)
        await asyncio.wait([leftover, self._reading_stderr], timeout=_PATIENCE_S)
        if not leftover.done() or not self._reading_stderr.done():
            _signal_group(self._process.pid, signal.SIGKILL)
        await asyncio.wait([leftover, self._reading_stderr], timeout=_PATIENCE_S)

    async def _read_away(self) -> None:
        while await self._stdout.read(_CHUNK):
            pass

    async def _read_stderr(self) -> None:
        while data := await self._stderr_pipe.read(_CHUNK):
            self._stderr += data
            del self._stderr[:-_STDERR_KEPT]


async def end_process(
    process: asyncio.subprocess.Process, signals: Sequence[signal.Signals] = _ENDING
) -> None:
    """Wait for a session's leader whose input was closed; then signals to its group, one after the other."""
    for number in (None, *signals):
        if number is not None and process.returncode is None:
            _signal_group(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await process.wait()
                return


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)


def describe_end(how: str, stderr: bytes) -> str:
    """One clause: how the agent ended, and the last line of what was written to stderr."""
    said = last_line(stderr)
    return clean(f"the agent {how}: {said}" if said else f"the agent {how}")


def describe_status(status: int | None) -> str:
    """How a process ended, by its exit status: None while it runs, -N or a shell's 128 + N for signal N."""
    if status is None:
        return "stopped answering"
    number = -status if status < 0 else status - 128
    if number in {one.value for one in signal.Signals}:
        return f"was ended by {signal.Signals(number).name}"
    return f"ended with exit status {status}"
