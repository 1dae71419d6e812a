"""A channel over the pipes of a child process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence

from gswarm_tui.launch.base import Channel, LaunchError, clean, last_line

_CHUNK = 256 * 1024
_STDERR_KEPT = 8 * 1024
_PATIENCE_S = 2.0
_KILLING = (signal.SIGKILL,)
_ENDING = (signal.SIGTERM, *_KILLING)


class ProcessChannel(Channel):
    """The standard streams of a child process that runs an agent; see ``Channel``.

    With ``leaves_agent``, ``close`` sends the child no SIGTERM, which it would pass on to an agent that has
    to continue elsewhere.
    """

    leaves_agent = False

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise ValueError("a channel needs a process with pipes")
        self._process = process
        self._stdin, self._stdout, self._stderr_pipe = process.stdin, process.stdout, process.stderr
        self._stderr = bytearray()
        self._reading_stderr = asyncio.create_task(self._read_stderr())

    @classmethod
    async def start(cls, command: Sequence[str]) -> ProcessChannel:
        """Run a command in a session of its own, out of reach of the terminal's Ctrl-C."""
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
        """Return the next bytes of its stdout, empty at the end."""
        return await self._stdout.read(_CHUNK)

    def write(self, data: bytes) -> None:
        """Send bytes to its stdin."""
        if not self._stdin.is_closing():
            self._stdin.write(data)

    async def explain_end(self) -> str:
        """Return how it ended: its exit status and the last line of its stderr."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await self._process.wait()
                await asyncio.shield(self._reading_stderr)
        return describe_end(describe_status(self._process.returncode), self.stderr())

    def stderr(self) -> bytes:
        """Return the end of its stderr so far."""
        return bytes(self._stderr)

    async def close(self) -> None:
        """End the child and its children here: by the end of its input, then SIGTERM, then SIGKILL."""
        self._stdin.close()
        # A child that is blocked in writing couldn't end.
        leftover = asyncio.create_task(self._discard_output())
        await end_process(self._process, _KILLING if self.leaves_agent else _ENDING)
        await asyncio.wait([leftover, self._reading_stderr], timeout=_PATIENCE_S)
        if not leftover.done() or not self._reading_stderr.done():
            _signal_group(self._process.pid, signal.SIGKILL)
        await asyncio.wait([leftover, self._reading_stderr], timeout=_PATIENCE_S)

    async def _discard_output(self) -> None:
        while await self._stdout.read(_CHUNK):
            pass

    async def _read_stderr(self) -> None:
        while data := await self._stderr_pipe.read(_CHUNK):
            self._stderr += data
            del self._stderr[:-_STDERR_KEPT]


async def end_process(
    process: asyncio.subprocess.Process, signals: Sequence[signal.Signals] = _ENDING
) -> None:
    """Wait until a child whose input was closed ends; then send its process group these signals in turn."""
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
    """Return one clause: how the agent ended, and the last line on stderr."""
    line = last_line(stderr)
    return clean(f"the agent {how}: {line}" if line else f"the agent {how}")


def describe_status(status: int | None) -> str:
    """Return how a process ended: status None while it runs, -N or a shell's 128 + N for signal N."""
    if status is None:
        return "stopped answering"
    number = -status if status < 0 else status - 128
    if number in {one.value for one in signal.Signals}:
        return f"was ended by {signal.Signals(number).name}"
    return f"ended with exit status {status}"
