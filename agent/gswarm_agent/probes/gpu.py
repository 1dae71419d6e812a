"""One GPU: what it answers each tick, and what becomes of it when it doesn't."""

from __future__ import annotations

import time
from collections import deque
from threading import Lock
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

from gswarm_agent.frame import ERROR, INFO, WARNING, Note, Number, Row
from gswarm_agent.metrics import GPU_COLUMNS
from gswarm_agent.probes.gpu_facts import has_mig
from gswarm_agent.probes.nvml import GPU_IS_LOST, NOT_SUPPORTED, SUCCESS, UNSUPPORTED, Nvml, reason_of
from gswarm_agent.probes.questions import FieldSum, Source, calls, field_sums, pcie_counts
from gswarm_agent.probes.rates import SECOND_NS

RETRY_NS = 60 * SECOND_NS
"""How long a metric that the GPU doesn't have rests before it is tried again."""
LOOK_AGAIN_NS = 5 * SECOND_NS
"""How long a lost GPU is left alone before it is looked at again."""
STRIKES = 3
"""How many ticks in a row an error has to come before it counts as lasting."""

_PCIE_TX = GPU_COLUMNS.index("pcie_tx_mb_s")
_PCIE_RX = GPU_COLUMNS.index("pcie_rx_mb_s")


class _LostError(Exception):
    """The GPU answers nothing any more; the message says why."""


class Gpu:
    """A GPU by its NVML index. Its methods are called by one lane at a time, ``count_pcie`` by any thread.

    ``lost`` says why the GPU doesn't answer, None while it does. ``notes`` collects what happened.
    ``pcie_meter`` measures PCIe (tx, rx) in MB/s where the GPU has no counters.
    """

    def __init__(self, nvml: Nvml, index: int) -> None:
        self.index = index
        self.handle: Any = None
        self.lost: Optional[str] = None
        self.notes: Deque[Note] = deque()
        self.pcie_meter: Optional[Callable[[], Optional[Tuple[float, float]]]] = None
        self.pcie_counted_at = time.monotonic()
        self._nvml = nvml
        self._calls = calls(nvml.api)
        self._pcie = pcie_counts(nvml.api)
        self._fields: List[FieldSum] = [*self._pcie, *field_sums(nvml)]
        self._sources: List[Source] = [*self._calls, *self._fields]
        self._field_lock = Lock()
        self._checked = False
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
            self._take_handle()
            for _ in range(STRIKES):
                if self._judge(self._ask([None] * len(GPU_COLUMNS), 0, everything=False)):
                    break
        except _LostError as lost:
            self._lose(str(lost))
        for source in self._sources:
            source.reset()
        self._checked = True

    def read(self, now_ns: int) -> Optional[Row]:
        """One row of the catalogue's GPU metrics, None when the GPU doesn't answer."""
        if self.lost is not None and now_ns < self._look_at:
            return None
        try:
            if self.lost is not None:
                self._take_handle()
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
        fields = [field for count in self._pcie for field in count.fields]
        try:
            with self._field_lock:
                answers = self._nvml.api.nvmlDeviceGetFieldValues(self.handle, fields)
                for count, answer in zip(self._pcie, answers):
                    if answer.nvmlReturn == SUCCESS:
                        count.total([answer])
        except self._nvml.Error:
            pass  # the tick's own reading meets the same error and deals with it
        self.pcie_counted_at = time.monotonic()

    def hang(self) -> None:
        """The GPU didn't answer at the start; it is lost until it does."""
        self._lose("a call to the driver hangs")

    def give_up_pcie(self, reason: str) -> None:
        """PCIe can't be measured in any way."""
        self.pcie_meter = None
        for count in self._pcie:
            self._rest(count, reason)

    def _take_handle(self) -> None:
        try:
            self.handle = self._nvml.api.nvmlDeviceGetHandleByIndex(self.index)
        except self._nvml.Error as error:
            raise _LostError(reason_of(error.value)) from None

    def _read(self, now_ns: int) -> Optional[Row]:
        if self._retry_at is None:
            self._retry_at = now_ns + RETRY_NS
        everything = now_ns >= self._retry_at
        if everything:
            self._retry_at = now_ns + RETRY_NS
        values: List[Optional[Number]] = [None] * len(GPU_COLUMNS)
        codes = self._ask(values, now_ns, everything)
        answered = SUCCESS in codes.values()
        failed = [code for code in codes.values() if code != SUCCESS and code not in UNSUPPORTED]
        if failed and not answered:
            self._silent += 1
            if self._silent >= STRIKES:
                raise _LostError(reason_of(failed[0]))
            return None
        self._silent = 0
        self._judge(codes)
        if self.pcie_meter is not None and self.lacks_pcie_counts:
            values[_PCIE_TX], values[_PCIE_RX] = self.pcie_meter() or (None, None)
        return tuple(values)

    def _ask(self, values: List[Optional[Number]], now_ns: int, everything: bool) -> Dict[Source, int]:
        """Ask all that isn't at rest, or everything; fill in values, return each source's nvmlReturn_t."""
        codes: Dict[Source, int] = {}
        # Counters come first, close to the time that their rates are taken at.
        wanted = [source for source in self._fields if everything or source.reason is None]
        if wanted:
            with self._field_lock:
                self._ask_fields(wanted, values, now_ns, codes)
        for call in self._calls:
            if everything or call.reason is None:
                try:
                    answers = call.ask(self.handle)
                except self._nvml.Error as error:
                    codes[call] = self._alive(error.value)
                else:
                    codes[call] = SUCCESS
                    for position, answer in zip(call.positions, answers):
                        values[position] = answer
        return codes

    def _ask_fields(
        self,
        wanted: Sequence[FieldSum],
        values: List[Optional[Number]],
        now_ns: int,
        codes: Dict[Source, int],
    ) -> None:
        fields = [field for source in wanted for field in source.fields]
        try:
            answers = self._nvml.api.nvmlDeviceGetFieldValues(self.handle, fields)
        except self._nvml.Error as error:
            codes.update(dict.fromkeys(wanted, self._alive(error.value)))
            return
        self.pcie_counted_at = time.monotonic()
        at = 0
        for source in wanted:
            mine = answers[at : at + len(source.fields)]
            at += len(mine)
            code = next((a.nvmlReturn for a in mine if a.nvmlReturn != SUCCESS), SUCCESS)
            codes[source] = self._alive(code)
            if code == SUCCESS:
                values[source.positions[0]] = source.value(mine, now_ns)

    def _alive(self, code: int) -> int:
        if code == GPU_IS_LOST:
            raise _LostError(reason_of(code))
        return code

    def _judge(self, codes: Dict[Source, int]) -> bool:
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
                self._rest(source, self._why(source, code))
            else:
                settled = settled and source.reason is not None
        return settled

    def _rest(self, source: Source, reason: str) -> None:
        source.reset()
        source.reason = reason
        if self._checked:
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
        self.notes.append(Note(kind, severity, f"GPU {self.index} {message}", self.index))
