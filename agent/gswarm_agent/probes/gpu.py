"""One GPU: what it answers each tick, and what becomes of it when it doesn't."""

from __future__ import annotations

import math
import time
from collections import deque
from itertools import accumulate
from operator import itemgetter
from threading import Lock

from gswarm_agent.frame import ERROR, INFO, WARNING, Note, Number, Row
from gswarm_agent.metrics import GPU_COLUMNS
from gswarm_agent.probes.gpu_facts import has_mig
from gswarm_agent.probes.nvml import (
    GPU_IS_LOST,
    NOT_SUPPORTED,
    SUCCESS,
    UNSIGNED_INT,
    UNSUPPORTED,
    CallQuery,
    FieldQuery,
    Nvml,
    reason_of,
)
from gswarm_agent.probes.questions import FieldSum, Levels, Source, field_sums, levels, pcie_counts
from gswarm_agent.probes.rates import SECOND_NS, Rates

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

RETRY_NS = 60 * SECOND_NS
"""How long a metric that the GPU doesn't have rests before it is tried again."""
LOOK_AGAIN_NS = 5 * SECOND_NS
"""How long a lost GPU is left alone before it is looked at again."""
SELDOM_NS = 10 * SECOND_NS
"""How old counts of errors may be: each is a question that the driver passes on to the GPU."""
STRIKES = 3
"""How many ticks in a row an error has to come before it counts as lasting."""


class _LostError(Exception):
    """The GPU answers nothing any more; the message says why."""


def _failure(codes: Dict[Source, int]) -> Optional[int]:
    """An error of a GPU that answers nothing, None for a GPU that answers, if only that it can't."""
    if SUCCESS in codes.values():
        return None
    return next((code for code in codes.values() if code not in UNSUPPORTED), None)


class _Calls:
    """Questions that take a call each, prepared, and how a row is made of their numbers and those beside."""

    def __init__(self, levels: Sequence[Levels], beside: Sequence[str]) -> None:
        self.levels = levels
        self.query = CallQuery([source.call for source in levels])
        answered = [(i, source, name) for i, source in enumerate(levels) for name in source.columns]
        self.calls = [i for i, _, _ in answered]
        self.converts = [source.convert for _, source, _ in answered]
        columns = [name for _, _, name in answered] + [*beside]
        places = [columns.index(name) if name in columns else len(columns) for name in GPU_COLUMNS]
        self._row = itemgetter(*places)

    def row(self, numbers: Sequence[Optional[Number]], beside: Sequence[Optional[Number]]) -> Row:
        """The numbers of the calls, and those beside them, in the order of the catalogue."""
        row: Row = self._row([*numbers, *beside, None])
        return row


