"""What files in /proc say, without any I/O. Text that doesn't fit raises ValueError or LookupError."""

from __future__ import annotations

import re

from gswarm_agent.frozen import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

SECTOR = 512
"""Bytes of a sector in /proc/diskstats, whatever the disk's own."""


@dataclass(frozen=True)
class CpuTimes:
    """One line of /proc/stat in clock ticks, guests' time counted once (it is part of user and nice)."""

    user: int
    system: int
    iowait: int
    idle: int
    total: int

    @property
    def busy(self) -> int:
        """Everything but idle and iowait, the hypervisor's share (steal) included."""
        return self.total - self.idle - self.iowait


@dataclass(frozen=True)
class CoreTimes:
    """Clock ticks of each core: its number, the time it was busy, all time."""

    cores: List[int]
    busy: List[int]
    total: List[int]


_TICKS = 8
"""user, nice, system, idle, iowait, irq, softirq, steal; guest and guest_nice follow."""


def parse_stat(text: bytes) -> Tuple[CpuTimes, CoreTimes]:
    """/proc/stat: the times of all cores together, and of each."""
    first, _, rest = text[: text.index(b"\nintr")].partition(b"\n")
    name, *fields = first.split()
    if name != b"cpu":
        raise ValueError("/proc/stat has no cpu line")
    ticks = [int(field) for field in fields]
    user, nice, system, idle, iowait, irq, softirq, _steal = ticks[:_TICKS]
    everything = CpuTimes(user + nice, system + irq + softirq, iowait, idle, sum(ticks[:_TICKS]))
    # A node has hundreds of cores and this runs each tick: one list of all numbers, taken apart by columns.
    width = 1 + len(ticks)
    numbers = [int(field) for field in rest.replace(b"cpu", b"").split()]
    columns = [numbers[column::width] for column in range(1 + _TICKS)]
    total = [sum(core) for core in zip(*columns[1:])]
    busy = [t - i - w for t, i, w in zip(total, columns[4], columns[5])]
    if len(numbers) != width * len(total):
        raise ValueError("/proc/stat has cpu lines of different lengths")
    return everything, CoreTimes(columns[0], busy, total)


_MEMORY = {name: b"\n%b:" % name for name in (b"MemTotal", b"MemAvailable", b"SwapTotal", b"SwapFree")}


def parse_meminfo(text: bytes) -> Dict[bytes, int]:
    """/proc/meminfo: KiB in all and available, of memory and of swap, by the file's names."""
    text = b"\n" + text
    found = {}
    for name, start in _MEMORY.items():
        at = text.find(start)
        if at >= 0:
            found[name] = int(text[at + len(start) : text.index(b" kB\n", at)])
    return found


def parse_loadavg(text: bytes) -> float:
    """/proc/loadavg: the mean of one minute."""
    return float(text.split()[0])


def parse_pressure(text: bytes) -> int:
    """/proc/pressure/*: microseconds in which some task waited, since boot."""
    some, _, _ = text.partition(b"\n")
    kind, _, total = some.rpartition(b" total=")
    if not kind.startswith(b"some "):
        raise ValueError("it doesn't begin with what some tasks waited")
    return int(total)


def parse_diskstats(text: bytes) -> Dict[str, Tuple[int, int]]:
    """/proc/diskstats: bytes (read, written) by block device, partitions and all."""
    found = {}
    for line in text.splitlines():
        fields = line.split(None, 10)
        found[fields[2].decode()] = (int(fields[5]) * SECTOR, int(fields[9]) * SECTOR)
    return found


def parse_net_dev(text: bytes) -> Dict[str, Tuple[int, int]]:
    """/proc/net/dev: bytes (received, sent) by interface."""
    found = {}
    for line in text.splitlines()[2:]:
        name, _, counts = line.rpartition(b":")
        fields = counts.split(None, 9)
        found[name.strip().decode()] = (int(fields[0]), int(fields[8]))
    return found


@dataclass(frozen=True)
class ProcessStat:
    """/proc/PID/stat: CPU time and start time in clock ticks, resident memory in pages."""

    cpu: int
    started: int
    resident: int


def parse_process_stat(text: bytes) -> ProcessStat:
    """/proc/PID/stat. The command in parentheses may itself hold parentheses and spaces."""
    fields = text[text.rindex(b")") + 1 :].split(None, 22)
    return ProcessStat(int(fields[11]) + int(fields[12]), int(fields[19]), int(fields[21]))


def parse_process_io(text: bytes) -> Tuple[int, int]:
    """/proc/PID/io: bytes (read from, written to) disks."""
    words = text.split()
    return int(words[words.index(b"read_bytes:") + 1]), int(words[words.index(b"write_bytes:") + 1])


def parse_process_uid(text: bytes) -> int:
    """/proc/PID/status: the real user id."""
    line = next((line for line in text.splitlines() if line.startswith(b"Uid:")), b"")
    return int(line.split()[1])


def parse_command(text: bytes) -> Optional[str]:
    """/proc/PID/cmdline: the words without secrets, joined by spaces; None for a kernel thread, a zombie."""
    from gswarm_agent.redact import redact  # its patterns take a while to compile

    return " ".join(redact(text.rstrip(b"\0").decode("utf-8", "replace").split("\0"))) or None


# A launcher inside a Slurm step (torchrun, mpirun) knows better than Slurm which rank a process has.
_RANKS = (b"RANK", b"OMPI_COMM_WORLD_RANK", b"PMI_RANK", b"SLURM_PROCID")
_LOCAL_RANKS = (b"LOCAL_RANK", b"OMPI_COMM_WORLD_LOCAL_RANK", b"SLURM_LOCALID")


def parse_ranks(environ: bytes) -> Tuple[Optional[int], Optional[int]]:
    """/proc/PID/environ: (rank, local rank), from the named variables and no others."""
    values: Dict[bytes, int] = {}
    for entry in environ.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if (name in _RANKS or name in _LOCAL_RANKS) and re.fullmatch(rb"[0-9]{1,9}", value):
            values[name] = int(value)
    found: List[Optional[int]] = [
        next((values[name] for name in names if name in values), None) for names in (_RANKS, _LOCAL_RANKS)
    ]
    return found[0], found[1]
