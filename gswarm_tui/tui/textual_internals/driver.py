"""Driver that survives suspension (Ctrl-Z, scontrol suspend) and a terminal that goes away."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
import termios
from codecs import getincrementaldecoder
from contextlib import suppress
from functools import partial
from typing import Any, TextIO

from textual.driver import Driver
from textual.drivers import linux_driver
from textual.drivers.linux_driver import LinuxDriver


class DetachableFile:
    """Terminal file that may go away: writes that fail are dropped."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        """Write text if the terminal exists."""
        with suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        """Flush if the terminal exists."""
        with suppress(OSError):
            self._file.flush()

    def fileno(self) -> int:
        """Return the terminal's descriptor."""
        return self._file.fileno()


class DetachableDriver(LinuxDriver):
    """Textual's driver on a DetachableFile: its writer thread never fails, or the app would wait for it.

    It writes to standard output, which is known to be a terminal, instead of standard error.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        usual = sys.__stdout__
        assert usual is not None  # noqa: S101 - require_terminal
        file = open(  # noqa: SIM115
            usual.fileno(), "w", encoding="utf-8", errors="backslashreplace", closefd=False
        )
        detachable: Any = DetachableFile(file)
        self._file = detachable

    def _get_terminal_size(self) -> tuple[int, int]:
        """Return the terminal's size; COLUMNS and LINES, where exported, don't follow it."""
        with suppress(OSError):
            columns, lines = os.get_terminal_size(self.fileno)
            if columns and lines:
                return columns, lines
        return super()._get_terminal_size()

    def run_input_thread(self) -> None:
        """Read keys; a byte that isn't UTF-8 doesn't end the thread."""
        decoder = getincrementaldecoder("utf-8")
        module: Any = linux_driver  # where the thread looks its decoder up
        module.getincrementaldecoder = lambda _name: partial(decoder, errors="replace")
        super().run_input_thread()


def handle_stop_and_continue(driver: Driver | None) -> None:
    """Handle SIGTSTP and SIGCONT in the event loop; other drivers are left alone.

    Textual's own handler suspends in the middle of whatever the signal interrupts, and deadlocks if that
    holds the writer's lock (Textualize/textual#6298).

    After SIGSTOP, as sent by ``scontrol suspend``, Textual would start a second reader without having
    stopped the first: so the application mode is suspended before it is resumed.

    A screen stops its process group with it: the screen that opened it waits for it, and the shell for that.
    """
    if not isinstance(driver, LinuxDriver):
        return

    def stop() -> None:
        if driver._auto_restart:
            driver.suspend_application_mode()
            driver._must_signal_resume = True
        os.killpg(0, signal.SIGSTOP)

    def resume() -> None:
        # While another program has the terminal, it is that program which resumes.
        if driver._auto_restart:
            if not driver._must_signal_resume:
                driver.suspend_application_mode()
            driver.resume_application_mode()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTSTP, stop)
    loop.add_signal_handler(signal.SIGCONT, resume)


def leave_stop_and_continue(driver: Driver | None) -> None:
    """Remove the handlers, so that a process continued after its screen has closed doesn't show it again."""
    if isinstance(driver, LinuxDriver):
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGTSTP)
        loop.remove_signal_handler(signal.SIGCONT)


def hang_up_if_terminal_closed() -> None:
    """Raise SIGHUP, or SIGTERM where that is ignored, if the terminal was closed without a signal.

    The kernel sends SIGHUP only for a controlling terminal; without it Textual would read the end of its
    input in a loop that takes a whole core (Textualize/textual#6690).
    """
    try:
        termios.tcgetattr(0)
    except termios.error as error:
        if error.args[0] == errno.EIO:
            ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            signal.raise_signal(signal.SIGTERM if ignored else signal.SIGHUP)
