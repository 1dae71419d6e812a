"""The process that reads the GPUs: it opens a vendor's driver and answers the agent's requests, one by one.

The agent kills it when a call hangs. It ends by itself when the agent closes the pipe or has died.
"""

from __future__ import annotations

import marshal
import os
import signal
import struct
import sys
import time
from contextlib import suppress

from gswarm_agent.metrics import GPU_COLUMNS, GPU_METRICS, NVLINK, PROCESS_METRICS
from gswarm_agent.probes.gpus.vendor import IDLE, PROCESS, VendorError
from gswarm_agent.probes.processes import ProcessTable
from gswarm_agent.probes.rates import SECOND_NS
from gswarm_agent.wire_payload import MAX_PROCESSES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Collection, Dict, List, NoReturn, Optional, Set, Tuple

    from gswarm_agent.frame import GpuFacts, GpuLink, Row
    from gswarm_agent.probes.gpus.vendor import GpuUsage, Place, Vendor, Whereabouts

ABSENT, OPENED, ROWS, PROCESSES = range(4)
"""Kinds of answers: no GPU, the driver is open, the values of all GPUs, the processes on them.

The values come with whether the processes follow, and with how long it took to read them, in nanoseconds.
"""
LENGTH = struct.Struct("=I")
CHUNK = 1 << 16
_PR_SET_PDEATHSIG = 1
_STATE_NS = 60 * SECOND_NS
_PROCESSES_NS = round(0.95 * PROCESS_METRICS[0].period_s * SECOND_NS)
"""Time between two lists of processes, somewhat less than their period, as ticks may come early."""
_SOON_NS = round(0.95 * SECOND_NS)
_NVLINK_COLUMNS = frozenset(m.name for m in GPU_METRICS if m.group == NVLINK)


def become(
    vendor: Vendor, proc: str, whereabouts: Whereabouts, pipes: Tuple[int, int], left_out: Collection[Place]
) -> NoReturn:
    """Turn a newly forked process into the one that reads GPUs. Never returns.

    ``pipes`` are the ends from which it reads requests and to which it writes answers.
    """
    status, (requests, answers) = 1, pipes
    try:
        signal.set_wakeup_fd(-1)
        # The agent decides when this process ends, so signals for the group are ignored.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        # A call that hangs for ever must not keep the agent's sockets and locks.
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor not in (2, requests, answers):
                # The descriptor with which the folder was listed is closed already.
                try:
                    os.close(descriptor)
                except OSError:
                    pass
        import ctypes

        # If the agent is killed while a call hangs, nobody reads the end of the pipe.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        _Server(vendor, proc, whereabouts, answers).run(requests, left_out)
        status = 0
    except BrokenPipeError:  # the agent has died
        pass
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


