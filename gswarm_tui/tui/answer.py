"""An answer of the recording as a table for the screen. What comes from the file is text, never markup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gswarm_tui.analysis.desk import Found
from gswarm_tui.printing.cells import NOTHING, is_number, writer
from gswarm_tui.tui.text import clean, width
from gswarm_tui.tui.widgets.bar import Span
from gswarm_tui.tui.widgets.table import Column, Row

WIDEST = 40
"""Cells of a text column; a row is shown whole on Enter."""
SAMPLED = 1_000
"""So many values decide how many digits the numbers of a column have."""


@dataclass(frozen=True)
class Laid:
    """Columns and rows as a table shows them, and how many rows there are, None if nobody counted."""

    columns: tuple[Column, ...]
    rows: list[Row]
    total: int | None
    seconds: float


def lay_out(found: Found) -> Laid:
    """Make text of an answer; for large ones this takes a while."""
    texts = [_column(kind, [row[at] for row in found.rows]) for at, kind in enumerate(found.types)]
    last = len(found.names) - 1
    columns = tuple(
        Column(
            clean(name),
            _cells(name, texts[at], number=is_number(kind)),
            "UTC" if kind.startswith("TIMESTAMP") else "",
            left=not is_number(kind),
            grows=at == last and not is_number(kind),
        )
        for at, (name, kind) in enumerate(zip(found.names, found.types, strict=True))
    )
    return Laid(columns, list(zip(*texts, strict=True)), found.total, found.seconds)


def _column(kind: str, values: Sequence[Any]) -> list[Span]:
    shown = writer(kind, values[:SAMPLED])
    return [Span(NOTHING, "dim") if value is None else Span(shown(value)) for value in values]


def _cells(name: str, spans: Sequence[Span], *, number: bool) -> int:
    widest = max(width(clean(name)), *(width(span.text) for span in spans), 1)
    return widest if number else min(widest, max(WIDEST, width(clean(name))))
