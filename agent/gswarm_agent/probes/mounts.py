"""The file systems that a job uses: free space and inodes, and the latency of NFS and Lustre.

/proc/self/mountstats counts the operations of NFS mounts and the milliseconds that they took (nfs-utils,
mountstats); Lustre's stats count both in microseconds. What a dead server blocks is in ``_Mount.read`` alone.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from glob import glob

from gswarm_agent.probes.procfs import read_file, read_start
from gswarm_agent.wire import clip_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional, Sequence, Tuple, TypeAlias

    from gswarm_agent.frame import Row
    from gswarm_agent.probes.listings import Readers

    Costs: TypeAlias = "Tuple[int, int]"
    """Operations until now, and the time that they took together."""

_MIB = 1 << 20
_MOUNT = re.compile(rb"device (.*) mounted on (.*) with fstype (\S+)")
_NFS, _LUSTRE = re.compile(rb"nfs4?"), b"lustre"
_NFS_COSTS = rb"^\s*%b: (\d+)(?: \d+){6} (\d+)"
"""Operations, transmissions, timeouts, bytes sent and received, ms queued, ms to the reply, ms in all."""
_LUSTRE_COSTS = rb"^%b +(\d+) samples \[usecs?\] \d+ \d+ (\d+)"


class _Mount:
    """The file system at a path, with the costs of its reads and writes before."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._before: Sequence[Optional[Costs]] = (None, None)
        self._latency: Sequence[Optional[float]] = ()

    def update(self, costs: Sequence[Optional[Costs]], unit_ms: float) -> None:
        """Take the costs of reads and of writes until now."""
        self._latency = [
            (now[1] - then[1]) * unit_ms / (now[0] - then[0]) if now and then and now[0] > then[0] else None
            for now, then in zip(costs, self._before)
        ]
        self._before = costs

    def read(self) -> Row:
        """Return its row of ``MOUNT_COLUMNS``. Raises OSError."""
        latency = self._latency
        found = os.statvfs(self._path)
        free, total = (blocks * found.f_frsize // _MIB for blocks in (found.f_bavail, found.f_blocks))
        return (free, total, found.f_favail if found.f_files else None, *latency)


class Mounts:
    """The file systems of the job's working folder, of /tmp and of /dev/shm, found again each time.

    ``pids`` are the job's processes: the folder of the first that may be read is where the job works. Without
    one it is the folder in which the job was submitted, or the user's home.
    """

    def __init__(self, proc: str, sys: str) -> None:
        self.pids: Sequence[int] = ()
        self._proc = proc
        self._lustre = f"{sys}/kernel/debug/lustre/llite", f"{proc}/fs/lustre/llite"
        self._known: Dict[str, _Mount] = {}

    def find(self, _now_ns: int) -> Readers:
        """Return a function for each file system that returns its row."""
        paths = dict.fromkeys((self._working_folder(), "/tmp", "/dev/shm"))  # noqa: S108
        self._known = {path: self._known.get(path) or _Mount(path) for path in paths}
        mounts = b""
        with suppress(OSError):
            mounts = read_file(f"{self._proc}/self/mountstats")
        for path, mount in self._known.items():
            mount.update(*self._costs(path, mounts))
        return {clip_text(path): mount.read for path, mount in self._known.items()}

    def _working_folder(self) -> str:
        for pid in self.pids:
            with suppress(OSError):
                return os.readlink(f"{self._proc}/{pid}/cwd")
        return os.environ.get("SLURM_SUBMIT_DIR") or os.environ.get("HOME") or "/"

    def _costs(self, path: str, mounts: bytes) -> Tuple[Sequence[Optional[Costs]], float]:
        """Return the costs of reads and of writes on a path's file system, and their unit in ms."""
        device, point, kind, stats = b"", b"", b"", b""
        for part in re.split(rb"^(?=device )", mounts, flags=re.MULTILINE):
            found = _MOUNT.match(part)
            if found is not None:
                # The kernel writes blanks and backslashes as octal numbers.
                at = re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), found[2])
                if len(at) >= len(point) and (os.fsencode(path) + b"/").startswith(at.rstrip(b"/") + b"/"):
                    device, point, kind, stats = found[1], at, found[3], part
        if _NFS.fullmatch(kind):
            return [_found(_NFS_COSTS % name, stats) for name in (b"READ", b"WRITE")], 1.0
        name = re.fullmatch(rb".*:/([^/]+).*", device)
        if kind != _LUSTRE or name is None:
            return (None, None), 1.0
        files = [file for folder in self._lustre for file in glob(f"{folder}/{os.fsdecode(name[1])}-*/stats")]
        stats = read_start(files[0], _MIB) if files else b""
        return [_found(_LUSTRE_COSTS % way, stats) for way in (b"read", b"write")], 0.001


def _found(pattern: bytes, text: bytes) -> Optional[Costs]:
    found = re.search(pattern, text, re.MULTILINE)
    return (int(found[1]), int(found[2])) if found else None
