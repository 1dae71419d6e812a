"""Tables that fit the terminal: texts are cut short, and the last columns and rows are hidden if needed."""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import TextIO

from rich.cells import cell_len, set_cell_size

from gswarm_tui.common.errors import printable
from gswarm_tui.common.quantities import plural

_GAP = "  "
_MIN_TEXT_CELLS = 10
"""Minimum cells of a cut text before a column is hidden."""
_LAYOUT_ROWS = 5_000
"""Number of first rows from which the column widths are computed."""
_COUNTED_ROWS = 1_000_000
"""Hidden rows are counted up to this number."""


def width_of(out: TextIO) -> int | None:
    """Return the width of a terminal; None if ``out`` isn't a terminal."""
    if not out.isatty():
        return None
    return shutil.get_terminal_size().columns


def show(
    names: Sequence[str],
    rows: Iterable[Sequence[str]],
    out: TextIO,
    *,
    right: frozenset[int] = frozenset(),
    every: bool = True,
    width: int | None = None,
) -> None:
    """Print rows of text under their names; columns in ``right`` are numbers, which are never cut.

    Unless ``every``, a terminal gets about two screens of rows. ``width`` is used instead of the terminal's.
    """
    room = width or width_of(out)
    most = None if every or room is None else max(20, 2 * shutil.get_terminal_size().lines)
    more = iter(rows)
    coming = ([printable(cell) for cell in row] for row in islice(more, most))
    first = list(islice(coming, _LAYOUT_ROWS))
    heads = [printable(name) for name in names]
    natural = [max(map(cell_len, cells)) for cells in zip(heads, *first, strict=True)]
    widths = natural if room is None else _fitted(natural, right, room)
    shown = [index for index, cells in enumerate(widths) if cells]
    bold, usual = ("\x1b[1m", "\x1b[0m") if out.isatty() and not os.environ.get("NO_COLOR") else ("", "")
    uncut = right if room is not None else frozenset(shown)

    def line(cells: Sequence[str]) -> str:
        return _GAP.join(_cell(cells[i], widths[i], i in right, i in uncut) for i in shown).rstrip()

    out.write(bold + line(heads) + usual + "\n")
    out.write("─" * (sum(widths[i] for i in shown) + len(_GAP) * (len(shown) - 1)) + "\n")
    out.writelines(line(row) + "\n" for row in chain(first, coming))
    if left := sum(1 for _ in islice(more, _COUNTED_ROWS)):
        at_least = "at least " if left == _COUNTED_ROWS else ""
        out.write(f"… {at_least}{plural(left, 'more row')}; --all shows them\n")
    if hidden := [name for index, name in enumerate(heads) if index not in shown]:
        why = f"more than {width} columns" if width else "terminal too narrow"
        text = f"Hidden ({why}): {', '.join(hidden)}"
        out.write(textwrap.fill(text, room or 120, break_on_hyphens=False) + "\n")


def _fitted(natural: Sequence[int], right: frozenset[int], room: int) -> list[int]:
    """Return the widths: cut texts, the longest first, then hide the last columns (width 0)."""
    kept = len(natural)
    while True:
        widths = list(natural[:kept])
        over = sum(widths) + len(_GAP) * (kept - 1) - room
        texts = [index for index in range(kept) if index not in right]
        while over > 0:
            longest = max(texts, key=lambda index: widths[index], default=None)
            if longest is None or widths[longest] <= _MIN_TEXT_CELLS:
                break
            widths[longest] -= 1
            over -= 1
        if over <= 0 or kept == 1:
            return [*(min(each, room) for each in widths), *[0] * (len(natural) - kept)]
        kept -= 1


def _cell(text: str, width: int, right: bool, uncut: bool) -> str:
    cells = cell_len(text)
    if cells > width and not uncut:
        return set_cell_size(text, width - 1) + "…"
    return " " * (width - cells) + text if right else text + " " * (width - cells)


def print_labelled(lines: Iterable[Sequence[str]], out: TextIO, width: int | None = None) -> None:
    """Write labelled lines; long ones wrap at spaces that don't stand between a number and its unit."""
    listed = list(lines)
    labels = max((len(label) for label, _ in listed), default=0) + 2
    room = max(40, (width or width_of(out) or 120) - labels)
    for label, words in listed:
        parts = re.sub(r"(?<=\d) (?=[%°A-Za-zµ])", "\0", printable(words))
        filled = textwrap.fill(parts, room, break_on_hyphens=False)
        text = textwrap.indent(filled, " " * labels).replace("\0", " ")
        out.write(label + text[len(label) :] + "\n")
