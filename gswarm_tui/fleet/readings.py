"""Frames' numbers in this catalogue's order, whatever version of the agent sent them.

What can be said of a frame's numbers alone is said here, for all frames of a tick at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gswarm_agent.block import Block, BlockLayout
from gswarm_agent.frame import Frame
from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS
from gswarm_tui.fleet.blocks import numbers
from gswarm_tui.fleet.history import Floats
from gswarm_tui.fleet.throttling import WATCHED

ENERGY = GPU_COLUMNS.index("energy_mj")
UTIL = GPU_COLUMNS.index("util_pct")
POWER = GPU_COLUMNS.index("power_w")
REASONS = GPU_COLUMNS.index("clock_reasons")
_MOST = 1e15
"""Nothing measures more; what says so is no answer, and can't overflow a sum or a colour either."""
_AT_ONCE = 128
"""What so many frames become fits into a processor's cache; beyond that more at once take longer."""


class Sums(NamedTuple):
    """Utilisation in % and power in W over some GPUs, and how many of these told it."""

    util: float
    util_count: int
    power: float
    power_count: int


class Reading(NamedTuple):
    """A frame's numbers, NaN where there was no answer: (GPUs, GPU metrics) and (host metrics,).

    ``reasons`` is what holds its GPUs' clocks down, as bits of ``WATCHED``; ``silent`` tells whether some
    GPU's energy counter gave no answer.
    """

    gpus: Floats
    host: Floats
    reasons: list[int]
    silent: bool


def readings(frames: Sequence[Frame]) -> Iterator[Reading]:
    """The numbers of these frames, each in arrays of its own."""
    for begin in range(0, len(frames), _AT_ONCE):
        yield from _readings(frames[begin : begin + _AT_ONCE])


def _readings(frames: Sequence[Frame]) -> list[Reading]:
    hosts: dict[int, Floats] = {}
    for places, columns in _alike([frame.host for frame in frames], HOST_COLUMNS):
        hosts.update(zip(places, _tables(columns), strict=True))
    found: dict[int, Reading] = {}
    for places, columns in _alike([frame.gpus for frame in frames], GPU_COLUMNS):
        reasons = (np.nan_to_num(columns[REASONS]).astype(np.int64) & WATCHED).tolist()
        silent = np.isnan(columns[ENERGY]).any(axis=1).tolist()
        for at, gpus, bits, some in zip(places, _tables(columns), reasons, silent, strict=True):
            found[at] = Reading(gpus, hosts[at][0], bits, some)
    return [found[at] for at in range(len(frames))]


def sums(columns: Floats) -> list[Sums]:
    """Over the GPUs of each reading; the shape is (GPU metrics, readings, GPUs)."""
    told = columns[[UTIL, POWER]]
    measured = np.isfinite(told)
    totals, counts = np.where(measured, told, 0.0).sum(axis=2), measured.sum(axis=2)
    parts = totals[0], counts[0], totals[1], counts[1]
    return [Sums(*one) for one in zip(*(part.tolist() for part in parts), strict=True)]


def _alike(blocks: Sequence[Block], wanted: tuple[str, ...]) -> Iterator[tuple[list[int], Floats]]:
    """The wanted columns of blocks that are alike, (columns, blocks, rows), and where these blocks stood."""
    alike: dict[tuple[BlockLayout, int], list[int]] = {}
    for at, block in enumerate(blocks):
        alike.setdefault((block.layout, block.count), []).append(at)
    for (layout, count), places in alike.items():
        columns = numbers(layout, count, [blocks[at].data for at in places])
        with np.errstate(invalid="ignore"):  # there are NaN that NumPy warns of, and nodes can send them
            held = np.concatenate((*columns, np.full((1, len(places), count), np.nan)))
            held[~(np.abs(held) <= _MOST)] = np.nan
        yield places, held[_places(layout, wanted)]


def _tables(columns: Floats) -> list[Floats]:
    """A table of each block, (rows, columns).

    Copies: a node that says nothing more must not keep what all of them said.
    """
    return [table.copy() for table in columns.transpose(1, 2, 0)]


@lru_cache
def _places(layout: BlockLayout, wanted: tuple[str, ...]) -> npt.NDArray[np.intp]:
    """Where a block has the wanted columns, -1 where it doesn't; of those of one name the first counts."""
    held = [layout.columns[at] for at in chain(layout.singles, layout.doubles)]
    return np.array([held.index(name) if name in held else -1 for name in wanted], dtype=np.intp)
