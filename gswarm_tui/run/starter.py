"""Parent process of a screen: restores the terminal if the screen dies.

It forks before anything slow is loaded, and does nothing else; signals sent to it reach the screen.
"""

from __future__ import annotations

import os
import signal
import termios
from contextlib import suppress

from gswarm_tui.common.errors import print_notice

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals at which the screen ends, and the recorder that it started closes the recording."""
_AWAITED = (*ENDING, signal.SIGTSTP, signal.SIGCONT, signal.SIGCHLD)
# Synchronised output, mouse, paste, focus, resize reports, keys, wrapping, colours, screen, cursor.
_LEAVE_SCREEN = (
    b"\x1b[?2026l\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l"
    b"\x1b[?2004l\x1b[?1004l\x1b[?2048l\x1b[<u\x1b[?7h\x1b[0m\x1b[?1049l\x1b[?25h"
)
_report_to = -1


def supervise() -> int | None:
    """Fork; return None in the child, which shows the screen, and its exit status in the parent."""
    global _report_to
    if not (os.isatty(0) and os.isatty(1)):
        return None
    settings = termios.tcgetattr(0)
    reports, _report_to = os.pipe()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    if (child := os.fork()) == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return None
    while (status := _wait(child)) is None:
        continue
    os.set_blocking(reports, False)
    recorder = b""
    with suppress(BlockingIOError):
        recorder = os.read(reports, 1 << 12).rpartition(b"\n")[2]
    if status < 0 or recorder:
        # In the background, tcsetattr stops this process until it is in the foreground again.
        with suppress(OSError, termios.error):
            termios.tcsetattr(0, termios.TCSAFLUSH, settings)
            os.write(1, _LEAVE_SCREEN)
    if recorder:
        print_notice(f"recording goes on: gswarm-tui attach {os.fsdecode(recorder)}")
    return status if status >= 0 else 128 - status


def _wait(child: int) -> int | None:
    """Forward a signal to the child, and stop when it stops; return its exit code once it has ended."""
    received = signal.sigwaitinfo(_AWAITED)
    # The keys of a terminal reach the child, too; its hang-up perhaps only the leader of the session.
    # SIGTSTP is sent to whole groups: forwarded, it would stop the child twice, and be continued once.
    has_it = received.si_code > 0 and received.si_signo != signal.SIGHUP
    if received.si_signo in ENDING and not has_it:
        os.kill(child, received.si_signo)
    pid, status = os.waitpid(child, os.WUNTRACED | os.WNOHANG)
    if pid and os.WIFSTOPPED(status):
        os.kill(os.getpid(), signal.SIGSTOP)
        os.kill(child, signal.SIGCONT)
        return None
    return os.waitstatus_to_exitcode(status) if pid else None


def report_recorder(recorder: str) -> None:
    """Tell the parent which recorder goes on if this process dies now; empty for none."""
    if _report_to >= 0:
        os.write(_report_to, b"\n" + os.fsencode(recorder))
