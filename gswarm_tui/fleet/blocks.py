"""Codec between blocks of many frames and NumPy arrays.

The fleet and the recorder each decode every block with ``decode``. Sharing one result would save 0.7 of the
85 ms of CPU that 8,192 GPUs cost in a second, and double the memory of frames that wait for a full disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gswarm_agent.block import DOUBLE, SINGLE, Block, BlockLayout
from gswarm_tui.fleet.history import Floats, Singles


class DecodedBlocks(NamedTuple):
    """Numbers of several blocks with the same layout and row count, in single and in double precision.

    ``positions`` are the blocks' places in the decoded sequence. The arrays have the shape (columns, blocks,
    rows); NaN and infinite numbers mean that the value was not measured.
    """

    positions: list[int]
    layout: BlockLayout
    rows: int
    singles: Singles
    doubles: Floats


def decode(blocks: Sequence[Block], most_rows: int) -> Iterator[DecodedBlocks]:
    """Decode blocks; those with the same layout and row count together, about ``most_rows`` rows at once."""
    alike: dict[tuple[BlockLayout, int], list[int]] = {}
    for position, block in enumerate(blocks):
        alike.setdefault((block.layout, block.count), []).append(position)
    for (layout, count), positions in alike.items():
        step = -(-most_rows // max(1, count))
        for begin in range(0, len(positions), step):
            part = positions[begin : begin + step]
            arrays = numbers(layout, count, [blocks[position].data for position in part])
            yield DecodedBlocks(part, layout, count, *arrays)


def numbers(layout: BlockLayout, count: int, blocks: Sequence[bytes]) -> tuple[Singles, Floats]:
    """Return single- and double-precision columns of blocks of ``count`` rows: (columns, blocks, rows)."""
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
    """Return blocks of these columns, the inverse of ``numbers``."""
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
