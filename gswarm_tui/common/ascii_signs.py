"""ASCII in the place of each sign that this program prints, for locales that aren't UTF-8."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping
from typing import TextIO

ASCII_SIGNS = "gswarm-ascii-signs"
"""Error handler of encodings, once ``register_ascii_signs`` was called."""

IUTF8 = 0o40000
"""Linux's flag of terminals whose input is UTF-8; Python's termios doesn't name it."""
_SIGNS = {
    **dict.fromkeys("–—−─╌", "-"),
    **dict.fromkeys("━═", "="),
    **dict.fromkeys("│┃║┊╎╵╷", "|"),
    **dict.fromkeys("╭╮╰╯┌┐└┘├┤┬┴┼", "+"),
    **dict.fromkeys("‘’", "'"),
    **dict.fromkeys("“”", '"'),
    # The letters move as the arrow keys do.
    **dict(zip("←↓↑→", "hjkl", strict=True)),
    **dict(zip("▁▂▃▄▅▆▇█", "__.-=+*#", strict=True)),
    **dict(zip("▏▎▍▌▋▊▉▐", "||||####", strict=True)),
    **dict(zip("▀▔░▒▓", '""-=#', strict=True)),
    **dict(zip("●○◆▲╳■≈‼▸►‖‹›", "@o+!X#~U>>|<>", strict=True)),
    **dict(zip("·…×°±⏎", ".~xo~=", strict=True)),  # screens name ⏎: enter_sign
    "\N{REPLACEMENT CHARACTER}": "?",
}
_BRAILLE, _UPPER_DOTS = 0x2800, 0b00011011


def ascii_sign(char: str, cells: int) -> str:
    """Return ASCII for a character, in as many cells: its sign, its letter without accents, or "?"."""
    if sign := _SIGNS.get(char):
        return sign * cells
    if 0 <= (dots := ord(char) - _BRAILLE) <= 0xFF:
        upper, lower = dots & _UPPER_DOTS, dots & ~_UPPER_DOTS
        return (":" if upper and lower else "'" if upper else "." if lower else " ") * cells
    import unicodedata  # late: only where the locale isn't UTF-8

    letters = unicodedata.normalize("NFKD", char).encode("ascii", "ignore").decode()
    return letters if len(letters) == cells and letters.isprintable() else "?" * cells


def register_ascii_signs(cells_of: Callable[[str], int]) -> None:
    """Register the error handler; ``cells_of`` returns how many cells a character takes."""

    def replace(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        text = error.object[error.start : error.end]
        return "".join(ascii_sign(char, cells_of(char)) for char in text), error.end

    codecs.register_error(ASCII_SIGNS, replace)


def cells_of(char: str) -> int:
    """Return the cells that a terminal gives to a character, without a library's tables."""
    import unicodedata

    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def terminal_takes_utf8(file: TextIO, environ: Mapping[str, str]) -> bool:
    """Return whether a terminal shows UTF-8: by the locale, in C and POSIX by the terminal's own setting.

    In these two Python assumes UTF-8. Terminals in UTF-8 set IUTF8, and OpenSSH and tmux pass it on.
    """
    if not is_utf8(file.encoding) or environ.get("LC_ALL") not in ("C", "POSIX"):
        return is_utf8(file.encoding)
    import termios

    return bool(termios.tcgetattr(file.fileno())[0] & IUTF8)


def enter_sign(file: TextIO | None, environ: Mapping[str, str]) -> str:
    """Return the sign of the Enter key, or its name on a terminal that isn't known to show the sign."""
    shows_sign = file is None or not file.isatty() or terminal_takes_utf8(file, environ)
    return "⏎" if shows_sign else "Enter"


def is_utf8(encoding: str) -> bool:
    """Return whether an encoding is UTF-8, by any of its names."""
    return codecs.lookup(encoding).name == "utf-8"
