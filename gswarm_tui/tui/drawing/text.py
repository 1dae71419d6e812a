"""Text from nodes and users: cleaned for the terminal, measured and cut in cells."""

from __future__ import annotations

import unicodedata

from rich.cells import cell_len, chop_cells, set_cell_size

ELLIPSIS = "…"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

# Controls and escapes, format (bidi overrides, zero widths), lone surrogates, private use, unassigned.
_UNPRINTABLE = {"Cc", "Cf", "Cs", "Co", "Cn"}
_SPACES = {"\t", "\n", "\r", "\v", "\f", "\x85", "\u2028", "\u2029"}


def clean(text: str) -> str:
    """Return one line that can't move the cursor, start an escape or change the writing direction.

    Breaks and tabs become spaces, other unprintable characters a replacement character. Square brackets
    stay as they are: nothing that goes through here is read as markup.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        " " if char in _SPACES else REPLACEMENT if unicodedata.category(char) in _UNPRINTABLE else char
        for char in text
    )


def width(text: str) -> int:
    """Return the cells of a clean text."""
    return cell_len(text)


def clip(text: str, cells: int) -> str:
    """Cut a clean text to this many cells, with an ellipsis at its end."""
    if cells <= 0:
        return ""
    if cell_len(text) <= cells:
        return text
    return set_cell_size(text, cells - 1).rstrip() + ELLIPSIS


def clip_left(text: str, cells: int) -> str:
    """Cut the start of a clean text: node names differ in their last digits."""
    if cells <= 0:
        return ""
    if cell_len(text) <= cells:
        return text
    kept = text
    while kept and cell_len(kept) > cells - 1:
        kept = kept[1:]
    return ELLIPSIS + kept


def wrap(text: str, cells: int) -> list[str]:
    """Break a clean text at spaces into lines of at most this many cells; longer words are split."""
    lines: list[str] = []
    for word in text.split():
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= cells:
            lines[-1] += f" {word}"
        else:
            lines += chop_cells(word, cells)
    return lines


def pad(text: str, cells: int, *, right: bool = False) -> str:
    """Cut or pad a clean text to exactly this many cells (padded in front with ``right``)."""
    fitting = clip(text, cells)
    space = " " * (cells - cell_len(fitting))
    return space + fitting if right else fitting + space
