"""A recording with everything that an export must contain, and a comparison of its tables."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb

from gswarm_agent.frame import GpuFacts, GpuLink, ProcessSample
from gswarm_tui.cli import main
from gswarm_tui.fleet.events import (
    Event,
    EventLogged,
    FindingChanged,
    NodeIntroduced,
    SessionStarted,
    SessionStopped,
)
from gswarm_tui.store.sql.schema import GPU_MINUTES, PROFILE_EVENTS, PROFILE_NAMES, TABLES
from tests.kineto_standin import write_trace
from tests.nsys_standin import UUIDS, write_standin
from tests.unit.store_recording import (
    T0,
    arrived,
    finding,
    gpu_row,
    hello,
    host_row,
    introduced,
    listings,
    process_row,
    record,
)

STRANGE = "rack=1/ü %2F"
"""A node's name that isn't a valid folder name."""
_IDS = {"recording_id", "node_id", "gpu_id", "session_id", "profile_id", "name_id"}
_IDS |= {"finding_id", "short_name_id"}


def session(name: str, start: float, end: float, note: str = "") -> list[Event]:
    """A session in seconds after T0."""
    return [
        SessionStarted(name, T0 + start, name, T0 + start, note),
        SessionStopped(name, T0 + end, T0 + end),
    ]


LINKS = (
    GpuLink(0, "GPU1", "NV18", 18, "4.0", 478.1),
    GpuLink(1, "GPU0", "NV18", 18, "4.0", 478.1),
    GpuLink(1, "mlx5_0", "PIX", 0, None, 50.0),
)


def run(path: Path, seconds: int = 20) -> Path:
    """Make a recording of two nodes with two GPUs each; one lacks PCIe and is lost for a while."""
    assert not path.exists()
    path.write_bytes(_recorded(seconds))
    return path


@cache
def _recorded(seconds: int) -> bytes:
    """Return the recording's file, which is the same for all tests."""
    events: list[Event] = [
        introduced("n1", links=LINKS),
        NodeIntroduced(STRANGE, T0, hello(STRANGE, capabilities={"x": "y"})),
    ]
    for seq in range(1, seconds + 1):
        process = ProcessSample(
            1, 42, "ada", 'train "x", y', 3, 1, process_row(gpu_memory_mib=800, cpu_pct=99.5)
        )
        rows = [
            gpu_row(
                util_pct=seq,
                mem_used_mib=100 * seq,
                pcie_rx_mb_s=2001,
                pcie_tx_mb_s=502,
                energy_mj=9 * seq,
            ),
            gpu_row(util_pct=100, nvlink_rx_mb_s=450_000, nvlink_tx_mb_s=1.5, power_w=312.25),
        ]
        host, listed = host_row(cpu_pct=12.5), listings(state=4, symbol_error=2**40 + seq)
        events.append(arrived(seq, rows, "n1", host=host, processes=(process,), listed=listed))
        if not 6 <= seq <= 10:
            events.append(arrived(seq, [gpu_row(util_pct=7), None], STRANGE, ts=T0 + seq + 0.004))
    events += session("train", 5, 15, "lr 3e-4, “warm”")
    events += session("all of it", 0, seconds + 1)
    events.append(EventLogged(T0 + 9, "xid", "error", "XID 79", node="n1", gpu=1, detail="off the bus"))
    events.append(FindingChanged(T0 + 12, finding(until=T0 + 20)))
    with TemporaryDirectory() as folder:
        record(path := Path(folder, "run.duckdb"), events)
        return path.read_bytes()


def recording_of_node(path: Path, offset_s: float = 0.0) -> Path:
    """Make a recording whose node has the stand-in's GPUs, and whose clock is ahead."""
    hello = introduced("login-alias")
    gpus = tuple(GpuFacts(index=at, uuid=f"GPU-{uuid}", name="NVIDIA H100") for at, uuid in enumerate(UUIDS))
    hello = replace(hello, hello=replace(hello.hello, gpus=gpus))
    samples = [arrived(seq, [gpu_row(util_pct=50)] * 2, "login-alias") for seq in range(1, 20)]
    record(path, [hello, *samples])
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE links SET clock_offset_s = ?", [offset_s])
    return path


def profiled_run(path: Path) -> Path:
    """Record a node with two GPUs, and import a report of Nsight Systems and a trace of another day."""
    assert not path.exists()
    path.write_bytes(_profiled())
    return path


@cache
def _profiled() -> bytes:
    with TemporaryDirectory() as folder:
        path = recording_of_node(Path(folder, "run.duckdb"))
        for report in (
            write_standin(Path(folder, "standin.sqlite")),
            write_trace(Path(folder, "trace_rank0.json")),
        ):
            assert main(["import", str(report), "--db", str(path), "--node", "login-alias"]) == 0
        return path.read_bytes()


def tables(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of a file, sorted, with names in the place of ids."""
    statements = {}
    for table in TABLES:
        # Summaries of an import are made from its samples, and names of events are compared with these.
        if table in {GPU_MINUTES, PROFILE_NAMES}:
            continue
        names = {column.name for column in table.columns} - {"uid", "options"}
        own = names - _IDS
        columns = [f"t.{name}" for name in sorted(own)]
        joins = ""
        if "gpu_id" in names and table.name != "gpus":
            joins += " LEFT JOIN gpus g ON g.gpu_id = t.gpu_id"
            columns.append("g.uuid")
        if "node_id" in names and table.name != "nodes":
            joins += " LEFT JOIN nodes n ON n.node_id = t.node_id"
            columns += ["n.node", "n.boot_id"]
        if "recording_id" in names and table.name != "recordings":
            joins += " JOIN recordings r ON r.recording_id = t.recording_id"
            columns.append("r.started_at")
        if table in PROFILE_EVENTS:
            joins += " JOIN profiles p ON p.profile_id = t.profile_id"
            columns.append("p.digest")
        for name in sorted(names & {"name_id", "short_name_id"}):
            joins += f" LEFT JOIN profile_names {name}_ ON {name}_.name_id = t.{name}"
            columns.append(f"{name}_.name")
        statements[table.name] = f"SELECT {', '.join(columns)} FROM {table.name} t {joins}"
    with duckdb.connect(str(path), read_only=True) as connection:
        return {
            name: sorted(connection.execute(sql).fetchall(), key=repr) for name, sql in statements.items()
        }
