"""One GPU: what it answers each tick, and what becomes of it when it doesn't."""

from __future__ import annotations

import math
import time
from collections import deque
from itertools import accumulate
from threading import Lock

from gswarm_agent.frame import ERROR, INFO, WARNING, Note, Number
from gswarm_agent.probes.gpu_facts import has_mig
from gswarm_agent.probes.gpu_rows import in_the_catalogues_order
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
from gswarm_agent.probes.rates import SECOND_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Deque, Dict, List, Optional, Sequence, Tuple

    from gswarm_agent.probes.gpu_rows import Answer, Counting, Traffic

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
    """Questions that take a call each, prepared; ``beside`` names the columns that follow on their numbers.

    ``seldom`` says where among all these numbers those are that aren't asked for each time.
    """

    def __init__(self, levels: Sequence[Levels], beside: Sequence[str]) -> None:
        self.levels = levels
        self.query = CallQuery([source.call for source in levels])
        answered = [(i, name) for i, source in enumerate(levels) for name in source.columns]
        self.calls = [i for i, _ in answered]
        columns = [name for _, name in answered] + [*beside]
        self.pick = in_the_catalogues_order(tuple(columns))
        self.seldom = [columns.index(name) for source in levels if source.seldom for name in source.columns]


class _Asked:
    """What a GPU is asked, prepared: ``fields`` in one call, then ``all`` levels or the ``often`` ones.

    ``places`` says of each of the ``counts`` where its fields are, None where it isn't asked for; ``plain``,
    that each is one field, in this order.
    """

    def __init__(
        self, counts: Sequence[FieldSum], fields: Sequence[FieldSum], levels: Sequence[Levels]
    ) -> None:
        self.fields = fields
        self.field_query = FieldQuery([field for source in fields for field in source.fields])
        ends = accumulate(len(source.fields) for source in fields)
        places = {source: slice(end - len(source.fields), end) for source, end in zip(fields, ends)}
        self.places = [places.get(source) for source in counts]
        self.plain = self.places == [slice(at, at + 1) for at in range(len(counts))]
        seldom = [name for source in levels if source.seldom for name in source.columns]
        beside = [name for source in counts for name in source.columns] + seldom
        self.all = _Calls(levels, beside)
        self.often = _Calls([source for source in levels if not source.seldom], beside)


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
        self.pcie_meter: Optional[Traffic] = None
        self.pcie_counted_at = time.monotonic()
        self.pcie_wraps_s = math.inf
        self._nvml = nvml
        self._levels = levels(nvml)
        self._pcie = pcie_counts(nvml.api)
        self._counts: List[FieldSum] = [*self._pcie, *field_sums(nvml)]
        self._counting: Counting = ()
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
    def metered_pcie(self) -> Optional[Traffic]:
        """What measures PCIe where the GPU has no counters."""
        return self.pcie_meter if self.pcie_meter is not None and self.lacks_pcie_counts else None

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

    def read(self, now_ns: int) -> Optional[Answer]:
        """What it answers to all that it is asked, None when the GPU doesn't answer."""
        if self.lost is not None and now_ns < self._look_at:
            return None
        try:
            if self.lost is not None:
                self._find_out()
            answer = self._read(now_ns)
        except _LostError as lost:
            self._lose(str(lost))
            self._look_at = now_ns + LOOK_AGAIN_NS
            return None
        if answer is not None and self.lost is not None:
            self.lost = None
            self._note("gpu_back", INFO, "answers again")
        return answer

    def count_pcie(self) -> None:
        """Look at the PCIe counters between ticks, before they have gone round."""
        if not self._field_lock.acquire(blocking=False):
            return  # the tick's own reading is at it; where that hangs, this thread must not
        try:
            verdict, *answers = self._nvml.ask_fields(self.handle, self._pcie_query)
            # What fails here fails in the tick's own reading too, which deals with it.
            if verdict == SUCCESS:
                self._look_at_pcie()
                for count, code, kind, number in zip(self._pcie, *answers):
                    if code == SUCCESS:
                        count.unwrapped.update(number, kind == UNSIGNED_INT)
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

    def _read(self, now_ns: int) -> Optional[Answer]:
        if self._retry_at is None:
            self._retry_at = now_ns + RETRY_NS
        everything = now_ns >= self._retry_at
        if everything:
            self._retry_at = now_ns + RETRY_NS
        answer, codes = self._ask(now_ns, everything)
        if codes:
            failed = _failure(codes)
            if failed is not None:
                self._silent += 1
                if self._silent >= STRIKES:
                    raise _LostError(reason_of(failed))
                return None
            self._judge(codes, told=True)
        self._silent = 0
        return answer

    def _ask(self, now_ns: int, everything: bool) -> Tuple[Answer, Dict[Source, int]]:
        """Ask all that isn't at rest, or everything: the answer, and each source's nvmlReturn_t.

        There are no codes where all have answered, as they had the time before.
        """
        if everything or not self._settled:
            self._settled = False
            self._asked = _Asked(
                self._counts,
                [source for source in self._counts if everything or source.reason is None],
                [source for source in self._levels if everything or source.reason is None],
            )
            self._kept = [None] * len(self._asked.all.seldom)
        asked = self._asked
        often = self._settled and now_ns < self._seldom_at
        calls = asked.often if often else asked.all
        # Counters come first, close to the time that their rates are taken at.
        totals, counting, failed = self._ask_fields(asked)
        levels, codes = self._ask_levels(calls)
        if not often:
            self._kept = [levels[place] for place in calls.seldom]
            self._seldom_at = 0 if everything else now_ns + SELDOM_NS
        answer = now_ns, counting, calls.pick, (*levels, *totals, *self._kept, None)
        if self._settled and not failed and not any(codes):
            return answer, {}
        found: Dict[Source, int] = dict(zip(calls.levels, codes))
        found.update((source, failed.get(source, SUCCESS)) for source in asked.fields)
        return answer, found

    def _ask_fields(self, asked: _Asked) -> Tuple[Sequence[Optional[Number]], Counting, Dict[FieldSum, int]]:
        """The totals of all counts, how they count, and the nvmlReturn_t of those that failed."""
        if not asked.fields:
            return [None] * len(self._counts), self._counting, {}
        failed: Dict[FieldSum, int] = {}
        with self._field_lock:
            verdict, codes, kinds, numbers = self._nvml.ask_fields(self.handle, asked.field_query)
            if verdict == SUCCESS:
                self._look_at_pcie()
            else:
                codes = (verdict,) * len(codes)
            totals: List[Optional[Number]] = (
                list(numbers)
                if asked.plain
                else [None if place is None else sum(numbers[place]) for place in asked.places]
            )
            if any(codes):
                failed = self._failed(asked, codes)
                totals = [None if c in failed else total for c, total in zip(self._counts, totals)]
            for i, (count, place) in enumerate(zip(self._pcie, asked.places)):
                total = totals[i]
                if place is not None and total is not None:
                    totals[i] = count.unwrapped.update(total, kinds[place.start] == UNSIGNED_INT)
            return totals, self._counting, failed

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

    def _ask_levels(self, calls: _Calls) -> Tuple[Sequence[Optional[Number]], Sequence[int]]:
        """The numbers that the calls answer, and each call's nvmlReturn_t."""
        codes, numbers = calls.query.ask(self.handle)
        if not any(codes):
            return numbers, codes
        if codes[-1] == GPU_IS_LOST:
            raise _LostError(reason_of(GPU_IS_LOST))
        return [None if codes[i] else number for i, number in zip(calls.calls, numbers)], codes

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
        self._counting = tuple([(c.begun, c.scale, c.most) for c in self._counts if c.rated])

    def _note(self, kind: str, severity: str, message: str) -> None:
        self.notes.append(Note(kind, severity, message, self.index))
