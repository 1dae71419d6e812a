"""Rows of a block of numbers, decoded one by one: an oracle for what NumPy decodes together."""

from __future__ import annotations

import math
import struct

from gswarm_agent.block import Block, Row


def rows_of(block: Block) -> tuple[Row, ...]:
    """Return the rows of a block, None for missing values."""
    layout, count = block.layout, block.count
    form = f"<{count * len(layout.singles)}f{count * len(layout.doubles)}d"
    numbers = [n if math.isfinite(n) else None for n in struct.unpack(form, block.data)]
    places = layout.singles + layout.doubles
    columns = {at: numbers[begin * count : (begin + 1) * count] for begin, at in enumerate(places)}
    return tuple(tuple(columns[at][row] for at in range(len(layout.columns))) for row in range(count))
