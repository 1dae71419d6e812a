"""Slurm's commands on this machine; each ends with this program, even if that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import TypeVar

from gswarm_tui.common.errors import UserError, printable

T = TypeVar("T")

_CHUNK = 1 << 18
_PREFIX = re.compile(r"^(salloc|srun|slurmstepd[^:]*|scontrol): (error: )?")

# The kernel sends SIGTERM (15) to the command when this program dies (PR_SET_PDEATHSIG is 1): salloc gives
# back its nodes then, and srun ends its step. A program that has died before is noticed by its process ID.
_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15)\n"
    "os.getppid() == int(sys.argv[1]) or sys.exit(1)\n"
    "try: os.execvp(sys.argv[2], sys.argv[2:])\n"
    "except OSError as error: print(f'{sys.argv[2]}: {error.strerror}'); sys.exit(127)"
)
GRACE_S = 8.0
"""A step on nodes ends within this time of its input's end; what doesn't is sent SIGTERM."""
END_S = 60.0
"""Longest wait for the end after SIGTERM: Slurm kills a step's processes by then."""


class ProfileError(UserError):
    """Raised if a profile can't be made; the message says why, on which node, and what to do."""

    exit_status = 1


class StoppedError(UserError):
    """A signal ended a profile or trial."""

    def __init__(self, text: str, exit_status: int) -> None:
        super().__init__(text)
        self.exit_status = exit_status


def until_signal(work: Coroutine[object, object, T], text: str, terminated: int | None = None) -> T:
    """Do the work until a signal cancels it. Raises StoppedError with the text, once the work has ended.

    As in shells, its exit status is 128 + the number of the signal; ``terminated`` replaces it for signals
    other than that of Ctrl-C.
    """
    received: list[int] = []

    async def until_signal() -> T:
        task, loop = asyncio.ensure_future(work), asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

        def stop(number: int) -> None:
            # A second Ctrl-C must not interrupt the orderly end that the first one began.
            for each in signals:
                loop.remove_signal_handler(each)
                signal.signal(each, signal.SIG_IGN)
            received.append(number)
            task.cancel()

        for number in signals:
            loop.add_signal_handler(number, stop, number)
        return await task

    try:
        return asyncio.run(until_signal())
    except asyncio.CancelledError:
        number = received[0] if received else signal.SIGTERM
        if terminated is None or number == signal.SIGINT:
            terminated = 128 + number
        raise StoppedError(text, terminated) from None


class KeptCommand:
    """A command whose output is read, and which ends with this program."""

    def __init__(self, process: asyncio.subprocess.Process, grace_s: float) -> None:
        self._process = process
        self._grace_s = grace_s

    async def read(self, most: int = _CHUNK) -> bytes:
        """Return the next bytes of its output, empty at the end, or if it isn't read here."""
        return b"" if self._process.stdout is None else await self._process.stdout.read(min(most, _CHUNK))

    async def wait(self) -> int:
        """Wait for its end and return its exit status."""
        return await self._process.wait()

    async def close(self) -> None:
        """End its input, and after a grace itself, at last with SIGKILL; wait until it has ended."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        ending = asyncio.create_task(self._drain())
        if not (await asyncio.wait({ending}, timeout=self._grace_s))[0] and self._process.returncode is None:
            self._process.terminate()
        if not (await asyncio.wait({ending}, timeout=END_S))[0]:
            # What it has started may hold its output open.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        await ending

    async def _drain(self) -> None:
        while await self.read():  # a command that is blocked in writing couldn't end
            pass
        await self._process.wait()


@contextlib.asynccontextmanager
async def kept(
    words: Sequence[str], first_line: str = "", *, passes_output: bool = False, grace_s: float = GRACE_S
) -> AsyncIterator[KeptCommand]:
    """Run a command, whose input is one line, for the time of the context.

    Its output is read, or passed on as this program's. It ends within ``grace_s`` of its input's end; 0 is
    for a command that doesn't read its input.
    """
    with_parent = () if grace_s else (sys.executable, "-ISc", _WITH_PARENT, str(os.getpid()))
    process = await asyncio.create_subprocess_exec(
        *with_parent,
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=None if passes_output else asyncio.subprocess.PIPE,
        env=os.environ,  # not the C library's, see cli.py
        start_new_session=True,  # out of reach of the terminal's Ctrl-C
    )
    command = KeptCommand(process, grace_s)
    try:
        if process.stdin is not None:
            process.stdin.write(f"{first_line}\n".encode())
        yield command
    finally:
        await asyncio.shield(command.close())


def with_errors(words: Sequence[str]) -> list[str]:
    """Return a command whose errors are part of its output."""
    return ["bash", "-c", 'exec "$@" 2>&1', "gswarm-tui", *words]


def last_line(text: str) -> str:
    """Return the last line of a program's output as ``: line``; empty if it printed nothing."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    return f": {printable(_PREFIX.sub('', lines[-1])[:200].rstrip('.'))}" if lines else ""
