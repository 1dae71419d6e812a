"""A stretch of time of one table of a recording, by column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gswarm_agent.block import Block, Layout
from gswarm_agent.metrics import EXACT_COLUMNS
from gswarm_tui.fleet.blocks import packed

Columns = Mapping[str, npt.NDArray[Any]]
Places = npt.NDArray[np.intp]


class Stretch:
    """Rows of one table: their times (Unix microseconds), their ids, and numbers, NaN where NULL."""

    def __init__(self, columns: Columns) -> None:
        self.us = columns["us"]
        self.ids = columns["id"]
        self._columns = columns

    def split(self, owners: Places) -> dict[int, Places]:
        """The rows of each owner, in order of time."""
        order = np.lexsort((self.us, owners))
        starts = np.flatnonzero(np.diff(owners[order], prepend=-2))
        parts = np.split(order, starts[1:]) if len(starts) else []
        return {int(owners[part[0]]): part for part in parts}

    def told(self, name: str) -> npt.NDArray[Any]:
        """What a row is told by beside its numbers, masked where NULL."""
        return self._columns[name]

    def numbers(self, column: str, rows: Places) -> npt.NDArray[Any] | None:
        """A column's numbers in these rows, None where the file doesn't have it."""
        found = self._columns.get(column)
        return None if found is None else found[rows]

    def blocks(self, layout: Layout, counts: Places, block: Places, position: Places) -> list[Block]:
        """Blocks of so many rows (``counts``): each row of this goes to a position in a block.

        A row whose block is negative goes nowhere; rows that nothing goes to weren't measured.
        """
        taken = np.flatnonzero(block >= 0)
        block, position = block[taken], position[taken]
        most = int(counts.max(initial=0))
        held = []
        for places, kind in ((layout.singles, "<f4"), (layout.doubles, "<f8")):
            part = np.full((len(places), len(counts), most), np.nan, dtype=kind)
            for at, place in enumerate(places):
                if (numbers := self.numbers(layout.columns[place], taken)) is not None:
                    part[at, block, position] = numbers
            held.append(part)
        made: list[Block | None] = [None] * len(counts)
        for count in np.unique(counts).tolist():
            alike = np.flatnonzero(counts == count)
            singles, doubles = (part[:, alike, :count] for part in held)
            for at, one in zip(alike.tolist(), packed(layout, singles, doubles), strict=True):
                made[at] = one
        return [one for one in made if one is not None]


def nan_for_null(metric: str) -> str:
    """A column that NumPy needs no mask for, as exact as a frame has it."""
    kind = "DOUBLE" if metric in EXACT_COLUMNS else "FLOAT"
    return f"coalesce({metric}::{kind}, 'nan'::{kind}) AS {metric}"
