"""One GPU: what it answers each tick, and what becomes of it when it doesn't."""

from __future__ import annotations

import math
import time
from collections import deque
from itertools import accumulate
from threading import Lock
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

from gswarm_agent.frame import ERROR, INFO, WARNING, Note, Number, Row
from gswarm_agent.metrics import GPU_COLUMNS
from gswarm_agent.probes.gpu_facts import has_mig
from gswarm_agent.probes.nvml import (
    GPU_IS_LOST,
    NOT_SUPPORTED,
    SUCCESS,
    UNSUPPORTED,
    CallQuery,
    FieldQuery,
    Nvml,
    reason_of,
)
from gswarm_agent.probes.questions import FieldSum, Levels, Source, field_sums, levels, pcie_counts
from gswarm_agent.probes.rates import SECOND_NS

RETRY_NS = 60 * SECOND_NS
"""How long a metric that the GPU doesn't have rests before it is tried again."""
LOOK_AGAIN_NS = 5 * SECOND_NS
"""How long a lost GPU is left alone before it is looked at again."""
SELDOM_NS = 10 * SECOND_NS
"""How old counts of errors may be: each is a question that the driver passes on to the GPU."""
STRIKES = 3
"""How many ticks in a row an error has to come before it counts as lasting."""

_PCIE_TX = GPU_COLUMNS.index("pcie_tx_mb_s")
_PCIE_RX = GPU_COLUMNS.index("pcie_rx_mb_s")


class _LostError(Exception):
    """The GPU answers nothing any more; the message says why."""


def _failure(codes: Dict[Source, int]) -> Optional[int]:
    """An error of a GPU that answers nothing, None for a GPU that answers, if only that it can't."""
    if SUCCESS in codes.values():
        return None
    return next((code for code in codes.values() if code not in UNSUPPORTED), None)


def _first_error(codes: Sequence[int]) -> int:
    return next(filter(None, codes), SUCCESS)


class _Calls:
    """Questions that take a call each, prepared."""

    def __init__(self, levels: Sequence[Levels]) -> None:
        self.levels = levels
        self.query = CallQuery([source.call for source in levels])
        self.columns = [
            (position, i, source.convert) for i, source in enumerate(levels) for position in source.positions
        ]


class _Asked:
    """What a GPU is asked, prepared: ``fields`` in one call, then ``all`` levels or the ``often`` ones."""

    def __init__(self, fields: Sequence[FieldSum], levels: Sequence[Levels]) -> None:
        self.fields = fields
        self.fine = [SUCCESS] * len(fields)
        self.field_query = FieldQuery([field for source in fields for field in source.fields])
        ends = accumulate(len(source.fields) for source in fields)
        self.places = [(source, end - len(source.fields), end) for source, end in zip(fields, ends)]
        self.all = _Calls(levels)
        self.often = _Calls([source for source in levels if not source.seldom])
        self.seldom = [position for source in levels if source.seldom for position in source.positions]


