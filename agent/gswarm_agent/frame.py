"""What everything speaks: frozen values for a node's introduction, its frames and its clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional, Tuple, Union

Number = Union[int, float]
Row = Tuple[Optional[Number], ...]
"""One row of numbers in the order of its table's columns; None where the machine has no answer."""


@dataclass(frozen=True)
class GpuFacts:
    """What doesn't change about a GPU. Memory in MiB, power in W, clocks in MHz; None where not told."""

    index: int
    uuid: str
    name: str
    pci_bus_id: Optional[str] = None
    minor: Optional[int] = None
    memory_total_mib: Optional[int] = None
    power_limit_w: Optional[float] = None
    sm_clock_max_mhz: Optional[int] = None
    mem_clock_max_mhz: Optional[int] = None
    mig: bool = False


@dataclass(frozen=True)
class HostFacts:
    """What doesn't change about a node while it is up."""

    hostname: str
    boot_id: str
    kernel: Optional[str] = None
    cpu_model: Optional[str] = None
    cpus: Optional[int] = None
    memory_total_mib: Optional[int] = None
    driver_version: Optional[str] = None
    cuda_version: Optional[str] = None


@dataclass(frozen=True)
class Clock:
    """One exchange of times, as in NTP, all in Unix nanoseconds.

    ``sent`` is the head's time when it asked; ``received`` and ``answered`` are the node's.
    """

    sent: int
    received: int
    answered: int


@dataclass(frozen=True)
class Hello:
    """A node's introduction, the first message of a link; said again when its capabilities change.

    ``life`` names one run of an agent: sequence numbers start at 1 in each. ``capabilities`` maps what could
    not be measured (a metric's name, or "gpu", "gpu3.power_w", "processes") to the reason in one sentence.
    ``*_columns`` describe the rows of every frame that follows.
    """

    agent_version: str
    life: str
    interval_ms: int
    simulated: bool
    host: HostFacts
    gpus: Tuple[GpuFacts, ...]
    capabilities: Mapping[str, str]
    gpu_columns: Tuple[str, ...]
    host_columns: Tuple[str, ...]
    process_columns: Tuple[str, ...]
    clock: Optional[Clock] = None


@dataclass(frozen=True)
class ProcessSample:
    """One process on one GPU; ``gpu`` is the position in ``Hello.gpus``, ``row`` follows process_columns."""

    gpu: int
    pid: int
    user: Optional[str]
    command: Optional[str]
    rank: Optional[int]
    local_rank: Optional[int]
    row: Row


INFO = "info"
WARNING = "warning"
ERROR = "error"


@dataclass(frozen=True)
class Note:
    """Something that happened on a node: an XID, a lost GPU, a metric that went away, a mark.

    ``kind`` is one lower-case word for queries ("xid", "gpu_lost", "gpu_back", "unmeasured", "late", "mark"),
    ``severity`` is info, warning or error, ``gpu`` the position in ``Hello.gpus`` or None for the node.
    ``ts_ns`` is the node's Unix time, None for that of the frame. ``detail`` holds a mark's values, a JSON
    object.
    """

    kind: str
    severity: str
    message: str
    gpu: Optional[int] = None
    ts_ns: Optional[int] = None
    detail: Optional[str] = None


@dataclass(frozen=True)
class Frame:
    """All samples of one tick of one node.

    ``ts_ns`` is the node's Unix time of the reading; ``late_ms`` how long after its deadline the tick
    began, ``missed`` how many deadlines were passed over since the frame before. ``gpus`` has a row for each
    GPU of the hello, None for a GPU that didn't answer. ``processes`` is None on ticks that don't look at
    processes.
    """

    seq: int
    ts_ns: int
    late_ms: float
    missed: int
    gpus: Tuple[Optional[Row], ...]
    host: Optional[Row]
    processes: Optional[Tuple[ProcessSample, ...]] = None
    notes: Tuple[Note, ...] = field(default=())
