"""gswarm-profiler's HTTP API: its calls with their documented fields and texts."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

from gswarm_tui.control.attached import AttachedRun
from gswarm_tui.fleet.node import NodeState, Standing

NAME = "GSwarm Profiler HTTP API"
VERSION = "0.1.0"
"""Version that gswarm-profiler's own API reports."""


class GpuInfo(BaseModel):
    """One GPU; its id is ``hostname:index:name``."""

    id: str
    name: str
    physical_idx: int
    hostname: str


class ProfilerStatus(BaseModel):
    """State of the recorder, in gswarm-profiler's words; clients are nodes."""

    freq: int
    enable_bandwidth_profiling: bool
    enable_nvlink_profiling: bool
    is_profiling: bool
    output_filename: str
    frame_id_counter: int
    connected_clients: list[str]
    total_gpus: int
    gpu_info: dict[str, list[GpuInfo]]
    active_sessions: list[str]


def profiler_router(attached: AttachedRun) -> APIRouter:
    """Return gswarm-profiler's calls on an attached run."""
    router = APIRouter(tags=["gswarm-profiler"])

    @router.get("/status")
    async def status() -> ProfilerStatus:
        """Return the state of the recorder."""
        fleet, now = attached.fleet, attached.now()
        connected = [node for node in fleet.nodes.values() if node.standing(now) in CONNECTED]
        gpu_info = {node.name: _gpus(node) for node in connected}
        running = [session.name for session in fleet.sessions.running]
        return ProfilerStatus(
            freq=fleet.interval_ms,
            enable_bandwidth_profiling="pcie" in fleet.metrics,
            enable_nvlink_profiling="nvlink" in fleet.metrics,
            is_profiling=bool(running),
            output_filename="",
            frame_id_counter=max((node.frames for node in fleet.nodes.values()), default=0),
            connected_clients=list(gpu_info),
            total_gpus=sum(map(len, gpu_info.values())),
            gpu_info=gpu_info,
            active_sessions=running,
        )

    return router


CONNECTED = (Standing.LIVE, Standing.STALE, Standing.UNHEALTHY)
"""States of nodes that gswarm-profiler calls connected clients."""


def _gpus(node: NodeState) -> list[GpuInfo]:
    """Return the job's GPUs of a node."""
    return [
        GpuInfo(
            id=f"{node.name}:{gpu.index}:{gpu.name}",
            name=gpu.name,
            physical_idx=gpu.index,
            hostname=node.name,
        )
        for gpu, mine in zip(node.facts, node.mine, strict=True)
        if mine
    ]
