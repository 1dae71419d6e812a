"""One GPU: its facts, its row of metrics at each tick, and its recovery after errors."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from itertools import accumulate
from threading import Lock

from gswarm_agent.frame import ERROR, INFO, WARNING, GpuFacts, Note, Number, Row
from gswarm_agent.metrics import GPU_COLUMNS, GPU_METRICS, NVLINK
from gswarm_agent.probes.gpm import PcieGpm
from gswarm_agent.probes.gpu_sources import (
    CallSource,
    FieldSource,
    GpuSource,
    call_sources,
    field_sources,
    pcie_counters,
)
from gswarm_agent.probes.nvlink import NvLink, NvLinkReader
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
from gswarm_agent.probes.rates import SECOND_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Deque, Dict, FrozenSet, List, Optional, Sequence, Tuple, TypeAlias

PcieMeter: TypeAlias = "Callable[[], Optional[Tuple[float, float]]]"
"""Returns PCIe traffic (tx, rx) in MB/s of a GPU that has no counters for it."""
Values: TypeAlias = "Dict[str, Optional[Number]]"
"""Values by column."""

RETRY_NS = 60 * SECOND_NS
"""Pause before an unsupported metric is tried again."""
REOPEN_NS = 5 * SECOND_NS
"""Pause before a lost GPU is tried again."""
SLOW_NS = 10 * SECOND_NS
"""Maximum age of ECC counts in seconds: the driver has to query the GPU for each of them."""
NVLINKS_NS = 60 * SECOND_NS
"""Maximum age of the NVLinks' states."""
STRIKES = 3
"""Number of consecutive ticks after which an error counts as lasting."""
_NVLINK_COLUMNS = frozenset(m.name for m in GPU_METRICS if m.group == NVLINK)
_PCIE_COLUMNS = ("pcie_tx_mb_s", "pcie_rx_mb_s")


class _LostError(Exception):
    """The GPU no longer answers; the message gives the reason."""


class _Calls:
    """Call sources with one prepared query for all of them."""

    def __init__(self, sources: Sequence[CallSource]) -> None:
        self.sources = sources
        self.query = CallQuery([source.call for source in sources])
        self.columns = [name for source in sources for name in source.columns]
        self.calls = [call for call, source in enumerate(sources) for _ in source.columns]
        self.converters = [
            (name, source.convert)
            for source in sources
            for name in source.columns
            if source.convert is not None
        ]


class _Queries:
    """The prepared queries for the sources that are read: fields in one call, then calls.

    ``all_calls`` includes the slow ones, ``quick_calls`` does not. ``columns_off`` are not among them.
    """

    def __init__(
        self,
        fields: Sequence[FieldSource],
        calls: Sequence[CallSource],
        columns_off: FrozenSet[str] = frozenset(),
    ) -> None:
        self.columns_off = columns_off
        self.field_query = FieldQuery([field for source in fields for field in source.fields])
        ends = accumulate(len(source.fields) for source in fields)
        self.fields = [(source, slice(end - len(source.fields), end)) for source, end in zip(fields, ends)]
        self.all_calls = _Calls(calls)
        self.quick_calls = _Calls([source for source in calls if not source.slow])
        self.slow_columns = [name for source in calls if source.slow for name in source.columns]


