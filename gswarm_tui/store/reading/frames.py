"""The frames and events of a recording, read back for a range of time."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

import numpy as np

from gswarm_agent.block import Block, BlockLayout
from gswarm_agent.frame import MAX_GAUGE_MS, TABLES, Frame, NamedRows, Processes
from gswarm_agent.metrics import LISTING_S, ROW_NAMES
from gswarm_tui.fleet.energy import EnergyUsed
from gswarm_tui.fleet.events import (
    INTERVAL_CHANGED,
    METRICS_CHANGED,
    Event,
    FindingChanged,
    FrameArrived,
    IntervalChanged,
    LinkChanged,
    MetricsChanged,
    Phase,
    SessionStarted,
    SessionStopped,
    new_groups,
    new_interval_ms,
)
from gswarm_tui.store.reading.recording_reader import (
    Places,
    RecordingReader,
    TableSlice,
    interval_at,
    introduction,
    link_change,
)
from gswarm_tui.store.sql.schema import PROCESS_KEYS, micros

PROCESSES_US = 10_000_000
"""Processes that weren't listed for this time have ended; agents list them every few seconds."""
LISTINGS_US = round(1.5e6 * LISTING_S)
_FRAME_COLUMNS = (
    "coalesce(seq, 0) AS seq, coalesce(late_ms, 0)::DOUBLE AS late_ms, coalesce(missed, 0) AS missed, "
    f"coalesce(interval_ms, {MAX_GAUGE_MS}) AS gauge_ms"
)
ENERGY_USED = ", ".join(
    f"coalesce(energy_{name}::DOUBLE, 'nan'::DOUBLE) AS {name}" for name in ("used_mj", "used_ms")
)
"""The energy of GPU samples in SQL, NaN for NULL."""


def read_events(reader: RecordingReader, since: float, until: float) -> list[Event]:
    """Return all events after ``since`` up to and including ``until``, in order. Raises StoreError."""
    low, high = micros(since), micros(until)
    events: list[Event] = []
    intervals = reader.intervals(high)
    begun: dict[str, float] = {}
    for machine in reader.machines.values():
        for life in machine.lives:
            if low < life.first_us <= high:
                events += introduction(machine, life, interval_at(intervals, life.first_us))
                begun[machine.name] = life.first_us / 1e6
    if begun:  # an excerpt may lack the events of links that carried its frames
        logged_links = {event.node for event in reader.link_events(high)}
        events += [
            LinkChanged(name, at, Phase.LIVE) for name, at in begun.items() if name not in logged_links
        ]
    for logged in reader.logged_events(low, high):
        if (changed := link_change(logged)) is not None:
            events.append(changed)
        interval_ms = new_interval_ms(logged.detail) if logged.kind == INTERVAL_CHANGED else None
        if interval_ms is not None:
            events.append(IntervalChanged(logged.at, interval_ms))
        groups = new_groups(logged.detail) if logged.kind == METRICS_CHANGED else None
        if groups is not None:
            events.append(MetricsChanged(logged.at, groups))
        events.append(logged)
    for finding in reader.findings():
        # The file has only the last state of a finding, so it is shown from its start on.
        if low < micros(finding.since) <= high:
            events.append(FindingChanged(finding.since, replace(finding, until=None)))
        if finding.until is not None and low < micros(finding.until) <= high:
            events.append(FindingChanged(finding.until, finding))
    for session in reader.sessions():
        started, ended = session["start_us"], session["end_us"]
        session_id = str(session["session_id"])
        if low < started <= high:
            at = started / 1e6
            events.append(SessionStarted(session_id, at, session["name"], at, session["note"] or ""))
        if ended is not None and low < ended <= high:
            events.append(SessionStopped(session_id, ended / 1e6, ended / 1e6))
    events += read_frames(reader, low, high)
    return sorted(events, key=lambda event: event.at)


def locate_gpus(reader: RecordingReader, gpu_ids: Places) -> tuple[Places, Places]:
    """Return the machine of each GPU, -1 if it belongs to another recording, and its position there."""
    width = max([*reader.gpu_positions, int(gpu_ids.max(initial=0))], default=0) + 1
    owner, position = np.full(width, -1, dtype=np.intp), np.zeros(width, dtype=np.intp)
    for gpu_id, (node_id, place) in reader.gpu_positions.items():
        owner[gpu_id], position[gpu_id] = node_id, place
    return owner[gpu_ids], position[gpu_ids]


