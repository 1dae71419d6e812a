"""The host: its facts, and one row of metrics from /proc and /sys at each tick."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from glob import glob
from os.path import exists

from gswarm_agent.frame import WARNING, HostFacts, Note, Number, Row
from gswarm_agent.metrics import PROC_COLUMNS
from gswarm_agent.probes import procfs
from gswarm_agent.probes.rates import SECOND_NS, Rate, SummedRates

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Sequence, Tuple, TypeAlias

HostValues: TypeAlias = "Tuple[Optional[Number], ...]"

_ROW_NS = 450_000_000
"""The host is read at most twice a second (a little more often, so that ticks of 0.5 s find it due).

On a node with 224 threads /proc/stat alone takes half a millisecond, some InfiniBand adapters take one for
each port, and the kernel counts CPU time in ticks of 10 ms: a share of 100 ms would have ten steps.
"""
_MB = 10**6
_STAT_BYTES = 1024 * 1024
_STALLS = ("cpu", "memory", "io")
_US_TO_PERCENT = 100 * 1000 / SECOND_NS


class MissingError(LookupError):
    """Raised where the node lacks a device or a job; the message is a sentence."""


@dataclass(frozen=True)
class HostSource:
    """Some of the catalogue's host metrics: their columns, and a function of the monotonic time [ns].

    It raises OSError if a file can't be read, ValueError or LookupError if its content has another form.
    """

    columns: Sequence[str]
    read: Callable[[int], HostValues]


class Cpu:
    """Shares of CPU time since the previous reading."""

    columns = ("cpu_pct", "cpu_user_pct", "cpu_system_pct", "cpu_iowait_pct", "cpu_busiest_pct")

    def __init__(self, path: str) -> None:
        self._path = path
        self._before: Optional[procfs.CpuTimes] = None

    def read(self, now_ns: int) -> HostValues:
        """Return percentages, None at the first reading."""
        then, now = self._before, procfs.parse_stat(procfs.read_file(self._path))
        self._before = now
        if then is None:
            return (None,) * len(self.columns)
        whole = now.total - then.total
        return (
            _share(now.busy - then.busy, whole),
            _share(now.user - then.user, whole),
            _share(now.system - then.system, whole),
            _share(now.iowait - then.iowait, whole),
            _busiest(then, now),
        )


def _share(part: float, whole: int) -> Optional[float]:
    # The kernel may take back idle and iowait ticks: a part can fall, or exceed the whole, for a moment.
    return min(100.0, max(0.0, 100 * part / whole)) if whole > 0 else None


def _busiest(then: procfs.CpuTimes, now: procfs.CpuTimes) -> Optional[float]:
    if len(then.cores_total) != len(now.cores_total):
        return None
    columns = now.cores_busy, then.cores_busy, now.cores_total, then.cores_total
    shares = [
        (busy - busy_then) / (total - total_then)
        for busy, busy_then, total, total_then in zip(*columns)
        if total > total_then
    ]
    return _share(max(shares), 1) if shares else None


class DeviceTraffic:
    """Bytes per second summed over devices, each byte counted once.

    ``parse`` returns a file's counters by device; ``select`` returns the devices to add up.
    """

    def __init__(
        self,
        path: str,
        parse: Callable[[bytes], Dict[str, Tuple[int, int]]],
        select: Callable[[Sequence[str]], List[str]],
    ) -> None:
        self._path, self._parse, self._select = path, parse, select
        self._known: List[str] = []
        self._selected: List[str] = []
        self._rates = SummedRates(2)

    def read(self, now_ns: int) -> HostValues:
        """Return MB/s, None at the first reading."""
        counts = self._parse(procfs.read_file(self._path))
        names = list(counts)
        if names != self._known:
            self._known, self._selected = names, self._select(names)
        return _mb_s(self._rates.update({name: counts[name] for name in self._selected}, now_ns))


def _mb_s(rates: Optional[Tuple[float, ...]]) -> HostValues:
    return (None, None) if rates is None else tuple(rate / _MB for rate in rates)


class JobCgroup:
    """The cgroup of the Slurm job of a process, in version 1 or 2."""

    def __init__(self, proc: str, sys: str, pid: str) -> None:
        self._folder, self._is_v1 = "", False
        for line in procfs.read_start(f"{proc}/{pid}/cgroup").decode("utf-8", "replace").splitlines():
            # As 4:memory:/slurm/uid_7/job_9/step_0 or 0::/system.slice/slurmstepd.scope/job_9/step_0/user.
            _, controllers, path = line.split(":", 2)
            job = re.match(r"/.*/job_\d+(?=/|$)", path)
            folder = f"{sys}/fs/cgroup{'/memory' if controllers else ''}{job[0] if job else ''}"
            if job and controllers in ("", "memory") and not self._folder and exists(folder):
                self._folder, self._is_v1 = folder, bool(controllers)

    def read_file(self, name: str, name_v1: str = "") -> bytes:
        """Return a file by its names in version 2 and 1. Raises MissingError, OSError."""
        if not self._folder:
            raise MissingError("neither the agent nor your processes on the GPUs are in a Slurm job's cgroup")
        name = (self._is_v1 and name_v1) or name
        try:
            return procfs.read_file(f"{self._folder}/{name}")
        except FileNotFoundError:
            raise MissingError(f"the job has ended, or its cgroup has no {name}") from None

    def memory(self, _: int) -> HostValues:
        """Return the memory that the job uses, in MiB."""
        return (int(self.read_file("memory.current", "memory.usage_in_bytes")) >> 20,)

    def memory_limit(self, _: int) -> HostValues:
        """Return the memory that the job may use, in MiB; version 1 writes nearly 2**63 for no limit."""
        text = self.read_file("memory.max", "memory.limit_in_bytes").strip()
        if text == b"max" or int(text) > 1 << 60:
            raise MissingError("the job has no memory limit")
        return (int(text) >> 20,)

    def oom_kills(self, _: int) -> HostValues:
        """Return the number of processes that the kernel killed; version 1 counts them for each step."""
        texts = [self.read_file("memory.events", "memory.oom_control")]
        for below in ("step_*", "step_*/task_*") if self._is_v1 else ():
            texts += map(procfs.read_start, glob(f"{self._folder}/{below}/memory.oom_control"))
        return (sum(int(kills) for text in texts for kills in re.findall(rb"oom_kill (\d+)", text)),)


def all_sources(proc: str, sys: str) -> List[HostSource]:
    """Return new sources for all columns; the slowest come last (some adapters take 1 ms a port)."""

    def load(_: int) -> HostValues:
        return (procfs.parse_loadavg(procfs.read_file(f"{proc}/loadavg")),)

    def memory(_: int) -> HostValues:
        kib = procfs.parse_meminfo(procfs.read_file(f"{proc}/meminfo"))
        pairs = ((b"MemTotal", b"MemAvailable"), (b"SwapTotal", b"SwapFree"))
        used = [max(0, kib[a] - kib[b]) >> 10 if a in kib and b in kib else None for a, b in pairs]
        if used == [None, None]:
            raise LookupError
        return tuple(used)

    def whole_disks(names: Sequence[str]) -> List[str]:
        # Loop, ram, dm and md have no device. A path of a multipath NVMe disk counts its traffic again.
        disks = [name for name in names if exists(f"{sys}/block/{name}/device")]
        return [name for name in disks if not re.fullmatch(r"nvme\d+c\d+n\d+", name)]

    def interfaces(names: Sequence[str]) -> List[str]:
        # Bridges, bonds, VLANs and veths would count the same bytes again; a container has nothing else.
        physical = [name for name in names if exists(f"{sys}/class/net/{name}/device")]
        return physical or [name for name in names if name != "lo"]

    fabric_rates = SummedRates(2)

    def fabric(now_ns: int) -> HostValues:
        counts: Dict[str, Tuple[int, int]] = {}
        for folder in glob(f"{sys}/class/infiniband/*/ports/*/counters"):
            with suppress(OSError, ValueError):  # some adapters write "N/A (no PMA)"
                # They count words of four bytes (InfiniBand Architecture Specification, PortCounters).
                received, sent = (
                    4 * int(procfs.read_file(f"{folder}/port_{way}_data")) for way in ("rcv", "xmit")
                )
                counts[folder] = received, sent
        if not counts:
            raise MissingError("this node has no InfiniBand or RoCE port that counts its data")
        return _mb_s(fabric_rates.update(counts, now_ns))

    disks = DeviceTraffic(f"{proc}/diskstats", procfs.parse_diskstats, whole_disks)
    network = DeviceTraffic(f"{proc}/net/dev", procfs.parse_net_dev, interfaces)
    return [
        HostSource(Cpu.columns, Cpu(f"{proc}/stat").read),
        HostSource(("load_1m",), load),
        HostSource(("memory_used_mib", "swap_used_mib"), memory),
        HostSource(("disk_read_mb_s", "disk_write_mb_s"), disks.read),
        HostSource(("net_rx_mb_s", "net_tx_mb_s"), network.read),
        *(
            _pressure(f"psi_{name}_pct", partial(procfs.read_file, f"{proc}/pressure/{name}"))
            for name in _STALLS
        ),
        HostSource(("ib_rx_mb_s", "ib_tx_mb_s"), fabric),
        *_job_sources(JobCgroup(proc, sys, "self")),
    ]


def _pressure(column: str, read_text: Callable[[], bytes]) -> HostSource:
    rate = Rate()

    def read(now_ns: int) -> HostValues:
        # It may exceed 100 %, because the kernel has its own clock.
        growth = rate.update(procfs.parse_pressure(read_text()), now_ns)
        return (None if growth is None else growth * _US_TO_PERCENT,)

    return HostSource((column,), read)


def _job_sources(job: JobCgroup) -> List[HostSource]:
    return [
        HostSource(("job_memory_mib",), job.memory),
        HostSource(("job_memory_limit_mib",), job.memory_limit),
        HostSource(("job_oom_kills",), job.oom_kills),
        *(_pressure(f"job_psi_{name}_pct", partial(job.read_file, f"{name}.pressure")) for name in _STALLS),
    ]


class HostProbe:
    """Reads the node's metrics from files below ``proc`` and ``sys``.

    ``reasons`` says why a metric is missing.
    """

    def __init__(self, proc: str = "/proc", sys: str = "/sys") -> None:
        self.reasons: Dict[str, str] = {}
        self._notes: List[Note] = []
        self._folders, self._job_pid = (proc, sys), 0
        for source in all_sources(proc, sys):
            self._read(source, 0)
        self._notes.clear()
        self._sources = all_sources(proc, sys)
        columns = [name for source in self._sources for name in source.columns]
        self._order = [columns.index(name) for name in PROC_COLUMNS]
        self._row: Row = ()
        self._due = 0

    def follow(self, pids: Sequence[int]) -> None:
        """Measure the job of the first of these processes, as long as it is among them."""
        if pids and self._job_pid not in pids:
            self._job_pid = pids[0]
            sources = _job_sources(JobCgroup(*self._folders, str(self._job_pid)))
            self._sources[-len(sources) :] = sources

    def read(self, now_ns: int) -> Row:
        """Return one row of PROC_COLUMNS, which may be half a second old."""
        if now_ns < self._due:
            return self._row
        if self._row:  # the first row has no rates: the next call reads again
            self._due = now_ns + _ROW_NS
        values = [value for source in self._sources for value in self._read(source, now_ns)]
        self._row = tuple([values[place] for place in self._order])
        return self._row

    def take_notes(self) -> List[Note]:
        """Return the notes since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def _read(self, source: HostSource, now_ns: int) -> Sequence[Optional[Number]]:
        is_event = True
        try:
            values = source.read(now_ns)
        except MissingError as error:
            reason, is_event = str(error), False
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}"
        except (ValueError, LookupError):
            reason = "its file has an unexpected format"
        else:
            for name in source.columns:
                self.reasons.pop(name, None)
            return values
        for name in source.columns:
            if is_event and name not in self.reasons:
                self._notes.append(Note("unmeasured", WARNING, f"no longer measures {name}: {reason}"))
            self.reasons[name] = reason
        return (None,) * len(source.columns)


def read_host_facts(proc: str = "/proc") -> HostFacts:
    """Return the node's facts without those of the GPUs' driver."""
    kernel = os.uname()
    cpuinfo = procfs.read_start(f"{proc}/cpuinfo").decode("utf-8", "replace")
    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    cores = re.findall(rb"^cpu\d+ ", procfs.read_start(f"{proc}/stat", _STAT_BYTES), re.MULTILINE)
    memory = procfs.parse_meminfo(procfs.read_start(f"{proc}/meminfo")).get(b"MemTotal")
    return HostFacts(
        hostname=kernel.nodename,
        boot_id=procfs.read_start(f"{proc}/sys/kernel/random/boot_id").decode().strip(),
        kernel=kernel.release,
        cpu_model=model[1].strip() if model else None,
        cpus=len(cores) or None,
        memory_total_mib=None if memory is None else memory >> 10,
    )
