"""Who was there in a recording: machines with their GPUs, and the runs of their agents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gswarm_agent.frame import GpuFacts, Hello, HostFacts
from gswarm_tui.fleet.events import Event, LinkMeasured, NodeIntroduced


@dataclass(frozen=True)
class Life:
    """An agent's run on a machine, and when its first and last frame were read (Unix microseconds)."""

    name: str
    first_us: int
    last_us: int


@dataclass(frozen=True)
class Machine:
    """A node as it was at one boot with its GPUs; ``hello`` lacks the life, ``lives`` are in order."""

    node_id: int
    name: str
    hello: Hello
    gpu_ids: tuple[int, ...]
    granted: frozenset[int] | None
    offset_s: float
    round_trip_s: float | None
    lives: tuple[Life, ...]

    def life_at(self, us: int) -> Life:
        """The agent's run that a frame of that time belongs to."""
        return next((life for life in self.lives if us <= life.last_us), self.lives[-1])

    def hello_of(self, life: Life) -> Hello:
        """What that run's agent said of itself."""
        return replace(self.hello, life=life.name)


def introduction(machine: Machine, life: Life) -> list[Event]:
    """An agent's hello, and what is known of its clock."""
    at = life.first_us / 1e6
    said: list[Event] = [NodeIntroduced(machine.name, at, machine.hello_of(life))]
    if machine.round_trip_s is not None:
        said.append(LinkMeasured(machine.name, at, machine.offset_s, machine.round_trip_s))
    return said


def hello_of(
    row: Mapping[str, Any],
    gpus: Sequence[Mapping[str, Any]],
    interval_s: float,
    columns: Mapping[str, tuple[str, ...]],
) -> Hello:
    """What an agent on this machine says of it, from rows of ``nodes`` and ``gpus``; without a life."""
    return Hello(
        agent_version=row["agent_version"] or "",
        life="",
        interval_ms=round(interval_s * 1000),
        simulated=bool(row["simulated"]),
        host=HostFacts(
            hostname=row["hostname"] or row["node"],
            boot_id=row["boot_id"] or "",
            kernel=row["kernel"],
            cpu_model=row["cpu_model"],
            cpus=row["cpus"],
            memory_total_mib=row["memory_total_mib"],
            driver_version=row["driver_version"],
            cuda_version=row["cuda_version"],
        ),
        gpus=tuple(
            GpuFacts(
                index=gpu["gpu_index"],
                uuid=gpu["uuid"],
                name=gpu["name"],
                pci_bus_id=gpu["pci_bus_id"],
                # Of the minor only this is kept: whether the job was granted it.
                minor=None if gpu["allocated"] is None else gpu["gpu_index"],
                memory_total_mib=gpu["memory_total_mib"],
                power_limit_w=gpu["power_limit_w"],
                sm_clock_max_mhz=gpu["sm_clock_max_mhz"],
                mem_clock_max_mhz=gpu["mem_clock_max_mhz"],
                mig=bool(gpu["mig"]),
            )
            for gpu in gpus
        ),
        capabilities=json.loads(row["capabilities"] or "{}"),
        gpu_columns=columns["gpu_samples"],
        host_columns=columns["host_samples"],
        process_columns=columns["process_samples"],
    )