class Gpu:
    """A GPU by its NVML index. One worker at a time calls its methods; any thread may call ``count_pcie``.

    ``lost`` says why the GPU does not answer, None while it does; ``hanging`` is set while a call has not
    returned, and then nobody else should call it. ``notes`` collects events. ``nvlinks`` are its NVLinks.
    ``columns_off`` are columns whose metrics are switched off; any thread may replace them.
    PCIe is measured by GPM where the GPU has it, else by counters, and where it has none by ``pcie_meter``.
    Counters that were not read for ``pcie_wraps_s`` may have wrapped unseen, so their rates start again.
    """

    def __init__(self, nvml: Nvml, index: int) -> None:
        self.index = index
        self.handle: Any = None
        self.lost: Optional[str] = None
        self.hanging = False
        self.notes: Deque[Note] = deque()
        self.columns_off: FrozenSet[str] = frozenset()
        self.nvlinks: Tuple[NvLink, ...] = ()
        self._nvlink_reader: Optional[NvLinkReader] = None
        self._nvlinks_due = 0
        self.pcie_meter: Optional[PcieMeter] = None
        self.pcie_counted_at = time.monotonic()
        self.pcie_wraps_s = math.inf
        self._nvml = nvml
        self._calls = call_sources(nvml)
        self._gpm: Optional[PcieGpm] = None
        self._gpm_strikes = 0
        self._pcie = pcie_counters(nvml.api)
        self._fields: List[FieldSource] = [*self._pcie, *field_sources(nvml)]
        self._sources: List[GpuSource] = [*self._calls, *self._fields]
        self._queries = _Queries((), ())
        self._slow_at = 0
        self._slow_values: Values = {}
        self._settled = False  # all sources answered the last queries, which can be used again
        self._pcie_query = FieldQuery([field for counter in self._pcie for field in counter.fields])
        self._field_lock = Lock()
        self._silent_ticks = 0
        self._retry_at: Optional[int] = None
        self._reopen_at = 0

    @property
    def reasons(self) -> Dict[str, str]:
        """Why this GPU has no value of a metric, by the metric's name."""
        return {
            name: source.reason
            for source in self._sources
            if source.reason is not None and (self.pcie_meter is None or source not in self._pcie)
            for name in source.columns
        }

    @property
    def pcie_wraps(self) -> bool:
        """Whether the PCIe counters have 32 bits and so must be read before they wrap."""
        return any(counter.wraps for counter in self._pcie)

    @property
    def lacks_pcie_counters(self) -> bool:
        """Whether the GPU has no PCIe counters."""
        return any(counter.reason is not None for counter in self._pcie)

    @property
    def reachable(self) -> bool:
        """Whether the GPU answers, so that other threads may query it."""
        return self.handle is not None and self.lost is None and not self.hanging

    def open(self) -> None:
        """Get the handle and find out which sources the GPU supports."""
        try:
            self._open()
        except _LostError as error:
            self._mark_lost(str(error))

    def read(self, now_ns: int) -> Optional[Row]:
        """Return the GPU's row of the catalogue, None when it does not answer."""
        if self.lost is not None and now_ns < self._reopen_at:
            return None
        try:
            if self.lost is not None:
                self._open()
            row = self._read(now_ns)
        except _LostError as error:
            self._mark_lost(str(error))
            self._reopen_at = now_ns + REOPEN_NS
            return None
        if row is not None and now_ns >= self._nvlinks_due and _NVLINK_COLUMNS.isdisjoint(self.columns_off):
            self._nvlinks_due = now_ns + NVLINKS_NS
            self.read_nvlinks()
        if row is not None and self.lost is not None:
            self.lost = None
            self._note("gpu_back", INFO, "answers again")
        return row

    def read_nvlinks(self) -> None:
        """Read which NVLinks are up, and how fast they are."""
        if self._nvlink_reader is None:
            self._nvlink_reader = NvLinkReader(self._nvml, self.handle)
        self.nvlinks = self._nvlink_reader.read()

    def count_pcie(self) -> None:
        """Read the PCIe counters between ticks, before they wrap."""
        if not self._field_lock.acquire(blocking=False):
            return  # the tick reads them; where that hangs, this thread must not
        try:
            verdict, codes, types, numbers = self._pcie_query.run(self._nvml.get_fields, self.handle)
            # What fails here fails in the tick too, which handles it.
            if verdict == SUCCESS:
                self._start_pcie_period()
                for counter, code, value_type, number in zip(self._pcie, codes, types, numbers):
                    if code == SUCCESS:
                        counter.count(number, value_type)
        finally:
            self._field_lock.release()

    def disable_pcie(self, reason: str, note: bool) -> None:
        """Stop measuring PCIe, because no method works; with ``note``, leave a note."""
        self.pcie_meter = None
        for counter in self._pcie:
            self._disable(counter, reason, note)

    def _start_pcie_period(self) -> None:
        now = time.monotonic()
        if now - self.pcie_counted_at > self.pcie_wraps_s:
            for counter in self._pcie:
                counter.reset()
        self.pcie_counted_at = now

    def _open(self) -> None:
        """Query everything until each source has answered or is disabled; without notes."""
        try:
            self.handle = self._nvml.api.nvmlDeviceGetHandleByIndex(self.index)
        except self._nvml.Error as error:
            raise _LostError(reason_of(error.value)) from None
        self._gpm = self._nvml.maybe(PcieGpm, self._nvml, self.handle)
        for _ in range(STRIKES):
            _, codes = self._query(0, everything=True)
            error_code = _common_error(codes)
            if error_code is not None:
                raise _LostError(reason_of(error_code))
            if self._update_sources(codes, note=False):
                break
        for source in self._sources:
            source.reset()

    def _read(self, now_ns: int) -> Optional[Row]:
        if self._retry_at is None:
            self._retry_at = now_ns + RETRY_NS
        everything = now_ns >= self._retry_at
        if everything:
            self._retry_at = now_ns + RETRY_NS
        values, codes = self._query(now_ns, everything)
        if codes:
            error_code = _common_error(codes)
            if error_code is not None:
                self._silent_ticks += 1
                if self._silent_ticks >= STRIKES:
                    raise _LostError(reason_of(error_code))
                return None
            self._update_sources(codes, note=True)
        self._silent_ticks = 0
        if self._gpm is not None:
            values.update(zip(_PCIE_COLUMNS, self._read_gpm(self._gpm, now_ns) or (None, None)))
        elif self.pcie_meter is not None and self.lacks_pcie_counters:
            values.update(zip(_PCIE_COLUMNS, self.pcie_meter() or (None, None)))
        return tuple(map(values.get, GPU_COLUMNS))

    def _read_gpm(self, gpm: PcieGpm, now_ns: int) -> Optional[Tuple[float, float]]:
        """Return PCIe traffic (tx, rx) in MB/s; use the counters instead after lasting errors."""
        if not self.columns_off.isdisjoint(_PCIE_COLUMNS):
            gpm.reset()
            return None
        traffic = gpm.read(now_ns)
        self._gpm_strikes = 0 if gpm.code == SUCCESS else self._gpm_strikes + 1
        if self._gpm_strikes >= STRIKES:
            self._gpm, self._settled = None, False
        return traffic

    def _query(self, now_ns: int, everything: bool) -> Tuple[Values, Dict[GpuSource, int]]:
        """Query the sources that are not disabled, or everything: values and each source's nvmlReturn_t.

        The codes are left out if all sources have answered, as they did at the tick before.
        """
        off = self.columns_off
        if everything or not self._settled or self._queries.columns_off != off:
            self._settled = False
            for source in self._sources:
                if not off.isdisjoint(source.columns):
                    source.reset()  # its rates begin again when it is switched on
            fields = [s for s in self._fields if self._gpm is None or s not in self._pcie]
            self._queries = _Queries(
                [s for s in fields if (everything or s.reason is None) and off.isdisjoint(s.columns)],
                [s for s in self._calls if (everything or s.reason is None) and off.isdisjoint(s.columns)],
                off,
            )
        queries = self._queries
        slow_due = not self._settled or now_ns >= self._slow_at
        values: Values = {}
        # Counters come first, close to the time that their rates are taken at.
        field_codes = self._query_fields(queries, now_ns, values)
        calls = queries.all_calls if slow_due else queries.quick_calls
        call_codes = self._query_calls(calls, values)
        if slow_due:
            self._slow_values = {name: values.get(name) for name in queries.slow_columns}
            self._slow_at = 0 if everything else now_ns + SLOW_NS
        else:
            values.update(self._slow_values)
        if self._settled and not any(field_codes) and not any(call_codes):
            return values, {}
        codes: Dict[GpuSource, int] = dict(zip(calls.sources, call_codes))
        codes.update(zip([source for source, _ in queries.fields], field_codes))
        return values, codes

    def _query_fields(self, queries: _Queries, now_ns: int, values: Values) -> Sequence[int]:
        if not queries.fields:
            return ()
        with self._field_lock:
            verdict, field_codes, types, numbers = queries.field_query.run(self._nvml.get_fields, self.handle)
            if verdict == SUCCESS:
                self._start_pcie_period()
            if verdict == GPU_IS_LOST or GPU_IS_LOST in field_codes:
                raise _LostError(reason_of(GPU_IS_LOST))
            codes = [SUCCESS] * len(queries.fields)
            if verdict != SUCCESS or any(field_codes):
                codes = [
                    verdict or next(filter(None, field_codes[place]), SUCCESS) for _, place in queries.fields
                ]
            for (source, place), code in zip(queries.fields, codes):
                if code == SUCCESS:
                    values[source.column] = source.value(numbers[place], types[place.start], now_ns)
            return codes

    def _query_calls(self, calls: _Calls, values: Values) -> Sequence[int]:
        codes, numbers = calls.query.run(self.handle)
        if any(codes):
            if GPU_IS_LOST in codes:
                raise _LostError(reason_of(GPU_IS_LOST))
            values.update(
                (name, number)
                for name, call, number in zip(calls.columns, calls.calls, numbers)
                if codes[call] == SUCCESS
            )
        else:
            values.update(zip(calls.columns, numbers))
        for name, convert in calls.converters:
            number = values.get(name)
            if number is not None:
                values[name] = convert(int(number))
        return codes

    def _update_sources(self, codes: Dict[GpuSource, int], note: bool) -> bool:
        """Disable sources that will not answer; True when every source has answered or is disabled."""
        settled = True
        for source, code in codes.items():
            if code == SUCCESS:
                source.strikes = 0
                source.reason = None
                continue
            source.strikes += 1
            if code in UNSUPPORTED and source.use_next_plan():
                source.reset()
                settled = False
            elif source.reason is None and (code in UNSUPPORTED or source.strikes >= STRIKES):
                self._disable(source, self._reason(source, code), note)
            else:
                settled = settled and source.reason is not None
        self._settled = not any(codes.values())
        return settled

    def _disable(self, source: GpuSource, reason: str, note: bool) -> None:
        source.reset()
        source.reason = reason
        self._settled = False
        if note:
            for name in source.columns:
                self._note("unmeasured", WARNING, f"no longer measures {name}: {reason}")

    def _reason(self, source: GpuSource, code: int) -> str:
        if code == NOT_SUPPORTED and "util_pct" in source.columns and has_mig(self._nvml, self.handle):
            return "MIG is on: NVML has no utilisation for the GPU as a whole"
        return reason_of(code)

    def _mark_lost(self, reason: str) -> None:
        if self.lost is None:
            self._note("gpu_lost", ERROR, f"doesn't answer: {reason}")
        self.lost = reason
        self._nvlink_reader = None
        self._silent_ticks = 0
        for source in self._sources:
            source.reset()

    def _note(self, kind: str, severity: str, message: str) -> None:
        self.notes.append(Note(kind, severity, message, self.index))


