"""Scenarios of the NVML stand-in: the GPUs of a node as dataclasses, and the file that the library reads.

A *level* is reported as it is; ``None`` leaves it out, and calls that need it return NOT_SUPPORTED. A
*counter* grows at its rate; when a scenario is rewritten, counters continue from their values. So the file
alone defines every counter at every time, and :func:`read_counters` returns the exact values.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from pathlib import Path

LEAD_NS = 20_000_000
"""New rates start this long after a rewrite begins, so that both files agree while one replaces the other."""


_EACH_US = 600
H200_US: dict[str, int] = {
    "nvmlDeviceGetTotalEnergyConsumption": 4_800,
    "nvmlDeviceGetProcessUtilization": 2_700,
    "nvmlDeviceGetFieldValues": 720,
    "nvmlDeviceGetPcieThroughput": 2_500,
    "nvmlGpmSampleGet": 102,
    "nvmlGpmMetricsGet": 102,
    **{
        f"nvmlDeviceGet{name}": _EACH_US
        for name in (
            *("UtilizationRates", "MemoryInfo", "MemoryInfo_v2", "PowerUsage", "Temperature", "ClockInfo"),
            *("TemperatureV", "CurrentClocksEventReasons", "TotalEccErrors", "PerformanceState"),
            *("ComputeRunningProcesses_v3", "GraphicsRunningProcesses_v3", "RemappedRows"),
            *("CurrPcieLinkGeneration", "CurrPcieLinkWidth", "MaxPcieLinkGeneration", "MaxPcieLinkWidth"),
            *("EnforcedPowerLimit", "ApplicationsClock", "MarginTemperature", "GpuFabricInfoV"),
        )
    },
}
"""CPU time of calls as measured on an H200 (docs/decisions/017), in microseconds.

Those of 600 are the mean of what the record's totals leave for the calls that it doesn't itemise. That of the
PCIe throughput is what nvitop's 1.1 % of a core leave for its two calls a second.
"""


class Return(IntEnum):
    """The nvmlReturn_t codes that scenarios use."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    UNKNOWN = 999


class EventType(IntEnum):
    """The nvmlEventType bits that the stand-in knows by name."""

    SINGLE_BIT_ECC = 0x1
    DOUBLE_BIT_ECC = 0x2
    PSTATE = 0x4
    XID = 0x8
    CLOCK = 0x10


@dataclass(frozen=True)
class Event:
    """One event of a GPU, such as an XID (``data`` is its number)."""

    type: int
    data: int


@dataclass(frozen=True)
class GpuProcess:
    """A process on a GPU, under its true pid.

    ``type`` is ``C`` (compute), ``G`` (graphics) or ``M`` (MPS). Without ``sm_percent`` there are no samples
    of its utilisation. The instances place it on a MIG device.
    """

    pid: int
    used_mib: int
    type: str = "C"
    sm_percent: int | None = 0
    memory_percent: int = 0
    gpu_instance: int = 0xFFFFFFFF
    compute_instance: int = 0xFFFFFFFF


@dataclass(frozen=True)
class MigDevice:
    """A MIG device of a GPU whose ``mig_mode`` is 1. ``profile`` ends its name, as in ``1g.10gb``."""

    uuid: str
    gpu_instance: int
    compute_instance: int = 0
    profile: str = "1g.10gb"
    slices: int = 1
    multiprocessors: int = 16
    total_mib: int = 9856
    used_mib: int = 12
    sm_active: float = 0
    """GPM's metric 2 of its GPU instance; the other metrics are those of the GPU."""


