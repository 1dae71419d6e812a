"""Values of frames in the order of the catalogue's columns; all frames of a tick are decoded together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gswarm_agent.block import Block
from gswarm_agent.frame import Frame
from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS
from gswarm_tui.fleet.blocks import decode
from gswarm_tui.fleet.history import Floats

ENERGY = GPU_COLUMNS.index("energy_mj")
UTIL = GPU_COLUMNS.index("util_pct")
POWER = GPU_COLUMNS.index("power_w")
REASONS = GPU_COLUMNS.index("clock_reasons")
_SHARES_OF_TIME = [at for at, name in enumerate(GPU_COLUMNS) if name.startswith("throttle_")]
_PRESSURES = [at for at, name in enumerate(HOST_COLUMNS) if name.startswith("psi_")]
"""Drivers and kernels count these late, so a tick may have more than 100 %: sums need that, screens don't."""
_FRAMES_AT_ONCE = 128
"""The arrays of this many frames fit into a processor's cache; more at once take longer."""


class GpuTotals(NamedTuple):
    """Sums of utilisation in % and power in W over some GPUs, and how many GPUs measured each."""

    util: float
    util_count: int
    power: float
    power_count: int


class FrameValues(NamedTuple):
    """A frame's numbers, NaN where not measured: (GPUs, GPU metrics) and (host metrics,).

    The fleet replaces energy counters by the energy used so far.
    """

    gpus: Floats
    host: Floats


def frame_values(frames: Sequence[Frame]) -> Iterator[FrameValues]:
    """Return the numbers of these frames in order, each in arrays of its own."""
    for begin in range(0, len(frames), _FRAMES_AT_ONCE):
        yield from _frame_values(frames[begin : begin + _FRAMES_AT_ONCE])


def _frame_values(frames: Sequence[Frame]) -> list[FrameValues]:
    hosts: dict[int, Floats] = {}
    for positions, columns in _columns([frame.host for frame in frames]):
        columns[_PRESSURES] = np.minimum(columns[_PRESSURES], 100)
        hosts.update(zip(positions, _tables(columns), strict=True))
    values: dict[int, FrameValues] = {}
    for positions, columns in _columns([frame.gpus for frame in frames]):
        columns[_SHARES_OF_TIME] = np.minimum(columns[_SHARES_OF_TIME], 100)
        for at, gpus in zip(positions, _tables(columns), strict=True):
            values[at] = FrameValues(gpus, hosts[at][0])
    return [values[at] for at in range(len(frames))]


def gpu_totals(columns: Floats) -> list[GpuTotals]:
    """Return the sums over the GPUs of each frame; ``columns`` has the shape (GPU metrics, frames, GPUs)."""
    values = columns[[UTIL, POWER]]
    values[1] = as_recorded(values[1].astype(np.float32))  # means equal those of the recording
    measured = np.isfinite(values)
    totals, counts = np.where(measured, values, 0.0).sum(axis=2), measured.sum(axis=2)
    parts = totals[0], counts[0], totals[1], counts[1]
    return [GpuTotals(*one) for one in zip(*(part.tolist() for part in parts), strict=True)]


def as_recorded(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Round to whole numbers, below 100 to one digit after the point, below 10 to two.

    NVML's power is good to 5 %, and a rate no better than its interval: further digits are noise, which
    doesn't compress and would be most of the file.
    """
    size = np.abs(values)
    steps = np.where(size < 100, np.where(size < 10, 100, 10), 1).astype(values.dtype)
    # NaN stands for NULL; numbers too large for their column become NULL there.
    with np.errstate(over="ignore"):
        kept: npt.NDArray[Any] = np.rint(values * steps) / steps
    return kept


def _columns(blocks: Sequence[Block]) -> Iterator[tuple[list[int], Floats]]:
    """Return positions of blocks of one shape with their columns: (columns, blocks, rows)."""
    for decoded in decode(blocks, most_rows=1 << 30):
        columns: Floats = np.concatenate((decoded.singles, decoded.doubles))
        yield decoded.positions, columns[np.argsort(decoded.layout.singles + decoded.layout.doubles)]


def _tables(columns: Floats) -> list[Floats]:
    """Return a table of each block, (rows, columns).

    Copies: a node that falls silent must not keep the arrays of all nodes in memory.
    """
    return [table.copy() for table in columns.transpose(1, 2, 0)]
