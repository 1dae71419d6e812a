"""Files of /proc and /sys, and parsers without I/O.

A parser raises ValueError or LookupError for text of another form.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Set, Tuple


def read_file(path: str) -> bytes:
    """Return a file's content. Raises OSError with its path."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def read_start(path: str, most: int = 4096) -> bytes:
    """Return the first bytes of a file in /proc or /sys, empty if it can't be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, most)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


SECTOR = 512
"""Bytes of a sector in /proc/diskstats, whatever sectors the disk has."""


@dataclass(frozen=True)
class CpuTimes:
    """The times of /proc/stat in clock ticks, guests' time counted once (it is part of user and nice).

    ``cores_busy`` and ``cores_total`` are those of each core, the others of all together.
    """

    user: int
    system: int
    iowait: int
    idle: int
    total: int
    cores_busy: List[int]
    cores_total: List[int]

    @property
    def busy(self) -> int:
        """Everything but idle and iowait, the hypervisor's share (steal) included."""
        return self.total - self.idle - self.iowait


_TICKS = 8
"""user, nice, system, idle, iowait, irq, softirq, steal; guest and guest_nice follow."""


def parse_stat(text: bytes) -> CpuTimes:
    """Parse /proc/stat."""
    first, _, rest = text[: text.index(b"\nintr")].partition(b"\n")
    name, *fields = first.split()
    if name != b"cpu":
        raise ValueError("/proc/stat has no cpu line")
    ticks = [int(field) for field in fields]
    user, nice, system, idle, iowait, irq, softirq, _steal = ticks[:_TICKS]
    # A node has hundreds of cores and this runs each tick: one list of all numbers, taken apart by columns.
    width = 1 + len(ticks)
    numbers = [int(field) for field in rest.replace(b"cpu", b"").split()]
    columns = [numbers[column::width] for column in range(1 + _TICKS)]
    total = [sum(core) for core in zip(*columns[1:])]
    busy = [t - i - w for t, i, w in zip(total, columns[4], columns[5])]
    own = user + nice, system + irq + softirq, iowait, idle, sum(ticks[:_TICKS])
    return CpuTimes(*own, busy, total)


_MEMORY = {name: b"\n%b:" % name for name in (b"MemTotal", b"MemAvailable", b"SwapTotal", b"SwapFree")}


def parse_meminfo(text: bytes) -> Dict[bytes, int]:
    """Parse /proc/meminfo: KiB of memory and swap, total and free, by the file's names."""
    text = b"\n" + text
    kib = {}
    for name, start in _MEMORY.items():
        # A line that is missing or malformed makes only its own value unknown.
        with suppress(ValueError):
            at = text.index(start) + len(start)
            kib[name] = int(text[at : text.index(b" kB\n", at)])
    return kib


def parse_loadavg(text: bytes) -> float:
    """Parse /proc/loadavg: the mean of one minute."""
    return float(text.split()[0])


def parse_pressure(text: bytes) -> int:
    """Parse /proc/pressure/*: microseconds in which some task waited, since boot."""
    some, _, _ = text.partition(b"\n")
    kind, _, total = some.rpartition(b" total=")
    if not kind.startswith(b"some "):
        raise ValueError("a file in /proc/pressure does not begin with 'some'")
    return int(total)


def parse_diskstats(text: bytes) -> Dict[str, Tuple[int, int]]:
    """Parse /proc/diskstats: bytes (read, written) by block device, partitions included."""
    devices = [line.split(None, 10) for line in text.splitlines()]
    return {each[2].decode(): (int(each[5]) * SECTOR, int(each[9]) * SECTOR) for each in devices}


def parse_net_dev(text: bytes) -> Dict[str, Tuple[int, int]]:
    """Parse /proc/net/dev: bytes (received, sent) by interface."""
    counts = {}
    for line in text.splitlines()[2:]:
        name, _, columns = line.rpartition(b":")
        fields = columns.split(None, 9)
        counts[name.strip().decode()] = int(fields[0]), int(fields[8])
    return counts


@dataclass(frozen=True)
class ProcessStat:
    """CPU time and start time in clock ticks, and resident memory in pages, from /proc/PID/stat.

    ``state`` is the main thread's letter, as ps prints it; ``threads`` is the number of threads.
    """

    cpu: int
    started: int
    resident: int
    state: str = ""
    threads: int = 0