@dataclass
class StandinGpu:
    """One GPU. Units are in the names; the defaults are an idle H100 SXM's.

    Fields from ``minor`` to ``nvlink_speed_mbps`` are levels; those ending in ``_per_s`` are counters' rates.
    """

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    serial: str = "1650123000000"
    part_number: str = "699-2G520-0200-000"
    vbios: str = "96.00.74.00.0D"
    pci_bus_id: str = "00000000:18:00.0"

    minor: int | None = 0
    brand: int | None = 2
    architecture: int | None = 9
    cores: int | None = 16896
    compute_major: int | None = 9
    compute_minor: int | None = 0
    utilization_percent: int | None = 0
    memory_utilization_percent: int | None = 0
    encoder_percent: int | None = 0
    decoder_percent: int | None = 0
    memory_total_mib: int | None = 81559
    memory_used_mib: int | None = 0
    """Memory of processes. nvmlDeviceGetMemoryInfo's first version adds ``memory_reserved_mib`` to it."""
    memory_reserved_mib: int | None = 570
    bar1_total_mib: int | None = 131072
    bar1_used_mib: int | None = 1
    power_mw: int | None = 70_000
    power_limit_mw: int | None = 700_000
    power_limit_default_mw: int | None = 700_000
    power_limit_min_mw: int | None = 200_000
    power_limit_max_mw: int | None = 700_000
    temperature_c: int | None = 30
    memory_temperature_c: int | None = 38
    slowdown_temperature_c: int | None = 87
    shutdown_temperature_c: int | None = 92
    graphics_clock_mhz: int | None = 345
    sm_clock_mhz: int | None = 345
    memory_clock_mhz: int | None = 2619
    video_clock_mhz: int | None = 765
    max_graphics_clock_mhz: int | None = 1980
    max_sm_clock_mhz: int | None = 1980
    max_memory_clock_mhz: int | None = 2619
    max_video_clock_mhz: int | None = 1545
    pstate: int | None = 0
    clock_reasons: int | None = 0x1
    """nvmlClocksEventReasons: 0x1 idle, 0x4 power cap, 0x20 software thermal, 0x40 hardware thermal, ..."""
    fan_percent: int | None = None
    fans: int | None = 0
    ecc_corrected_volatile: int | None = 0
    ecc_uncorrected_volatile: int | None = 0
    ecc_corrected_aggregate: int | None = 0
    ecc_uncorrected_aggregate: int | None = 0
    remapped_corrected: int | None = 0
    remapped_uncorrected: int | None = 0
    remapped_pending: int | None = 0
    remapped_failure: int | None = 0
    mig_mode: int | None = 0
    """1 turns MIG on: the GPU then has no utilisation, and its ``migs`` appear."""
    persistence_mode: int | None = 1
    compute_mode: int | None = 0
    display_active: int | None = 0
    event_types: int | None = 0xFF9F
    """All types of nvml.h, as a real H200 says."""
    pcie_gen: int | None = 5
    pcie_gen_max: int | None = 5
    pcie_width: int | None = 16
    pcie_width_max: int | None = 16
    pcie_replays: int | None = 0
    pcie_counts_wrap: int | None = 1
    """1: the PCIe byte counts (fields 197 and 198) are 32 bits wide and wrap."""
    has_gpm: int | None = 1
    """1: GPU performance monitoring, which has the PCIe traffic, too."""
    nvlink_links: int | None = 18
    nvlink_version: int | None = 6
    """As in nvml.h: 6 is NVLink 4. From 7 on, the byte counts of fields 202 and 204 are available too."""
    nvlink_down: int | None = 0
    """A bit for each NVLink that is down."""
    nvlink_slow: int | None = 0
    """A bit for each NVLink at half the speed."""
    nvlink_peer: int | None = None
    """The GPU to which all NVLinks lead, None for NVSwitches."""
    nvlink_crc_errors: int | None = 0
    nvlink_replays: int | None = 0
    nvlink_recoveries: int | None = 0
    fabric_state: int | None = 3
    recovery_action: int | None = 0
    power_instant_mw: int | None = 70_000
    module_power_mw: int | None = None
    temperature_margin_c: int | None = 55
    app_sm_clock_mhz: int | None = 1980
    app_memory_clock_mhz: int | None = 2619
    nvlink_speed_mbps: int | None = 26562

    energy_mj_per_s: int | None = None
    """``None`` for ``power_mw``, so that energy is the integral of power."""
    pcie_tx_bytes_per_s: int | None = 0
    pcie_rx_bytes_per_s: int | None = 0
    nvlink_tx_kib_per_s: int | None = 0
    """Over all links; a link's own counter is its share."""
    nvlink_rx_kib_per_s: int | None = 0
    throttle_power_ns_per_s: int | None = 0
    throttle_sw_thermal_ns_per_s: int | None = 0
    throttle_hw_thermal_ns_per_s: int | None = 0
    throttle_power_brake_ns_per_s: int | None = 0

    starts: Mapping[str, int] = field(default_factory=dict)
    """Counters' values when the scenario is first written, by name (as in :data:`COUNTERS`); 0 by default."""

    gpm: dict[int, float] = field(default_factory=dict)
    """GPM metrics by id (2: SM utilisation, 10: DRAM bandwidth, ...), besides those of PCIe traffic."""

    processes: list[GpuProcess] = field(default_factory=list)
    migs: list[MigDevice] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    """Only ever appended to."""

    lost: bool = False
    """Every call on the GPU returns GPU_IS_LOST; handles are still available."""
    lost_from_start: bool = False
    """As ``lost``, and without a handle either."""
    answers: dict[str | int, int] = field(default_factory=dict)
    """Faults: the nvmlReturn_t of a function (by its C name, as ``nvmlDeviceGetFanSpeed``) or a field id."""
    delays_ms: dict[str, int] = field(default_factory=lambda: {"nvmlDeviceGetPcieThroughput": 20})
    """How long a function takes. PCIe throughput takes 20 ms on real GPUs, too."""

    def xid(self, number: int) -> None:
        """Append an XID event; the next write delivers it."""
        self.events.append(Event(EventType.XID, number))