class _Asked:
    """What a GPU is asked, prepared: ``fields`` in one call, then ``all`` levels or the ``often`` ones.

    ``places`` says of each of the ``counts`` where its fields are, None where it isn't asked for; ``ways`` is
    how its column comes of their sum.
    """

    def __init__(
        self, counts: Sequence[FieldSum], fields: Sequence[FieldSum], levels: Sequence[Levels]
    ) -> None:
        self.fields = fields
        self.field_query = FieldQuery([field for source in fields for field in source.fields])
        ends = accumulate(len(source.fields) for source in fields)
        places = {source: slice(end - len(source.fields), end) for source, end in zip(fields, ends)}
        self.places = [places.get(source) for source in counts]
        self.ways = [(source.scale, source.most) for source in counts]
        seldom = [name for source in levels if source.seldom for name in source.columns]
        beside = [name for source in counts for name in source.columns] + seldom
        self.all = _Calls(levels, beside)
        self.often = _Calls([source for source in levels if not source.seldom], beside)
        self.seldom = [GPU_COLUMNS.index(name) for name in seldom]


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
        self._counts: List[FieldSum] = [*self._pcie, *field_sums(nvml)]
        self._rates = Rates(len(self._counts))
        self._sources: List[Source] = [*self._levels, *self._counts]
        self._asked = _Asked(self._counts, (), ())
        self._seldom_at = 0
        self._kept: List[Optional[Number]] = []
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
        """Whether the PCIe counters have 32 bits and so must be looked at before they have gone round."""
        return self._pcie[0].unwrapped.narrow or self._pcie[1].unwrapped.narrow

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
                    count.unwrapped.update(answers.numbers[i], answers.kinds[i] == UNSIGNED_INT)
        finally:
            self._field_lock.release()

    def _look_at_pcie(self) -> None:
        """PCIe's counters were read, and are counted next."""
        now = time.monotonic()
        if now - self.pcie_counted_at > self.pcie_wraps_s:
            for count in self._pcie:
                self._begin_anew(count)
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
            _, codes = self._ask(0, everything=True)
            failed = _failure(codes)
            if failed is not None:
                raise _LostError(reason_of(failed))
            if self._judge(codes, told=False):
                break
        for source in self._sources:
            self._begin_anew(source)

    def _read(self, now_ns: int) -> Optional[Row]:
        if self._retry_at is None:
            self._retry_at = now_ns + RETRY_NS
        everything = now_ns >= self._retry_at
        if everything:
            self._retry_at = now_ns + RETRY_NS
        row, codes = self._ask(now_ns, everything)
        if codes:
            failed = _failure(codes)
            if failed is not None:
                self._silent += 1
                if self._silent >= STRIKES:
                    raise _LostError(reason_of(failed))
                return None
            self._judge(codes, told=True)
        self._silent = 0
        return row

    def _ask(self, now_ns: int, everything: bool) -> Tuple[Row, Dict[Source, int]]:
        """Ask all that isn't at rest, or everything: a row, and each source's nvmlReturn_t.

        There are no codes where all have answered, as they had the time before.
        """
        if everything or not self._settled:
            self._settled = False
            self._asked = _Asked(
                self._counts,
                [source for source in self._counts if everything or source.reason is None],
                [source for source in self._levels if everything or source.reason is None],
            )
            self._kept = [None] * len(self._asked.seldom)
        asked = self._asked
        often = self._settled and now_ns < self._seldom_at
        calls = asked.often if often else asked.all
        # Counters come first, close to the time that their rates are taken at.
        counted, failed = self._ask_fields(asked, now_ns)
        levels, codes = self._ask_levels(calls)
        row = calls.row(levels, [*counted, *self._kept])
        if not often:
            self._kept = [row[place] for place in asked.seldom]
            self._seldom_at = 0 if everything else now_ns + SELDOM_NS
        if self._settled and not failed and not any(codes):
            return row, {}
        found: Dict[Source, int] = dict(zip(calls.levels, codes))
        found.update((source, failed.get(source, SUCCESS)) for source in asked.fields)
        return row, found

    def _ask_fields(self, asked: _Asked, now_ns: int) -> Tuple[List[Optional[Number]], Dict[FieldSum, int]]:
        """The columns of all counts, and the nvmlReturn_t of those that failed."""
        failed: Dict[FieldSum, int] = {}
        totals: List[Optional[Number]] = [None] * len(self._counts)
        with self._field_lock:
            if asked.fields:
                verdict, told = self._nvml.ask_fields(self.handle, asked.field_query)
                codes, kinds, numbers = told.codes, told.kinds, told.numbers
                if verdict == SUCCESS:
                    self._look_at_pcie()
                else:
                    codes = (verdict,) * len(codes)
                totals = [None if place is None else sum(numbers[place]) for place in asked.places]
                if any(codes):
                    failed = self._failed(asked, codes)
                    totals = [None if c in failed else total for c, total in zip(self._counts, totals)]
                for i, (count, place) in enumerate(zip(self._pcie, asked.places)):
                    total = totals[i]
                    if place is not None and total is not None:
                        totals[i] = count.unwrapped.update(total, kinds[place.start] == UNSIGNED_INT)
            rates = self._rates.update(totals, now_ns)
        columns = [
            total if scale is None else None if rate is None else min(most, rate * scale)
            for (scale, most), total, rate in zip(asked.ways, totals, rates)
        ]
        if self.pcie_meter is not None and self.lacks_pcie_counts:
            columns[: len(self._pcie)] = self.pcie_meter() or (None, None)
        return columns, failed

    def _failed(self, asked: _Asked, codes: Sequence[int]) -> Dict[FieldSum, int]:
        """The first nvmlReturn_t that isn't SUCCESS of each count that has one among its fields."""
        if GPU_IS_LOST in codes:
            raise _LostError(reason_of(GPU_IS_LOST))
        errors = {
            count: next(filter(None, codes[place]), SUCCESS)
            for count, place in zip(self._counts, asked.places)
            if place is not None
        }
        return {count: code for count, code in errors.items() if code != SUCCESS}

    def _ask_levels(self, calls: _Calls) -> Tuple[List[Optional[Number]], Sequence[int]]:
        """The numbers that the calls answer, and each call's nvmlReturn_t."""
        codes, answers = calls.query.ask(self.handle)
        numbers: List[Optional[Number]] = [
            number if convert is None else convert(number) for convert, number in zip(calls.converts, answers)
        ]
        if any(codes):
            if codes[-1] == GPU_IS_LOST:
                raise _LostError(reason_of(GPU_IS_LOST))
            numbers = [None if codes[i] else number for i, number in zip(calls.calls, numbers)]
        return numbers, codes

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
                self._begin_anew(source)
                settled = False
            elif source.reason is None and (code in UNSUPPORTED or source.strikes >= STRIKES):
                self._rest(source, self._why(source, code), told)
            else:
                settled = settled and source.reason is not None
        self._settled = not any(codes.values())
        return settled

    def _rest(self, source: Source, reason: str, told: bool) -> None:
        self._begin_anew(source)
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
            self._begin_anew(source)

    def _begin_anew(self, source: Source) -> None:
        """Count from the next answer on."""
        source.reset()
        if source in self._counts:
            self._rates.reset(self._counts.index(source))

    def _note(self, kind: str, severity: str, message: str) -> None:
        self.notes.append(Note(kind, severity, message, self.index))
