"""Tables that fit the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text


def show(
    names: Sequence[str], rows: Iterable[Sequence[str]], out: TextIO, *, right: frozenset[int] = frozenset()
) -> None:
    """Print rows of texts under their names; columns in ``right`` are numbers and end at the right."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for index, name in enumerate(names):
        table.add_column(
            Text(name), justify="right" if index in right else "left", no_wrap=True, overflow="ellipsis"
        )
    for row in rows:
        table.add_row(*map(Text, row))
    Console(file=out, highlight=False, markup=False, emoji=False).print(table)
