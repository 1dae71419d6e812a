"""One GPU of NVIDIA: its values at each tick, and its recovery after errors; the instances of MIG.

Of a GPU with MIG, NVML has power, clocks and temperatures as a whole only, and utilisation of neither GPU nor
instance (nvml.h, "Multi Instance GPU Management").
"""

from __future__ import annotations

from gswarm_agent.frame import ERROR, MIG_INDEX, WARNING, Note, mig_place
from gswarm_agent.probes.gpus.nvidia_gpm import PCIE_COLUMNS, Gpm
from gswarm_agent.probes.gpus.nvidia_nvml import (
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    SUCCESS,
    UNSUPPORTED,
    Nvml,
    reason_of,
)
from gswarm_agent.probes.gpus.nvidia_sources import (
    CallSource,
    FieldSource,
    GpuSource,
    call_sources,
    field_sources,
    health_sources,
)
from gswarm_agent.probes.gpus.vendor import UNUSED_MIB
from gswarm_agent.probes.rates import SECOND_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Collection, Dict, FrozenSet, List, Optional, Sequence

    from gswarm_agent.probes.gpus.vendor import Values, Whereabouts

RETRY_NS = 60 * SECOND_NS
"""Pause before an unsupported metric is tried again."""
STRIKES = 3
"""Number of consecutive readings after which an error counts as lasting."""
LATCHED_NS = 3 * SECOND_NS
"""A GPU that has reported 100 % for this long while nothing can run on it isn't busy."""
_IDLE_POWER = 0.25
"""An idle GPU draws less than this share of its power limit."""
_LATCHED = (
    "the driver reports 100 % without a process: no memory in use and less than 25 % of the power limit"
)


class _LostError(Exception):
    """The GPU no longer answers; the message gives the reason."""


