"""Rights to use a node's hardware counters: site's lock, kernel's and driver's settings; and their users.

Nothing is opened but files that every user can read, and nothing is written. Programs that use counters, such
as profilers, are found by their names.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass

from gswarm_agent.metrics import OWN_PROCESSES
from gswarm_agent.probes.procfs import parse_process_uid, read_start, user_name
from gswarm_agent.probes.rates import SECOND_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Tuple

LOCK_VARIABLE = "GSWARM_LIKWID_LOCK"
"""Environment variable with another path for LIKWID's lock."""
_LOCK = "/var/run/likwid.lock"
_CAPABILITIES = {38: "CAP_PERFMON", 21: "CAP_SYS_ADMIN"}
ALL_CPUS = 0
"""The highest ``perf_event_paranoid`` with which users may count all CPUs."""

_NAMES = frozenset(
    (
        *("perf", "likwid-perfctr", "likwid-accessD", "likwid-perfscop", "likwid-mpirun"),
        *("nsys", "ncu", "nv-nsight-cu-cl", "vtune", "amplxe-perf", "AMDuProfCLI", "AMDuProfPcm"),
        *("pcm", "pcm-memory", "toplev", "hpcrun", "rocprof", "rocprofv3"),
    )
)
"""Names of processes, at most 15 characters as the kernel cuts them."""
_PREFIXES = ("perf_", "perf-")
"""Debian's versions of perf are ``perf_6.1`` and the like."""
_ALL_NS = 5 * SECOND_NS
"""Interval of looking at all processes."""


@dataclass(frozen=True)
class CounterRights:
    """Settings of a node that decide who may use its hardware counters; None where the node has none.

    ``lock`` is the path of LIKWID's lock and ``lock_owner`` its owner. ``privileges`` are capabilities of
    this process that override ``paranoid``. ``gpu_admin_only`` is the NVIDIA driver's setting.
    """

    user: str
    lock: str
    lock_owner: Optional[str]
    paranoid: Optional[int]
    privileges: Tuple[str, ...]
    gpu_admin_only: Optional[bool]

    @property
    def obstacle(self) -> str:
        """Why this user may not count at all; empty if lock and kernel allow counting own processes."""
        if self.lock_owner not in (None, self.user):
            return f"held by {self.lock_owner} (owner of {self.lock})"
        return self._above(OWN_PROCESSES)

    @property
    def node_obstacle(self) -> str:
        """Why perf may not count on all CPUs; empty if it may."""
        return self.obstacle or self._above(ALL_CPUS)

    def _above(self, highest: int) -> str:
        if self.paranoid is None:
            return "this kernel has no performance events (no perf_event_paranoid)"
        if self.paranoid > highest and not self.privileges:
            scope = "users" if highest == OWN_PROCESSES else "whole nodes"
            return f"closed to {scope}: kernel.perf_event_paranoid is {self.paranoid}, above {highest}"
        return ""

    @property
    def cpu(self) -> str:
        """Return who may use the CPUs' counters, as a sentence without a full stop."""
        if self.obstacle:
            return self.obstacle
        reasons = [] if self.lock_owner is None else [f"owner of {self.lock}"]
        reasons += [f"kernel.perf_event_paranoid is {self.paranoid}", *self.privileges]
        scope = "the whole node" if not self.node_obstacle else "own processes only"
        return f"open to {self.user}, {scope} ({', '.join(reasons)})"

    @property
    def gpu(self) -> str:
        """Return who may use the GPUs' counters, as a sentence without a full stop."""
        if self.gpu_admin_only is None:
            return "the NVIDIA driver isn't loaded or doesn't say who may use them"
        closed = self.gpu_admin_only and "CAP_SYS_ADMIN" not in self.privileges
        who = "administrators only" if closed else f"open to {self.user}"
        return f"{who} (RmProfilingAdminOnly is {int(self.gpu_admin_only)})"


class RightsReader:
    """Reader of ``CounterRights``, which may change at any time; ``root`` is the root of the files."""

    def __init__(self, root: str = "/") -> None:
        self._root = root.rstrip("/")
        self._lock = os.environ.get(LOCK_VARIABLE) or self._root + _LOCK
        self._user = user_name(os.geteuid())
        effective = re.search(rb"CapEff:\s*([0-9a-f]+)", read_start(f"{self._root}/proc/self/status"))
        bits = int(effective[1], 16) if effective else 0
        self._privileges = tuple(name for bit, name in _CAPABILITIES.items() if bits >> bit & 1)
        params = read_start(f"{self._root}/proc/driver/nvidia/params")
        setting = re.search(rb"RmProfilingAdminOnly: (\d)", params)
        self._gpu_admin_only = setting[1] == b"1" if setting else None

    def read(self) -> CounterRights:
        """Return the rights now; the driver's setting and the privileges are those of the start."""
        owner: Optional[str] = None
        paranoid: Optional[int] = None
        with suppress(OSError):
            owner = user_name(os.lstat(self._lock).st_uid)
        with suppress(ValueError):
            paranoid = int(read_start(f"{self._root}/proc/sys/kernel/perf_event_paranoid"))
        return CounterRights(self._user, self._lock, owner, paranoid, self._privileges, self._gpu_admin_only)


class ProfilerWatch:
    """Finds profilers of all users. ``own`` is a process that doesn't count, with its children."""

    def __init__(self, proc: str = "/proc") -> None:
        self.own: Optional[int] = None
        self._proc = proc
        self._due = 0
        self._found = ""

    def look(self, now_ns: int) -> str:
        """Return a profiler that ran at the latest look, empty if none did; ``now_ns`` is monotonic."""
        if now_ns >= self._due:
            self._due = now_ns + _ALL_NS
            self._found = self.look_at_all()
        return self._found

    def look_at_all(self) -> str:
        """Return a profiler that runs, empty if none does; this takes some milliseconds."""
        try:
            pids = [int(name) for name in os.listdir(self._proc) if name.isdigit()]
        except OSError:
            pids = []
        return next(filter(None, [self._examine(pid) for pid in pids]), "")

    def _examine(self, pid: int) -> str:
        """Return a profiler as part of a sentence, empty for any other process."""
        text = read_start(f"{self._proc}/{pid}/stat")
        try:
            end = text.rindex(b")")
            name = text[text.index(b"(") + 1 : end].decode("utf-8", "replace")
            state, parent, _ = text[end + 1 :].split(None, 2)
            if state in b"ZX" or self.own in (pid, int(parent)):
                return ""
            if name not in _NAMES and not name.startswith(_PREFIXES):
                return ""
            user = user_name(parse_process_uid(read_start(f"{self._proc}/{pid}/status")))
        except (ValueError, IndexError):  # it ended meanwhile
            return ""
        return f"{name} (pid {pid}) of {user}"
