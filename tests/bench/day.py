"""Commands on a generated recording: a day of many GPUs with phases, dips, gaps, throttling, processes."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from gswarm_agent.metrics import REASON_POWER_CAP, REASON_SW_THERMAL
from gswarm_tui.store.recording.batch import Columns
from gswarm_tui.store.recording.database import Database, RecordingInfo
from gswarm_tui.store.recording.minutes import add_all_sums
from gswarm_tui.store.sql.schema import (
    GPU_SAMPLES,
    GPUS,
    HOST_SAMPLES,
    NODES,
    PROCESS_SAMPLES,
    SESSIONS,
    TableSchema,
)
from tests.bench.figures import BenchOptions, Figure
from tests.bench.processes import PROGRAM

BEGAN = datetime(2026, 3, 2, tzinfo=UTC).timestamp()
_TICKS_AT_ONCE = 2_000
_PROCESSES_EVERY = 5
_ENERGY_EVERY = 10
_VERSION = 6  # changes with what is made, so that a kept file of another kind isn't taken


@dataclass(frozen=True)
class Size:
    """Size of a recording at 1 Hz."""

    nodes: int = 8
    gpus: int = 8
    seconds: int = 86_400

    @property
    def samples(self) -> int:
        """The number of GPU samples."""
        return self.nodes * self.gpus * self.seconds


_STARTER = """
import json, os, subprocess, sys, time
began = time.monotonic()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), time.monotonic() - began, used.ru_maxrss / 1024]))
"""


def run(options: BenchOptions) -> Iterator[Figure]:
    """Measure time and memory of commands on a day of 64 GPUs, and the plot of an hour of 512."""
    day = kept(Size(seconds=options.count(86_400, 600)))
    hour = kept(Size(nodes=options.count(64, 4), seconds=options.count(3600, 60)))
    runs, scanned = options.count(3, 1), _scan(day)
    for what, path, words, goal in (
        ("summary of a day of 64 GPUs", day, ("summary", "day"), 1.0),
        ("compare the day with six hours of it", day, ("compare", "day", "morning"), None),
        ("plot of an hour of 512 GPUs", hour, ("plot", "day", "--force", "-o", "hour.pdf"), 5.0),
        ("report of a day of 64 GPUs", day, ("report", "day", "--force", "-o", "day.html"), None),
        ("export of a day of 64 GPUs", day, ("export", "day", "--force", "-o", "day.parquet"), 10.0),
    ):
        results = [_command([*words, "--db", str(path)], options.folder) for _ in range(runs)]
        wall_s = statistics.median(took_s for took_s, _ in results)
        yield Figure(f"{what}, the whole command", wall_s, "s", goal, limit="one scan", beside=scanned)
        yield Figure("  its memory", max(peak_mib for _, peak_mib in results), "MiB")


def _command(words: list[str], folder: Path) -> tuple[float, float]:
    """Return wall time [s] and peak memory [MiB] of ``gswarm-tui`` with these arguments.

    A process counts what its starter had in memory as its own, so a small one starts it.
    """
    starter = [sys.executable, "-S", "-c", _STARTER, *PROGRAM, *words]
    done = subprocess.run(starter, stdout=subprocess.PIPE, text=True, check=True, cwd=folder)
    status, took_s, peak_mib = json.loads(done.stdout)
    if status:
        raise subprocess.CalledProcessError(status, words)
    return took_s, peak_mib


def _scan(path: Path) -> float:
    """Return the time DuckDB takes to read the columns once and aggregate them by GPU."""
    with duckdb.connect(str(path), read_only=True, config={"threads": 2}) as connection:
        began = time.monotonic()
        connection.execute(
            "SELECT gpu_id, max(ts), sum(interval_ms), sum(util_pct), sum(power_w), max(mem_used_mib), "
            "max(energy_mj), max(clock_reasons) FROM gpu_samples GROUP BY gpu_id"
        ).fetchall()
        return time.monotonic() - began


def kept(size: Size) -> Path:
    """Return the recording's path; it is generated once and kept in the folder for temporary files."""
    name = f"gswarm-bench-{_VERSION}-{size.nodes}x{size.gpus}x{size.seconds}.duckdb"
    path = Path(tempfile.gettempdir()) / name
    if not path.exists():
        made = path.with_suffix(".part")
        for left in (made, made.with_name(made.name + ".wal")):
            left.unlink(missing_ok=True)
        make(made, size)
        made.rename(path)
    return path