def read_frames(reader: RecordingReader, low: int, high: int) -> list[FrameArrived]:
    """Return the frames after ``low`` up to ``high`` (microseconds), in order. Raises StoreError."""
    hosts = reader.table_slice("host_samples", f"node_id AS id, {_FRAME_COLUMNS}", low, high)
    known = np.flatnonzero(np.isin(hosts.ids, list(reader.machines)))
    known = known[np.argsort(hosts.us[known], kind="stable")]
    if not len(known):
        return []
    gpus = reader.table_slice("gpu_samples", f"gpu_id AS id, {ENERGY_USED}", low, high)
    machines = [reader.machines[node_id] for node_id in hosts.ids[known].tolist()]
    owner, position = locate_gpus(reader, gpus.ids)
    width = max(int(hosts.ids.max()), int(owner.max(initial=0))) + 1
    ticks, tick = np.unique((hosts.us[known] - low) * width + hosts.ids[known], return_inverse=True)
    counts = np.zeros(len(ticks), dtype=np.intp)
    counts[tick] = [len(machine.gpu_ids) for machine in machines]
    wanted = (gpus.us - low) * width + owner
    nearest = np.minimum(np.searchsorted(ticks, wanted), len(ticks) - 1)
    there = (ticks[nearest] == wanted) & (owner >= 0)
    of_gpus = gpus.blocks(TABLES.gpus, counts, np.where(there, nearest, -1), position)
    energy = np.full((2, len(ticks), counts.max(initial=0)), np.nan)
    for steps, name in zip(energy, ("used_mj", "used_ms"), strict=True):
        steps[nearest[there], position[there]] = gpus.keys(name)[there]
    row = np.full(len(hosts.us), -1)
    row[known] = np.arange(len(known))
    of_hosts = hosts.blocks(TABLES.host, np.ones(len(known), dtype=np.intp), row, np.zeros_like(row))
    looks = processes_by_time(reader, low - PROCESSES_US, high)
    listings = listings_by_time(reader, low, high)
    looked: dict[int, list[int]] = {}
    for node_id, us in sorted(looks):
        looked.setdefault(node_id, []).append(us)
    keys = [hosts.keys(name)[known].tolist() for name in ("seq", "late_ms", "missed", "gauge_ms")]
    arrived = []
    for machine, us, at, host, seq, late_ms, missed, gauge_ms in zip(
        machines, hosts.us[known].tolist(), tick.tolist(), of_hosts, *keys, strict=True
    ):
        life = machine.life_at(us)
        processes = looks.get((machine.node_id, us))
        before = looked.get(machine.node_id, [])
        place = bisect_right(before, us)
        if processes is None and (place == 0 or before[place - 1] <= us - PROCESSES_US):
            processes = Processes.of(TABLES.processes, ())
        frame = Frame(
            # Frames of a recording that was read from elsewhere aren't numbered.
            seq=seq or round((us - life.first_us) / (reader.interval_s * 1e6)) + 1,
            ts_ns=us * 1000,
            late_ms=late_ms,
            missed=missed,
            gpus=of_gpus[at],
            host=host,
            processes=processes,
            gauge_ms=gauge_ms,
            listings=listings.get((machine.node_id, us), {}),
        )
        used = EnergyUsed(*energy[:, at, : counts[at]])
        arrived.append(FrameArrived(machine.name, us / 1e6, us / 1e6, life.name, frame, energy=used))
    return arrived


def processes_by_time(reader: RecordingReader, low: int, high: int) -> dict[tuple[int, int], Processes]:
    """Return the processes by machine id and time. Raises StoreError."""
    found = reader.table_slice("process_samples", f"gpu_id AS id, {', '.join(PROCESS_KEYS)}", low, high)
    owner, position = locate_gpus(reader, found.ids)
    order, looks = _looks(found, owner, TABLES.processes)
    columns = [position[order].tolist(), *(found.keys(name)[order].tolist() for name in PROCESS_KEYS)]
    return {
        key: Processes(tuple(tuple(column[its]) for column in columns), block) for key, its, block in looks
    }


def listings_by_time(
    reader: RecordingReader, low: int, high: int
) -> dict[tuple[int, int], dict[str, NamedRows]]:
    """Return the listings by machine id and time. Raises StoreError."""
    listings: dict[tuple[int, int], dict[str, NamedRows]] = {}
    for kind, name in ROW_NAMES.items():
        found = reader.table_slice(f"{name}_samples", f"node_id AS id, {name}", low, high)
        order, looks = _looks(found, found.ids, TABLES.listings[kind])
        names = found.keys(name)[order].tolist()
        for key, its, block in looks:
            listings.setdefault(key, {})[kind] = NamedRows(tuple(names[its]), block)
    return listings


def _looks(
    found: TableSlice, owner: Places, layout: BlockLayout
) -> tuple[Places, list[tuple[tuple[int, int], slice, Block]]]:
    """Return the order of rows by owner and time, those without an owner left out, and the rows of each.

    Of each owner and time these are its id and the time, its rows in that order, and their numbers.
    """
    order = np.lexsort((found.us, owner))
    order = order[owner[order] >= 0]
    node, us = owner[order], found.us[order]
    begins = np.flatnonzero((np.diff(node, prepend=-1) != 0) | (np.diff(us, prepend=-1) != 0))
    counts = np.diff(begins, append=len(order))
    look, place = np.full(len(owner), -1), np.zeros(len(owner), dtype=np.intp)
    look[order] = np.repeat(np.arange(len(begins)), counts)
    place[order] = np.arange(len(order)) - np.repeat(begins, counts)
    blocks = found.blocks(layout, counts, look, place)
    return order, [
        ((node_id, at), slice(begin, begin + block.count), block)
        for node_id, at, begin, block in zip(
            node[begins].tolist(), us[begins].tolist(), begins.tolist(), blocks, strict=True
        )
    ]
