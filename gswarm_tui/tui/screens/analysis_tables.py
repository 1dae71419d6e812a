"""Shows tables and text of an analysis on the screen; names in them are cleaned."""

from __future__ import annotations

from collections.abc import Iterable

from gswarm_tui.analysis import summary_text
from gswarm_tui.common.quantities import DASH
from gswarm_tui.tui.drawing.spans import Span, Spans
from gswarm_tui.tui.drawing.text import clean, width, wrap
from gswarm_tui.tui.widgets.table import Row, TableColumn, TableView

WIDEST = 40
SPARE_MOST = 2
"""Extra cells between numbers where they fit."""
LABELS = 16
"""Cells of the labels."""


def show_table(table: TableView, made: summary_text.TextTable) -> None:
    """Show a table of an analysis; the cursor stays if only numbers changed."""
    texts = [[clean(cell) for cell in row] for row in made.rows]
    widths = [
        min(WIDEST, max([width(clean(name)), 1, *(width(row[at]) for row in texts)]))
        for at, name in enumerate(made.names)
    ]
    last = len(made.names) - 1
    cells = table.size.width or table.screen.size.width  # a table that was hidden so far has no size yet
    spare = max(0, min(SPARE_MOST, (cells - 2 - sum(widths)) // len(widths) - 1))
    columns = tuple(
        TableColumn(
            clean(name),
            widths[at] + (spare if at in made.right else 0),
            left=at not in made.right,
            frozen=at == 0,
            grows=at == last and at not in made.right,
        )
        for at, name in enumerate(made.names)
    )
    rows: list[Row] = [tuple(Span(cell, "dim" if cell == DASH else "text") for cell in row) for row in texts]
    table.show_columns(columns, rows)


def labelled(lines: Iterable[summary_text.LabelledLine], cells: int) -> list[Spans]:
    """Return labels with their text, wrapped to the width."""
    shown: list[Spans] = []
    for label, words in lines:
        parts = wrap(clean(words), max(20, cells - LABELS - 2)) or [""]
        for at, part in enumerate(parts):
            shown.append((Span(f" {clean(label) if at == 0 else '':<{LABELS}}", "dim"), Span(part)))
    return shown


def wrapped(words: str, cells: int, role: str = "text") -> list[Spans]:
    """Wrap a sentence to the width."""
    return [(Span(f" {line}", role),) for line in wrap(clean(words), max(20, cells - 2))]
