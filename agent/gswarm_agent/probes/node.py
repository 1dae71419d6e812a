"""The probe of this machine: its GPUs, their processes, the host, its ports and file systems."""

from __future__ import annotations

import os
import time
from dataclasses import replace

from gswarm_agent import metrics
from gswarm_agent.frame import INFO, WARNING, GpuFacts, GpuLink, HostFacts, Note
from gswarm_agent.probes.base import TickSamples
from gswarm_agent.probes.counters import CountersProbe
from gswarm_agent.probes.gpus.reader import START_S, GpuReader
from gswarm_agent.probes.host import HostProbe, read_host_facts
from gswarm_agent.probes.listings import Listing
from gswarm_agent.probes.mounts import Mounts
from gswarm_agent.probes.ports import Ports
from gswarm_agent.probes.procfs import user_name
from gswarm_agent.probes.rates import SECOND_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional, Sequence, Tuple

_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.02, 0.5
_WAIT_SHARE = 0.9


class NodeProbe:
    """This machine: its GPUs, their processes and the host. A ``Probe``.

    Another process, which may hang, reads the GPUs and their processes; ``read`` waits for it no longer than
    0.9 of the time since the previous tick, and at most 0.5 s, which the last reading may take in any case.
    Without GPUs there is no such process.
    """

    simulated = False

    def __init__(self, proc: str = "/proc", sys: str = "/sys", start_s: float = START_S) -> None:
        self.patient = False
        self._proc, self._sys = proc, sys
        self._host: Optional[HostProbe] = HostProbe(proc, sys)
        self._counters = CountersProbe(proc=proc)
        self._with_counters = False
        self._host_facts = read_host_facts(proc)
        self._gpus = GpuReader(proc, sys, start_s)
        self._ports, self._mounts = Ports(sys), Mounts(proc, sys)
        self._listings = {
            metrics.PORTS: Listing(self._ports.find),
            metrics.MOUNTS: Listing(self._mounts.find),
        }
        self._read_ns: Optional[int] = None
        self._user = user_name(os.getuid())

    def facts(self) -> Tuple[HostFacts, Tuple[GpuFacts, ...], Dict[str, str]]:
        """See Probe."""
        host = replace(
            self._host_facts, driver_version=self._gpus.driver_version, cuda_version=self._gpus.cuda_version
        )
        of_host = {} if self._host is None else {**self._host.reasons, **self._hung()}
        if self._host is not None and not self._ports.find(0):
            of_host[metrics.PORTS] = (
                "this node shows neither a port of an adapter nor a physical network interface"
            )
        return host, self._gpus.facts, {**of_host, **self._counters.reasons, **self._gpus.capabilities()}

    def links(self) -> Tuple[GpuLink, ...]:
        """See Probe."""
        return self._gpus.links

    def switch(self, groups: Sequence[str]) -> None:
        """See Probe."""
        self._gpus.switch(metrics.columns_off(groups), processes=metrics.PROCESSES in groups)
        self._with_counters = metrics.COUNTERS in groups
        self._counters.switch(on=self._with_counters)
        if metrics.HOST not in groups:
            self._host = None
        elif self._host is None:
            self._host = HostProbe(self._proc, self._sys)

    def read(self, now_ns: int, *, fresh: bool = False) -> TickSamples:
        """See Probe."""
        before, self._read_ns = self._read_ns, now_ns
        interval_s = 1.0 if before is None else (now_ns - before) / SECOND_NS
        wait_s = _LONGEST_WAIT_S if self.patient else max(_SHORTEST_WAIT_S, _WAIT_SHARE * interval_s)
        until = time.monotonic() + min(_LONGEST_WAIT_S, wait_s)
        self._gpus.request(now_ns, fresh=fresh, until=until if self.patient else 0)
        host = None if self._host is None else self._host.read(now_ns)
        counted = self._counters.read(now_ns)
        if host is not None or self._with_counters:
            host = (*(host or (None,) * len(metrics.PROC_COLUMNS)), *counted)
        listings, of_host = {}, []
        if self._host is not None:
            hung = self._hung()
            taken = {kind: listing.take(now_ns) for kind, listing in self._listings.items()}
            listings = {kind: named for kind, named in taken.items() if named is not None}
            of_host = self._host.take_notes()
            if (now_hung := self._hung()) != hung:
                why = "; ".join(now_hung.values())
                of_host.append(
                    Note("unmeasured", WARNING, why)
                    if why
                    else Note("measured", INFO, "all ports and file systems answer again")
                )
        rows = self._gpus.gather(until)
        notes = [*of_host, *self._counters.take_notes(), *self._gpus.take_notes()]
        processes = self._gpus.take_processes()
        if processes is not None:
            self._mounts.pids = [process.pid for process in processes]
            if self._host is not None:
                self._host.follow([process.pid for process in processes if process.user == self._user])
        return TickSamples(rows, host, processes, tuple(notes), listings)

    def _hung(self) -> Dict[str, str]:
        """Return why listings lack rows."""
        return {
            kind: f"{', '.join(listing.hung)}: no answer for {metrics.LISTING_S:.0f} s"
            for kind, listing in self._listings.items()
            if listing.hung
        }

    def close(self) -> None:
        """See Probe."""
        self._gpus.close()
        self._counters.close()
