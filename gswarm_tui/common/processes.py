"""Other programs and commands of this one in processes, and what these print to standard error."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from gswarm_tui.common.errors import printable

_NICE = 10
_MOST_LINE = 400
"""Bytes at the end of a line that are kept; a process may print a line without end."""
_PIECE = 64 * 1024
_HAS_PACKAGE = "import importlib.util as u,sys;sys.exit(u.find_spec('gswarm_tui') is None)"


@contextmanager
def cleaning_up() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does, by an exception, so that its files are removed."""
    # A signal that this process ignores, as SIGHUP under nohup, stays ignored. Only the main thread may
    # handle signals.
    handled = (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()
    ending = [each for each in handled if signal.getsignal(each) != signal.SIG_IGN]
    handlers = [signal.signal(each, lambda number, _frame: sys.exit(128 + number)) for each in ending]
    try:
        yield
    finally:
        for each, handler in zip(ending, handlers, strict=True):
            signal.signal(each, handler)


def run_program(
    command: Sequence[str], environ: Mapping[str, str] | None = None, *, timeout_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; return its status and its output as text.

    Raises OSError if it can't be started, and subprocess.TimeoutExpired.
    """
    return subprocess.run(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=timeout_s,
        check=False,
    )


def own_command(*words: str) -> list[str]:
    """Return the command line that runs a command of this program, without modules of the current folder."""
    return [sys.executable, "-P", "-m", "gswarm_tui", *words]


def own_command_there(*words: str) -> str:
    """Return the command for another host's shell: this interpreter if it has the package, else from PATH."""
    python, own = shlex.quote(sys.executable), shlex.join(words)
    missing = shlex.quote(f"gswarm-tui is not installed: neither {sys.executable} nor PATH has it")
    script = (
        f"if {python} -c {shlex.quote(_HAS_PACKAGE)} 2>/dev/null; "
        f"then exec {python} -P -m gswarm_tui {own}; fi; "
        "command -v gswarm-tui >/dev/null 2>&1 || "
        f"{{ echo {missing} >&2; exit 127; }}; "
        f"exec gswarm-tui {own}"
    )
    return f"exec sh -c {shlex.quote(script)}"


def last_line(errors: str) -> str:
    """Return the last line that a command printed to standard error, empty if it printed none."""
    lines = errors.strip().splitlines()
    return lines[-1].removeprefix("gswarm-tui: ") if lines else ""


async def run_command(*words: str, in_terminal: bool = False) -> str:
    """Run a command in this terminal, or unseen at low priority; return why it failed, empty if it didn't.

    A cancellation ends the command: one in this terminal by SIGTERM, to restore the terminal. Raises OSError.
    """
    files = None if in_terminal else asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *own_command(*words), stdin=files, stdout=files, stderr=asyncio.subprocess.PIPE
    )
    # The process may have ended.
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process.pid, 0 if in_terminal else _NICE)
    try:
        _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM if in_terminal else signal.SIGKILL)
            await process.wait()
    if process.returncode == 0:
        return ""
    return last_line(errors.decode(errors="replace")) or f"its process ended with status {process.returncode}"


def pipes(
    process: asyncio.subprocess.Process,
) -> tuple[asyncio.StreamWriter, asyncio.StreamReader, asyncio.StreamReader]:
    """Return standard input, output and error of a process that was started with pipes for all."""
    assert process.stdin is not None  # noqa: S101
    assert process.stdout is not None  # noqa: S101
    assert process.stderr is not None  # noqa: S101
    return process.stdin, process.stdout, process.stderr


class LastLine:
    """Last line that a process prints to standard error, in ``text`` once ``reading`` is done."""

    def __init__(self, errors: asyncio.StreamReader) -> None:
        self.text = ""
        self.reading = asyncio.create_task(self._read(errors))

    async def _read(self, errors: asyncio.StreamReader) -> None:
        rest = b""
        while piece := await errors.read(_PIECE):
            *lines, rest = (rest + piece).split(b"\n")
            rest = rest[-_MOST_LINE:]
            for line in lines:
                self._keep(line)
        self._keep(rest)

    def _keep(self, line: bytes) -> None:
        shown = printable(line[-_MOST_LINE:].decode(errors="replace").strip())
        self.text = shown.removeprefix("gswarm-tui: ") or self.text
