"""gswarm-profiler's HTTP API: its calls with their documented fields and texts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from datetime import datetime
from itertools import count, permutations
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, HTTPException, Response
from pydantic import BaseModel, Field, Strict

from gswarm_agent.frame import GpuFacts, GpuLink
from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS, NVLINK, PCIE
from gswarm_tui.control.intents import IntentError, SetMark, StartSession, StopSession
from gswarm_tui.control.recorder import Recorder
from gswarm_tui.fleet.gpu_links import HOST, NVSWITCH, gpu_index
from gswarm_tui.fleet.node import NodeState, Standing
from gswarm_tui.fleet.sessions import Session
from gswarm_tui.server.requests import (
    BAD_REQUEST,
    CONFLICT,
    RecorderRequests,
    SessionName,
    json_answer,
    problems,
    sentence,
)
from gswarm_tui.server.session_exports import SessionExports

NAME = "GSwarm Profiler HTTP API"
VERSION = "0.1.0"
"""Version that gswarm-profiler's own API reports."""
CONNECTED = (Standing.LIVE, Standing.STALE, Standing.UNHEALTHY)
"""States of nodes that gswarm-profiler calls connected clients."""
_COLUMNS = {name: at for at, name in enumerate(GPU_COLUMNS)}
_HOST_MEMORY = HOST_COLUMNS.index("memory_used_mib")

Answer = dict[str, Any]
"""A JSON object."""
ReportMetric = Literal["gpu_utilization", "gpu_memory", "gpu_dram_bandwidth", "gpu_bubble"]
# Documented, but checked by hand, as gswarm-profiler documents another answer than that to a wrong type.
Seconds = Annotated[float, Strict(), Field(allow_inf_nan=False, json_schema_extra={"minimum": 0})]


class StartProfiling(BaseModel):
    """Name of the session to start, and what its export has to contain."""

    name: SessionName | None = None
    report_metrics: list[ReportMetric] | None = Field(
        None, max_length=4, description="Refuses to start if one of these isn't measured"
    )


class StopProfiling(BaseModel):
    """Name of the session to stop; all without one."""

    name: SessionName | None = None


class TimeConsumption(BaseModel):
    """Times of one request to an application, in seconds."""

    app_name: SessionName
    queue_time: Seconds
    processing_time: Seconds
    other_time: dict[str, Seconds] = Field(default_factory=dict, max_length=16)


def gswarm_profiler_router(
    attached: Recorder, requests: RecorderRequests, exports: SessionExports
) -> APIRouter:
    """Return gswarm-profiler's calls on a recorder."""
    router = APIRouter(tags=["gswarm-profiler"], responses=problems())
    calls = _ProfilerCalls(attached, requests, exports)
    router.get("/")(calls.info)
    router.get("/status")(calls.status)
    router.post("/profiling/start")(calls.start)
    router.post("/profiling/stop")(calls.stop)
    router.get("/profiling/sessions")(calls.sessions)
    router.post("/profiling/record")(calls.record)
    router.get("/clients")(calls.clients)
    router.get("/metrics/latest", response_model=dict[str, Any])(calls.latest)
    return router


