"""Throughput of links, hub and recorder in one process without a screen, on encoded frames."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from gswarm_agent.frame import TABLES, Hello
from gswarm_agent.simulated import SimulatedNode, Simulation
from gswarm_agent.wire import MAGIC, encode
from gswarm_tui.fleet.events import RecorderStatus
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.launch.base import Channel, Launcher
from gswarm_tui.launch.simulated import SimulatedLauncher, simulated_names
from gswarm_tui.link.hub import Hub
from gswarm_tui.link.link import Link
from gswarm_tui.run.lifetime import delay_garbage_collection
from gswarm_tui.store.recording.database import RecordingInfo
from gswarm_tui.store.recording.recorder import FileWriter
from gswarm_tui.store.sql.schema import GPU_SAMPLES, HOST_SAMPLES, PROCESS_SAMPLES, STORAGE_VERSION, literal
from tests.bench.figures import BenchOptions, Figure, number

GPUS = 8
TOGETHER = 16
"""Seconds of frames in one insert: 16,384 GPU-samples, about DuckDB's best size."""
_TABLES = tuple(table.name for table in (GPU_SAMPLES, HOST_SAMPLES, PROCESS_SAMPLES))
_SECOND_US = 1_000_000
Arrays = dict[str, npt.NDArray[Any]]


def run(options: BenchOptions) -> Iterator[Figure]:
    """Measure frames at full speed, then a large fleet at 1 Hz."""
    delay_garbage_collection()
    nodes, frames = options.count(128, 4), options.count(400, 10)
    floods = [
        asyncio.run(_flood(options.folder / f"flood-{turn}.duckdb", nodes, frames, options.seed))
        for turn in range(options.count(5, 1))
    ]
    _, samples, file_bytes = floods[0]
    bare = _alone(options.folder / "flood-0.duckdb", options.folder / "flood-alone.duckdb", TOGETHER)
    rates = [samples / cpu_s for cpu_s, samples, _ in floods]
    print(f"hub + recorder, GPU-samples/CPU s: {' '.join(map(number, rates))}", file=sys.stderr)
    yield Figure(
        "hub + recorder, no screen, committed", statistics.median(rates), "GPU-samples/CPU s",
        0.15 / bare, at_least=True,
        limit=f"DuckDB alone, the same rows, {TOGETHER} s of them in a transaction", beside=1 / bare,
    )  # fmt: skip
    yield Figure("disk, a GPU-sample, of these few minutes", file_bytes / samples, "bytes")
    nodes = options.count(1024, 8)
    path = options.folder / "pace.duckdb"
    share = asyncio.run(pace(path, nodes, GPUS, 1000, options.seconds(30), options.seed))
    bare = _alone(path, options.folder / "pace-alone.duckdb", 1)
    yield Figure(
        f"hub + recorder, {nodes} nodes × {GPUS} GPUs at 1 Hz", share, "% of a core", 15,
        limit="DuckDB alone, the same rows, a second of them in a transaction",
        beside=100 * bare * nodes * GPUS,
    )  # fmt: skip


def recording_info(command: str) -> RecordingInfo:
    """Return the description of a bench's recording."""
    return RecordingInfo(time.time(), "bench", "bench", command, 1000, "bench")


class Committed:
    """Passes the recorder's status from its thread to the hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub, self._loop = hub, asyncio.get_running_loop()

    def __call__(self, status: RecorderStatus) -> None:
        self._loop.call_soon_threadsafe(self._hub.recorded, status)


async def _flood(path: Path, nodes: int, frames: int, seed: int) -> tuple[float, int, int]:
    """Record frames at full speed; return CPU seconds, GPU-samples and the closed file's bytes."""
    names = simulated_names(nodes)
    streams = {name: recorded(name, index, nodes, frames, seed) for index, name in enumerate(names)}
    hub = Hub(Fleet(names))
    recorder = FileWriter(path, recording_info("flood"), Committed(hub))
    recorder.open()
    hub.recorder = recorder.status()
    hub.sinks.append(recorder)
    launcher = _Replayed(streams)
    for name in names:
        hub.links[name] = Link(name, launcher, 1000, hub.publish, spool_mib=1 << 20)
        hub.links[name].resume("", 0, 0.0, 0.0, last=(0, 0.0))  # else so many frames at once would be cut off
    before = time.process_time()
    running = asyncio.create_task(hub.run())
    while sum(recorder.status().committed.values()) < nodes * frames:
        await asyncio.sleep(0.02)
    cpu_s = time.process_time() - before
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    closed = recorder.close(time.time(), 60)
    return cpu_s, nodes * frames * GPUS, closed.file_bytes


def recorded(name: str, index: int, nodes: int, frames: int, seed: int) -> list[bytes]:
    """Return the bytes that a simulated node's agent sends, one piece for each frame."""
    hello, *others = messages_of(name, index, nodes, frames, seed)
    return [MAGIC + hello, *others]