COUNTERS = tuple(f.name.removesuffix("_per_s") for f in fields(StandinGpu) if f.name.endswith("_per_s"))
"""The counters' names, with their units: ``energy_mj``, ``pcie_tx_bytes``, ``nvlink_tx_kib``, ..."""

_NAMES = [f.name for f in fields(StandinGpu)]
_TEXTS = ("name", "serial", "part_number", "vbios", "pci_bus_id")
_LEVELS = _NAMES[_NAMES.index("minor") : _NAMES.index("nvlink_speed_mbps") + 1]


@dataclass(frozen=True)
class Counter:
    """A counter's whole history: from each anchor (CLOCK_MONOTONIC, ns) on, ``value + rate * seconds``."""

    segments: tuple[tuple[int, int, int], ...]
    """(anchor ns, value, rate per second), in order of time."""

    def at(self, monotonic_ns: int) -> int:
        """Return the counter's value at a time, exactly as the stand-in reports it."""
        anchor, value, rate = self.segments[0]
        for segment in self.segments[1:]:
            if segment[0] <= monotonic_ns:
                anchor, value, rate = segment
        return value + rate * max(0, monotonic_ns - anchor) // 1_000_000_000

    def with_rate(self, rate: int, anchor_ns: int) -> Counter:
        """Return the counter continued at another rate from a time after all its anchors."""
        if self.segments[-1][2] == rate:
            return self
        return Counter((*self.segments, (anchor_ns, self.at(anchor_ns), rate)))


@dataclass
class Scenario:
    """Everything that one node's library reports. GPUs are in NVML's order (by PCI bus)."""

    gpus: list[StandinGpu] = field(default_factory=list)
    driver_version: str = "580.65.06"
    nvml_version: str = "13.580.65.06"
    cuda_version: int = 13000
    answers: dict[str | int, int] = field(default_factory=dict)
    """As :attr:`StandinGpu.answers`, for all GPUs, and for functions of no GPU (``nvmlInit``)."""
    delays_ms: dict[str, int] = field(default_factory=dict)
    spins_us: Mapping[str, int] = field(default_factory=dict)
    """CPU time that functions take on each GPU, such as :data:`H200_US`."""
    one_lock: bool = False
    """Whether the driver lets the calls with such a time pass one after another, of all GPUs and threads."""

    @classmethod
    def of(cls, node: str, gpus: int, **levels: int | None) -> Scenario:
        """Return a node of equal GPUs, each with its own UUID, serial number, minor number and PCI bus.

        UUIDs come from the node's name and the index, so that the same node has the same GPUs again.
        """
        return cls([_gpu(node, index, levels) for index in range(gpus)])

    def write(self, path: Path) -> int:
        """Replace the scenario file in one step and return when the new rates are in force.

        Returns:
            The time (CLOCK_MONOTONIC, ns) from which counters grow at the new rates. New levels are in
            force a little earlier, and at the latest when this method returns.
        """
        before = read_counters(path) if path.exists() else {}
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        anchor = 0
        while time.monotonic_ns() > anchor - LEAD_NS // 2:  # also when this process was held up meanwhile
            anchor = time.monotonic_ns() + LEAD_NS
            text = "".join(f"{line}\n" for line in self._lines(before, anchor))
            unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
        time.sleep(max(0, anchor - time.monotonic_ns()) / 1e9)
        return anchor

    def _lines(self, before: dict[str, dict[str, Counter]], anchor_ns: int) -> list[str]:
        lines = [f"driver_version {self.driver_version}", f"nvml_version {self.nvml_version}"]
        lines += [f"cuda_version {self.cuda_version}", *_rules(self.answers, self.delays_ms)]
        lines += [f"spin {name} {us}" for name, us in self.spins_us.items()]
        lines.append(f"one_lock {int(self.one_lock)}")
        for gpu in self.gpus:
            lines += _gpu_lines(gpu, before.get(gpu.uuid, {}), anchor_ns)
        return lines


