"""Parent process of a screen, forked before slow imports: restores the terminal if the screen dies."""

from __future__ import annotations

import mmap
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
_recorder = mmap.mmap(-1, 8)  # shared with the parent


def report_recorder(short_id: str) -> None:
    """Tell the parent which recorder goes on if this process dies now; empty for none."""
    _recorder[:] = short_id.encode().ljust(8)


def supervise() -> int | None:
    """Fork; return None in the child, which shows the screen, and its exit status in the parent."""
    if not (os.isatty(0) and os.isatty(1)):
        return None
    settings = termios.tcgetattr(0)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    if (child := os.fork()) == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return None
    pid = 0
    while not pid:
        received = signal.sigwaitinfo(_AWAITED)
        # The keys of a terminal reach the child, too; its hang-up perhaps only the leader of the session.
        # SIGTSTP is sent to whole groups: forwarded, it would stop the child twice, and be continued once.
        if received.si_signo in ENDING and (received.si_code <= 0 or received.si_signo == signal.SIGHUP):
            os.kill(child, received.si_signo)
        pid, status = os.waitpid(child, os.WUNTRACED | os.WNOHANG)
        if pid and os.WIFSTOPPED(status):
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(child, signal.SIGCONT)
            pid = 0
    code, recorder = os.waitstatus_to_exitcode(status), _recorder[:].decode().strip("\0 ")
    if code < 0 or recorder:
        # In the background, tcsetattr stops this process until it is in the foreground again.
        with suppress(OSError, termios.error):
            termios.tcsetattr(0, termios.TCSAFLUSH, settings)
            os.write(1, _LEAVE_SCREEN)
    if recorder:
        print_notice(f"recording goes on: gswarm-tui attach {recorder}")
    return code if code >= 0 else 128 - code
