"""The probe of this machine: its GPUs, their processes and the host."""

from __future__ import annotations

import time
from dataclasses import replace

from gswarm_agent.frame import GpuFacts, GpuLink, HostFacts
from gswarm_agent.metrics import COUNTERS, HOST, PROC_COLUMNS, PROCESSES, columns_off
from gswarm_agent.probes.base import TickSamples
from gswarm_agent.probes.counters import CountersProbe
from gswarm_agent.probes.gpu_set import START_S, GpuSet
from gswarm_agent.probes.host import HostProbe, read_host_facts
from gswarm_agent.probes.rates import SECOND_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional, Sequence, Tuple

_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.02, 0.5
_WAIT_SHARE = 0.6


class NodeProbe:
    """This machine: its GPUs, their processes and the host. A ``Probe``.

    A second thread, which may hang, reads the GPUs and their processes; ``read`` waits for it no longer than
    0.6 of the time since the previous tick, and at most 0.5 s. They are read one after the other: several
    Python threads would pass the interpreter lock around at each call, which costs more than the calls.
    """

    simulated = False

    def __init__(self, proc: str = "/proc", sys: str = "/sys", start_s: float = START_S) -> None:
        self._proc, self._sys = proc, sys
        self._host: Optional[HostProbe] = HostProbe(proc, sys)
        self._counters = CountersProbe(proc=proc, sys=sys)
        self._with_counters = False
        self._with_processes = True
        self._host_facts = read_host_facts(proc)
        self._gpus = GpuSet(proc, start_s, sys)
        self._read_ns: Optional[int] = None

    def facts(self) -> Tuple[HostFacts, Tuple[GpuFacts, ...], Dict[str, str]]:
        """See Probe."""
        host = replace(
            self._host_facts,
            driver_version=self._gpus.driver_version,
            cuda_version=self._gpus.cuda_version,
        )
        of_host = {} if self._host is None else self._host.reasons
        return host, self._gpus.facts, {**of_host, **self._counters.reasons, **self._gpus.capabilities()}

    def links(self) -> Tuple[GpuLink, ...]:
        """See Probe."""
        return self._gpus.links

    def switch(self, groups: Sequence[str]) -> None:
        """See Probe."""
        before, self._with_processes = self._with_processes, PROCESSES in groups
        if self._with_processes and not before and self._gpus.processes is not None:
            self._gpus.processes.restart()
        self._gpus.switch(columns_off(groups))
        self._with_counters = COUNTERS in groups
        self._counters.switch(on=self._with_counters)
        if HOST not in groups and self._host is not None:
            self._host.close()
            self._host = None
        elif HOST in groups and self._host is None:
            self._host = HostProbe(self._proc, self._sys)

    def read(self, now_ns: int) -> TickSamples:
        """See Probe."""
        first, wait = self._read_ns is None, self._wait_for(now_ns)
        until = time.monotonic() + wait
        begun = time.monotonic_ns()
        host = None if self._host is None else self._host.read(now_ns)
        counted = self._counters.read(now_ns)
        if host is not None or self._with_counters:
            host = (*(host or (None,) * len(PROC_COLUMNS)), *counted)
        # A rate is only as good as its times, and the last GPU is read some milliseconds after the first.
        with_processes = self._with_processes
        self._gpus.start(
            lambda: now_ns + time.monotonic_ns() - begun, with_processes=with_processes and not first
        )
        rows = self._gpus.gather(until, wait / 2)
        if first and with_processes:
            self._gpus.read_processes_ahead(now_ns)
        processes = None
        if with_processes and not first and self._gpus.processes is not None:
            taken = self._gpus.processes.take()
            processes = None if taken is None else self._counters.complete(taken)
        of_host = [] if self._host is None else self._host.take_notes()
        notes = [*of_host, *self._counters.take_notes(), *self._gpus.take_notes()]
        return TickSamples(rows, host, processes, tuple(notes))

    def close(self) -> None:
        """See Probe."""
        self._gpus.close()
        self._counters.close()
        if self._host is not None:
            self._host.close()

    def _wait_for(self, now_ns: int) -> float:
        before, self._read_ns = self._read_ns, now_ns
        interval = SECOND_NS if before is None else now_ns - before
        return min(_LONGEST_WAIT_S, max(_SHORTEST_WAIT_S, _WAIT_SHARE * interval / SECOND_NS))
