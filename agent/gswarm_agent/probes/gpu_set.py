"""All GPUs of a node: opening the driver, reading them in time, and what they can't answer."""

from __future__ import annotations

import time
from functools import partial

from gswarm_agent.frame import INFO, WARNING, GpuFacts, Note, Row
from gswarm_agent.probes.gpu import Gpu
from gswarm_agent.probes.gpu_facts import lost_gpu_facts, read_gpu_facts
from gswarm_agent.probes.gpu_rows import GpuRows
from gswarm_agent.probes.lane import Errand, Lanes
from gswarm_agent.probes.nvml import HANGS, Nvml, NvmlError
from gswarm_agent.probes.pcie import ThroughputMeter, WrapGuard
from gswarm_agent.probes.processes import ProcessProbe, why_no_processes
from gswarm_agent.probes.questions import field_sums, levels, pcie_counts
from gswarm_agent.probes.xid import XidWatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Set, Tuple

    from gswarm_agent.probes.gpu_rows import Answer

START_S = 10.0
"""How long the driver may take to start up; without its persistence mode it takes seconds."""
_START_PATIENCE_S = 2.0
_FIRST_THROUGHPUT_S = 0.05
_CLOSE_S = 0.5


class GpuSet:
    """The GPUs of this node. ``missing`` says why there are none, None where there are."""

    def __init__(self, proc: str = "/proc", start_s: float = START_S) -> None:
        self.missing: Optional[str] = None
        self.facts: Tuple[GpuFacts, ...] = ()
        self.processes: Optional[ProcessProbe] = None
        self._proc = proc
        self._gpus: List[Gpu] = []
        self._nvml: Optional[Nvml] = None
        self._rows: Optional[GpuRows] = None
        self._lanes: Lanes[Optional[Answer]] = Lanes(0, "gpus")
        self._no_processes: Dict[int, str] = {}
        self._xids: Optional[XidWatch] = None
        self._meter: Optional[ThroughputMeter] = None
        self._guard: Optional[WrapGuard] = None
        self._guarded: Set[int] = set()
        opening: Errand[Nvml] = Errand("nvml")
        opening.start(Nvml.open)
        try:
            nvml = opening.take(start_s)
        except NvmlError as error:
            self.missing = str(error)
        else:
            if nvml is None:
                self.missing = f"the NVIDIA driver didn't answer within {start_s:g} s"
            else:
                self._open(nvml, start_s)
        opening.close(0)

    @property
    def driver_version(self) -> Optional[str]:
        """The driver's version, None without one."""
        return None if self._nvml is None else self._nvml.driver_version

    @property
    def cuda_version(self) -> Optional[str]:
        """The newest CUDA version that the driver runs, None without one."""
        return None if self._nvml is None else self._nvml.cuda_version

    def capabilities(self) -> Dict[str, str]:
        """What can't be measured and why: "power_w" if no GPU has it, else "gpu3.power_w"; "gpu3"; "gpu"."""
        if self.missing is not None:
            return {"gpu": self.missing}
        found: Dict[str, str] = {}
        lacking: Dict[str, Dict[int, str]] = {}
        answering = 0
        for gpu in self._gpus:
            if gpu.lost is not None or gpu.hanging:
                found[f"gpu{gpu.index}"] = gpu.lost or HANGS
                continue
            answering += 1
            for name, reason in self._reasons(gpu).items():
                lacking.setdefault(name, {})[gpu.index] = reason
        for name, reasons in lacking.items():
            if len(reasons) == answering:
                found[name] = next(iter(reasons.values()))
            else:
                found.update({f"gpu{index}.{name}": reason for index, reason in reasons.items()})
        return found

    def start(self, now_ns: Callable[[], int], looks: bool) -> None:
        """Begin to read all GPUs, and then, with ``looks``, their processes where that is due.

        ``now_ns`` is asked for each the time that its rates are taken at.
        """
        gpus, processes = self._gpus, self.processes
        if processes is None:
            return
        count, tick_ns = len(gpus), now_ns()

        def ask(key: int) -> Optional[Answer]:
            if key < count:
                return gpus[key].read(now_ns())
            processes.look(now_ns(), tick_ns)
            return None

        if processes.gives_up():
            self._lanes.renew(count)
        self._lanes.start(ask, range(count + 1 if looks and processes.due(tick_ns) else count))

    def look_ahead(self, now_ns: int) -> None:
        """Look at the processes for the reading after this one: the first look imports what it needs."""
        processes = self.processes
        if processes is not None:
            self._lanes.start(lambda _: processes.look(now_ns, now_ns), [len(self._gpus)])

    def gather(self, until: float, patience: float) -> Tuple[Optional[Row], ...]:
        """The rows that are there by ``until`` (time.monotonic()), None for the other GPUs."""
        answers = self._lanes.gather(until, patience)
        for gpu in self._gpus:
            if gpu.hanging == (gpu.index in answers):
                _watch(gpu, gpu.index in answers)
        if self._nvml is not None:
            self._guard_wraps(self._nvml)
        for rounds in (self._guard, self._meter):
            if rounds is not None:
                rounds.relieve()
        if self._rows is None:
            return ()
        return self._rows.of(
            [answers.get(gpu.index) for gpu in self._gpus], [gpu.metered_pcie for gpu in self._gpus]
        )

    def take_notes(self) -> List[Note]:
        """What happened since the last call."""
        notes = []
        for gpu in self._gpus:
            while gpu.notes:
                notes.append(gpu.notes.popleft())
        return notes

    def close(self) -> None:
        """End the threads, but don't wait long for one that hangs.

        The driver itself lets go of a process that ends. To be told so it would need all threads out of it.
        """
        until = time.monotonic() + _CLOSE_S
        if self._xids is not None:
            self._xids.close()
        for thread in (self._lanes, self._meter, self._guard):
            if thread is not None:
                thread.close(max(0.0, until - time.monotonic()))

    def _open(self, nvml: Nvml, start_s: float) -> None:
        self._nvml = nvml
        count = nvml.count()
        if count == 0:
            self.missing = "the NVIDIA driver shows no GPU to this user's processes on this node"
            return
        self._gpus = [Gpu(nvml, index) for index in range(count)]
        self._rows = GpuRows(levels(nvml), [*pcie_counts(nvml.api), *field_sums(nvml)], count)
        self._lanes = Lanes(count + 1, "gpus")  # the last one looks at the processes
        opened: Dict[int, GpuFacts] = {}
        self._lanes.start(partial(self._open_gpu, nvml, opened), range(count))
        answered = self._lanes.gather(time.monotonic() + start_s, _START_PATIENCE_S)
        for gpu in self._gpus:
            _watch(gpu, gpu.index in answered)
        self.facts = tuple([opened.get(i) or lost_gpu_facts(i, count, self._proc) for i in range(count)])
        there = [gpu for gpu in self._gpus if gpu.reachable]
        self._xids = XidWatch(nvml, there)
        self.processes = ProcessProbe(nvml, self._gpus, self._proc)
        self._meter_pcie(nvml, [gpu for gpu in there if gpu.lacks_pcie_counts])
        self._guard_wraps(nvml)

    def _open_gpu(self, nvml: Nvml, opened: Dict[int, GpuFacts], index: int) -> None:
        gpu = self._gpus[index]
        gpu.open()
        if gpu.lost is None:
            opened[index] = read_gpu_facts(nvml, index, gpu.handle)
            reason = why_no_processes(nvml, gpu)
            if reason is not None:
                self._no_processes[index] = reason

    def _meter_pcie(self, nvml: Nvml, gpus: List[Gpu]) -> None:
        if not gpus:
            return
        self._meter = ThroughputMeter(nvml, gpus)
        self._meter.start()
        # GPUs that lack this as well say so at once, in time for the capabilities.
        self._meter.tried.wait(_FIRST_THROUGHPUT_S)
        self._meter.told = True

    def _guard_wraps(self, nvml: Nvml) -> None:
        for gpu in self._gpus:
            if not gpu.pcie_wraps or not gpu.reachable or gpu.index in self._guarded:
                continue
            self._guarded.add(gpu.index)
            if self._guard is None:
                self._guard = WrapGuard(nvml, [gpu])
                self._guard.start()
            else:
                self._guard.add(gpu)

    def _reasons(self, gpu: Gpu) -> Dict[str, str]:
        reasons = gpu.reasons
        if gpu.index in self._no_processes:
            reasons["processes"] = self._no_processes[gpu.index]
        elif self.processes is not None and gpu.index in self.processes.hanging:
            reasons["processes"] = HANGS
        if self._xids is not None and gpu.index in self._xids.reasons:
            reasons["xid"] = self._xids.reasons[gpu.index]
        return reasons


def _watch(gpu: Gpu, answered: bool) -> None:
    if not answered and not gpu.hanging:
        message = f"didn't answer in time: {HANGS}"
        gpu.notes.append(Note("late", WARNING, message, gpu.index))
    elif answered and gpu.hanging and gpu.lost is None:
        gpu.notes.append(Note("gpu_back", INFO, "answers again", gpu.index))
    gpu.hanging = not answered