def _common_error(codes: Dict[GpuSource, int]) -> Optional[int]:
    """Return an error of a GPU on which everything fails, None if anything worked or is unsupported only."""
    if SUCCESS in codes.values():
        return None
    return next((code for code in codes.values() if code not in UNSUPPORTED), None)


def read_gpu_facts(nvml: Nvml, index: int, handle: Any) -> GpuFacts:
    """Return the facts of a GPU that answers, None for each that this GPU does not have."""
    api, maybe = nvml.api, nvml.maybe
    pci = maybe(api.nvmlDeviceGetPciInfo, handle)
    memory = maybe(api.nvmlDeviceGetMemoryInfo, handle)
    limit = maybe(api.nvmlDeviceGetEnforcedPowerLimit, handle)
    return GpuFacts(
        index=index,
        uuid=maybe(api.nvmlDeviceGetUUID, handle) or _unknown_uuid(index),
        name=maybe(api.nvmlDeviceGetName, handle) or "unknown GPU",
        pci_bus_id=None if pci is None else pci.busId,
        minor=maybe(api.nvmlDeviceGetMinorNumber, handle),
        memory_total_mib=None if memory is None else memory.total >> 20,
        power_limit_w=None if limit is None else limit / 1000,
        sm_clock_max_mhz=maybe(api.nvmlDeviceGetMaxClockInfo, handle, api.NVML_CLOCK_SM),
        mem_clock_max_mhz=maybe(api.nvmlDeviceGetMaxClockInfo, handle, api.NVML_CLOCK_MEM),
        mig=has_mig(nvml, handle),
    )