class Gpu:
    """A GPU by its NVML index; ``index`` is its place among GPUs and MIG instances.

    ``lost`` says why it doesn't answer, None while it does.
    """

    parent_index: Optional[int] = None

    def __init__(self, nvml: Nvml, index: int, nvml_index: int, notes: List[Note]) -> None:
        self.index, self.nvml_index = index, nvml_index
        self.handle: Any = None
        self.lost: Optional[str] = None
        self._nvml, self._notes = nvml, notes
        self._gpm: Optional[Gpm] = None
        self._sources: List[GpuSource] = []
        self._counts_module = False
        self._power_limit_w = 0.0
        self._latched_from: Optional[int] = None
        self._latched = False
        self._silent_ticks = 0
        self._retry_at: Optional[int] = None

    @property
    def reasons(self) -> Dict[str, str]:
        """Why this GPU has no value of a metric, by the metric's name."""
        missing = [source for source in self._sources if source.reason is not None]
        reasons = {name: source.reason or "" for source in missing for name in source.columns}
        if self._gpm is not None:
            # Where GPM doesn't measure PCIe, a source does.
            by_gpm = {name: why for name, why in self._gpm.reasons.items() if name not in PCIE_COLUMNS}
            reasons.update(by_gpm)
        if self._counts_module:
            reasons["energy_mj"] = "the counter is that of the module, with CPU and memory"
        if self._latched:
            reasons["util_pct"] = _LATCHED
        return reasons

    @property
    def reachable(self) -> bool:
        """Whether the GPU answers."""
        return self.handle is not None and self.lost is None

    def open(self) -> None:
        """Get the handle and find out which sources the GPU supports."""
        try:
            self._open()
        except _LostError as error:
            self._mark_lost(str(error))

    def find(self) -> Any:
        """Return the handle. Raises ``Nvml.Error``."""
        return self._nvml.api.nvmlDeviceGetHandleByIndex(self.nvml_index)

    def find_gpm(self) -> Gpm:
        """Return what GPM measures."""
        return Gpm(self._nvml, self.handle)

    def find_sources(self) -> List[GpuSource]:
        """Return what may be read through the handle."""
        nvml = self._nvml
        return [*call_sources(nvml), *field_sources(nvml, self.handle), *health_sources(nvml)]

    def has_mig(self) -> bool:
        """Return whether the GPU is divided into MIG instances."""
        mode = self._nvml.maybe(self._nvml.api.nvmlDeviceGetMigMode, self.handle)
        return mode is not None and mode[0] == 1

    def read(self, now_ns: int, columns_off: FrozenSet[str], *, fresh: bool) -> Optional[Values]:
        """Return the GPU's values but for the columns that are off, None when it does not answer.

        The energy counter is read every 10 s, and at once if ``fresh``.
        """
        if self.lost is not None:
            return None
        try:
            if fresh:
                for source in self._sources:
                    if "energy_mj" in source.columns:
                        source.hurry()
            return self._read(now_ns, columns_off)
        except _LostError as error:
            self._mark_lost(str(error))
            return None

    def _open(self) -> None:
        """Query everything until each source has answered or is disabled; without notes."""
        try:
            self.handle = self.find()
        except self._nvml.Error as error:
            raise _LostError(reason_of(error.value)) from None
        self._sources = self.find_sources()
        self._gpm = self.find_gpm()
        for _ in range(STRIKES):
            for source in self._sources:
                source.reset()
            codes = self._query(0, disabled=True, off=self._without_pcie(frozenset()))
            if silence := _silence(codes):
                raise _LostError(silence)
            if self._update_sources(codes, note=False):
                break
        for source in self._sources:
            source.reset()
        # The energy counter of GH200 counts GPU, Grace CPU and memory (Zeus, pull request 172).
        name = self._nvml.maybe(self._nvml.api.nvmlDeviceGetName, self.handle)
        self._counts_module = "GH200" in (name or "")
        self._power_limit_w = (
            self._nvml.maybe(self._nvml.api.nvmlDeviceGetEnforcedPowerLimit, self.handle) or 0
        ) / 1000

    def _without_pcie(self, off: FrozenSet[str]) -> FrozenSet[str]:
        """Return the columns that sources leave out: GPM measures PCIe better where the GPU has it."""
        by_gpm = self._gpm is not None and self._gpm.reasons.keys().isdisjoint(PCIE_COLUMNS)
        return off.union(PCIE_COLUMNS) if by_gpm else off

    def _read(self, now_ns: int, columns_off: FrozenSet[str]) -> Optional[Values]:
        if self._retry_at is None:
            # The GPUs of a node retry at different ticks.
            self._retry_at = now_ns + RETRY_NS - self.index % 8 * SECOND_NS
        disabled = now_ns >= self._retry_at
        if disabled:
            self._retry_at = now_ns + RETRY_NS
        off = self._without_pcie(columns_off)
        if self._counts_module:
            off |= {"energy_mj"}
        codes = self._query(now_ns, disabled=disabled, off=off)
        silence = _silence(codes)
        if silence:
            # Everything that was due failed; the GPU is silent only if the rest fails, too.
            for source in self._sources:
                source.hurry()
            codes = self._query(now_ns, disabled=disabled, off=off)
            silence = _silence(codes)
        if silence:
            self._silent_ticks += 1
            if self._silent_ticks >= STRIKES:
                raise _LostError(silence)
            return None
        self._silent_ticks = 0
        self._update_sources(codes, note=True)
        values: Values = {}
        for source in self._sources:
            if source.reason is None:
                values.update(zip(source.columns, source.values(now_ns)))
        self._drop_latched(values, now_ns)
        if self._gpm is not None:
            values.update(self._gpm.read(now_ns, columns_off, values.get("util_pct")))
        return values

    def _drop_latched(self, values: Values, now_ns: int) -> None:
        """Leave out a utilisation of 100 % that stays when the last process has ended, as on Blackwell."""
        util, memory, power = (values.get(name) for name in ("util_pct", "mem_used_mib", "power_w"))
        idle = memory is not None and memory < UNUSED_MIB and power is not None
        if util != 100 or not idle or (power or 0) >= _IDLE_POWER * self._power_limit_w:
            self._latched_from, self._latched = None, False
            return
        if self._latched_from is None:
            self._latched_from = now_ns
        if now_ns - self._latched_from >= LATCHED_NS:
            values["util_pct"] = None
            if not self._latched:
                self._latched = True
                self._note("unmeasured", WARNING, f"no longer measures util_pct: {_LATCHED}")

    def _query(self, now_ns: int, *, disabled: bool, off: FrozenSet[str]) -> Dict[GpuSource, int]:
        """Query the sources that are due, ``disabled`` ones if set; return each source's nvmlReturn_t."""
        codes: Dict[GpuSource, int] = {}
        usable = []
        for source in self._sources:
            if not off.isdisjoint(source.columns):
                # A source's rates begin again when its columns are switched on.
                source.reset()
            elif disabled or source.reason is None:
                usable.append(source)
        # Counters come first, close to the time that their rates are taken at.
        fields = [s for s in usable if isinstance(s, FieldSource) and s.is_due(now_ns)]
        if fields:
            self._query_fields(fields, now_ns, codes)
        for number, source in enumerate(usable):
            if not isinstance(source, CallSource) or not source.is_due(now_ns):
                continue
            try:
                values = source.call(self.handle)
            except self._nvml.Error as error:
                codes[source] = error.value
                if error.value == GPU_IS_LOST:
                    break
                continue
            codes[source] = SUCCESS
            source.keep(values, now_ns, phase=_phase(self.index, number))
        if GPU_IS_LOST in codes.values():
            raise _LostError(reason_of(GPU_IS_LOST))
        return codes

    def _query_fields(self, sources: Sequence[FieldSource], now_ns: int, codes: Dict[GpuSource, int]) -> None:
        """Query the fields of all these sources in one call, and add each source's nvmlReturn_t."""
        ids = [field for source in sources for field in source.fields]
        try:
            found = self._nvml.fields(self.handle, ids)
        except self._nvml.Error as error:
            codes.update(dict.fromkeys(sources, error.value))
            return
        answers = iter(found)
        for source in sources:
            own = [next(answers) for _ in source.fields]
            code = codes[source] = next((code for code, _ in own if code != SUCCESS), SUCCESS)
            if code == SUCCESS:
                value = source.value([number for _, number in own], now_ns)
                # All fields of a GPU fall on the same ticks, so that one call reads them.
                source.keep((value,), now_ns, phase=_phase(self.index, 0))

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
                source.reset()
                source.reason = self._reason(source, code)
                if note:
                    for name in source.columns:
                        self._note("unmeasured", WARNING, f"no longer measures {name}: {source.reason}")
            else:
                settled = settled and source.reason is not None
        return settled

    def _reason(self, source: GpuSource, code: int) -> str:
        if code == NOT_SUPPORTED and "util_pct" in source.columns and self.has_mig():
            return "MIG is on: NVML has no utilisation for the GPU as a whole"
        if code in UNSUPPORTED and "module_power_w" in source.columns:
            return "this GPU isn't part of a module: power_w is that of its board"
        return reason_of(code)

    def _mark_lost(self, reason: str) -> None:
        """Give up the GPU; the agent starts a new process, which retries it later."""
        self._note("gpu_lost", ERROR, f"doesn't answer: {reason}")
        self.lost = reason

    def _note(self, kind: str, severity: str, message: str) -> None:
        self._notes.append(Note(kind, severity, message, self.index))


