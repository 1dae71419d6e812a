"""Commands of this program in processes of their own."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress

_NICE = 10


def own_command(*words: str) -> list[str]:
    """Return the command line that runs a command of this program, without modules of the current folder."""
    return [sys.executable, "-P", "-m", "gswarm_tui", *words]


def last_line(errors: str) -> str:
    """Return the last line that a command printed to standard error, empty if it printed none."""
    lines = errors.strip().splitlines()
    return lines[-1].removeprefix("gswarm-tui: ") if lines else ""


async def run_in_background(*words: str) -> str:
    """Run a command at low priority; return why it failed, empty if it didn't. Raises OSError."""
    process = await asyncio.create_subprocess_exec(
        *own_command(*words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    with suppress(OSError):  # it may have ended
        os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
    try:
        _, errors = await process.communicate()
    finally:
        if process.returncode is None:  # cancelled
            process.kill()
            await process.wait()
    if process.returncode == 0:
        return ""
    return last_line(errors.decode(errors="replace")) or f"status {process.returncode}"
