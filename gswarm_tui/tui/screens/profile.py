"""Profile screen: a profiler's report as tables, and as a timeline above the samples of the same GPU."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from gswarm_agent.frame import GpuFacts
from gswarm_tui.analysis.profile_timeline import SAMPLED, ProfileTimeline, Sampled, captured, load_timeline
from gswarm_tui.analysis.profiles import Profile, ProfiledDevice, ProfileDetails, profile_details
from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.analysis.summary_text import TextTable
from gswarm_tui.common.errors import UserError
from gswarm_tui.common.quantities import DASH, brief_time, mebibytes, percent, watts
from gswarm_tui.common.units import nice_ceiling
from gswarm_tui.fleet.history import Floats
from gswarm_tui.tui.actions import PROFILE
from gswarm_tui.tui.drawing.curve import HOLD_INTERVALS, block_area
from gswarm_tui.tui.drawing.spans import Span, Spans
from gswarm_tui.tui.screens.computed import show_table, wrapped
from gswarm_tui.tui.screens.trace import TablesScreen
from gswarm_tui.tui.widgets.lines import Canvas
from gswarm_tui.tui.widgets.table import TableView
from gswarm_tui.tui.widgets.view_bar import ViewBar

TIMELINE = "timeline"
LEAST_NS = 1_000
"""The timeline isn't zoomed further."""
LABEL = 17
"""Cells of a lane's name and value."""
LANE_LINES = {"kernels": 3, "copies": 2, "ranges": 2}
CURVE_LINES = 2
_SHOWN = {"util_pct": ("util", percent), "mem_used_mib": ("memory", mebibytes), "power_w": ("power", watts)}
_TICK_CELLS = 12
"""Least cells between two ticks."""


def profile_lines(
    timeline: ProfileTimeline,
    origin_ns: int,
    memory_mib: float | None,
    power_w: float | None,
) -> list[Spans]:
    """Return the lines of a timeline. Times count from ``origin_ns``, and scales end at the GPU's limits."""
    bins = len(next(iter(timeline.lanes.values())))
    lines: list[Spans] = []
    for lane, shares in timeline.lanes.items():
        levels = np.array(shares, dtype=np.float64)
        busy = f"{100 * float(levels.mean()):.0f} %"
        levels[levels == 0] = np.nan  # nothing ran
        lines += _lane(lane, busy, levels, LANE_LINES[lane], "accent")
    lines.append((Span(" " * LABEL + _axis(timeline, origin_ns, bins), "dim"),))
    if not timeline.samples:
        return [*lines, (Span(" no samples of this GPU at this time", "dim"),)]
    tops = {"util_pct": 100.0, "mem_used_mib": memory_mib, "power_w": power_w}
    for at, name in enumerate(SAMPLED):
        label, shown = _SHOWN[name]
        values = _in_bins(timeline.samples, at, timeline, bins)
        known = values[np.isfinite(values)]
        top = tops[name] or (float(known.max()) if len(known) else 0.0) or 1.0
        text = shown(float(known.mean())) if len(known) else DASH
        lines += _lane(label, text, values / top, CURVE_LINES, "dim")
    return lines


def _in_bins(samples: Sequence[Sampled], at: int, timeline: ProfileTimeline, bins: int) -> Floats:
    """Return a sampled value in the middle of each bin, NaN where no sample covers it."""
    values = np.full(bins, np.nan)
    ends = np.array([one.end_ns for one in samples])
    readings = np.array([np.nan if (value := one.values[at]) is None else value for one in samples])
    lengths = np.array([one.length_ns for one in samples])
    middles = timeline.start_ns + (np.arange(bins) + 0.5) * (timeline.end_ns - timeline.start_ns) / bins
    places = np.searchsorted(ends, middles)
    inside = places < len(ends)
    covered = places[inside]
    fresh = ends[covered] - middles[inside] <= HOLD_INTERVALS * lengths[covered]
    values[inside] = np.where(fresh, readings[covered], np.nan)
    return values


def _lane(label: str, value: str, levels: Floats, height: int, role: str) -> list[Spans]:
    lines: list[Spans] = []
    for at, text in enumerate(block_area(levels, height)):
        head = f" {label:<7}{value:>{LABEL - 9}} " if at == height - 1 else " " * LABEL
        lines.append((Span(head[:LABEL], "dim"), Span(text, role)))
    return lines


