"""What a node's metrics are read from: one class for each kind of file in /proc and /sys.

A source's ``read`` takes a monotonic time in nanoseconds and answers its columns in order. It raises OSError
when its file can't be read, ValueError or LookupError when it doesn't hold what it should.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from glob import glob
from os.path import exists

from gswarm_agent.frame import Number
from gswarm_agent.probes.kept import KeptFile
from gswarm_agent.probes.procfs import (
    CoreTimes,
    CpuTimes,
    parse_diskstats,
    parse_loadavg,
    parse_meminfo,
    parse_net_dev,
    parse_pressure,
    parse_stat,
)
from gswarm_agent.probes.rates import SECOND_NS, Rates, SummedRates

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Sequence, Tuple, TypeAlias

Answer: TypeAlias = "Tuple[Optional[Number], ...]"

_MB = 10**6
_US_TO_PERCENT = 100 * 1000 / SECOND_NS


class MissingError(LookupError):
    """This node has no such thing; the message is a sentence."""


class HostSource(ABC):
    """Some columns of the catalogue's host metrics and the files they come from."""

    columns: Sequence[str] = ()

    def __init__(self, *files: KeptFile) -> None:
        self._files = files

    @abstractmethod
    def read(self, now_ns: int) -> Answer:
        """The columns' values."""

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


class Cpu(HostSource):
    """Shares of CPU time since the reading before."""

    columns = ("cpu_pct", "cpu_user_pct", "cpu_system_pct", "cpu_iowait_pct", "cpu_busiest_pct")

    def __init__(self, proc: str, sys: str) -> None:
        self._stat = KeptFile(f"{proc}/stat")
        super().__init__(self._stat)
        self._before: Optional[Tuple[CpuTimes, CoreTimes]] = None

    def read(self, now_ns: int) -> Answer:
        """See HostSource; shares of one interval, so the time doesn't matter."""
        before, (now, cores) = self._before, parse_stat(self._stat.read())
        self._before = (now, cores)
        if before is None:
            return (None,) * len(self.columns)
        then, cores_then = before
        whole = now.total - then.total
        return (
            _share(now.busy - then.busy, whole),
            _share(now.user - then.user, whole),
            _share(now.system - then.system, whole),
            _share(now.iowait - then.iowait, whole),
            _busiest(cores_then, cores),
        )


def _share(part: int, whole: int) -> Optional[float]:
    # The kernel may take back idle and iowait ticks, so a part can fall or outgrow the whole for a moment.
    return min(100.0, max(0.0, 100 * part / whole)) if whole > 0 else None


def _busiest(then: CoreTimes, now: CoreTimes) -> Optional[float]:
    if then.cores != now.cores:
        return None
    shares = [
        (busy - busy_then) / (total - total_then)
        for busy, busy_then, total, total_then in zip(now.busy, then.busy, now.total, then.total)
        if total > total_then
    ]
    return min(100.0, max(0.0, 100 * max(shares))) if shares else None


class Load(HostSource):
    """The load average of one minute."""

    columns = ("load_1m",)

    def __init__(self, proc: str, sys: str) -> None:
        self._loadavg = KeptFile(f"{proc}/loadavg")
        super().__init__(self._loadavg)

    def read(self, now_ns: int) -> Answer:
        """See HostSource."""
        return (parse_loadavg(self._loadavg.read()),)


class Memory(HostSource):
    """Memory and swap in use."""

    columns = ("memory_used_mib", "swap_used_mib")

    def __init__(self, proc: str, sys: str) -> None:
        self._meminfo = KeptFile(f"{proc}/meminfo")
        super().__init__(self._meminfo)

    def read(self, now_ns: int) -> Answer:
        """See HostSource."""
        kib = parse_meminfo(self._meminfo.read())
        memory = kib[b"MemTotal"] - kib[b"MemAvailable"]
        return max(0, memory) >> 10, max(0, kib[b"SwapTotal"] - kib[b"SwapFree"]) >> 10


