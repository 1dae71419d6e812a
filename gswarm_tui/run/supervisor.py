"""Parent process of a screen: restores the terminal if the program dies, and prints how to resume.

It does nothing else and imports little, so that it stays small. It forks before anything slow is loaded;
signals sent to it reach the child, and if it is killed itself, the child is killed, too.
"""

from __future__ import annotations

import fcntl
import os
import signal
import termios
from contextlib import suppress
from pathlib import Path
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
"""Signals at which the program closes its recording and ends."""
STOPPED_WITHIN_S = 0.5
"""A child that gets SIGTSTP together with its parent has stopped by then."""
ENDED_BY_C_LIBRARY = 127
_AWAITED = (*ENDING, signal.SIGTSTP, signal.SIGCONT, signal.SIGCHLD)
_LEAVE_SCREEN = (
    "\x1b[?2026l"  # synchronised output
    "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l"  # mouse
    "\x1b[?2004l\x1b[?1004l\x1b[?2048l\x1b[<u"  # paste, focus, resize reports, key protocol
    "\x1b[?7h\x1b[0m\x1b[?1049l\x1b[?25h"  # wrapping, colours, alternate screen, cursor
)

_report_to = -1


def supervise() -> int | None:
    """Fork; return None in the child, which runs the program, and its exit status in the parent.

    Without a terminal, or where no process can be started, the program runs without a parent.
    """
    global _report_to
    if not (os.isatty(0) and os.isatty(1)):
        return None
    settings = termios.tcgetattr(0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, a child's end isn't reported
    reports, report_to = os.pipe()
    parent_lives, parent_end = os.pipe()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*_AWAITED, signal.SIGTTOU))
    try:
        child = os.fork()
    except OSError:
        child = -1
    if child > 0:
        os.close(report_to)
        os.close(parent_lives)
        return _exit_status(_wait(child), settings, reports)
    if child == 0:
        os.close(reports)
        os.close(parent_end)
        _be_killed_at_end_of(parent_lives)
        _report_to = report_to
    else:
        for descriptor in (reports, report_to, parent_lives, parent_end):
            os.close(descriptor)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return None


def report_recording(recording: str, path: Path | None) -> None:
    """Tell the parent which recording is open, by ID and file; None when it was closed."""
    if _report_to >= 0:
        os.write(_report_to, os.fsencode(f"{recording}\0{path or ''}\0"))


def _be_killed_at_end_of(pipe: int) -> None:
    """Have the kernel send SIGKILL to this process when the last writer of the pipe has ended."""
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        os.read(pipe, 1)  # no error: the last writer had ended before
        os.kill(os.getpid(), signal.SIGKILL)


def _wait(child: int) -> int:
    """Wait for the child's end and return its wait status; forward signals to it, and stop when it stops."""
    stopped = False
    while True:
        received = signal.sigwaitinfo(_AWAITED)
        number, by_terminal = received.si_signo, received.si_code > 0
        if number == signal.SIGTSTP and not by_terminal:  # perhaps sent to the whole group
            if signal.sigtimedwait([signal.SIGCHLD], STOPPED_WITHIN_S) is None:
                os.kill(child, number)
        elif number in ENDING and not (number == signal.SIGINT and by_terminal):  # the child has that one
            os.kill(child, number)
        was_stopped = stopped
        while (changed := os.waitpid(child, os.WUNTRACED | os.WCONTINUED | os.WNOHANG)) != (0, 0):
            if not os.WIFSTOPPED(changed[1]) and not os.WIFCONTINUED(changed[1]):
                return changed[1]
            stopped = os.WIFSTOPPED(changed[1])
        if stopped and not was_stopped:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif stopped and number == signal.SIGCONT:
            os.kill(child, number)


def _exit_status(status: int, settings: list[Any], reports: int) -> int:
    """Return the exit status of a child that ended; if it ended abruptly, clean up behind it.

    The C library ends a process without a signal if it has no memory for a thread.
    """
    recording, path = _open_recording(reports)
    if os.WIFEXITED(status):
        exit_status = os.WEXITSTATUS(status)
        if exit_status == 0 or not path:
            if exit_status == ENDED_BY_C_LIBRARY:
                _restore_terminal(settings)
            return exit_status
        _restore_terminal(settings)
        what = f"ended with status {exit_status} before it closed its recording"
    else:
        _restore_terminal(settings)
        number = os.WTERMSIG(status)
        exit_status = 128 + number
        if number in ENDING:
            return exit_status
        what = f"was killed by {describe_signal(number)}"
    advice = "it had no recording open; start it again"
    if path:
        import shlex

        advice = (
            f"`gswarm-tui recover {recording} --db {shlex.quote(path)}` resumes its recording, which is "
            "complete up to the last commit, and fetches newer samples from the agents"
        )
    print_notice(f"the program {what}; {advice}")
    return exit_status


def describe_signal(number: int) -> str:
    """Return the name of a signal that a process got."""
    known = number in set(signal.Signals)  # real-time signals have no names
    name = signal.Signals(number).name if known else f"signal {number}"
    return name + (", as happens when memory runs out" if number == signal.SIGKILL else "")


def _restore_terminal(settings: list[Any]) -> None:
    """Leave the child's screen and modes, unless the terminal is used by another program meanwhile."""
    with suppress(OSError):  # it has no terminal of its own, which another program could use
        if os.tcgetpgrp(0) != os.getpgrp():
            return
    with suppress(OSError, termios.error):
        os.write(1, _LEAVE_SCREEN.encode())
        termios.tcsetattr(0, termios.TCSAFLUSH, settings)


def _open_recording(reports: int) -> tuple[str, str]:
    """Return the ID and the file of the recording that the child left open, empty if it left none."""
    os.set_blocking(reports, False)
    with suppress(BlockingIOError):
        *_, recording, path, _end = (b"\0\0" + os.read(reports, 1 << 16)).split(b"\0")
        return os.fsdecode(recording), os.fsdecode(path)
    return "", ""
