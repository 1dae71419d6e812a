"""Export of a session to the JSON format that gswarm-profiler documents, for its users' scripts.

Fields and units follow the README of gswarm-profiler, "Output Format": percent as 0-100, bandwidths in GB/s
(10**9 bytes) over PCIe (``dram_bandwidth``; rx is what the GPU received) and over NVLink (``gpu_bandwidth``).
Its program writes other values (``json_import``), and as ``gpu_bandwidth`` the capacity of pairs.

Its plot script takes ``float(frame[field][i])`` for the GPUs of the first frame and reads a missing field as
zeros. So every frame has all GPUs of the session in the same order, an unmeasured value is the text "NaN",
which ``float`` reads and JSON allows, and a field that was never measured is left out unless its ``analyze``
needs it.

Added are ``gpu_bandwidth_rx`` and ``gpu_bandwidth_tx``, the time that each value covers (``interval_ms``), by
which means are weighted, ``made_by`` and ``session``. Times are in UTC.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from typing import Any, TextIO

from gswarm_agent import __version__
from gswarm_tui.analysis.periods import Period
from gswarm_tui.exchange.time_windows import iso, sample_in, sample_span, utc_micros, windows
from gswarm_tui.store.figures.definitions import MINE, inside_us
from gswarm_tui.store.querying.results import QuerySource

MADE_BY = "gswarm-tui"
ABSENT = "NaN"
FIELDS = (
    "gpu_util", "gpu_memory", "dram_bandwidth", "dram_bandwidth_rx", "dram_bandwidth_tx",
    "gpu_bandwidth", "gpu_bandwidth_rx", "gpu_bandwidth_tx", "interval_ms",
)  # fmt: skip
ALWAYS = (*FIELDS[:3], "interval_ms")
"""Fields that are always written; gswarm-profiler's ``analyze`` needs the first three."""

# One place for each GPU name: a node that rebooted has new rows for the same GPUs.
_PLACES = """
SELECT dense_rank() OVER (ORDER BY first_node, node, gpu_index, name) - 1 AS place, *
FROM (SELECT g.*, n.node, min(node_id) OVER (PARTITION BY n.node) AS first_node FROM gpus g
      JOIN nodes n USING (node_id) WHERE recording_id = {recording} AND {own} AND g.parent_index IS NULL)
"""

# Means are those of summaries: a sample counts by the part of its interval in the session.
_DEVICES = """
WITH places AS ({places}), inside AS (
  SELECT s.*, {inside_us} AS us
  FROM gpu_samples s
  WHERE ts >= make_timestamp({since}) AND ts < make_timestamp({until}) AND {inside}
)
SELECT place, arg_max(node, gpu_id) AS node, arg_max(gpu_index, gpu_id) AS gpu_index,
       arg_max(name, gpu_id) AS name,
       sum(util_pct::DOUBLE * us) / nullif(sum(us) FILTER (util_pct IS NOT NULL), 0) AS avg_gpu_util,
       100 * sum(mem_used_mib::DOUBLE * us) / nullif(sum(us) FILTER (mem_used_mib IS NOT NULL), 0)
         / nullif(max(memory_total_mib), 0) AS avg_gpu_memory,
       count(*) AS samples,
       count(pcie_rx_mb_s) + count(pcie_tx_mb_s) AS pcie,
       count(nvlink_rx_mb_s) + count(nvlink_tx_mb_s) AS nvlink
FROM inside JOIN places USING (gpu_id)
GROUP BY place
ORDER BY place
"""