class Devices(HostSource):
    """Bytes per second of those devices in a table that carry traffic to the outside."""

    table = ""

    def __init__(self, proc: str, sys: str) -> None:
        self._counts = KeptFile(f"{proc}/{self.table}")
        super().__init__(self._counts)
        self._sys = sys
        self._known: List[str] = []
        self._chosen: List[str] = []
        self._rates = SummedRates(2)

    @abstractmethod
    def parse(self, text: bytes) -> Dict[str, Tuple[int, int]]:
        """Two counters of bytes by device."""

    @abstractmethod
    def choose(self, names: Sequence[str]) -> List[str]:
        """Which of the devices to add up."""

    def read(self, now_ns: int) -> Answer:
        """See HostSource."""
        counts = self.parse(self._counts.read())
        names = list(counts)
        if names != self._known:
            self._known, self._chosen = names, self.choose(names)
        rates = self._rates.update({name: counts[name] for name in self._chosen}, now_ns)
        return (None, None) if rates is None else tuple(rate / _MB for rate in rates)


class Disks(Devices):
    """Whole disks with hardware of their own: no partitions, and nothing that is made of other disks."""

    columns = ("disk_read_mb_s", "disk_write_mb_s")
    table = "diskstats"
    # One way to an NVMe disk that has several; the disk itself counts its traffic again.
    _PATH = re.compile(r"nvme\d+c\d+n\d+")

    def parse(self, text: bytes) -> Dict[str, Tuple[int, int]]:
        """Bytes (read, written)."""
        return parse_diskstats(text)

    def choose(self, names: Sequence[str]) -> List[str]:
        """Those with a device in /sys/block, which loop, ram, dm and md have not."""
        block = f"{self._sys}/block"
        return [n for n in names if exists(f"{block}/{n}/device") and not self._PATH.fullmatch(n)]


class Network(Devices):
    """Network interfaces with hardware of their own, or all but lo where there are none (in a container)."""

    columns = ("net_rx_mb_s", "net_tx_mb_s")
    table = "net/dev"

    def parse(self, text: bytes) -> Dict[str, Tuple[int, int]]:
        """Bytes (received, sent)."""
        return parse_net_dev(text)

    def choose(self, names: Sequence[str]) -> List[str]:
        """Bridges, bonds, VLANs and veths would count the same bytes again."""
        net = f"{self._sys}/class/net"
        return [n for n in names if exists(f"{net}/{n}/device")] or [n for n in names if n != "lo"]


class Pressure(HostSource):
    """Share of the interval in which some task waited for a resource ("cpu", "memory" or "io")."""

    def __init__(self, proc: str, resource: str) -> None:
        self.columns = (f"psi_{resource}_pct",)
        self._pressure = KeptFile(f"{proc}/pressure/{resource}")
        super().__init__(self._pressure)
        self._rates = Rates(1)

    def read(self, now_ns: int) -> Answer:
        """See HostSource."""
        (rate,) = self._rates.update((parse_pressure(self._pressure.read()),), now_ns)
        return (None if rate is None else min(100.0, rate * _US_TO_PERCENT),)


class Fabric(HostSource):
    """Bytes per second of all InfiniBand and RoCE ports that count their data."""

    columns = ("ib_rx_mb_s", "ib_tx_mb_s")
    # The counters count words of four bytes (InfiniBand Architecture Specification, PortCounters).
    _WORD = 4

    def __init__(self, proc: str, sys: str) -> None:
        folders = sorted(glob(f"{sys}/class/infiniband/*/ports/*/counters"))
        files = [(KeptFile(f"{f}/port_rcv_data"), KeptFile(f"{f}/port_xmit_data")) for f in folders]
        self._ports = [pair for pair in files if all(exists(file.path) for file in pair)]
        super().__init__(*(file for pair in self._ports for file in pair))
        self._rates = SummedRates(2)

    def read(self, now_ns: int) -> Answer:
        """See HostSource. A port that can't be read at the moment is left out."""
        if not self._ports:
            raise MissingError("this node has no InfiniBand or RoCE port that counts its data")
        counts: Dict[str, Tuple[int, int]] = {}
        failed: List[OSError] = []
        for received, sent in self._ports:
            try:
                counts[received.path] = (
                    int(received.read()) * self._WORD,
                    int(sent.read()) * self._WORD,
                )
            except OSError as error:
                failed.append(error)
        if not counts:
            raise failed[0]
        rates = self._rates.update(counts, now_ns)
        return (None, None) if rates is None else tuple(rate / _MB for rate in rates)


def all_sources(proc: str, sys: str) -> List[HostSource]:
    """Every source, none of which has been read; the slowest last (some adapters take 1 ms a port)."""
    kinds: List[Callable[[str, str], HostSource]] = [Cpu, Load, Memory, Disks, Network]
    pressures = [Pressure(proc, resource) for resource in ("cpu", "memory", "io")]
    return [*(kind(proc, sys) for kind in kinds), *pressures, Fabric(proc, sys)]
