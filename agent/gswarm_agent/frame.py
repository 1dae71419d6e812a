"""Frozen values that recorder and agent exchange: a node's hello, its frames and its clock."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from gswarm_agent import block
from gswarm_agent.block import Block, BlockLayout
from gswarm_agent.metrics import (
    EXACT_COLUMNS,
    GPU_COLUMNS,
    HOST_COLUMNS,
    LISTING_COLUMNS,
    MAX_INTERVAL_MS,
    PROCESS_COLUMNS,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional, Sequence, Tuple, TypeAlias

Number = block.Number
Row = block.Row
NamedRow: TypeAlias = "Tuple[str, Optional[Row]]"
"""A row of a listing: its name and its numbers, None if nothing was measured."""


MIG_INDEX = 1000
"""MIG instance n of GPU g has the index 1000 + 10 g + n: a GPU is divided into at most seven."""


def mig_place(index: int) -> Tuple[int, int]:
    """Return the index of a MIG instance's GPU, negative for a GPU's own index, and its number there."""
    return divmod(index - MIG_INDEX, 10)


def gpu_label(index: int) -> str:
    """Return a GPU's index as text; that of a MIG instance follows its GPU's, as in "5.1"."""
    gpu, number = mig_place(index)
    return f"{index}" if gpu < 0 else f"{gpu}.{number}"


@dataclass(frozen=True)
class GpuFacts:
    """Constant properties of a GPU. Memory in MiB, power in W, clocks in MHz; None where unknown.

    A MIG instance has facts of its own, after those of its GPU: ``parent_index`` is the GPU's index.
    """

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
    parent_index: Optional[int] = None
    mig_profile: Optional[str] = None
    numa_node: Optional[int] = None

    @property
    def label(self) -> str:
        """The index as text, as in "5.1" for a MIG instance."""
        return gpu_label(self.index)


@dataclass(frozen=True)
class GpuLink:
    """Connection of a GPU to a peer on its node; ``gpu`` is the GPU's position in ``Hello.gpus``.

    ``peer`` is GPU and an NVML index ("GPU3"), "NVSwitch", a network adapter ("mlx5_0") or "host". ``kind``
    is as nvidia-smi topo -m prints it: NV18, PIX, PXB, PHB, NODE, SYS; "PCIe" to the host. ``links`` counts
    NVLinks, to the host PCIe lanes; ``version`` is theirs. ``gb_s`` is the bandwidth in one direction,
    in 10**9 bytes per second.
    """

    gpu: int
    peer: str
    kind: str
    links: int = 0
    version: Optional[str] = None
    gb_s: Optional[float] = None


@dataclass(frozen=True)
class HostFacts:
    """Constant properties of a node while it is up."""

    hostname: str
    boot_id: str
    kernel: Optional[str] = None
    cpu_model: Optional[str] = None
    cpus: Optional[int] = None
    memory_total_mib: Optional[int] = None
    driver_version: Optional[str] = None
    cuda_version: Optional[str] = None


@dataclass(frozen=True)
class ClockExchange:
    """One clock exchange as in NTP, in Unix nanoseconds.

    ``sent`` is the recorder's time of its request; ``received`` and ``answered`` are the node's times.
    """

    sent: int
    received: int
    answered: int


@dataclass(frozen=True)
class Hello:
    """A node's introduction: the first message of a link, sent again when its capabilities change.

    ``life`` identifies one run of an agent: sequence numbers start at 1 in each. ``capabilities`` maps what
    can't be measured (a metric's name, or "gpu", "gpu3.power_w", "processes") to the reason in one sentence.
    ``links`` say how the GPUs are connected.
    """

    agent_version: str
    life: str
    interval_ms: int
    simulated: bool
    host: HostFacts
    gpus: Tuple[GpuFacts, ...]
    capabilities: Mapping[str, str]
    clock: Optional[ClockExchange] = None
    links: Tuple[GpuLink, ...] = ()


@dataclass(frozen=True)
class ProcessSample:
    """One process on one GPU; ``gpu`` is the position in ``Hello.gpus``, ``row`` follows PROCESS_COLUMNS.

    ``cpus`` are those that its main thread may use, ``state`` is that thread's letter as ps prints it, and
    ``wchan`` the kernel function in which it waits. ``framework`` has its version, as in "torch 2.14.1", and
    ``nccl`` is that of NCCL.
    """

    gpu: int
    pid: int
    user: Optional[str]
    command: Optional[str]
    rank: Optional[int]
    local_rank: Optional[int]
    row: Row
    cpus: Optional[str] = None
    state: Optional[str] = None
    wchan: Optional[str] = None
    slurm_job: Optional[str] = None
    slurm_step: Optional[str] = None
    framework: Optional[str] = None
    nccl: Optional[str] = None
    container: Optional[str] = None


PROCESS_FIELDS = {one.name: str(one.type) for one in fields(ProcessSample) if one.name != "row"}
"""The fields of a process but its numbers, and their types."""
_RANK = [*PROCESS_FIELDS].index("rank")
_BEFORE_ROW = [one.name for one in fields(ProcessSample)].index("row")


@dataclass(frozen=True)
class Processes:
    """The processes on a node's GPUs: a column for each of PROCESS_FIELDS, and their rows in ``numbers``."""

    columns: Tuple[Tuple[Any, ...], ...]
    numbers: Block

    @classmethod
    def of(cls, layout: BlockLayout, samples: Sequence[ProcessSample]) -> Processes:
        """Return samples as columns."""
        columns = tuple(tuple(getattr(sample, name) for sample in samples) for name in PROCESS_FIELDS)
        return cls(columns, layout.pack_rows([sample.row for sample in samples]))

    def __len__(self) -> int:
        """Return the number of processes."""
        return len(self.gpus)

    @property
    def gpus(self) -> Tuple[int, ...]:
        """The GPU of each process."""
        return self.columns[0]

    @property
    def ranks(self) -> Tuple[Optional[int], ...]:
        """The rank of each process."""
        return self.columns[_RANK]

    def with_rows(self, rows: Sequence[Row]) -> Tuple[ProcessSample, ...]:
        """Return the processes one by one with these rows of numbers."""
        values = zip(*self.columns[:_BEFORE_ROW], rows, *self.columns[_BEFORE_ROW:])
        return tuple(ProcessSample(*one) for one in values)


