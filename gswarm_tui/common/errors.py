"""What a person can get wrong, told in one sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterable

REPLACED = (
    "this needs files of gswarm-tui that were replaced or removed since it was started. "
    "All else goes on; quit and start it anew for this"
)


class UserError(Exception):
    """Something that the person can put right; one sentence says what is wrong and what to do.

    The command line prints it on standard error and ends with status 2, without a traceback.
    """


def nearest(word: str, choices: Iterable[str]) -> str:
    """``; perhaps X is meant`` for the choice that is spelt most alike, empty where none is close."""
    import difflib  # only now: a command that is spelt well is quicker

    close = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f"; perhaps {close[0]} is meant" if close else ""


def printable(text: str) -> str:
    """``text`` as one line for a terminal: breaks, escapes and invisible characters are spelt out."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def quote(text: str) -> str:
    """``text`` in double quotes for a message: at most 60 characters, nothing that a terminal would obey."""
    shown = text if len(text) <= 60 else text[:59] + "…"
    return f'"{printable(shown)}"'


def tell(*lines: str) -> None:
    """Say something on standard error that may hold text of files and nodes."""
    print("gswarm-tui: " + "\n".join(map(printable, lines)), file=sys.stderr)
