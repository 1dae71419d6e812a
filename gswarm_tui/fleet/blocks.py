"""Blocks of many frames as arrays: those that are alike at once, which costs little more than one alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gswarm_agent.block import DOUBLE, SINGLE, Block, BlockLayout
from gswarm_tui.fleet.history import Floats, Singles


def numbers(layout: BlockLayout, count: int, blocks: Sequence[bytes]) -> tuple[Singles, Floats]:
    """The columns of these blocks of ``count`` rows that are held in single and in double precision.

    Shapes (columns, blocks, rows). As they came: NaN is no answer, and so is an infinite number.
    """
    data = np.frombuffer(b"".join(blocks), np.uint8).reshape(len(blocks), layout.row_size * count)
    middle = SINGLE * len(layout.singles) * count
    singles, doubles = (
        planes.reshape(len(blocks), size, columns, count).transpose(2, 0, 3, 1).copy()
        for planes, size, columns in (
            (data[:, :middle], SINGLE, len(layout.singles)),
            (data[:, middle:], DOUBLE, len(layout.doubles)),
        )
    )
    return singles.view("<f4")[..., 0], doubles.view("<f8")[..., 0]


def packed(layout: BlockLayout, singles: Singles, doubles: Floats) -> list[Block]:
    """Blocks of these columns, the other way round than ``numbers``."""
    _, blocks, count = singles.shape
    planes = [
        np.ascontiguousarray(part.transpose(1, 0, 2), dtype=kind)
        .view(np.uint8)
        .reshape(blocks, len(part) * count, size)
        .transpose(0, 2, 1)
        .reshape(blocks, len(part) * count * size)
        for part, kind, size in ((singles, "<f4", SINGLE), (doubles, "<f8", DOUBLE))
    ]
    return [Block(layout, count, data.tobytes()) for data in np.concatenate(planes, axis=1)]