def parse_process_stat(text: bytes) -> ProcessStat:
    """Parse /proc/PID/stat. The command in parentheses may itself hold parentheses and spaces."""
    fields = text[text.rindex(b")") + 1 :].split(None, 22)
    state = fields[0].decode("ascii", "replace")
    cpu = int(fields[11]) + int(fields[12])
    return ProcessStat(cpu, int(fields[19]), int(fields[21]), state, int(fields[17]))


_IO = (b"read_bytes:", b"write_bytes:", b"rchar:", b"wchar:")


def parse_process_io(text: bytes) -> Tuple[int, ...]:
    """Parse /proc/PID/io: bytes read from and written to disks, and by all calls that read and write."""
    words = text.split()
    return tuple([int(words[words.index(name) + 1]) for name in _IO])


def parse_thread_status(text: bytes) -> Tuple[str, int, int]:
    """Parse /proc/PID/status: the main thread's CPUs, its voluntary and its involuntary context switches."""
    words = text[text.index(b"\nCpus_allowed_list:") :].split()
    at = words.index(b"voluntary_ctxt_switches:")
    return words[1].decode(), int(words[at + 1]), int(words[at + 3])


def parse_cpu_list(text: str) -> Set[int]:
    """Parse a list of CPUs as the kernel writes it, such as 0-7,64-71."""
    cpus: Set[int] = set()
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def parse_process_uid(text: bytes) -> int:
    """Parse /proc/PID/status: the real user id."""
    line = next((line for line in text.splitlines() if line.startswith(b"Uid:")), b"")
    return int(line.split()[1])


def parse_command(text: bytes) -> Optional[str]:
    """Parse /proc/PID/cmdline: the words without secrets; None for a kernel thread or a zombie."""
    from gswarm_agent.redact import redact  # its patterns take a while to compile

    return " ".join(redact(text.rstrip(b"\0").decode("utf-8", "replace").split("\0"))) or None


_STEPS = {b"4294967290": "interactive", b"4294967291": "batch", b"4294967292": "extern"}
"""Slurm's steps without a number, as SLURM_STEP_ID has them."""


def parse_slurm_step(cgroup: bytes, variables: Dict[bytes, bytes]) -> Tuple[Optional[str], Optional[str]]:
    """Return the Slurm job and step of /proc/PID/cgroup, else of a process's variables."""
    if found := re.search(rb"/job_([0-9]+)(?:/step_([0-9a-z]+))?(?=[/\n]|$)", cgroup):
        job, step = found.groups()
    else:
        job, step = variables.get(b"SLURM_JOB_ID"), variables.get(b"SLURM_STEP_ID")
        step = None if job is None else step
    if not job or not re.fullmatch(rb"[0-9]{1,10}", job):
        return None, None
    return job.decode(), None if not step else _STEPS.get(step, step.decode("ascii", "replace")[:12])


# In this order: a launcher inside a Slurm step (torchrun, mpirun) overrides Slurm's rank.
RANK_VARIABLES = (b"RANK", b"OMPI_COMM_WORLD_RANK", b"MV2_COMM_WORLD_RANK", b"PMI_RANK", b"SLURM_PROCID")
_RANKS = (
    RANK_VARIABLES,
    (b"LOCAL_RANK", b"OMPI_COMM_WORLD_LOCAL_RANK", b"MV2_COMM_WORLD_LOCAL_RANK", b"SLURM_LOCALID"),
    # A batch script has SLURM_NTASKS without being one of so many; only srun sets the step's number of tasks.
    (b"WORLD_SIZE", b"OMPI_COMM_WORLD_SIZE", b"MV2_COMM_WORLD_SIZE", b"PMI_SIZE", b"SLURM_STEP_NUM_TASKS"),
)


def parse_environ(environ: bytes) -> Dict[bytes, bytes]:
    """Parse /proc/PID/environ: its variables."""
    return dict(entry.partition(b"=")[::2] for entry in environ.split(b"\0"))


def parse_ranks(environ: bytes) -> Tuple[Optional[int], Optional[int], Optional[int]]:
    """Parse /proc/PID/environ: (rank, local rank, world size), from launchers' variables and no others."""
    values: Dict[bytes, int] = {}
    for entry in environ.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if any(name in names for names in _RANKS) and re.fullmatch(rb"[0-9]{1,9}", value):
            values[name] = int(value)
    rank, local_rank, size = (next((values[n] for n in names if n in values), None) for names in _RANKS)
    return rank, local_rank, size


@lru_cache(maxsize=None)
def user_name(uid: int) -> str:
    """Return a user's name, or the number of a user without one. Each is looked up once."""
    import pwd

    from gswarm_agent.wire import clip_text

    try:
        return clip_text(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return str(uid)