class _ProfilerCalls:
    def __init__(self, attached: Recorder, requests: RecorderRequests, exports: SessionExports) -> None:
        self._attached = attached
        self._requests = requests
        self._exports = exports

    async def info(self) -> Answer:
        """Return the name and the version of gswarm-profiler's API."""
        return {"message": NAME, "version": VERSION}

    async def status(self) -> Answer:
        """Return the state of the recorder: its clients are nodes, ``freq`` is the interval in ms."""
        fleet = self._attached.fleet
        gpu_info = {node.name: _gpus(node) for node in self._connected()}
        running = [session.name for session in fleet.sessions.running]
        return {
            "freq": fleet.interval_ms,
            "enable_bandwidth_profiling": PCIE in fleet.metrics,
            "enable_nvlink_profiling": NVLINK in fleet.metrics,
            "is_profiling": bool(running),
            "output_filename": self._exports.newest_file,
            "frame_id_counter": max((node.frames for node in fleet.nodes.values()), default=0),
            "connected_clients": list(gpu_info),
            "total_gpus": sum(map(len, gpu_info.values())),
            "gpu_info": gpu_info,
            "active_sessions": running,
        }

    async def start(self, wanted: Annotated[StartProfiling | None, Body()] = None) -> Answer:
        """Start a session; its export is written when it stops."""
        wanted = wanted or StartProfiling(report_metrics=None)
        if "gpu_dram_bandwidth" in (wanted.report_metrics or []) and PCIE not in self._attached.fleet.metrics:
            return _answer(False, "gpu_dram_bandwidth isn't measured; switch the metric group pcie on first.")
        try:
            intent = StartSession(wanted.name or self._unused_name())
        except IntentError as error:
            raise HTTPException(BAD_REQUEST, sentence(str(error))) from None
        try:
            row = await self._requests.carry_out(intent)
        except HTTPException as error:
            if error.status_code == CONFLICT:
                return _answer(False, str(error.detail))
            raise
        session = self._attached.fleet.sessions.sessions.get(str(row["session_id"]))
        file = None if session is None else self._exports.reserve(session)
        return _answer(True, "Profiling started.", file)

    def _unused_name(self) -> str:
        """Return the name of a session that is started without one."""
        stem = f"gswarm_profiler_{datetime.fromtimestamp(self._attached.now()).astimezone():%Y%m%d_%H%M%S}"
        running = {session.name for session in self._attached.fleet.sessions.running}
        names = (stem if number == 1 else f"{stem}-{number}" for number in count(1))
        return next(name for name in names if name not in running)

    async def stop(self, wanted: Annotated[StopProfiling | None, Body()] = None) -> Answer:
        """Stop a session, or all; their exports are written in the background."""
        running = self._attached.fleet.sessions.running
        name = None if wanted is None else wanted.name
        stopping = [session for session in running if name in (None, session.name)]
        if not running:
            return _answer(False, "Profiling is not active.")
        try:
            await self._requests.carry_out(StopSession(name, wait=True))
        except HTTPException as error:
            if error.status_code == CONFLICT:
                return _answer(False, str(error.detail))
            raise
        files = ", ".join(map(self._exports.write, stopping))
        return _answer(True, f"Profiling stopped. Data saved to {files}")

    async def sessions(self) -> Answer:
        """Return all sessions of the recording, those before a restart of the recorder, too."""
        book = self._attached.fleet.sessions
        listed = [self._session(session) for session in book.sessions.values()]
        return {"total_sessions": len(listed), "active_sessions": len(book.running), "sessions": listed}

    async def record(self, times: TimeConsumption) -> Answer:
        """Record the times of one request to an application, as a mark."""
        values = {
            **times.other_time,
            "queue_time": times.queue_time,
            "processing_time": times.processing_time,
        }
        if min(values.values()) < 0:
            raise HTTPException(BAD_REQUEST, "Invalid request data")
        try:
            intent = SetMark(times.app_name, values)
        except IntentError as error:
            raise HTTPException(BAD_REQUEST, f"Invalid request data: {error}.") from None
        await self._requests.carry_out(intent)
        return _answer(True, "Time consumption recorded successfully")

    async def clients(self) -> Answer:
        """Return the connected nodes and their GPUs."""
        listed = [
            {"client_id": node.name, "hostname": node.name, "gpu_count": len(gpus), "gpus": gpus}
            for node in self._connected()
            for gpus in [_gpus(node)]
        ]
        return {"total_clients": len(listed), "clients": listed}

    async def latest(self) -> Response:
        """Return the newest samples of the nodes that send data: shares in percent, GB/s, null if unmeasured.

        The time is local, as gswarm-profiler's. ``disk_util`` isn't measured.
        """
        now = self._attached.now()
        client_data = {}
        for node in self._connected():
            if node.standing(now) is Standing.LIVE:
                client_data[node.name] = {
                    "gpus_metrics": [_latest(node, row) for row in _own_rows(node)],
                    "p2p_links": list(_peer_links(node)),
                    "system_metrics": {"dram_util": _memory_pct(node), "disk_util": None},
                }
                await asyncio.sleep(0)  # other requests are answered meanwhile
        return json_answer({"timestamp": _local(now), "client_data": client_data})

    def _connected(self) -> list[NodeState]:
        now = self._attached.now()
        return [node for node in self._attached.fleet.nodes.values() if node.standing(now) in CONNECTED]

    def _session(self, session: Session) -> Answer:
        """Return one session; ``output_file`` has its export once these calls stopped it."""
        interval_s = self._attached.fleet.interval_s
        return {
            "name": session.name,
            "is_active": session.running,
            "start_time": _local(session.started_at),
            "end_time": None if session.ended_at is None else _local(session.ended_at),
            "frame_count": round(max(session.covered_s.values(), default=0.0) / interval_s),
            "output_file": self._exports.file_of(session),
        }


