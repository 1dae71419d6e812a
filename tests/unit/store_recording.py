"""Recordings with known values, made through the recorder, for the store's tests."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import duckdb

from gswarm_agent.frame import (
    MAX_GAUGE_MS,
    TABLES,
    GpuFacts,
    GpuLink,
    Hello,
    HostFacts,
    NamedRow,
    Note,
    ProcessSample,
    Row,
)
from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS, PORT_COLUMNS, PROCESS_COLUMNS
from gswarm_tui.fleet.events import Event, FrameArrived, NodeIntroduced, RecorderStatus
from gswarm_tui.fleet.findings import Evidence, Finding
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.store.recording.database import RecordingInfo
from gswarm_tui.store.recording.recorder import FileWriter
from gswarm_tui.store.sql.schema import literal

T0 = 1_800_000_000.0
INFO = RecordingInfo(
    started_at=T0,
    host="login1",
    user_name="ada",
    command="gswarm-tui --nodes n1",
    interval_ms=1000,
    tool_version="0.1.0",
    slurm_job_id="4711",
    slurm_cluster="tiny",
)

_READING = threading.Lock()


def gpu_row(**values: float | None) -> Row:
    return tuple(values.get(name) for name in GPU_COLUMNS)


def host_row(**values: float | None) -> Row:
    return tuple(values.get(name) for name in HOST_COLUMNS)


def process_row(**values: float | None) -> Row:
    return tuple(values.get(name) for name in PROCESS_COLUMNS)


def listings(port: str = "mlx5_0/1", **values: float | None) -> dict[str, list[NamedRow]]:
    """Return a listing of one port and of an NFS mount that answers, and one that doesn't."""
    ports: list[NamedRow] = [(port, tuple(values.get(name) for name in PORT_COLUMNS))]
    return {"ports": ports, "mounts": [("/home/ada", (7, 2**41, None, 2.5, None)), ("/dead", None)]}


def hello(
    node: str = "n1",
    gpus: int = 2,
    life: str = "life1",
    boot_id: str = "boot1",
    capabilities: dict[str, str] | None = None,
    links: tuple[GpuLink, ...] = (),
) -> Hello:
    return Hello(
        agent_version="0.1.0",
        life=life,
        interval_ms=1000,
        simulated=False,
        host=HostFacts(hostname=f"{node}.cluster", boot_id=boot_id, cpus=64, memory_total_mib=515_000),
        gpus=tuple(
            GpuFacts(*(i, f"GPU-{node}-{i}", "NVIDIA H100"), memory_total_mib=81_559, sm_clock_max_mhz=1980)
            for i in range(gpus)
        ),
        capabilities=capabilities or {},
        links=links,
    )


def finding(number: int = 1, until: float | None = None, **what: Any) -> Finding:
    """Return a finding about a GPU that heat slows down from ten seconds after T0 on."""
    evidence = (Evidence("sm_clock_mhz", 1215, 1965, "MHz"), Evidence("reason", "heat"))
    plain = Finding(
        str(number), "thermal", "waste", "n1", 1, 5, ("n1",), T0 + 10, until, 0.25,
        "n1:1 · rank 5 · clock 1,215 MHz for 4 min, the other 3 at 1,965 · Leave n1 out", evidence,
        "Leave n1 out and tell the site", "Omnistat",
    )  # fmt: skip
    return replace(plain, **what)


def introduced(node: str = "n1", at: float = T0, **what: Any) -> NodeIntroduced:
    return NodeIntroduced(node, at, hello(node, **what))


def arrived(
    seq: int,
    gpus: Sequence[Row | None],
    node: str = "n1",
    life: str = "life1",
    ts: float | None = None,
    host: Row | None = None,
    processes: tuple[ProcessSample, ...] | None = None,
    notes: tuple[Note, ...] = (),
    gauge_ms: int = MAX_GAUGE_MS,
    listed: Mapping[str, Sequence[NamedRow]] | None = None,
) -> FrameArrived:
    """Return frame ``seq``, sampled ``seq`` seconds after T0, or at ``ts``."""
    when = T0 + seq if ts is None else ts
    frame = TABLES.frame(
        seq=seq,
        ts_ns=round(when * 1e9),
        late_ms=0.5,
        missed=0,
        gpus=gpus,
        host=host,
        processes=processes,
        notes=notes,
        gauge_ms=gauge_ms,
        listings=listed,
    )
    return FrameArrived(node, when, when, life, frame)


def decided(events: Iterable[Event], fleet: Fleet | None = None) -> list[Event]:
    """Return events as the hub passes them on: the fleet has decided the energy of their frames."""
    events = list(events)
    fleet = fleet or Fleet([event.node for event in events if isinstance(event, NodeIntroduced)])
    passed: list[Event] = []
    for event in events:
        if isinstance(event, FrameArrived) and event.node in fleet.nodes:
            passed += fleet.measure_frames([event])[0]
            continue
        if isinstance(event, NodeIntroduced):
            fleet.apply(event)
        passed.append(event)
    return passed


def record(
    path: Path,
    events: Iterable[Event],
    info: RecordingInfo = INFO,
    ended_at: float = T0 + 100,
    allocation: Mapping[str, frozenset[int]] | None = None,
) -> RecorderStatus:
    """Record these events into a closed recording; return its last status."""
    recorder = FileWriter(path, info, lambda _status: None, allocation=allocation)
    recorder.open()
    recorder.submit(decided(events))
    status = recorder.close(ended_at)
    assert status.closed
    assert status.error == ""
    return status


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query on a closed recording."""
    with _READING:
        execute = _reader().execute
        execute(f"ATTACH {literal(str(path.absolute()))} AS recording (READ_ONLY)")
        try:
            execute("USE recording")
            rows: list[tuple[Any, ...]] = execute(sql).fetchall()
        finally:
            execute("USE memory")
            execute("DETACH recording")
    return rows


@cache
def _reader() -> duckdb.DuckDBPyConnection:
    """Return the connection of all queries: a new one takes 20 ms."""
    return duckdb.connect()
