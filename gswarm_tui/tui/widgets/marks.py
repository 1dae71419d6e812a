"""Marks in plots: a thin line where the curve leaves room, and the name where it has room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from gswarm_tui.fleet.events import Happened
from gswarm_tui.tui.text import clean, clip
from gswarm_tui.tui.widgets.bar import Span
from gswarm_tui.tui.widgets.curve import Window
from gswarm_tui.tui.widgets.lines import Spans

LINE = "┊"
NAME_LONGEST = 16


class Mark(NamedTuple):
    """A mark ``at`` a part of the plotted time, from 0 to below 1."""

    at: float
    name: str


def marks_in(happened: Iterable[Happened], frame: Window) -> list[Mark]:
    """The marks of a window, oldest first."""
    length = frame.end - frame.start
    return sorted(
        Mark((one.at - frame.start) / length, clean(one.message))
        for one in happened
        if one.kind == "mark" and frame.start <= one.at < frame.end
    )


def overlay(
    lines: Sequence[Spans], marks: Sequence[Mark], first: int, columns: int, *, titled: bool = True
) -> list[Spans]:
    """Lines of a plot with marks in the ``columns`` that begin at cell ``first``, names by its title.

    Only blanks are drawn over. All cells up to the last column hold characters of one cell.
    """
    if not marks:
        return list(lines)
    places = [(first + int(mark.at * columns), mark.name) for mark in marks]
    cells = [[(char, span.role) for span in line for char in span.text] for line in lines]
    for row in cells[titled:]:
        for place, _ in places:
            if place < len(row) and row[place][0] == " ":
                row[place] = (LINE, "dim")
    for place, name in reversed(places):
        for row in cells[: 2 * titled]:
            if _write(row, place + (row is not cells[0]), clip(name, NAME_LONGEST), first + columns):
                break
    return [_spans(row) for row in cells]


def _write(row: list[tuple[str, str]], at: int, text: str, end: int) -> bool:
    """Write where it and a cell on both sides are blank; whether there was room."""
    if not text.isascii() or at + len(text) > min(end, len(row)):
        return False
    around = row[max(0, at - 1) : at + len(text) + 1]
    if any(char not in (" ", LINE) for char, _ in around[:1]) or any(char != " " for char, _ in around[1:]):
        return False
    row[at : at + len(text)] = [(char, "dim") for char in text]
    return True


def _spans(row: list[tuple[str, str]]) -> Spans:
    return tuple(
        Span("".join(char for char, _ in cells), role) for role, cells in groupby(row, key=itemgetter(1))
    )