def read_counters(path: Path) -> dict[str, dict[str, Counter]]:
    """Return a scenario file's counters by GPU UUID and counter name, for tests to compare with."""
    found: dict[str, dict[str, Counter]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        match line.split():
            case ["gpu", gpu]:
                counters = found[gpu] = {}
            case ["counter", name, anchor, value, rate]:
                earlier = counters[name].segments if name in counters else ()
                counters[name] = Counter((*earlier, (int(anchor), int(value), int(rate))))
    return found


def _gpu(node: str, index: int, levels: Mapping[str, int | None]) -> StandinGpu:
    identity = uuid.uuid5(uuid.NAMESPACE_DNS, f"{node}/{index}")
    gpu = StandinGpu(
        uuid=f"GPU-{identity}",
        serial=f"165{identity.int % 10**10:010d}",
        pci_bus_id=f"00000000:{0x18 + 0x0F * index:02X}:00.0",
        minor=index,
    )
    for name, value in levels.items():
        if name not in _LEVELS and name.removesuffix("_per_s") not in COUNTERS:
            raise TypeError(f"a GPU has no level or rate {name!r}")
        setattr(gpu, name, value)
    return gpu


def _gpu_lines(gpu: StandinGpu, before: Mapping[str, Counter], anchor_ns: int) -> list[str]:
    lines = [f"gpu {gpu.uuid}", f"lost {2 if gpu.lost_from_start else int(gpu.lost)}"]
    values = {name: getattr(gpu, name) for name in (*_TEXTS, *_LEVELS)}
    lines += [f"{name} {value}" for name, value in values.items() if value is not None]
    for name in COUNTERS:
        rate = getattr(gpu, f"{name}_per_s")
        if name == "energy_mj" and rate is None:
            rate = gpu.power_mw
        if rate is None:
            continue
        start = Counter(((anchor_ns, gpu.starts.get(name, 0), rate),))
        counter = before[name].with_rate(rate, anchor_ns) if name in before else start
        lines += [f"counter {name} {anchor} {value} {rate}" for anchor, value, rate in counter.segments]
    for p in gpu.processes:
        sm = -1 if p.sm_percent is None else p.sm_percent
        place = f"{p.gpu_instance} {p.compute_instance}"
        lines.append(f"process {p.type} {p.pid} {place} {p.used_mib} {sm} {p.memory_percent}")
    for m in gpu.migs:
        place = f"{m.gpu_instance} {m.compute_instance}"
        size = f"{m.slices} {m.multiprocessors} {m.total_mib} {m.used_mib} {m.sm_active}"
        lines.append(f"mig {m.uuid} {m.profile} {place} {size}")
    lines += [f"gpm {metric} {value}" for metric, value in gpu.gpm.items()]
    lines += [f"event {int(event.type)} {event.data}" for event in gpu.events]
    return lines + _rules(gpu.answers, gpu.delays_ms)


def _rules(answers: Mapping[str | int, int], delays_ms: Mapping[str, int]) -> list[str]:
    return [
        *(f"answer {name} {int(code)}" for name, code in answers.items()),
        *(f"delay {name} {delay}" for name, delay in delays_ms.items()),
    ]