def _axis(timeline: ProfileTimeline, origin_ns: int, bins: int) -> str:
    """Return a time axis with ticks at round times, each with its time where that fits."""
    cell_ns = (timeline.end_ns - timeline.start_ns) / bins
    step = round(nice_ceiling(max(1.0, _TICK_CELLS * cell_ns)))
    line = ""
    for at in range(-(-(timeline.start_ns - origin_ns) // step) * step, timeline.end_ns - origin_ns, step):
        place = int((at + origin_ns - timeline.start_ns) / cell_ns)
        tick = f"╵{brief_time(at) if at else '0'}"
        line = line.ljust(place) + (tick if place + len(tick) <= bins else "╵")
    return line.ljust(bins)


class ProfileScreen(TablesScreen):
    """One report of Nsight Systems or Nsight Compute, as tables and as a timeline.

    The tables have its kernels, calls, memory operations and ranges by name, and the same kernels on all
    ranks. Below the timeline are the samples of the same GPU.
    """

    SCREEN = PROFILE
    EMPTY: ClassVar = {
        "kernels": "no kernels in this profile",
        "API": "no CUDA calls in this profile",
        "memory": "no copies or memory sets in this profile",
        "ranges": "no NVTX ranges in this profile",
        "OS": "no calls of the operating system's libraries in this profile",
        "ranks": "no other rank has a profile of this time",
        "messages": "the profiler reported nothing",
    }
    VIEWS: ClassVar = (*EMPTY, TIMELINE)

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        self._captured = (0, 1)
        self._span = (0, 1)
        self._device = 0
        self._timeline: ProfileTimeline | None = None
        self._stretch_of: tuple[object, ...] = ()
        self._reading = False
        self._trouble = ""

    def compute(self, queries: RecordingQueries) -> ProfileDetails:
        """Query all tables at once."""
        self._captured = self._span = queries.load(captured, self._profile)
        return queries.load(profile_details, self._profile)

    @property
    def device(self) -> ProfiledDevice | None:
        """The GPU of the timeline."""
        devices = [] if self.result is None else self.result.devices
        return devices[self._device % len(devices)] if devices else None

    def draw_result(self, result: ProfileDetails, above: Canvas, table: TableView, below: Canvas) -> None:
        """Draw the timeline or the table of the view."""
        if self.view != TIMELINE:
            super().draw_result(result, above, table, below)
            return
        shown, whole = (brief_time(end - start) for start, end in (self._span, self._captured))
        self.query_one(ViewBar).show_hint(f"{self._device_name()}{shown} of {whole}")
        self._draw_timeline(above, table)
        self.on_table_view_moved()

    def facts(self) -> str:
        """Return the share without a kernel, and the length of the capture."""
        if self.result is None:
            return ""
        idle = [one.no_kernel_pct for one in self.result.devices if one.no_kernel_pct is not None]
        length = brief_time(self._profile.seconds * 1e9)
        return f"no kernel {percent(sum(idle) / len(idle))} of {length}" if idle else length

    def _device_name(self) -> str:
        if (device := self.device) is None:
            return ""
        return f"device {device.device}, " if device.gpu_index is None else f"GPU {device.gpu_index}, "

    # The timeline

    def _draw_timeline(self, canvas: Canvas, table: TableView) -> None:
        bins = max(10, self.size.width - LABEL - 1)  # a character each
        wanted = (self._span, self.device, bins)
        if wanted != self._stretch_of and not self._reading and self._queries is not None:
            self._reading = True
            self.run_worker(self._read(self._queries, wanted, bins))
        if self._timeline is None:
            words, role = (self._trouble, "warning") if self._trouble else ("reading …", "dim")
            canvas.show(wrapped(words, self.size.width, role))
            table.empty = ""
            table.show_columns((), ())
            return
        facts = self._gpu_facts()
        memory = None if facts is None else facts.memory_total_mib
        power = None if facts is None else facts.power_limit_w
        canvas.show(profile_lines(self._timeline, self._captured[0], memory, power))
        table.empty = "no kernel in the time shown"
        rows = [
            (brief_time(ns), f"{calls:,}", brief_time(ns / calls), name)
            for name, calls, ns in self._timeline.names
        ]
        show_table(table, TextTable(("here", "calls", "mean", "kernel"), rows, frozenset(range(3))))

    def _gpu_facts(self) -> GpuFacts | None:
        node, device = self.fleet.nodes.get(self._profile.node), self.device
        if node is None or device is None:
            return None
        return next((one for one in node.facts if one.index == device.gpu_index), None)

    async def _read(self, queries: RecordingQueries, wanted: tuple[object, ...], bins: int) -> None:
        try:
            self._timeline = await asyncio.to_thread(
                queries.load, load_timeline, self._profile, self.device, self._span, bins
            )
            self._trouble = ""
        except UserError as error:
            self._timeline, self._trouble = None, str(error)
        finally:
            self._stretch_of, self._reading = wanted, False
        self.update_view()

    # Actions

    def action_zoom_time(self, step: int) -> None:
        """Zoom the timeline about its middle, by two."""
        self._to_timeline()
        start, end = self._span
        middle, half = (start + end) // 2, (end - start) // (4 if step > 0 else 1)
        self._show_span(middle - max(half, LEAST_NS // 2), middle + max(half, LEAST_NS // 2))

    def action_step_gpu(self) -> None:
        """Show the timeline of the next GPU."""
        self._to_timeline()
        self._device += 1
        self.update_view()

    def _to_timeline(self) -> None:
        if self.view != TIMELINE:
            self.query_one(ViewBar).pick(TIMELINE)

    def _show_span(self, start: int, end: int) -> None:
        """Show a time within the capture."""
        first, last = self._captured
        length = min(end - start, last - first)
        start = max(first, min(start, last - length))
        self._span = (start, start + length)
        self.update_view()

    def action_move(self, where: str) -> None:
        """Move in the table; in the timeline, ← and → show an earlier and a later time."""
        if self.view == TIMELINE and where in ("left", "right"):
            start, end = self._span
            by = (end - start) // 4 * (1 if where == "right" else -1)
            self._show_span(start + by, end + by)
        else:
            self.query_one(TableView).move(where)
