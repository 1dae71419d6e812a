"""The node itself: what doesn't change about it, and one row of metrics each tick."""

from __future__ import annotations

import os
import re

from gswarm_agent.frame import WARNING, HostFacts, Note, Number, Row
from gswarm_agent.metrics import HOST_COLUMNS
from gswarm_agent.probes.host_sources import HostSource, MissingError, all_sources
from gswarm_agent.probes.procfs import parse_meminfo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Sequence, Set

_ROW_NS = 450_000_000
"""The host is read twice a second at most, a little less so that a tick of half a second doesn't miss.

On a node with 224 threads /proc/stat alone takes half a millisecond, some InfiniBand adapters take one for
each port, and the kernel counts CPU time in ticks of 10 ms: a share of 100 ms would be one of ten.
"""


class HostProbe:
    """Reads the node's metrics from files below ``proc`` and ``sys``.

    ``reasons`` says of each metric that the kernel doesn't offer why; it is not looked for again.
    """

    def __init__(self, proc: str = "/proc", sys: str = "/sys") -> None:
        self.reasons: Dict[str, str] = {}
        self._notes: List[Note] = []
        self._failing: Set[HostSource] = set()
        for source in all_sources(proc, sys):
            self._read(source, 0)
            source.close()
        self._notes.clear()
        self._failing.clear()
        self._sources = [s for s in all_sources(proc, sys) if self.reasons.keys().isdisjoint(s.columns)]
        columns = [name for source in self._sources for name in source.columns]
        self._places = [columns.index(name) if name in columns else len(columns) for name in HOST_COLUMNS]
        self._row: Row = ()
        self._due = 0

    def read(self, now_ns: int) -> Row:
        """One row of the catalogue's host metrics, which may be half a second old."""
        if now_ns < self._due:
            return self._row
        if self._row:  # else it has no rates yet, for which it is read again as soon as possible
            self._due = now_ns + _ROW_NS
        self._row = self._read_all(now_ns)
        return self._row

    def _read_all(self, now_ns: int) -> Row:
        values: List[Optional[Number]] = []
        for source in self._sources:
            values += self._read(source, now_ns)
        values.append(None)  # for what this node doesn't have
        return tuple([values[place] for place in self._places])

    def take_notes(self) -> List[Note]:
        """What happened since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def close(self) -> None:
        """Close the files."""
        for source in self._sources:
            source.close()

    def _read(self, source: HostSource, now_ns: int) -> Sequence[Optional[Number]]:
        try:
            answer = source.read(now_ns)
        except MissingError as error:
            self._explain(source, str(error))
        except OSError as error:
            self._explain(source, f"{error.filename}: {error.strerror}")
        except (ValueError, LookupError):
            self._explain(source, "its file holds something else than expected")
        else:
            if source in self._failing:
                self._failing.remove(source)
                for name in source.columns:
                    del self.reasons[name]
            return answer
        return (None,) * len(source.columns)

    def _explain(self, source: HostSource, reason: str) -> None:
        if source not in self._failing:
            self._failing.add(source)
            for name in source.columns:
                self.reasons[name] = reason
                self._notes.append(Note("unmeasured", WARNING, f"no longer measures {name}: {reason}"))


def read_host_facts(proc: str = "/proc") -> HostFacts:
    """The node's facts; those of the GPUs' driver are left out."""
    kernel = os.uname()
    cpuinfo = _text(f"{proc}/cpuinfo", 4096)
    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    cores = re.findall(r"^cpu\d+ ", _text(f"{proc}/stat"), re.MULTILINE)
    memory = parse_meminfo(_text(f"{proc}/meminfo").encode()).get(b"MemTotal")
    return HostFacts(
        hostname=kernel.nodename,
        boot_id=_text(f"{proc}/sys/kernel/random/boot_id").strip(),
        kernel=kernel.release,
        cpu_model=model[1].strip() if model else None,
        cpus=len(cores) or None,
        memory_total_mib=None if memory is None else memory >> 10,
    )


def _text(path: str, most: int = -1) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(most)
    except OSError:
        return ""
