"""The agent's side of the process that reads the GPUs: requests, answers, and the end of one that hangs.

If a call for a GPU doesn't return, the process is killed and not waited for, since a process inside the
driver may not die. The next one leaves that GPU out, and tries it again each minute; while it still hangs,
the node's other GPUs are late by seconds at each try. The same holds for a process in /proc that hangs its
readers, and for the driver as a whole.

Nobody can reset a GPU that the process is attached to. So it also ends, and the next leaves the GPU out, when
a GPU is lost.
"""

from __future__ import annotations

import marshal
import math
import mmap
import os
import select
import signal
import time

from gswarm_agent.frame import INFO, WARNING, GpuFacts, GpuLink, Note, ProcessSample
from gswarm_agent.metrics import GPU_COLUMNS, INSTANCE_COLUMNS
from gswarm_agent.probes.gpus import VENDORS
from gswarm_agent.probes.gpus.child import ABSENT, CHUNK, LENGTH, PROCESSES, ROWS, become
from gswarm_agent.probes.gpus.vendor import DRIVER, IDLE, PROCESS, Whereabouts
from gswarm_agent.probes.rates import SECOND_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Collection, Dict, FrozenSet, List, Optional, Tuple

    from gswarm_agent.frame import Row
    from gswarm_agent.probes.gpus.vendor import Place, Vendor

START_S = 10.0
"""Time limit for the driver's start; without its persistence mode it takes seconds."""
PATIENCE_S = 2.0
"""Time limit for the calls that read one GPU or process once, unless they usually take a third of it."""
RETRY_NS = 60 * SECOND_NS
"""Pause before what hung, or was just lost, is tried again."""
LOST_RETRY_NS = 5 * RETRY_NS
"""Pause before a GPU that is still lost is tried again: each time the node's others lose a second or two."""
_ROUND_NS = 190_000_000
"""GPUs are read at most five times a second (a little more often, so that ticks of 0.2 s find them due).

A call takes 0.6 ms on an H200, and power and utilisation are means of longer times.
"""
LATE_ROUNDS = 3
"""GPUs are late after this multiple of the time that a round of all of them usually takes."""
_OLDEST_NS = SECOND_NS // 2
"""Age up to which rows stand in for those of a round that isn't finished, whatever it usually takes."""
_ENERGY = GPU_COLUMNS.index("energy_mj")
_CLOSE_S = 0.5
_LOOK_S = 0.1
"""Time between two looks whether the driver's start hangs."""
HANGS = "the driver is slow or hangs"
OF_INSTANCES = "NVML measures no utilisation of MIG instances; power, clocks and all else are their GPU's"
HANGING_PROCESS = "it hangs, or the kernel is slow to read its memory"
FAILED = "the process that reads the GPUs failed"


class _Child:
    """A running process that reads GPUs. ``asked_ns`` is the time of a request for rows without an answer."""

    def __init__(self, vendor: Vendor, proc: str, left_out: Collection[Place]) -> None:
        self.asked_ns: Optional[int] = None
        self.whereabouts = Whereabouts(mmap.mmap(-1, mmap.PAGESIZE))
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            become(vendor, proc, self.whereabouts, (requests, answers), left_out)
        os.close(requests)
        os.close(answers)
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)
        self._unread = b""

    def send(self, request: Tuple[Any, ...]) -> None:
        """Send a request; the answer to one before it must have come."""
        try:
            os.write(self._requests, marshal.dumps(request))
        except BrokenPipeError:  # it has ended, which ``receive`` finds
            pass

    def receive(self, until: float) -> Optional[Tuple[Any, ...]]:
        """Return the next answer, None if there is none by ``until`` (time.monotonic()). Raises EOFError."""
        while True:
            if len(self._unread) >= LENGTH.size:
                end = LENGTH.size + LENGTH.unpack_from(self._unread)[0]
                if len(self._unread) >= end:
                    data, self._unread = self._unread[LENGTH.size : end], self._unread[end:]
                    answer: Tuple[Any, ...] = marshal.loads(data)  # noqa: S302  # of this program's own process
                    return answer
            if not self._poll.poll(max(0, math.ceil(1000 * (until - time.monotonic())))):
                return None
            data = os.read(self._answers, CHUNK)
            if not data:
                raise EOFError
            self._unread += data

    def kill(self) -> None:
        """End it by force, without waiting until it has ended."""
        os.kill(self.pid, signal.SIGKILL)
        os.close(self._requests)
        os.close(self._answers)

    def close(self) -> None:
        """Let it end, and end it by force if it doesn't."""
        os.close(self._requests)
        until = time.monotonic() + _CLOSE_S
        try:
            while self.receive(until) is not None:
                pass
        except EOFError:
            pass
        os.kill(self.pid, signal.SIGKILL)
        os.close(self._answers)


