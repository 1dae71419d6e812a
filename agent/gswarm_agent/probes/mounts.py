"""The file systems that a job uses: free space and inodes, and the latency of NFS and Lustre.

/proc/self/mountstats counts the operations of NFS mounts and the milliseconds that they took (nfs-utils,
mountstats); Lustre's stats count both in microseconds. Only ``_row`` makes calls that a dead server blocks.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import partial
from glob import glob

from gswarm_agent.probes.procfs import read_file, read_start
from gswarm_agent.wire import clip_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Sequence, Tuple, TypeAlias

    from gswarm_agent.frame import Row
    from gswarm_agent.probes.listings import Readers

    Cost: TypeAlias = "Optional[Tuple[int, float]]"
    """Number of operations so far, and the milliseconds that they took together."""

_MIB = 1 << 20
_MOUNT = re.compile(rb"device (.*) mounted on (.*) with fstype (\S+)")
_NFS_COST = rb"^\s*%b: (\d+)(?: \d+){6} (\d+)"
"""Operations, transmissions, timeouts, bytes sent and received, ms queued, ms to the reply, ms in all."""
_LUSTRE_COST = rb"^%b +(\d+) samples \[usecs?\] \d+ \d+ (\d+)"


class Mounts:
    """The file systems of the job's working folder, of /tmp and of /dev/shm, found again each time.

    ``pids`` are the job's processes: the folder of the first that may be read is where the job works, and all
    paths are those that this process sees, as in its container. Without one it is the folder in which the job
    was submitted, or the user's home.
    """

    def __init__(self, proc: str, sys: str) -> None:
        self.pids: Sequence[int] = ()
        self._proc = proc
        self._lustre = f"{sys}/kernel/debug/lustre/llite", f"{proc}/fs/lustre/llite"
        self._costs: Dict[str, List[Cost]] = {}

    def find(self, _now_ns: int) -> Readers:
        """Return a function for each file system that returns its row of ``MOUNT_COLUMNS``."""
        process, folder = self._working_folder()
        root = f"{process}/root" if process else ""
        paths = dict.fromkeys((folder, "/tmp", "/dev/shm"))  # noqa: S108
        mounts = b""
        with suppress(OSError):
            mounts = read_file(f"{process or f'{self._proc}/self'}/mountstats")
        before, self._costs = self._costs, {path: self._read_costs(path, mounts) for path in paths}
        return {
            clip_text(path): partial(_row, root + path, list(map(_latency, before.get(path, costs), costs)))
            for path, costs in self._costs.items()
        }

    def _working_folder(self) -> Tuple[str, str]:
        """Return the job's process in /proc, empty without one, and where it works."""
        for pid in self.pids:
            with suppress(OSError):
                return f"{self._proc}/{pid}", os.readlink(f"{self._proc}/{pid}/cwd")
        return "", os.environ.get("SLURM_SUBMIT_DIR") or os.environ.get("HOME") or "/"

    def _read_costs(self, path: str, mounts: bytes) -> List[Cost]:
        """Return the costs of reads and of writes on a path's file system."""
        device, point, kind, stats = b"", b"", b"", b""
        for part in re.split(rb"^(?=device )", mounts, flags=re.MULTILINE):
            found = _MOUNT.match(part)
            if found is not None:
                # The kernel writes blanks and backslashes as octal numbers.
                at = re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), found[2])
                if len(at) >= len(point) and (os.fsencode(path) + b"/").startswith(at.rstrip(b"/") + b"/"):
                    device, point, kind, stats = found[1], at, found[3], part
        if kind in (b"nfs", b"nfs4"):
            return [_cost(_NFS_COST % name, stats, 1) for name in (b"READ", b"WRITE")]
        name = re.fullmatch(rb".*:/([^/]+).*", device)
        if kind != b"lustre" or name is None:
            return [None, None]
        files = [file for folder in self._lustre for file in glob(f"{folder}/{os.fsdecode(name[1])}-*/stats")]
        stats = read_start(files[0], _MIB) if files else b""
        return [_cost(_LUSTRE_COST % way, stats, 0.001) for way in (b"read", b"write")]


def _cost(pattern: bytes, text: bytes, unit_ms: float) -> Cost:
    found = re.search(pattern, text, re.MULTILINE)
    return (int(found[1]), int(found[2]) * unit_ms) if found else None


def _latency(then: Cost, now: Cost) -> Optional[float]:
    return (now[1] - then[1]) / (now[0] - then[0]) if now and then and now[0] > then[0] else None


def _row(path: str, latency: Sequence[Optional[float]]) -> Row:
    found = os.statvfs(path)
    free, total = (blocks * found.f_frsize // _MIB for blocks in (found.f_bavail, found.f_blocks))
    return (free, total, found.f_favail if found.f_files else None, *latency)
