"""A channel over the pipes of a child process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import cast

from gswarm_tui.launch.base import LaunchError, clean, last_line
from gswarm_tui.launch.inbox import Inbox

_PATIENCE_S = 2.0
_STDIN, _STDOUT, _STDERR = range(3)


class ProcessChannel(Inbox, asyncio.SubprocessProtocol):
    """The standard streams of a child process that runs an agent; see ``Channel``.

    With ``leaves_agent``, ``close`` sends the child no SIGTERM, which it would pass on to an agent that has
    to continue elsewhere.
    """

    leaves_agent = False

    def __init__(self) -> None:
        super().__init__()
        self._process: asyncio.SubprocessTransport
        self._stdout: asyncio.ReadTransport
        self._stdin: asyncio.WriteTransport | None = None
        self._open_outputs = {_STDOUT, _STDERR}
        self._exited = asyncio.Event()
        self._complete = asyncio.Event()  # it exited, and its output ended
        self._closing = False

    @classmethod
    async def start(
        cls, command: Sequence[str], stdin: int = subprocess.PIPE, environ: Mapping[str, str] | None = None
    ) -> ProcessChannel:
        """Run a command in a session of its own, out of reach of the terminal's Ctrl-C."""
        loop = asyncio.get_running_loop()
        starting = asyncio.ensure_future(
            loop.subprocess_exec(cls, *command, stdin=stdin, env=environ, start_new_session=True)
        )
        try:
            _, channel = await asyncio.shield(starting)
        except OSError as error:
            raise LaunchError(f"{command[0]} can't be run: {error.strerror}") from None
        except asyncio.CancelledError:  # which asyncio's start of a process may not survive: it then hangs
            with contextlib.suppress(OSError):
                _, channel = await starting
                await channel.close()
            raise
        return channel

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.get_pid()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the pipes of the child, which runs now."""
        self._process = cast(asyncio.SubprocessTransport, transport)
        self._stdin = cast("asyncio.WriteTransport | None", self._process.get_pipe_transport(_STDIN))
        self._stdout = cast(asyncio.ReadTransport, self._process.get_pipe_transport(_STDOUT))
        self.fed_by(self._stdout)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Take in the child's output."""
        if fd == _STDERR:
            self.received_stderr(data)
        elif not self._closing:
            self.received(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Note the end of one of the pipes."""
        if fd == _STDOUT:
            self.ended(exc)
        self._open_outputs.discard(fd)
        self._check_complete()

    def process_exited(self) -> None:
        """Note that the child exited; its output may continue."""
        self._exited.set()
        self._check_complete()

    def _check_complete(self) -> None:
        if self._exited.is_set() and not self._open_outputs:
            self._complete.set()

    def write(self, data: bytes) -> None:
        """Send bytes to its stdin."""
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(data)

    async def explain_end(self) -> str:
        """Return how it ended: its exit status and the last line of its stderr."""
        await _within_patience(self._complete)
        return describe_end(describe_status(self._process.get_returncode()), self.stderr())

    async def close(self) -> None:
        """End the child and its children here: by the end of its input, then SIGTERM, then SIGKILL."""
        if self._stdin is not None:
            self._stdin.close()
        self._closing = True
        # A child that is blocked in writing to its output can end only if this process reads on.
        self._stdout.resume_reading()
        try:
            signals = (signal.SIGKILL,) if self.leaves_agent else (signal.SIGTERM, signal.SIGKILL)
            for number in (None, *signals):
                if number is not None:
                    self._signal_group(number)
                if await _within_patience(self._exited):
                    break
            if not await _within_patience(self._complete):
                self._signal_group(signal.SIGKILL)
                await _within_patience(self._complete)
        finally:
            self._process.close()

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


async def _within_patience(event: asyncio.Event) -> bool:
    """Return whether an event happens soon."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            await event.wait()
    return event.is_set()


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
