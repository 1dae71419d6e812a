"""Tables that fit the terminal: texts are cut short, and columns without room are left out and named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TextIO

from rich.cells import cell_len, set_cell_size

from gswarm_tui.common.errors import printable

_GAP = "  "
_LEAST_TEXT = 10
"""A text is cut short to no fewer cells than this before a column is left out."""
_LAYOUT_ROWS = 5_000
"""So many rows are looked at for the widths, and no more are held in memory."""


def width_of(out: TextIO) -> int | None:
    """The cells of a line where ``out`` is a terminal; None elsewhere, where lines may be long."""
    if not out.isatty():
        return None
    return shutil.get_terminal_size().columns


def show(
    names: Sequence[str],
    rows: Iterable[Sequence[str]],
    out: TextIO,
    *,
    right: frozenset[int] = frozenset(),
    width: int | None = None,
) -> list[str]:
    """Print rows of texts under their names; columns in ``right`` are numbers, which are never cut.

    ``width`` is the room, by default that of the terminal. Returns the names of the columns left out for want
    of room.
    """
    room = width_of(out) if width is None else width
    coming = iter(rows)
    first = [[printable(cell) for cell in row] for row in islice(coming, _LAYOUT_ROWS)]
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
    out.writelines(line(row) + "\n" for row in chain(first, _clean(coming)))
    return [name for index, name in enumerate(heads) if index not in shown]


def _clean(rows: Iterator[Sequence[str]]) -> Iterator[list[str]]:
    for row in rows:
        yield [printable(cell) for cell in row]


def _fitted(natural: Sequence[int], right: frozenset[int], room: int) -> list[int]:
    """The widths with texts cut short, the longest first, then without the last columns; 0 for those."""
    kept = len(natural)
    while True:
        widths = list(natural[:kept])
        over = sum(widths) + len(_GAP) * (kept - 1) - room
        texts = [index for index in range(kept) if index not in right]
        while over > 0:
            longest = max(texts, key=lambda index: widths[index], default=None)
            if longest is None or widths[longest] <= _LEAST_TEXT:
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
