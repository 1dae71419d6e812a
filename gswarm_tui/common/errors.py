"""Errors that the user can correct, and functions that make text safe to print."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable
from pathlib import Path


class UserError(Exception):
    """Mistake that the user can correct; the message names what failed and what to do.

    The command line prints it to standard error and exits with ``exit_status``, without a traceback.
    """

    exit_status = 2


NO_PROCESS = "you have, or your job has, as many processes and threads as allowed (ulimit -u); end some"


def lacks_processes(error: BaseException) -> bool:
    """Return whether the system refused a new process or thread because of a limit on their number."""
    if isinstance(error, BlockingIOError):
        return error.strerror == os.strerror(errno.EAGAIN)
    return isinstance(error, RuntimeError) and str(error) == "can't start new thread"


def nearest(word: str, choices: Iterable[str], prefix: str = "") -> str:
    """Return ``; perhaps you meant X`` for the choice spelt most alike, with ``prefix``, or an empty text."""
    import difflib  # loaded for typing mistakes only

    close = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f"; perhaps you meant {prefix}{close[0]}" if close else ""


def printable(text: str) -> str:
    """Return ``text`` as one line for a terminal; breaks, escapes and invisible characters are spelt out."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def quote(text: str) -> str:
    """Return ``text`` in double quotes for a message: at most 60 characters, without terminal escapes."""
    shown = text if len(text) <= 60 else text[:59] + "…"
    return f'"{printable(shown)}"'


def print_notice(*lines: str) -> None:
    """Print lines to standard error, with escapes of untrusted text spelt out.

    Nothing is printed any more once the terminal or the reader of a pipe is gone; the program continues.
    """
    try:
        print("gswarm-tui: " + "\n".join(map(printable, lines)), file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (it stays open until the exit)