class MigInstance(Gpu):
    """An instance by its index (``MIG_INDEX``); of a GPU's sources it has the memory, and GPM."""

    def __init__(self, nvml: Nvml, *where: Any) -> None:
        super().__init__(nvml, *where)
        self.parent_index, self._number = mig_place(self.nvml_index)

    def find(self) -> Any:
        """See Gpu."""
        api = self._nvml.api
        self._parent = api.nvmlDeviceGetHandleByIndex(self.parent_index)
        handle = api.nvmlDeviceGetMigDeviceHandleByIndex(self._parent, self._number)
        self._gpu_instance = api.nvmlDeviceGetGpuInstanceId(handle)
        return handle

    def find_gpm(self) -> Gpm:
        """See Gpu."""
        return Gpm(self._nvml, self._parent, self._gpu_instance)

    def find_sources(self) -> List[GpuSource]:
        """See Gpu."""
        return [source for source in call_sources(self._nvml) if "mem_used_mib" in source.columns]


def find_gpus(nvml: Nvml, whereabouts: Whereabouts, left_out: Collection[int]) -> List[int]:
    """Return the indexes of the GPUs, each followed by its instances; no call is made for ``left_out``."""
    api, maybe, found = nvml.api, nvml.maybe, []
    for index in range(maybe(api.nvmlDeviceGetCount) or 0):
        found.append(index)
        if index in left_out:
            continue
        whereabouts.enter(index)
        handle = maybe(api.nvmlDeviceGetHandleByIndex, index)
        mode = None if handle is None else maybe(api.nvmlDeviceGetMigMode, handle)
        if mode is not None and mode[0] == 1:
            # Instances have numbers from 0 on; a user of Slurm sees only those of the job, also with gaps.
            most = maybe(api.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
            found += [
                MIG_INDEX + 10 * index + number
                for number in range(min(most, 10))
                if maybe(api.nvmlDeviceGetMigDeviceHandleByIndex, handle, number) is not None
            ]
    return found


def _phase(index: int, number: int) -> float:
    """Return where in its period a source of a GPU is read, 0.1 to 0.9: readings spread over the ticks."""
    return 0.1 + 0.8 * ((0.618 * index + 0.382 * number) % 1)


def _silence(codes: Dict[GpuSource, int]) -> str:
    """Return why a GPU doesn't answer if every call fails, empty for one that only lacks metrics."""
    if SUCCESS in codes.values():
        return ""
    if codes and set(codes.values()) == {INVALID_ARGUMENT}:
        return "the driver no longer knows it (it rejects every call as an invalid argument)"
    return next((reason_of(code) for code in codes.values() if code not in UNSUPPORTED), "")
