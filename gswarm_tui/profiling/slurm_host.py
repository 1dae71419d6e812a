"""The machine on which Slurm's commands run: this one, or a login node over SSH.

Each command runs below a keeper, a few lines of bash that end it when this program is gone: the lifeline is
the keeper's standard input, which ends when this program is killed or the connection breaks.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

from gswarm_tui.common.errors import UserError, printable
from gswarm_tui.launch.base import LaunchError
from gswarm_tui.launch.ssh.launcher import SshSettings
from gswarm_tui.launch.ssh.login import LoginConnection, LoginNode

HEARTBEAT_S = 15.0
LONGEST_SILENCE_S = 60
"""A connection whose lifeline is silent for so long is broken, even if nobody closed it."""
_CHUNK = 1 << 18
_PREFIX = re.compile(r"^(salloc|srun|slurmstepd[^:]*|scontrol): (error: )?")

# The first line of the input is the command's; whatever follows only shows that this program lives. When that
# ends, so does the command's input, and after a grace for it to react the command gets SIGTERM.
_KEEPER = """
limit=$1 grace=$2; shift 2; IFS= read -r first; exec 3<&0; trap : TERM
exec 4< <(printf '%s\\n' "$first"; while read -r $limit <&3; do :; done; exec >&-; sleep $grace; kill -TERM 0)
exec 3<&- </dev/null
"$@" <&4 & pid=$!
wait $pid; status=$?; while kill -0 $pid 2>/dev/null; do wait $pid; status=$?; done
trap '' TERM; kill -TERM 0; exit $status
"""
# What the files of a login shell print must not get into a command's output. Every shell takes these quotes.
_LOGIN_SHELL = (
    """exec sh -c 'exec 9>&1 1>&2; exec bash -l -c "$0"' """
    """'exec 1>&9 9>&-; eval "$(printf %s {} | base64 -d)"'"""
)
GRACE_S = 8
"""A step ends within this time of its input's end; what doesn't is killed by Slurm."""


class ProfileError(UserError):
    """Raised if a profile can't be made; the message says why, on which node, and what to do."""

    exit_status = 1


class KeptCommand(Protocol):
    """A command that ends with this program."""

    def write(self, data: bytes) -> None:
        """Write to its input."""

    async def read(self) -> bytes:
        """Return the next bytes of its output, empty at the end. Raises ConnectionError."""

    async def wait(self) -> int:
        """Wait for its end and return its exit status. Raises ConnectionError."""

    async def close(self) -> None:
        """End it with SIGTERM unless it has ended, and wait until it has."""


class SlurmHost(Protocol):
    """Machine on which Slurm's commands run; ``name`` is empty for this one, ``ssh`` reaches another."""

    name: str
    ssh: SshSettings

    async def start(self, words: Sequence[str], *, passes_output: bool, grace_s: int) -> KeptCommand:
        """Start a command, whose output is read, or passed on as this program's.

        Raises ProfileError, ConnectionError.
        """

    async def close(self) -> None:
        """Disconnect."""


@asynccontextmanager
async def kept(
    host: SlurmHost,
    words: Sequence[str],
    first_line: str = "",
    *,
    passes_output: bool = False,
    grace_s: int = GRACE_S,
) -> AsyncIterator[KeptCommand]:
    """Run a command, whose input is one line, for the time of the context."""
    command = await host.start(words, passes_output=passes_output, grace_s=grace_s)
    try:
        command.write(f"{first_line}\n".encode())
        yield command
    finally:
        await asyncio.shield(command.close())


def with_errors(words: Sequence[str]) -> list[str]:
    """Return a command whose errors are part of its output."""
    return ["bash", "-c", 'exec "$@" 2>&1', "gswarm-tui", *words]


async def output(host: SlurmHost, words: Sequence[str]) -> tuple[int, str]:
    """Run a command to its end; return its exit status and its output, which includes its errors."""
    async with kept(host, with_errors(words)) as command:
        data = bytearray()
        while chunk := await command.read():
            data += chunk
        return await command.wait(), data.decode("utf-8", "replace")


def last_line(text: str) -> str:
    """Return the last line of a program's output as ``: line``; empty if it printed nothing."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    return f": {printable(_PREFIX.sub('', lines[-1])[:200].rstrip('.'))}" if lines else ""


class ThisMachine(SlurmHost):
    """Runs Slurm's commands here."""

    name = ""
    ssh = SshSettings()

    async def start(self, words: Sequence[str], *, passes_output: bool, grace_s: int) -> _LocalCommand:
        """Start a command in a session of its own, out of reach of the terminal's Ctrl-C."""
        pipe = None if passes_output else asyncio.subprocess.PIPE
        # A stopped program (Ctrl-Z) isn't gone: the lifeline may be silent.
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", _KEEPER, "gswarm-tui-keeper", "", str(grace_s), *words),
            stdin=asyncio.subprocess.PIPE,
            stdout=pipe,
            env=os.environ,  # not the C library's, see cli.py
            start_new_session=True,
        )
        return _LocalCommand(process)

    async def close(self) -> None:
        """Nothing is connected."""


class _LocalCommand(KeptCommand):
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    def write(self, data: bytes) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(data)

    async def read(self) -> bytes:
        return b"" if self._process.stdout is None else await self._process.stdout.read(_CHUNK)

    async def wait(self) -> int:
        return await self._process.wait()

    async def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        while await self.read():  # a command that is blocked in writing couldn't end
            pass
        await self._process.wait()


class LoginHost(SlurmHost):
    """Runs Slurm's commands on a login node, in one SSH connection that is opened again if it broke."""

    def __init__(self, login: LoginNode) -> None:
        self._login = login
        self.ssh = login.settings
        self.name = self.ssh.jump

    async def start(self, words: Sequence[str], *, passes_output: bool, grace_s: int) -> _RemoteCommand:
        """Start a command in a login shell there."""
        limit = f"-t {LONGEST_SILENCE_S}"
        keeper = shlex.join(
            ["bash", "--norc", "-c", _KEEPER, "gswarm-tui-keeper", limit, str(grace_s), *words]
        )
        encoded = base64.b64encode(os.fsencode(f"exec {keeper}")).decode()  # safe in every login shell
        try:
            connection = await self._login.run(_LOGIN_SHELL.format(encoded))
        except LaunchError as error:
            remedy = f"; {error.remedy}" if error.remedy else ""
            raise ProfileError(f"{self.name}: {error.reason}{remedy}.") from None
        return _RemoteCommand(connection, passes_output=passes_output)

    async def close(self) -> None:
        """Disconnect."""
        await self._login.close()


class _RemoteCommand(KeptCommand):
    def __init__(self, connection: LoginConnection, *, passes_output: bool) -> None:
        self._connection = connection
        self._heart = asyncio.create_task(self._beat())
        self._pumps = [asyncio.create_task(_pump(partial(connection.errors.read, _CHUNK), 2))]
        if passes_output:
            self._pumps.append(asyncio.create_task(_pump(connection.read, 1)))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self.write(b"\n")

    def write(self, data: bytes) -> None:
        self._connection.write(data)

    async def read(self) -> bytes:
        return await self._connection.read()

    async def wait(self) -> int:
        await asyncio.gather(*self._pumps)
        return await self._connection.status()

    async def close(self) -> None:
        self._heart.cancel()
        await self._connection.end()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)


async def _pump(read: Callable[[], Awaitable[bytes]], number: int) -> None:
    """Write what a function reads to a file of this program."""
    while data := await read():
        await asyncio.to_thread(_write_all, number, data)


def _write_all(number: int, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        while data:
            data = data[os.write(number, data) :]
