"""Frames' numbers as arrays in this catalogue's order, whatever version of the agent sent them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gswarm_agent.block import Block, Layout
from gswarm_agent.frame import Frame
from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS
from gswarm_tui.fleet.blocks import numbers
from gswarm_tui.fleet.history import Floats

ENERGY = GPU_COLUMNS.index("energy_mj")
_MOST = 1e15
"""Nothing measures more; what says so is no answer, and can't overflow a sum or a colour either."""


class Reading(NamedTuple):
    """A frame's numbers, NaN where there was no answer: (GPUs, GPU metrics) and (host metrics,)."""

    gpus: Floats
    host: Floats


def readings(frames: Sequence[Frame]) -> list[Reading]:
    """The numbers of these frames, each in arrays of its own."""
    gpus = _values([frame.gpus for frame in frames], GPU_COLUMNS)
    hosts = _values([frame.host for frame in frames], HOST_COLUMNS)
    return [Reading(of_gpus, of_host[0]) for of_gpus, of_host in zip(gpus, hosts, strict=True)]


def energy_used(before: Floats, after: Floats) -> float:
    """Joules between two readings of the energy counters; a counter that fell counts as nothing."""
    if before.shape != after.shape:
        return 0.0
    counts = zip(before[:, ENERGY].tolist(), after[:, ENERGY].tolist(), strict=True)
    return math.fsum(new - old for old, new in counts if new > old) / 1000


def _values(blocks: Sequence[Block], wanted: tuple[str, ...]) -> list[Floats]:
    """The wanted columns of each block, a row for each of its rows."""
    alike: dict[tuple[Layout, int], list[int]] = {}
    for at, block in enumerate(blocks):
        alike.setdefault((block.layout, block.count), []).append(at)
    found: dict[int, Floats] = {}
    for (layout, count), places in alike.items():
        columns = numbers(layout, count, [blocks[at].data for at in places])
        with np.errstate(invalid="ignore"):  # there are NaN that NumPy warns of, and nodes can send them
            held = np.concatenate((*columns, np.full((1, len(places), count), np.nan)))
            held[~(np.abs(held) <= _MOST)] = np.nan
        tables = held[_places(layout, wanted)].transpose(1, 2, 0)
        # Copies: a node that says nothing more must not keep what all of them said.
        found.update(zip(places, (table.copy() for table in tables), strict=True))
    return [found[at] for at in range(len(blocks))]


@lru_cache
def _places(layout: Layout, wanted: tuple[str, ...]) -> npt.NDArray[np.intp]:
    """Where a block has the wanted columns, -1 where it doesn't; of those of one name the first counts."""
    held = [layout.columns[at] for at in chain(layout.singles, layout.doubles)]
    return np.array([held.index(name) if name in held else -1 for name in wanted], dtype=np.intp)