# Deadlines are multiples of the recording's first interval; a frame holds the samples nearest to one of them.
# A GPU's second sample there, at a shorter interval, makes another frame.
_FRAMES = """
WITH places AS ({places}), near AS (
  SELECT ts, place, interval_ms, util_pct,
         round(100.0 * mem_used_mib / nullif(memory_total_mib, 0), 4) AS memory,
         round(pcie_rx_mb_s::DOUBLE / 1000, 6) AS pcie_rx, round(pcie_tx_mb_s::DOUBLE / 1000, 6) AS pcie_tx,
         round(nvlink_rx_mb_s::DOUBLE / 1000, 6) AS nvlink_rx,
         round(nvlink_tx_mb_s::DOUBLE / 1000, 6) AS nvlink_tx,
         (epoch_us(ts) + {interval} // 2) // {interval} AS deadline
  FROM gpu_samples s JOIN places USING (gpu_id)
  WHERE ts >= make_timestamp({since}) AND ts < make_timestamp({until}) AND {inside}
), numbered AS (
  SELECT *, row_number() OVER (PARTITION BY deadline, place ORDER BY ts) AS reading FROM near
)
SELECT min(ts), list(place ORDER BY place),
       list(util_pct ORDER BY place), list(memory ORDER BY place),
       list(round(pcie_rx + pcie_tx, 6) ORDER BY place),
       list(pcie_rx ORDER BY place), list(pcie_tx ORDER BY place),
       list(round(nvlink_rx + nvlink_tx, 6) ORDER BY place),
       list(nvlink_rx ORDER BY place), list(nvlink_tx ORDER BY place), list(interval_ms ORDER BY place)
FROM numbered
GROUP BY deadline, reading
ORDER BY deadline, reading
"""


def write_json(
    source: QuerySource,
    period: Period,
    out: TextIO,
    report: Callable[[float], None],
    *,
    all_gpus: bool = False,
) -> tuple[int, int]:
    """Write a session frame by frame; return the numbers of samples and GPUs. Raises StoreError, OSError.

    ``report`` gets the share done. GPUs that Slurm gave to others are left out without ``all_gpus``.
    """
    begin, end = sample_span(period)
    inside = sample_in(period, "s.interval_ms")
    own = "true" if all_gpus else f"g.{MINE}"
    places = _PLACES.format(recording=period.recording_id, own=own)
    last = utc_micros(period.until)
    part = inside_us(str(utc_micros(period.started_at)), str(last))
    query = _DEVICES.format(places=places, inside=inside, inside_us=part, since=begin, until=end)
    devices = source.query(query).dicts()
    names = [f"{d['node']}:{d['gpu_index']}:{d['name']}" for d in devices]
    fields = _fields(devices)
    recorded = source.query("SELECT interval_ms FROM recordings WHERE recording_id = ?", period.recording_id)
    interval = (recorded.rows()[0][0] or 1000) * 1000
    head = _head(period, devices, names)
    out.write("{\n")
    out.writelines(f" {json.dumps(name)}: {json.dumps(v, ensure_ascii=False)},\n" for name, v in head.items())
    out.write(' "frames": [')
    number = 0

    rows = f"FROM gpu_samples s JOIN ({places}) USING (gpu_id) WHERE {inside}"
    for since, until in windows(
        source, rows, (begin, end), interval=interval, devices=len(devices), report=report
    ):
        query = _FRAMES.format(places=places, interval=interval, since=since, until=until, inside=inside)
        for at, measured, *values in chain.from_iterable(source.query(query).batches):
            number += 1
            frame: dict[str, Any] = {"frame_id": number, "time": iso(at), "gpu_id": names}
            for index, name in fields:
                found = dict(zip(measured, values[index], strict=True))
                of_gpus = (found.get(device["place"]) for device in devices)
                frame[name] = [ABSENT if value is None else value for value in of_gpus]
            out.write(",\n  " if number > 1 else "\n  ")
            out.write(json.dumps(frame, ensure_ascii=False, separators=(",", ":")))
    out.write("\n ]\n}\n")
    return sum(device["samples"] for device in devices), len(devices)


def _fields(devices: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """Return the fields to be written, each with its place in ``FIELDS``."""
    pcie, nvlink = any(one["pcie"] for one in devices), any(one["nvlink"] for one in devices)
    return [
        (index, name)
        for index, name in enumerate(FIELDS)
        if name in ALWAYS or (pcie if name.startswith("dram") else nvlink)
    ]


def _head(period: Period, devices: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """Return the members that precede the frames."""
    summary = ("avg_gpu_util", "avg_gpu_memory")
    return {
        "session_name": period.name,
        "start_time": iso(period.started_at),
        "end_time": iso(period.until),
        "made_by": f"{MADE_BY} {__version__}",
        "session": {"status": period.status, "note": period.note} if period.session_id is not None else None,
        "summary_by_device": {
            name: {key: round(device[key], 4) for key in summary if device[key] is not None}
            for name, device in zip(names, devices, strict=True)
        },
    }