def _answer(success: bool, message: str, output_file: str | None = None) -> Answer:
    """Return whether a call succeeded; ``output_file`` is in the recording's folder."""
    return {"success": success, "message": message, "output_file": output_file}


def _local(at: float) -> str:
    """Return a Unix time as local time in ISO 8601."""
    return datetime.fromtimestamp(at).isoformat()  # noqa: DTZ006 - as gswarm-profiler has it


def _own_rows(node: NodeState) -> list[int]:
    """Return the positions of the job's GPUs on a node, without MIG instances."""
    return [row for row, mine in enumerate(node.mine) if mine and node.facts[row].parent_index is None]


def _gpus(node: NodeState) -> list[Answer]:
    name = node.name
    return [
        {
            "id": f"{name}:{gpu.index}:{gpu.name}",
            "name": gpu.name,
            "physical_idx": gpu.index,
            "hostname": name,
        }
        for gpu in (node.facts[row] for row in _own_rows(node))
    ]


def _latest(node: NodeState, row: int) -> dict[str, Any]:
    """Return the newest sample of a GPU."""
    gpu, values = node.facts[row], node.gpus[row].tolist()

    def value(name: str, scale: float = 1.0) -> float | None:
        number: float = values[_COLUMNS[name]]
        return None if math.isnan(number) else float(f"{number * scale:.7g}")  # in single precision

    used, total = value("mem_used_mib"), gpu.memory_total_mib
    return {
        "physical_idx": gpu.index,
        "name": gpu.name,
        "gpu_util": value("util_pct"),
        "mem_util": round(100 * used / total, 4) if used is not None and total else None,
        "dram_bw_gbps_rx": value("pcie_rx_mb_s", 1e-3),
        "dram_bw_gbps_tx": value("pcie_tx_mb_s", 1e-3),
        "nvlink_bw_gbps_rx": value("nvlink_rx_mb_s", 1e-3),
        "nvlink_bw_gbps_tx": value("nvlink_tx_mb_s", 1e-3),
        "extra_metrics": {name: value(name) for name in ("power_w", "temp_c", "sm_clock_mhz")},
    }


def _peer_links(node: NodeState) -> Iterator[dict[str, Any]]:
    """Yield each connection of the job's GPUs; NVSwitches connect each with each."""
    if node.hello is None:
        return
    own = {node.facts[row].index: node.facts[row] for row in _own_rows(node)}
    switched: dict[int, GpuLink] = {}
    for link in node.hello.links:
        local, remote = node.facts[link.gpu].index, gpu_index(link.peer)
        if link.peer == NVSWITCH:
            switched[local] = link
        elif local in own and remote in own and link.peer != HOST:
            yield _peer_link(link, own[local], own[remote])
    for local, remote in permutations(sorted(switched.keys() & own.keys()), 2):
        yield _peer_link(switched[local], own[local], own[remote])


def _peer_link(link: GpuLink, local: GpuFacts, remote: GpuFacts) -> dict[str, Any]:
    return {
        "local_gpu_physical_id": local.index,
        "local_gpu_name": local.name,
        "remote_gpu_physical_id": remote.index,
        "remote_gpu_name": remote.name,
        "type": link.kind,
        "aggregated_max_bandwidth_gbps": link.gb_s,
    }


def _memory_pct(node: NodeState) -> float | None:
    """Return the share of a node's memory in use in percent, None where unknown."""
    total = node.hello.host.memory_total_mib if node.hello is not None else None
    used = float(node.host[_HOST_MEMORY])
    return None if not total or math.isnan(used) else round(100 * used / total, 4)