def messages_of(name: str, index: int, nodes: int, frames: int, seed: int) -> list[bytes]:
    """Return the messages of a simulated node's agent: its introduction and its frames."""
    now = time.time_ns()
    node = SimulatedNode(Simulation(name, index, nodes, GPUS, seed, 0))
    host, gpus, capabilities = node.facts()
    hello = Hello("bench", f"life-{name}", 1000, True, host, gpus, capabilities)
    messages = [encode(hello)]
    for tick in range(frames):
        reading = node.read((tick + 60) * 10**9)
        ts_ns = now + (tick - frames) * 10**9
        frame = TABLES.frame(
            tick + 1,
            ts_ns,
            0.1,
            0,
            gpus=reading.gpus,
            host=reading.host,
            processes=reading.processes,
            notes=reading.notes,
        )
        messages.append(encode(frame))
    return messages


class _Replayed(Launcher):
    """Launcher whose nodes send prepared bytes."""

    def __init__(self, streams: dict[str, list[bytes]]) -> None:
        self._streams = streams

    async def open(self, node: str, *arguments: str) -> Channel:
        """Return a channel that sends the node's bytes once."""
        return _Pieces(self._streams[node])

    async def close(self) -> None:
        """Do nothing: the launcher started no process."""


class _Pieces(Channel):
    """Channel that returns one piece for each read and then waits."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = iter(pieces)

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        if piece := next(self._pieces, b""):
            return piece
        await asyncio.Event().wait()
        return b""

    def write(self, data: bytes) -> None:
        pass

    async def explain_end(self) -> str:
        return "the bench is over"

    async def close(self) -> None:
        pass


async def pace(path: Path, nodes: int, gpus: int, interval_ms: int, seconds: float, seed: int) -> float:
    """Return the share of a core [%] of links, hub and recorder for simulated nodes in other processes."""
    launcher = SimulatedLauncher(nodes, gpus, seed)
    names = simulated_names(nodes)
    hub = Hub(Fleet(names, interval_ms))
    recorder = FileWriter(path, recording_info("pace"), Committed(hub))
    recorder.open()
    hub.recorder = recorder.status()
    hub.sinks.append(recorder)
    for name in names:
        hub.links[name] = Link(name, launcher, interval_ms, hub.publish)
    running = asyncio.create_task(hub.run())
    try:
        while len(recorder.status().committed) < nodes:
            await asyncio.sleep(0.2)
        await asyncio.sleep(min(5.0, seconds))
        began, before = time.monotonic(), time.process_time()
        await asyncio.sleep(seconds)
        return 100 * (time.process_time() - before) / (time.monotonic() - began)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await launcher.close()
        recorder.close(time.time(), 60)


def _alone(recording: Path, into: Path, seconds: int) -> float:
    """Return DuckDB's CPU seconds for each GPU sample of a recording that it inserts into a new file.

    A transaction has some seconds of samples. No key is looked up and no row is sorted: only inserting,
    committing and the checkpoints that DuckDB makes by itself count. The arrays are made beforehand; whole
    numbers with gaps come as floats, as from pandas.
    """
    cpu_s, samples = 0.0, 0
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute(f"ATTACH {literal(str(recording))} AS rec (READ_ONLY)")
        connection.execute(
            f"ATTACH {literal(str(into))} AS bare (STORAGE_VERSION {literal(STORAGE_VERSION)})"
        )
        for table in _TABLES:
            connection.execute(f"CREATE TABLE bare.{table} AS FROM rec.{table} LIMIT 0")
        for parts in _stretches(connection, seconds):
            began = time.process_time()
            connection.execute("BEGIN")
            for table, arrays in parts.items():
                connection.register("arrays", arrays)
                connection.execute(f"INSERT INTO bare.{table} SELECT * FROM arrays")
            connection.execute("COMMIT")
            cpu_s += time.process_time() - began
            samples += len(parts[GPU_SAMPLES.name]["ts"])
        for table in _TABLES:
            ((alike,),) = connection.execute(
                f"SELECT (SELECT count(*) FROM bare.{table}) = (SELECT count(*) FROM rec.{table})"
            ).fetchall()
            if not alike:
                raise RuntimeError(f"{table} has other rows than the recording")
    return cpu_s / samples


def _stretches(connection: duckdb.DuckDBPyConnection, seconds: int) -> Iterator[dict[str, Arrays]]:
    """Yield the rows of each table, one transaction's rows at a time, in their order."""
    spans = " UNION ALL ".join(f"SELECT ts FROM rec.{table}" for table in _TABLES)
    ((first, last),) = connection.execute(
        f"SELECT epoch_us(min(ts)), epoch_us(max(ts)) FROM ({spans})"
    ).fetchall()
    for begin in range(first, last + 1, seconds * _SECOND_US):
        within = f"ts >= make_timestamp({begin}) AND ts < make_timestamp({begin + seconds * _SECOND_US})"
        found = {
            table: connection.execute(f"FROM rec.{table} WHERE {within} ORDER BY ts").fetchnumpy()
            for table in _TABLES
        }
        yield {
            table: {name: _without_mask(column) for name, column in columns.items()}
            for table, columns in found.items()
        }


def _without_mask(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array without its mask: DuckDB reads None and NaN as NULL, but no masks."""
    if not np.ma.is_masked(column):
        return np.ma.getdata(column)
    if column.dtype == object:
        return np.ma.filled(column, None)
    return np.ma.filled(column.astype(np.float64), np.nan)
