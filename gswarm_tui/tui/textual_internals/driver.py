"""A program that was stopped and goes on has its terminal as before; one whose terminal is gone ends."""

from __future__ import annotations

import asyncio
import errno
import signal
import termios
from contextlib import suppress
from typing import Any, TextIO

from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver


class DetachableFile:
    """A terminal to write to that may go away: what can't be written then is dropped."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        """Write text, if there is where."""
        with suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        """Bring out what was written, if there is where."""
        with suppress(OSError):
            self._file.flush()

    def fileno(self) -> int:
        """The terminal's descriptor."""
        return self._file.fileno()


class DetachableDriver(LinuxDriver):
    """Textual's own, but for a thread that writes on: where it ended, the app would wait for it for ever."""

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        file: Any = self._file
        lasting: Any = DetachableFile(file)
        self._file = lasting


def handle_stop_and_continue(driver: Driver | None) -> None:
    """Take over what Textual does at SIGTSTP and SIGCONT; for a driver of another kind, nothing.

    Textual stops writing in the midst of whatever a SIGTSTP interrupts, and waits for ever where that was
    handing on something to write. The event loop does so between other things.

    Textual begins its work on the terminal again, and that is right where it ended it, at a SIGTSTP. Whoever
    is stopped otherwise, as by ``scontrol suspend``, never ended it: a second reader would take some of the
    keys, and the first would read on for ever.
    """
    if not isinstance(driver, LinuxDriver):
        return

    def go_on() -> None:
        if not driver._must_signal_resume:
            driver.suspend_application_mode()
        driver.resume_application_mode()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTSTP, driver._sigtstp_application)
    loop.add_signal_handler(signal.SIGCONT, go_on)


def hang_up_if_terminal_closed() -> None:
    """End as at SIGHUP where the terminal was closed and nobody said so.

    The kernel tells only those whose controlling terminal it is; Textual reads the end of its input for ever
    then, which takes a whole core.
    """
    try:
        termios.tcgetattr(0)
    except termios.error as error:
        if error.args[0] == errno.EIO:
            signal.raise_signal(signal.SIGHUP)
