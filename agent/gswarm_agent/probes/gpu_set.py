"""All GPUs of a node: opens the driver, reads them within a time limit, and lists metrics that they lack."""

from __future__ import annotations

import time
from functools import partial

from gswarm_agent.frame import INFO, WARNING, GpuFacts, GpuLink, Note, Row
from gswarm_agent.metrics import GPU_METRICS, PCIE
from gswarm_agent.probes.gpu import Gpu, lost_gpu_facts, read_gpu_facts
from gswarm_agent.probes.nvlink import NvLink, nvlink_faults
from gswarm_agent.probes.nvml import HANGS, Nvml, NvmlError
from gswarm_agent.probes.pcie import ThroughputMeter, WrapGuard
from gswarm_agent.probes.processes import ProcessProbe, processes_unavailable
from gswarm_agent.probes.topology import read_gpu_links
from gswarm_agent.probes.workers import WorkerPool
from gswarm_agent.probes.xid import XidWatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, FrozenSet, List, Optional, Sequence, Set, Tuple

START_S = 10.0
"""Time limit for the driver's start; without its persistence mode it takes seconds."""
_START_PATIENCE_S = 2.0
_FIRST_THROUGHPUT_S = 0.05
_CLOSE_S = 0.5
_PCIE_COLUMNS = frozenset(m.name for m in GPU_METRICS if m.group == PCIE)