@dataclass(frozen=True)
class NamedRows:
    """A listing of a node: rows with a name each, such as its ports or file systems."""

    names: Tuple[str, ...]
    numbers: Block


INFO = "info"
WARNING = "warning"
ERROR = "error"


STEP = "step"
"""Kind of the marks that ``gswarm_agent.mark.step`` sends; screens and plots leave these many out."""
NOTE_KINDS = frozenset(
    (
        "clock",
        "counters",
        "gpu_back",
        "gpu_lost",
        "late",
        "mark",
        "measured",
        "notice",
        STEP,
        "nvlink_degraded",
        "nvlink_restored",
        "unmeasured",
        "xid",
    )
)
"""The kinds of events that an agent reports; all others are the recorder's own."""


@dataclass(frozen=True)
class Note:
    """An event on a node: an XID, a lost GPU, a metric that failed, a mark.

    ``kind`` is one of ``NOTE_KINDS``, ``severity`` is info, warning or error, ``gpu`` the position in
    ``Hello.gpus`` or None for the node. ``ts_ns`` is the node's Unix time, None for that of the frame.
    ``detail`` holds a mark's values, a JSON object without lists and objects in it.
    """

    kind: str
    severity: str
    message: str
    gpu: Optional[int] = None
    ts_ns: Optional[int] = None
    detail: Optional[str] = None


GAUGE_INTERVALS = 1.5
"""A gauge, such as utilisation or power, stands for at most this many sampling intervals."""
MAX_GAUGE_MS = MAX_INTERVAL_MS + 1000
"""A gauge stands for at most this long, at any interval: sums by minute reach only so far back."""


@dataclass(frozen=True)
class Frame:
    """All samples of one tick of one node.

    ``ts_ns`` is the node's Unix time of the tick, ``late_ms`` the tick's delay after its deadline, ``missed``
    the number of deadlines skipped since the frame before. ``gpus`` has one row for each GPU of the hello,
    without values for a GPU that did not answer; ``host`` has one row. ``processes`` is None on ticks that
    don't read processes. ``listings`` has those of ``LISTINGS`` that were read since the frame before. Its
    gauges stand for the time since the frame before, at most for ``gauge_ms``.
    """

    seq: int
    ts_ns: int
    late_ms: float
    missed: int
    gpus: Block
    host: Block
    processes: Optional[Processes] = None
    notes: Tuple[Note, ...] = ()
    gauge_ms: int = MAX_GAUGE_MS
    listings: Mapping[str, NamedRows] = field(default_factory=dict, hash=False)

    def interval_s(self, before_ns: int) -> Optional[float]:
        """Return the seconds that its gauges stand for, if the frame before is of this time."""
        since_ns = self.ts_ns - before_ns
        return min(since_ns / 1e9, self.gauge_ms / 1e3) if since_ns > 0 else None


@dataclass(frozen=True)
class Tables:
    """The layouts of a frame's tables."""

    gpus: BlockLayout
    host: BlockLayout
    processes: BlockLayout
    listings: Mapping[str, BlockLayout]

    def frame(
        self,
        seq: int,
        ts_ns: int,
        late_ms: float,
        missed: int,
        *,
        gpus: Sequence[Optional[Row]],
        host: Optional[Row],
        processes: Optional[Sequence[ProcessSample]] = None,
        notes: Tuple[Note, ...] = (),
        gauge_ms: int = MAX_GAUGE_MS,
        listings: Optional[Mapping[str, Sequence[NamedRow]]] = None,
    ) -> Frame:
        """Return a frame of plain rows, None for a GPU or host that did not answer."""
        return Frame(
            seq=seq,
            ts_ns=ts_ns,
            late_ms=late_ms,
            missed=missed,
            gpus=self.gpus.pack_rows(gpus),
            host=self.host.pack_rows([host]),
            processes=None if processes is None else Processes.of(self.processes, processes),
            notes=notes,
            gauge_ms=gauge_ms,
            listings={
                kind: NamedRows(
                    tuple(name for name, _ in rows), self.listings[kind].pack_rows([row for _, row in rows])
                )
                for kind, rows in (listings or {}).items()
            },
        )


TABLES = Tables(
    BlockLayout(GPU_COLUMNS, EXACT_COLUMNS),
    BlockLayout(HOST_COLUMNS, EXACT_COLUMNS),
    BlockLayout(PROCESS_COLUMNS, EXACT_COLUMNS),
    {kind: BlockLayout(columns, EXACT_COLUMNS) for kind, columns in LISTING_COLUMNS},
)
"""The layouts of the catalogue's metrics."""
