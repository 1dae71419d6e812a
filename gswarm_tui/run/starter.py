"""Parent process of a screen: restores the terminal if the screen dies.

It forks before anything slow is loaded, and does nothing else; signals sent to it reach the screen.
"""

from __future__ import annotations

import os
import signal
import termios
from contextlib import suppress
from typing import Any

from gswarm_tui.common.errors import print_notice

ENDING = (
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""Signals at which the screen ends, and the recorder that it started closes the recording."""
_AWAITED = (*ENDING, signal.SIGTSTP, signal.SIGCONT, signal.SIGCHLD)
_LEAVE_SCREEN = (
    "\x1b[?2026l"  # synchronised output
    "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l"  # mouse
    "\x1b[?2004l\x1b[?1004l\x1b[?2048l\x1b[<u"  # paste, focus, resize reports, key protocol
    "\x1b[?7h\x1b[0m\x1b[?1049l\x1b[?25h"  # wrapping, colours, alternate screen, cursor
)

_report_to = -1


def supervise() -> int | None:
    """Fork; return None in the child, which shows the screen, and its exit status in the parent."""
    global _report_to
    if not (os.isatty(0) and os.isatty(1)):
        return None
    settings = termios.tcgetattr(0)
    reports, report_to = os.pipe()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*_AWAITED, signal.SIGTTOU))
    child = os.fork()
    if child == 0:
        os.close(reports)
        _report_to = report_to
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return None
    os.close(report_to)
    status = _wait(child)
    code = os.waitstatus_to_exitcode(status)
    # What may have inherited the pipe, such as a recorder, keeps it open.
    os.set_blocking(reports, False)
    recorder = b""
    with suppress(BlockingIOError):
        recorder = os.read(reports, 1 << 12).rpartition(b"\n")[2]
    if code < 0 or recorder:
        _restore_terminal(settings)
    if recorder:
        print_notice(f"recording goes on: gswarm-tui attach {os.fsdecode(recorder)}")
    return code if code >= 0 else 128 - code


def _restore_terminal(settings: list[Any]) -> None:
    """Leave the screen and its modes, unless another program uses the terminal by now."""
    with suppress(OSError):  # it isn't the controlling terminal
        if os.tcgetpgrp(0) != os.getpgrp():
            return
    with suppress(OSError, termios.error):
        os.write(1, _LEAVE_SCREEN.encode())
        termios.tcsetattr(0, termios.TCSAFLUSH, settings)


def report_recorder(recorder: str) -> None:
    """Tell the parent which recorder goes on if this process dies now; empty for none."""
    if _report_to >= 0:
        os.write(_report_to, b"\n" + os.fsencode(recorder))


def _wait(child: int) -> int:
    """Wait for the child's end and return its wait status; forward signals to it, and stop when it stops."""
    while True:
        received = signal.sigwaitinfo(_AWAITED)
        number = received.si_signo
        # The keys of a terminal reach the child, too; its hang-up perhaps only the leader of the session.
        # SIGTSTP is sent to whole groups: forwarded, it would stop the child twice, and be continued once.
        has_it = received.si_code > 0 and number != signal.SIGHUP
        if number in ENDING and not has_it:
            os.kill(child, number)
        pid, status = os.waitpid(child, os.WUNTRACED | os.WNOHANG)
        if pid and os.WIFSTOPPED(status):
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(child, signal.SIGCONT)
        elif pid:
            return status


def describe_signal(number: int) -> str:
    """Return the name of a signal that a process got."""
    known = number in set(signal.Signals)  # real-time signals have no names
    name = signal.Signals(number).name if known else f"signal {number}"
    return name + (", as happens when memory runs out" if number == signal.SIGKILL else "")
