"""A program that was stopped and goes on has its terminal as before."""

from __future__ import annotations

import asyncio
import signal

from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver


def watch_for_going_on(driver: Driver | None) -> None:
    """Take over what Textual does at SIGCONT; for a driver of another kind, nothing.

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

    asyncio.get_running_loop().add_signal_handler(signal.SIGCONT, go_on)
