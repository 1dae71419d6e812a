"""Frames of a recording read back: a stretch of its tables at once, a column at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gswarm_agent.block import Block, BlockLayout
from gswarm_agent.frame import Frame, Processes
from gswarm_agent.metrics import EXACT_COLUMNS
from gswarm_tui.fleet.blocks import packed
from gswarm_tui.fleet.events import FrameArrived

if TYPE_CHECKING:
    from gswarm_tui.store.history.recording_reader import RecordingReader

PROCESSES_US = 10_000_000
"""Processes that weren't seen for so long have ended; nodes look every few seconds."""
_NUMBERED = "coalesce(seq, 0) AS seq, coalesce(late_ms, 0)::DOUBLE AS late_ms, coalesce(missed, 0) AS missed"
_WHO = ("pid", "user_name", "command", "rank", "local_rank")


def owners(play: RecordingReader, gpu_ids: Places) -> tuple[Places, Places]:
    """The machine of each GPU, -1 where it is of another recording, and its position there."""
    width = max([*play.places, int(gpu_ids.max(initial=0))], default=0) + 1
    owner, position = np.full(width, -1, dtype=np.intp), np.zeros(width, dtype=np.intp)
    for gpu_id, (node_id, place) in play.places.items():
        owner[gpu_id], position[gpu_id] = node_id, place
    return owner[gpu_ids], position[gpu_ids]


def frames(play: RecordingReader, low: int, high: int) -> list[FrameArrived]:
    """The frames read after ``low`` up to ``high`` (microseconds), in order. Raises StoreError."""
    hosts = play.stretch("host_samples", f"node_id AS id, {_NUMBERED}", low, high)
    known = np.flatnonzero(np.isin(hosts.ids, list(play.machines)))
    known = known[np.argsort(hosts.us[known], kind="stable")]
    if not len(known):
        return []
    gpus = play.stretch("gpu_samples", "gpu_id AS id", low, high)
    machines = [play.machines[node_id] for node_id in hosts.ids[known].tolist()]
    owner, position = owners(play, gpus.ids)
    width = max(int(hosts.ids.max()), int(owner.max(initial=0))) + 1
    ticks, tick = np.unique((hosts.us[known] - low) * width + hosts.ids[known], return_inverse=True)
    counts = np.zeros(len(ticks), dtype=np.intp)
    counts[tick] = [len(machine.gpu_ids) for machine in machines]
    wanted = (gpus.us - low) * width + owner
    nearest = np.minimum(np.searchsorted(ticks, wanted), len(ticks) - 1)
    there = (ticks[nearest] == wanted) & (owner >= 0)
    of_gpus = gpus.blocks(play.tables.gpus, counts, np.where(there, nearest, -1), position)
    row = np.full(len(hosts.us), -1)
    row[known] = np.arange(len(known))
    of_hosts = hosts.blocks(play.tables.host, np.ones(len(known), dtype=np.intp), row, np.zeros_like(row))
    looked, looks = looked_at(play, low - PROCESSES_US, high), looks_of(play, low, high)
    told = [hosts.told(name)[known].tolist() for name in ("seq", "late_ms", "missed")]
    arrived = []
    for machine, us, at, host, seq, late_ms, missed in zip(
        machines, hosts.us[known].tolist(), tick.tolist(), of_hosts, *told, strict=True
    ):
        life = machine.life_at(us)
        processes = looks.get((machine.node_id, us))
        if processes is None and not _recent(looked.get(machine.node_id, ()), us):
            processes = Processes.of(play.tables.processes, ())
        frame = Frame(
            # Frames of a recording that was read from elsewhere aren't numbered.
            seq=seq or round((us - life.first_us) / (play.interval_s * 1e6)) + 1,
            ts_ns=us * 1000,
            late_ms=late_ms,
            missed=missed,
            gpus=of_gpus[at],
            host=host,
            processes=processes,
        )
        arrived.append(FrameArrived(machine.name, us / 1e6, us / 1e6, life.name, frame))
    return arrived


def looked_at(play: RecordingReader, low: int, high: int) -> dict[int, list[int]]:
    """When each machine was seen to have processes after ``low`` up to ``high``. Raises StoreError."""
    seen: dict[int, list[int]] = {}
    for node_id, us in play.rows(
        "SELECT DISTINCT node_id, epoch_us(ts) AS us FROM process_samples JOIN gpus USING (gpu_id) "
        "WHERE ts > make_timestamp(?) AND ts <= make_timestamp(?) ORDER BY us",
        low,
        high,
    ):
        seen.setdefault(node_id, []).append(us)
    return seen


def looks_of(play: RecordingReader, low: int, high: int) -> dict[tuple[int, int], Processes]:
    """The processes of machines by their id and the time of the look. Raises StoreError."""
    found = play.stretch("process_samples", f"gpu_id AS id, {', '.join(_WHO)}", low, high)
    owner, position = owners(play, found.ids)
    order = np.lexsort((found.us, owner))
    order = order[owner[order] >= 0]
    node, us = owner[order], found.us[order]
    begins = np.flatnonzero((np.diff(node, prepend=-1) != 0) | (np.diff(us, prepend=-1) != 0))
    counts = np.diff(begins, append=len(order))
    look, place = np.full(len(owner), -1), np.zeros(len(owner), dtype=np.intp)
    look[order] = np.repeat(np.arange(len(begins)), counts)
    place[order] = np.arange(len(order)) - np.repeat(begins, counts)
    blocks = found.blocks(play.tables.processes, counts, look, place)
    gpus = position[order].tolist()
    pids, users, commands, ranks, local_ranks = (found.told(name)[order].tolist() for name in _WHO)
    looks = {}
    for node_id, at, begin, block in zip(
        node[begins].tolist(), us[begins].tolist(), begins.tolist(), blocks, strict=True
    ):
        its = slice(begin, begin + block.count)
        looks[node_id, at] = Processes(
            gpus=tuple(gpus[its]),
            pids=tuple(pids[its]),
            users=tuple(users[its]),
            commands=tuple(commands[its]),
            ranks=tuple(ranks[its]),
            local_ranks=tuple(local_ranks[its]),
            numbers=block,
        )
    return looks


def _recent(times: Sequence[int], us: int) -> bool:
    """Whether one of these times, which are in order, lies shortly before this one."""
    place = bisect_right(times, us)
    return place > 0 and times[place - 1] > us - PROCESSES_US


Columns = Mapping[str, npt.NDArray[Any]]
Places = npt.NDArray[np.intp]


class TableSlice:
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

    def blocks(self, layout: BlockLayout, counts: Places, block: Places, position: Places) -> list[Block]:
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
