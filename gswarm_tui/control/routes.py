"""Routes from a viewer to a recorder: its socket on this host, or an ssh to the host where it runs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from gswarm_tui.common.processes import LastLine, own_command_there, pipes
from gswarm_tui.control.client import RELAY_MAGIC, Head, NoHeadError, running_heads
from gswarm_tui.control.intents import RecorderError
from gswarm_tui.control.recorder import RecorderGoneError

NOISE_MOST = 64 * 1024
"""Bytes that a login shell may print before the relay answers."""
ENDS_S = 2.0


@dataclass(eq=False)
class SocketRoute:
    """Route to a recorder on this host; ``choose`` returns its head, or raises UserError or RecorderError.

    ``first`` is a connection that was made already, for the first time.
    """

    environ: Mapping[str, str]
    choose: Callable[[], Head]
    first: socket.socket | None = None
    place = ""

    async def connect(self, uid: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the recording's socket. Raises RecorderError; of the first choice, UserError."""
        connection, self.first = self.first, None
        if connection is None:
            connection = await asyncio.to_thread(self._connect, uid)
            connection.setblocking(False)
        return await asyncio.open_unix_connection(sock=connection)

    def _connect(self, uid: str) -> socket.socket:
        return (recording_head(uid, self.environ) if uid else self.choose()).connect()

    async def why_closed(self) -> str:
        """Return nothing: the end of a socket has no reason."""
        return ""

    async def close(self) -> None:
        """Do nothing: a socket is closed with its stream."""


def recording_head(uid: str, environ: Mapping[str, str]) -> Head:
    """Return the recorder that records this, even if it was restarted. Raises RecorderError."""
    for head in running_heads(environ):
        if head.uid == uid:
            return head
    raise RecorderGoneError("no gswarm-tui here writes this recording")


class SshRoute:
    """Route to a recorder on another host, by the user's own ssh to a relay there.

    ssh prompts for passwords only once, before the screen is drawn.
    """

    def __init__(self, host: str, recording: str) -> None:
        self.place = host
        self._recording = recording
        self._process: asyncio.subprocess.Process | None = None
        self._errors: LastLine | None = None

    async def connect(self, uid: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Run ssh, and wait for the relay's first line. Raises RecorderError, NoHeadError."""
        await self.close()
        again = ("-o", "BatchMode=yes") if uid else ()
        command = ("ssh", "-T", *again, "--", self.place, relay_command(uid or self._recording))
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE, start_new_session=bool(uid),
            )  # fmt: skip
        except OSError as error:
            raise RecorderError(f"ssh can't be run: {error.strerror}") from None
        stdin, stdout, errors = pipes(process)
        self._errors = LastLine(errors)
        noise = b""
        while RELAY_MAGIC not in noise:
            if len(noise) > NOISE_MOST or not (piece := await stdout.read(1)):
                why = await self.why_closed()
                with suppress(TimeoutError):
                    if not uid and await asyncio.wait_for(process.wait(), ENDS_S) == NoHeadError.exit_status:
                        raise NoHeadError(f"{why}.")
                raise RecorderError(why)
            noise += piece
        return stdout, stdin

    async def why_closed(self) -> str:
        """Return the last line that ssh or the relay printed."""
        why = ""
        if self._errors is not None:
            await asyncio.wait({self._errors.reading}, timeout=ENDS_S)
            why = self._errors.text.removesuffix(".")
        return f"{self.place}: {why}" if why else f"ssh to {self.place} ended without a reason"

    async def close(self) -> None:
        """End the last ssh."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if self._errors is not None:
            await self._errors.reading
        self._process = self._errors = None


def relay_command(recording: str) -> str:
    """Return the command for a remote shell."""
    return own_command_there("attach", "--relay", *([recording] if recording else []))