class _Server:
    """Answers requests about all GPUs of a vendor."""

    def __init__(self, vendor: Vendor, proc: str, whereabouts: Whereabouts, answers: int) -> None:
        self._vendor, self._whereabouts, self._answers = vendor, whereabouts, answers
        self._table = ProcessTable(proc, enter=lambda pid: whereabouts.enter(PROCESS, pid))
        self._facts: List[GpuFacts] = []
        self._links: Tuple[GpuLink, ...] = ()
        self._opened: Dict[int, bool] = {}
        self._state_due = self._processes_due = 0
        self._listed: Set[Tuple[int, int]] = set()

    def run(self, requests: int, left_out: Collection[Place]) -> None:
        """Open the driver and all GPUs but those to leave out, then answer until the pipe is closed."""
        try:
            hanging = {index for index, number in left_out if number == 0}
            count = self._vendor.open(self._whereabouts, hanging)
            if count == 0:
                raise VendorError(
                    f"the {self._vendor.name} driver shows no GPU to this user's processes on this node"
                )
        except VendorError as error:
            self._answer(ABSENT, (str(error), self._vendor.driver_version, self._vendor.cuda_version))
            return
        for index in range(count):
            self._whereabouts.enter(index)
            self._opened[index] = (index, 0) not in left_out
            self._facts.append(self._vendor.facts(index, hanging=not self._opened[index]))
        self._links = self._vendor.links(time.monotonic_ns())
        self._answer(OPENED, None, changed=True)
        with suppress(EOFError), open(requests, "rb") as incoming:
            while True:
                self._handle(marshal.load(incoming))  # noqa: S302  # the agent's own request

    def _handle(self, request: Tuple[Any, ...]) -> None:
        """Answer one request.

        ``now_ns`` was the agent's time when its monotonic clock was ``begun_ns``.
        """
        now_ns, begun_ns, off, with_processes, left_out, fresh = request
        vendor = self._vendor
        rows: List[Optional[Row]] = []
        # A vendor tries once a minute what a GPU lacked, and leaves no note.
        if changed := now_ns >= self._state_due:
            self._state_due = now_ns + _STATE_NS
        # A rate is only as good as its times, and the last GPU is read some milliseconds after the first.
        ahead = now_ns - begun_ns
        for index in range(len(self._facts)):
            self._whereabouts.enter(index)
            if not self._opened[index]:
                if (index, 0) in left_out:
                    rows.append(None)
                    continue
                self._facts[index] = vendor.facts(index, hanging=False)
                self._opened[index] = changed = True
            values = vendor.read(index, ahead + time.monotonic_ns(), off, fresh=fresh)
            rows.append(None if values is None else tuple(map(values.get, GPU_COLUMNS)))
        due = with_processes and now_ns >= self._processes_due
        self._answer(ROWS, (rows, due, time.monotonic_ns() - begun_ns), changed=changed)
        if due:
            processes = self._read_processes(ahead, left_out)
            self._answer(PROCESSES, processes)
            # New processes have no rates until the next list, so it comes soon.
            before, self._listed = self._listed, {process[:2] for process in processes}
            self._processes_due = now_ns + (_PROCESSES_NS if self._listed <= before else _SOON_NS)
        elif not with_processes:
            self._processes_due = 0
            self._table.read((), now_ns)
        if off.isdisjoint(_NVLINK_COLUMNS):
            self._links = vendor.links(now_ns)
        self._whereabouts.enter(IDLE)

    def _read_processes(self, ahead: int, left_out: Collection[Place]) -> List[Tuple[Any, ...]]:
        usages: List[Tuple[int, int, GpuUsage]] = []
        for index, opened in self._opened.items():
            if opened:
                self._whereabouts.enter(index)
                on_gpu = self._vendor.processes(index)
                usages += [(index, pid, usage) for pid, usage in on_gpu.items()]
        del usages[MAX_PROCESSES:]
        hanging = {pid for place, pid in left_out if place == PROCESS}
        hosts = self._table.read([pid for _, pid, _ in usages], ahead + time.monotonic_ns(), hanging)
        return [
            (
                *(index, pid, host.user, host.command, host.rank, host.local_rank),
                (usage.memory_mib, usage.sm_pct, *host.usage),
                *(host.cpus, host.state, host.wchan, host.slurm_job, host.slurm_step),
                *(host.framework, host.nccl, host.container),
            )
            for index, pid, usage in usages
            for host in (hosts[pid],)
        ]

    def _answer(self, kind: int, content: Any, *, changed: bool = False) -> None:
        """Send an answer, with the notes since the last one, and with what they may have changed."""
        vendor, state = self._vendor, None
        notes = [tuple(vars(note).values()) for note in vendor.notes]
        # Another thread may add notes meanwhile.
        del vendor.notes[: len(notes)]
        if notes or changed:
            state = (
                vendor.driver_version,
                vendor.cuda_version,
                [tuple(vars(facts).values()) for facts in self._facts],
                [tuple(vars(link).values()) for link in self._links],
                {i: vendor.reasons(i) for i, opened in self._opened.items() if opened},
            )
        self._whereabouts.enter(IDLE)
        answer = marshal.dumps((kind, content, notes, state))
        data = LENGTH.pack(len(answer)) + answer
        while data:
            data = data[os.write(self._answers, data) :]