def make(path: Path, size: Size, seed: int = 1) -> None:
    """Write one recording with the sessions ``minute``, ``morning`` and ``day``, which is the newest."""
    random = np.random.default_rng(seed)
    database = Database(path)
    recording = database.begin_recording(
        RecordingInfo(BEGAN, "login1", "ada", "gswarm-tui", 1000, "0.1.0", slurm_job_id="4711")
    )
    database.write(_things(recording, size))
    energy = np.zeros((_ENERGY_EVERY, size.nodes * size.gpus))
    for first in range(0, size.seconds, _TICKS_AT_ONCE):
        ticks = np.arange(first, min(first + _TICKS_AT_ONCE, size.seconds))
        database.write(_samples(ticks, size, energy, random))
        database.checkpoint()
    database.end_recording(recording, BEGAN + size.seconds)
    database.checkpoint()
    database.close()
    with duckdb.connect(str(path), config={"threads": 2}) as connection:
        add_all_sums(connection)


def _things(recording: int, size: Size) -> list[tuple[TableSchema, Columns]]:
    nodes, gpus = np.arange(1, size.nodes + 1), np.arange(1, size.nodes * size.gpus + 1)
    names = np.array([f"gpu{node:02d}" for node in nodes], dtype=object)
    started = _times(np.array([0, size.seconds // 4, size.seconds // 2]))
    lengths = np.array([size.seconds, size.seconds // 4, 60])
    return [
        (
            NODES,
            {
                "node_id": nodes,
                "recording_id": np.full(size.nodes, recording),
                "node": names,
                "hostname": names,
                "memory_total_mib": np.full(size.nodes, 2_000_000),
            },
        ),
        (
            GPUS,
            {
                "gpu_id": gpus,
                "node_id": (gpus - 1) // size.gpus + 1,
                "gpu_index": (gpus - 1) % size.gpus,
                "uuid": np.array([f"GPU-{gpu}" for gpu in gpus], dtype=object),
                "name": np.full(len(gpus), "NVIDIA H100 80GB HBM3", dtype=object),
                "memory_total_mib": np.full(len(gpus), 81_559),
                "power_limit_w": np.full(len(gpus), 700.0),
            },
        ),
        (
            SESSIONS,
            {
                "session_id": np.array([1, 2, 3]),
                "recording_id": np.full(3, recording),
                "name": np.array(["minute", "morning", "day"], dtype=object),
                "started_at": started[[2, 1, 0]],
                "ended_at": (started + lengths.astype("timedelta64[s]"))[[2, 1, 0]],
                "status": np.full(3, "stopped", dtype=object),
            },
        ),
    ]


def _times(seconds: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.datetime64(int(BEGAN * 1e6), "us") + (seconds * 1e6).astype("timedelta64[us]")


def _samples(
    ticks: npt.NDArray[Any],
    size: Size,
    energy: npt.NDArray[Any],
    random: np.random.Generator,
) -> list[tuple[TableSchema, Columns]]:
    """Return samples of all nodes in the recorder's order; ``energy`` (mJ) of the last ticks is continued."""
    gpus = size.nodes * size.gpus
    gpu, at = np.arange(1, gpus + 1), ticks[:, None] + random.normal(0, 0.002, (len(ticks), size.nodes))
    shape = (len(ticks), gpus)
    busy = (ticks % 300 >= 20)[:, None] & (random.random(shape) > 0.01)  # checkpoints, and stalls of a second
    util = np.where(busy, random.normal(93, 5, shape), random.integers(0, 15, shape)).clip(0, 100).round()
    power = np.where(busy, random.normal(620, 30, shape), random.normal(110, 5, shape)).clip(60, 700).round(2)
    counters = np.concatenate((energy, (energy[-1] + np.cumsum(power * 1000, axis=0)).round()))
    energy[:] = counters[-_ENERGY_EVERY:]
    read = np.broadcast_to((ticks % _ENERGY_EVERY == 0)[:, None], shape)
    grown = np.where(read & (ticks > 0)[:, None], 1.0, np.nan)
    capped = busy & (power > 660)
    flat = {
        "ts": np.repeat(_times(at), size.gpus, axis=1),
        "gpu_id": np.broadcast_to(gpu, shape),
        "interval_ms": np.where((ticks == 0)[:, None], np.nan, np.broadcast_to(1000.0, shape)),
        "util_pct": util,
        "mem_util_pct": (util * 0.6).round(),
        "mem_used_mib": 60_000 + 4_000 * np.sin(ticks / 900)[:, None] + random.integers(0, 500, shape),
        "power_w": power,
        "temp_c": (35 + power / 17).round(),
        "mem_temp_c": (45 + power / 17).round(),
        "sm_clock_mhz": np.where(busy, 1980 - 15 * random.integers(0, 8, shape), 345),
        "mem_clock_mhz": np.full(shape, 2619),
        "pcie_tx_mb_s": random.gamma(2, 900, shape).round(1),
        "pcie_rx_mb_s": random.gamma(2, 1200, shape).round(1),
        "nvlink_tx_mb_s": np.where(busy, random.gamma(4, 25_000, shape), 0).round(),
        "nvlink_rx_mb_s": np.where(busy, random.gamma(4, 25_000, shape), 0).round(),
        "energy_mj": np.where(read, counters[_ENERGY_EVERY:], np.nan),
        "energy_used_mj": grown * (counters[_ENERGY_EVERY:] - counters[:-_ENERGY_EVERY]),
        "energy_used_ms": grown * 1000 * _ENERGY_EVERY,
        "clock_reasons": np.where(capped, REASON_POWER_CAP, np.where(busy, 0, 1))
        | np.where(random.random(shape) < 0.001, REASON_SW_THERMAL, 0),
        "throttle_power_pct": np.where(capped, random.integers(0, 100, shape), 0),
        "throttle_thermal_pct": np.zeros(shape),
        "throttle_brake_pct": np.zeros(shape),
        "ecc_corrected": np.zeros(shape),
        "ecc_uncorrected": np.zeros(shape),
        "pstate": np.zeros(shape),
    }
    hosts = (len(ticks), size.nodes)
    host = {
        "ts": _times(at),
        "node_id": np.broadcast_to(np.arange(1, size.nodes + 1), hosts),
        "seq": np.broadcast_to(ticks[:, None] + 1, hosts),
        "interval_ms": np.where((ticks == 0)[:, None], np.nan, np.broadcast_to(1000.0, hosts)),
        "late_ms": random.random(hosts),
        "missed": np.zeros(hosts),
        "cpu_pct": random.normal(40, 5, hosts).clip(0, 100),
        "memory_used_mib": np.full(hosts, 812_000) + random.integers(0, 9_000, hosts),
    }
    looked = ticks % _PROCESSES_EVERY == 0
    process = {
        "ts": flat["ts"][looked],
        "gpu_id": flat["gpu_id"][looked],
        "pid": np.broadcast_to(40_000 + gpu, (int(looked.sum()), gpus)),
        "rank": np.broadcast_to(gpu - 1, (int(looked.sum()), gpus)),
        "command": np.full((int(looked.sum()), gpus), "python train.py --config large.yaml", dtype=object),
        "gpu_memory_mib": flat["mem_used_mib"][looked] - 800,
        "sm_pct": util[looked],
        "cpu_pct": random.normal(100, 5, (int(looked.sum()), gpus)),
        "memory_mib": np.full((int(looked.sum()), gpus), 21_000),
    }
    return [
        (table, {name: values.reshape(-1) for name, values in columns.items()})
        for table, columns in ((GPU_SAMPLES, flat), (HOST_SAMPLES, host), (PROCESS_SAMPLES, process))
    ]