class GpuSet:
    """The GPUs of this node. ``missing`` is the reason if there are none, else None.

    ``links`` say how the GPUs are connected. ``cuda_version`` is the newest that the driver runs.
    """

    def __init__(self, proc: str = "/proc", start_s: float = START_S, sys: str = "/sys") -> None:
        self.missing: Optional[str] = None
        self.driver_version: Optional[str] = None
        self.cuda_version: Optional[str] = None
        self.facts: Tuple[GpuFacts, ...] = ()
        self.processes: Optional[ProcessProbe] = None
        self._proc = proc
        self._gpus: List[Gpu] = []
        self._nvml: Optional[Nvml] = None
        self._workers = WorkerPool(0, "gpus")
        self._no_processes: Dict[int, str] = {}
        self._xids: Optional[XidWatch] = None
        self._meter: Optional[ThroughputMeter] = None
        self._guard: Optional[WrapGuard] = None
        self._pcie_on = True
        self._sys = sys
        self.links: Tuple[GpuLink, ...] = ()
        self._nvlinks: Dict[int, Sequence[NvLink]] = {}
        self._were_up: Dict[int, Set[int]] = {}
        self._nvlink_faults: Dict[int, str] = {}
        opening = WorkerPool(1, "nvml")
        opening.start(lambda _: Nvml.open(), [0])
        try:
            opened = opening.gather(time.monotonic() + start_s, start_s)
        except NvmlError as error:
            self.missing = str(error)
        else:
            if opened:
                self._open(opened[0], start_s)
            else:
                self.missing = f"the NVIDIA driver didn't answer within {start_s:g} s"
        opening.close(0)

    def capabilities(self) -> Dict[str, str]:
        """Return why "power_w" (of all GPUs), "gpu3.power_w", "gpu3" or "gpu" can't be measured."""
        if self.missing is not None:
            return {"gpu": self.missing}
        reasons_by_name: Dict[str, str] = {}
        lacking: Dict[str, Dict[int, str]] = {}
        answering = 0
        for gpu in self._gpus:
            if gpu.lost is not None or gpu.hanging:
                reasons_by_name[f"gpu{gpu.index}"] = gpu.lost or HANGS
                continue
            answering += 1
            for name, reason in self._reasons(gpu).items():
                lacking.setdefault(name, {})[gpu.index] = reason
        for name, reasons in lacking.items():
            if len(reasons) == answering:
                reasons_by_name[name] = next(iter(reasons.values()))
            else:
                reasons_by_name.update({f"gpu{index}.{name}": reason for index, reason in reasons.items()})
        return reasons_by_name

    def switch(self, columns_off: FrozenSet[str]) -> None:
        """Measure all columns but these from now on. Threads that measure nothing else end."""
        for gpu in self._gpus:
            gpu.columns_off = columns_off
        pcie_was_on, self._pcie_on = self._pcie_on, not columns_off >= _PCIE_COLUMNS
        if self._pcie_on and not pcie_was_on and self._nvml is not None:
            self._meter_pcie(self._nvml, [g for g in self._gpus if g.reachable and g.lacks_pcie_counters])
        elif pcie_was_on and not self._pcie_on:
            for poller in (self._guard, self._meter):
                if poller is not None:
                    poller.close(0)
            self._guard = self._meter = None
            for gpu in self._gpus:
                gpu.pcie_meter = None

    def start(self, now_ns: Callable[[], int], with_processes: bool) -> None:
        """Begin to read all GPUs and then, if they are due and wanted, their processes.

        ``now_ns`` is called for each GPU: it returns the time that its rates are taken at.
        """
        gpus, processes, nvml = self._gpus, self.processes, self._nvml
        if processes is None or nvml is None:
            return
        count, tick_ns = len(gpus), now_ns()

        def read(key: int) -> Optional[Row]:
            if key < count:
                return gpus[key].read(now_ns())
            if key > count:
                self._read_links(nvml)
            else:
                processes.read(now_ns(), tick_ns)
            return None

        if processes.skip_hanging():
            self._workers.renew(count)
        keys = [*range(count), count] if with_processes and processes.due(tick_ns) else [*range(count)]
        if any(gpu.nvlinks is not self._nvlinks.get(gpu.index) for gpu in gpus):
            keys.append(count + 1)
        self._workers.start(read, keys)

    def read_processes_ahead(self, now_ns: int) -> None:
        """Read the processes for the next tick: the first time imports modules."""
        processes = self.processes
        if processes is not None:
            self._workers.start(lambda _: processes.read(now_ns, now_ns), [len(self._gpus)])

    def gather(self, until: float, patience: float) -> Tuple[Optional[Row], ...]:
        """Return the rows that arrive by ``until`` (time.monotonic()), None for the other GPUs."""
        rows = self._workers.gather(until, patience)
        for gpu in self._gpus:
            if gpu.hanging == (gpu.index in rows):
                _set_hanging(gpu, gpu.index not in rows)
        if self._nvml is not None and self._pcie_on and self._guard is None:
            self._guard_wraps(self._nvml)
        for poller in (self._guard, self._meter):
            if poller is not None:
                poller.isolate_slow_gpu()
        return tuple([rows.get(gpu.index) for gpu in self._gpus])

    def take_notes(self) -> List[Note]:
        """Return the notes since the last call."""
        notes = []
        for gpu in self._gpus:
            while gpu.notes:
                notes.append(gpu.notes.popleft())
        return notes

    def close(self) -> None:
        """End the threads, but don't wait long for one that hangs.

        NVML is not shut down: that would need all threads out of it, and the driver cleans up by itself.
        """
        until = time.monotonic() + _CLOSE_S
        if self._xids is not None:
            self._xids.close()
        for thread in (self._workers, self._meter, self._guard):
            if thread is not None:
                thread.close(max(0.0, until - time.monotonic()))

    def _open(self, nvml: Nvml, start_s: float) -> None:
        self._nvml = nvml
        self.driver_version, self.cuda_version = nvml.driver_version, nvml.cuda_version
        count = nvml.count()
        if count == 0:
            self.missing = "the NVIDIA driver shows no GPU to this user's processes on this node"
            return
        self._gpus = [Gpu(nvml, index) for index in range(count)]
        self._workers = WorkerPool(count + 2, "gpus")  # the last keys read the processes and connections
        opened: Dict[int, GpuFacts] = {}
        self._workers.start(partial(self._open_gpu, nvml, opened), range(count))
        answered = self._workers.gather(time.monotonic() + start_s, _START_PATIENCE_S)
        for gpu in self._gpus:
            _set_hanging(gpu, gpu.index not in answered)
        self.facts = tuple([opened.get(i) or lost_gpu_facts(i, count, self._proc) for i in range(count)])
        reachable = [gpu for gpu in self._gpus if gpu.reachable]
        self._workers.start(lambda _: self._read_links(nvml), [count + 1])
        self._workers.gather(time.monotonic() + _START_PATIENCE_S, _START_PATIENCE_S)
        self._xids = XidWatch(nvml, reachable)
        self.processes = ProcessProbe(nvml, self._gpus, self._proc)
        self._meter_pcie(nvml, [gpu for gpu in reachable if gpu.lacks_pcie_counters])
        self._guard_wraps(nvml)

    def _open_gpu(self, nvml: Nvml, opened: Dict[int, GpuFacts], index: int) -> None:
        gpu = self._gpus[index]
        gpu.open()
        if gpu.lost is None:
            opened[index] = read_gpu_facts(nvml, index, gpu.handle)
            gpu.read_nvlinks()
            reason = processes_unavailable(nvml, gpu)
            if reason is not None:
                self._no_processes[index] = reason

    def _read_links(self, nvml: Nvml) -> None:
        """Read how the GPUs are connected, and note NVLinks that are down or slow."""
        self._nvlinks = {gpu.index: gpu.nvlinks for gpu in self._gpus}
        self.links = read_gpu_links(nvml, self._gpus, self._sys)
        before, self._nvlink_faults = self._nvlink_faults, nvlink_faults(self._nvlinks, self._were_up)
        for index, links in self._nvlinks.items():
            self._were_up.setdefault(index, set()).update(n for n, link in enumerate(links) if link.up)
            fault = self._nvlink_faults.get(index)
            if fault is not None and fault != before.get(index):
                self._gpus[index].notes.append(Note("nvlink_degraded", WARNING, fault, index))
            elif fault is None and index in before:
                message = "all NVLinks are up again, at full speed"
                self._gpus[index].notes.append(Note("nvlink_restored", INFO, message, index))

    def _meter_pcie(self, nvml: Nvml, gpus: List[Gpu]) -> None:
        if not gpus:
            return
        self._meter = ThroughputMeter(nvml, gpus)
        self._meter.start()
        # GPUs that lack this as well answer at once, in time for the capabilities.
        self._meter.tried.wait(_FIRST_THROUGHPUT_S)
        self._meter.leaves_notes = True

    def _guard_wraps(self, nvml: Nvml) -> None:
        if any(gpu.pcie_wraps for gpu in self._gpus):
            self._guard = WrapGuard(nvml, self._gpus)
            self._guard.start()

    def _reasons(self, gpu: Gpu) -> Dict[str, str]:
        reasons = gpu.reasons
        if gpu.index in self._no_processes:
            reasons["processes"] = self._no_processes[gpu.index]
        elif self.processes is not None and gpu.index in self.processes.hanging:
            reasons["processes"] = HANGS
        if self._xids is not None and gpu.index in self._xids.reasons:
            reasons["xid"] = self._xids.reasons[gpu.index]
        return reasons


def _set_hanging(gpu: Gpu, hanging: bool) -> None:
    if hanging and not gpu.hanging:
        message = f"didn't answer in time: {HANGS}"
        gpu.notes.append(Note("late", WARNING, message, gpu.index))
    elif gpu.hanging and not hanging and gpu.lost is None:
        gpu.notes.append(Note("gpu_back", INFO, "answers again", gpu.index))
    gpu.hanging = hanging