class Gpu:
    """A GPU by its NVML index. Its methods are called by one lane at a time, ``count_pcie`` by any thread.

    ``lost`` says why the GPU doesn't answer, None while it does; ``hanging`` is set while it hasn't come back
    from a call, and then nobody else should call it. ``notes`` collects what happened.
    ``pcie_meter`` measures PCIe (tx, rx) in MB/s where the GPU has no counters. Those that nobody looked at
    for ``pcie_wraps_s`` may have gone round unseen: their rates begin anew.
    """

    def __init__(self, nvml: Nvml, index: int) -> None:
        self.index = index
        self.handle: Any = None
        self.lost: Optional[str] = None
        self.hanging = False
        self.notes: Deque[Note] = deque()
        self.pcie_meter: Optional[Callable[[], Optional[Tuple[float, float]]]] = None
        self.pcie_counted_at = time.monotonic()
        self.pcie_wraps_s = math.inf
        self._nvml = nvml
        self._levels = levels(nvml)
        self._pcie = pcie_counts(nvml.api)
        self._fields: List[FieldSum] = [*self._pcie, *field_sums(nvml)]
        self._sources: List[Source] = [*self._levels, *self._fields]
        self._asked = _Asked((), ())
        self._seldom_at = 0
        self._kept: List[Tuple[int, Optional[Number]]] = []
        self._settled = False  # what was asked has all been answered, and the same is asked next
        self._pcie_query = FieldQuery([field for count in self._pcie for field in count.fields])
        self._field_lock = Lock()
        self._silent = 0
        self._retry_at: Optional[int] = None
        self._look_at = 0

    @property
    def reasons(self) -> Dict[str, str]:
        """The metrics that this GPU doesn't answer and why not."""
        return {
            name: source.reason
            for source in self._sources
            if source.reason is not None and (self.pcie_meter is None or source not in self._pcie)
            for name in source.columns
        }

    @property
    def pcie_wraps(self) -> bool:
        """Whether the PCIe counters have 32 bits."""
        return any(count.wraps for count in self._pcie)

    @property
    def lacks_pcie_counts(self) -> bool:
        """Whether the GPU has no PCIe counters."""
        return any(count.reason is not None for count in self._pcie)

    def open(self) -> None:
        """Get the handle and find out what the GPU answers."""
        try:
            self._find_out()
        except _LostError as lost:
            self._lose(str(lost))

    def read(self, now_ns: int) -> Optional[Row]:
        """One row of the catalogue's GPU metrics, None when the GPU doesn't answer."""
        if self.lost is not None and now_ns < self._look_at:
            return None
        try:
            if self.lost is not None:
                self._find_out()
            row = self._read(now_ns)
        except _LostError as lost:
            self._lose(str(lost))
            self._look_at = now_ns + LOOK_AGAIN_NS
            return None
        if row is not None and self.lost is not None:
            self.lost = None
            self._note("gpu_back", INFO, "answers again")
        return row

    def count_pcie(self) -> None:
        """Look at the PCIe counters between ticks, before they have gone round."""
        if not self._field_lock.acquire(blocking=False):
            return  # the tick's own reading is at it; where that hangs, this thread must not
        try:
            code, answers = self._nvml.ask_fields(self.handle, self._pcie_query)
            if code == SUCCESS:
                self._look_at_pcie()
            # What fails here fails in the tick's own reading too, which deals with it.
            for i, count in enumerate(self._pcie):
                if code == SUCCESS and answers.codes[i] == SUCCESS:
                    count.total(answers, i)
        finally:
            self._field_lock.release()

    def _look_at_pcie(self) -> None:
        """PCIe's counters were read, and are counted next."""
        now = time.monotonic()
        if now - self.pcie_counted_at > self.pcie_wraps_s:
            for count in self._pcie:
                count.reset()
        self.pcie_counted_at = now

    @property
    def reachable(self) -> bool:
        """Whether other threads may expect an answer."""
        return self.handle is not None and self.lost is None and not self.hanging

    def give_up_pcie(self, reason: str, told: bool) -> None:
        """PCIe can't be measured in any way; with a note where it was ``told`` that it can."""
        self.pcie_meter = None
        for count in self._pcie:
            self._rest(count, reason, told)

    def _find_out(self) -> None:
        """Ask for everything until each source has answered or is put to rest; without notes."""
        try:
            self.handle = self._nvml.api.nvmlDeviceGetHandleByIndex(self.index)
        except self._nvml.Error as error:
            raise _LostError(reason_of(error.value)) from None
        for _ in range(STRIKES):
            codes = self._ask([None] * len(GPU_COLUMNS), 0, everything=True)
            failed = _failure(codes)
            if failed is not None:
                raise _LostError(reason_of(failed))
            if self._judge(codes, told=False):
                break
        for source in self._sources:
            source.reset()

    def _read(self, now_ns: int) -> Optional[Row]:
        if self._retry_at is None:
            self._retry_at = now_ns + RETRY_NS
        everything = now_ns >= self._retry_at
        if everything:
            self._retry_at = now_ns + RETRY_NS
        values: List[Optional[Number]] = [None] * len(GPU_COLUMNS)
        codes = self._ask(values, now_ns, everything)
        failed = _failure(codes)
        if failed is not None:
            self._silent += 1
            if self._silent >= STRIKES:
                raise _LostError(reason_of(failed))
            return None
        self._silent = 0
        self._judge(codes, told=True)
        if self.pcie_meter is not None and self.lacks_pcie_counts:
            values[_PCIE_TX], values[_PCIE_RX] = self.pcie_meter() or (None, None)
        return tuple(values)

    def _ask(self, values: List[Optional[Number]], now_ns: int, everything: bool) -> Dict[Source, int]:
        """Ask all that isn't at rest, or everything, and fill in values.

        Returns each source's nvmlReturn_t; nothing where all have answered, as they had the time before.
        """
        if everything or not self._settled:
            self._settled = False
            self._asked = _Asked(
                [source for source in self._fields if everything or source.reason is None],
                [source for source in self._levels if everything or source.reason is None],
            )
        asked = self._asked
        often = self._settled and not everything and now_ns < self._seldom_at
        calls = asked.often if often else asked.all
        codes: List[int] = []
        # Counters come first, close to the time that their rates are taken at.
        if asked.fields:
            with self._field_lock:
                codes += self._ask_fields(asked, values, now_ns)
        if calls.levels:
            codes += self._ask_levels(calls, values)
        if often:
            for position, value in self._kept:
                values[position] = value
        else:
            self._kept = [(position, values[position]) for position in asked.seldom]
            self._seldom_at = 0 if everything else now_ns + SELDOM_NS
        if self._settled and not any(codes):
            return {}
        return dict(zip([*asked.fields, *calls.levels], codes))

    def _ask_fields(self, asked: _Asked, values: List[Optional[Number]], now_ns: int) -> Sequence[int]:
        verdict, answers = self._nvml.ask_fields(self.handle, asked.field_query)
        if verdict != SUCCESS:
            return [self._alive(verdict)] * len(asked.fields)
        self._look_at_pcie()
        codes = asked.fine
        if any(answers.codes):
            codes = [
                self._alive(_first_error(answers.codes[first:after])) for _, first, after in asked.places
            ]
        for (source, first, _), code in zip(asked.places, codes):
            if code == SUCCESS:
                values[source.positions[0]] = source.value(answers, first, now_ns)
        return codes

    def _ask_levels(self, calls: _Calls, values: List[Optional[Number]]) -> Sequence[int]:
        codes, numbers = calls.query.ask(self.handle)
        self._alive(codes[-1])
        for (position, i, convert), number in zip(calls.columns, numbers):
            if codes[i] == SUCCESS:
                values[position] = number if convert is None else convert(number)
        return codes

    def _alive(self, code: int) -> int:
        if code == GPU_IS_LOST:
            raise _LostError(reason_of(code))
        return code

    def _judge(self, codes: Dict[Source, int], told: bool) -> bool:
        """Put to rest what will not be answered; True when every source has answered or rests."""
        settled = True
        for source, code in codes.items():
            if code == SUCCESS:
                source.strikes = 0
                source.reason = None
                continue
            source.strikes += 1
            if code in UNSUPPORTED and source.give_up_plan():
                settled = False
            elif source.reason is None and (code in UNSUPPORTED or source.strikes >= STRIKES):
                self._rest(source, self._why(source, code), told)
            else:
                settled = settled and source.reason is not None
        self._settled = not any(codes.values())
        return settled

    def _rest(self, source: Source, reason: str, told: bool) -> None:
        source.reset()
        source.reason = reason
        self._settled = False
        if told:
            for name in source.columns:
                self._note("unmeasured", WARNING, f"no longer measures {name}: {reason}")

    def _why(self, source: Source, code: int) -> str:
        if code == NOT_SUPPORTED and "util_pct" in source.columns and has_mig(self._nvml, self.handle):
            return "MIG is on: NVML has no utilisation for the GPU as a whole"
        return reason_of(code)

    def _lose(self, reason: str) -> None:
        if self.lost is None:
            self._note("gpu_lost", ERROR, f"doesn't answer: {reason}")
        self.lost = reason
        self._silent = 0
        for source in self._sources:
            source.reset()

    def _note(self, kind: str, severity: str, message: str) -> None:
        self.notes.append(Note(kind, severity, message, self.index))