class GpuReader:
    """All GPUs of this node. ``missing`` is the reason if there are none, else empty.

    ``links`` say how the GPUs are connected. ``cuda_version`` is the newest that the driver runs.
    """

    def __init__(self, proc: str = "/proc", sys: str = "/sys", start_s: float = START_S) -> None:
        self.missing = ""
        self.driver_version: Optional[str] = None
        self.cuda_version: Optional[str] = None
        self.facts: Tuple[GpuFacts, ...] = ()
        self.links: Tuple[GpuLink, ...] = ()
        self._proc, self._start_s = proc, start_s
        self._vendor: Optional[Vendor] = None
        self._child: Optional[_Child] = None
        self._ended: List[int] = []  # processes that were killed and have not been reaped
        self._off: FrozenSet[str] = frozenset()
        self._reasons: Dict[int, Dict[str, str]] = {}
        self._hanging: Dict[Place, str] = {}  # why a GPU or process doesn't answer
        self._left_out: Dict[Place, int] = {}  # when it is tried again
        self._start_at = 0
        self._seen: Optional[Tuple[int, Place]] = None
        self._fresh = False
        self._now_ns = time.monotonic_ns()
        self._rows: List[Optional[Row]] = []
        self._rows_ns = self._usual_ns = 0
        self._round_due = 0
        self._unserved = False
        self._with_processes = True
        self._awaits_processes = self._listed_processes = False
        self._processes: Optional[Tuple[ProcessSample, ...]] = None
        self._notes: List[Note] = []
        absences = []
        for make in VENDORS:
            self._vendor = vendor = make(sys)
            absence = vendor.absence() or self._open(vendor)
            if not absence:
                return
            absences.append(absence)
        self.missing = "; ".join(absences)

    def capabilities(self) -> Dict[str, str]:
        """Return why "power_w" (of all GPUs), "gpu3.power_w", "gpu3" or "gpu" can't be measured."""
        if self.missing:
            return {"gpu": self.missing}
        unreachable = {i: reasons[""] for i, reasons in self._reasons.items() if "" in reasons}
        unreachable.update({index: reason for (index, _), reason in self._hanging.items() if index >= 0})
        indexes = [facts.index for facts in self.facts]
        found = {f"gpu{indexes[place]}": reason for place, reason in unreachable.items()}
        lacking: Dict[str, Dict[int, str]] = {}
        answering = {place for place in range(len(self.facts)) if place not in unreachable}
        for place in answering:
            for name, reason in self._reasons.get(place, {}).items():
                lacking.setdefault(name, {})[place] = reason
        whole = {place for place in answering if self.facts[place].parent_index is None}
        for name, reasons in lacking.items():
            wanted = answering if name in INSTANCE_COLUMNS else whole
            if wanted and wanted <= reasons.keys():
                found[name] = reasons[min(wanted)]
            else:
                found.update({f"gpu{indexes[place]}.{name}": reason for place, reason in reasons.items()})
        if len(whole) < len(answering):
            found["mig"] = OF_INSTANCES
        return found

    def switch(self, columns_off: FrozenSet[str], *, processes: bool) -> None:
        """Measure all columns but these from now on."""
        self._off, self._round_due = columns_off, 0
        self._with_processes = processes
        if not processes:
            self._processes = None

    def request(self, now_ns: int, *, fresh: bool = False, until: float = 0) -> None:
        """Begin to read all GPUs, also their energy if ``fresh``, and then, if due, their processes.

        ``until`` (time.monotonic()) is how long to wait for the round before, without which the request goes
        with the next tick.
        """
        self._fresh = self._fresh or fresh
        if self.missing or self._vendor is None:
            return
        self._now_ns = now_ns
        self._ended = [pid for pid in self._ended if os.waitpid(pid, os.WNOHANG)[0] == 0]
        self._receive(until)
        self._end_if_hanging()
        self._let_go_of_lost()
        self._left_out = {place: at for place, at in self._left_out.items() if now_ns < at}
        if self._child is None and now_ns >= self._start_at:
            self._child = _Child(self._vendor, self._proc, self._left_out)
        if self._child is None or self._child.asked_ns is not None:
            return
        if not self._fresh and now_ns < self._round_due:
            return
        self._round_due = max(self._round_due + _ROUND_NS, now_ns)
        left_out = frozenset(self._left_out)
        fresh, self._fresh = self._fresh, False
        # The rows of the energy, if they come in time, go before those of an earlier round.
        self._unserved = self._unserved and not fresh
        self._child.send((now_ns, time.monotonic_ns(), self._off, self._with_processes, left_out, fresh))
        self._child.asked_ns = now_ns

    def gather(self, until: float) -> Tuple[Optional[Row], ...]:
        """Return the rows of all GPUs, None for GPUs that don't answer; wait for them until time.monotonic().

        A round that a slow driver doesn't finish by then counts for the next tick, and meanwhile the last
        rows are returned again, without the energy counter, whose growth belongs to one row. Once the round
        is late, the rows are None.
        """
        if not self._unserved or self._is_late():
            self._receive(until)
        self._note_place()
        if not self._rows or self._is_late():
            return (None,) * len(self.facts)
        if not self._unserved:
            self._rows = [
                None if row is None else (*row[:_ENERGY], None, *row[_ENERGY + 1 :]) for row in self._rows
            ]
        self._unserved = False
        return tuple(self._rows)

    def take_processes(self) -> Optional[Tuple[ProcessSample, ...]]:
        """Return the newest samples of processes, None if none came since the last call."""
        samples, self._processes = self._processes, None
        return samples

    def take_notes(self) -> List[Note]:
        """Return the notes since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def close(self) -> None:
        """End the process, but don't wait long for one that hangs."""
        if self._child is not None:
            self._child.close()
            self._ended.append(self._child.pid)
            self._child, self._seen, self._awaits_processes = None, None, False

    def _let_go_of_lost(self) -> bool:
        """End the process if it has lost GPUs, which the next one leaves out; return whether it has."""
        lost = {(place, 0): reasons[""] for place, reasons in self._reasons.items() if "" in reasons}
        busy = self._child is None or self._child.asked_ns is not None
        if busy or not lost.keys() - self._left_out.keys():
            return False
        self.close()
        for place in lost:
            pause_ns = LOST_RETRY_NS if place in self._hanging else RETRY_NS
            self._left_out[place] = self._now_ns + pause_ns
        self._hanging.update(lost)
        return True

    def _open(self, vendor: Vendor) -> str:
        """Start the process and wait until it has opened all GPUs; return why there are none."""
        while not self._start_at:
            child = self._child = self._child or _Child(vendor, self._proc, self._left_out)
            try:
                answer = child.receive(time.monotonic() + _LOOK_S)
            except EOFError:
                self._end(child, FAILED)
                continue
            if answer is not None:
                kind, content = self._take(answer)
                if kind != ABSENT and self._let_go_of_lost():
                    continue
                if kind != ABSENT:
                    return ""
                child.close()
                self._child = None
                absence, self.driver_version, self.cuda_version = content
                return str(absence)
            self._end_if_hanging()
            self._note_place()
        return f"the {vendor.name} driver didn't answer within {self._start_s:g} s"

    def _receive(self, until: float) -> None:
        """Take the answers that arrive by ``until`` (time.monotonic()) and that are awaited."""
        child = self._child
        try:
            while child is not None and (child.asked_ns is not None or self._awaits_processes):
                answer = child.receive(until)
                if answer is None:
                    break
                kind, content = self._take(answer)
                if kind == ABSENT:  # the driver was unloaded meanwhile
                    raise EOFError
                if kind == ROWS and child.asked_ns is not None:
                    self._rows, self._rows_ns, self._unserved = content, child.asked_ns, True
                    child.asked_ns = None
                    self._note_answers(content)
        except EOFError:
            if child is not None:
                self._end(child, FAILED)

    def _is_late(self) -> bool:
        """Return whether the last rows are too old to stand for now."""
        return self._now_ns - self._rows_ns > max(_OLDEST_NS, LATE_ROUNDS * self._usual_ns)

    def _note_place(self) -> None:
        if self._child is not None:
            self._seen = self._child.whereabouts.seen()

    def _take(self, answer: Tuple[Any, ...]) -> Tuple[int, Any]:
        """Take an answer's notes and state; return its kind and content."""
        kind, content, notes, state = answer
        if kind == ROWS:
            content, processes_follow, took_ns = content
            self._usual_ns += (took_ns - self._usual_ns) // (8 if self._usual_ns else 1)
            # The first list isn't waited for: its process imports modules.
            self._awaits_processes = processes_follow and self._listed_processes
        # A GPU that is still lost when it is retried is no new event.
        self._notes += [
            note
            for note in (Note(*values) for values in notes)
            if note.kind != "gpu_lost" or (note.gpu, 0) not in self._hanging
        ]
        if state is not None:
            self.driver_version, self.cuda_version, facts, links, self._reasons = state
            self.facts = self.facts or tuple(GpuFacts(*values) for values in facts)
            if self._vendor is not None:
                self._vendor.known = self.facts
            self.links = tuple(GpuLink(*values) for values in links)
        if kind == PROCESSES:
            self._awaits_processes, self._listed_processes = False, True
            if self._with_processes:
                self._processes = tuple(ProcessSample(*values) for values in content)
        return kind, content

    def _note_answers(self, rows: List[Optional[Row]]) -> None:
        """Note GPUs that hung and answer again."""
        for place in [place for place in self._hanging if place[0] >= 0 and place not in self._left_out]:
            if rows[place[0]] is not None:
                del self._hanging[place]
                self._notes.append(Note("gpu_back", INFO, "answers again", place[0]))

    def _end_if_hanging(self) -> None:
        """End the process if it has been in one place for too long, also at the end of the last tick.

        When a whole node was suspended, the process has moved on by the second look.
        """
        if self._child is None:
            return
        begun_ns, (place, _) = seen = self._child.whereabouts.seen()
        usual_s = max(PATIENCE_S, LATE_ROUNDS * self._usual_ns / SECOND_NS)
        patience_ns = (self._start_s if place == DRIVER else usual_s) * SECOND_NS
        if place != IDLE and seen == self._seen and time.monotonic_ns() - begun_ns > patience_ns:
            self._end(self._child, HANGS)

    def _end(self, child: _Child, reason: str) -> None:
        """End the process; leave out what it was at, which has failed for this reason."""
        _, (place, number) = child.whereabouts.seen()
        child.kill()
        self._ended.append(child.pid)
        self._child, self._seen, self._rows, self._awaits_processes = None, None, [], False
        failed = [(place, number)]
        if place in (DRIVER, IDLE):
            self._start_at = self._now_ns + RETRY_NS
            failed = [(index, 0) for index in range(len(self.facts))]
        for each in failed:
            if place not in (DRIVER, IDLE):
                self._left_out[each] = self._now_ns + RETRY_NS
            if each in self._hanging:
                continue
            self._hanging[each] = reason
            if place == PROCESS:
                message = f"no longer shows details of process {number}: {HANGING_PROCESS}"
                self._notes.append(Note("unmeasured", WARNING, message))
            else:
                self._notes.append(Note("late", WARNING, f"didn't answer in time: {reason}", each[0]))