def has_mig(nvml: Nvml, handle: Any) -> bool:
    """Return whether the GPU is divided into MIG instances."""
    mode = nvml.maybe(nvml.api.nvmlDeviceGetMigMode, handle)
    return mode is not None and mode[0] == 1


def lost_gpu_facts(index: int, count: int, proc: str) -> GpuFacts:
    """Return the facts of a GPU without an NVML handle, from what the kernel module recorded at its start.

    Its folders in /proc/driver/nvidia/gpus are named by PCI bus id, which is NVML's order too. Where they
    don't match the number of GPUs (a job that may see only some), only the index is known.
    """
    text, top = "", f"{proc}/driver/nvidia/gpus"
    try:
        folders = sorted(os.listdir(top))
        if len(folders) == count:
            with open(f"{top}/{folders[index]}/information", errors="replace") as file:
                text = file.read()
    except OSError:
        pass
    pairs = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in pairs.items()}
    uuid = fields.get("GPU UUID", "")
    minor = fields.get("Device Minor", "")
    return GpuFacts(
        index=index,
        # A GPU that was lost before the module saw it has question marks for a UUID.
        uuid=uuid if uuid and "?" not in uuid else _unknown_uuid(index),
        name=fields.get("Model", "unknown GPU"),
        pci_bus_id=fields.get("Bus Location"),
        minor=int(minor) if minor.isdigit() else None,
    )


def _unknown_uuid(index: int) -> str:
    return f"unknown-{index}"
