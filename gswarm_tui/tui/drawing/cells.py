"""Draws a line of the heatmap from its data and layout."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from gswarm_agent.metrics import HOST_COLUMNS
from gswarm_tui.common import quantities
from gswarm_tui.fleet.node import NodeState, Standing
from gswarm_tui.tui.drawing import numbers
from gswarm_tui.tui.drawing.heatmap_data import FRESH, HeatmapData
from gswarm_tui.tui.drawing.layout import HOST_WIDTHS, MEAN_WIDTH, Layout, Zoom
from gswarm_tui.tui.drawing.node_status import NAMED, ROLES, SIGNS, THROTTLED, full_status, short_status
from gswarm_tui.tui.drawing.ramp import BLOCK_OF, HOT, buckets, ramp_of
from gswarm_tui.tui.drawing.text import clean, clip, clip_left, pad
from gswarm_tui.tui.drawing.themes import Palette

Cursor = tuple[int, int | None] | None
"""The row of the picture and the cell that the cursor is on; None for no cell, and for no cursor."""

NO_CAUSE = (quantities.DASH, "-1")
_SIGNS = [("W", "14"), ("a", "5"), ("i", f"{HOT}15"), ("c", "8"), ("s", "2")]
_SIGNS += [("T", f"{HOT}12"), ("H", f"{HOT}9"), (".", "0"), ("?", f"{HOT}4")]
CAUSE_SIGNS = defaultdict(lambda: NO_CAUSE, enumerate(_SIGNS))
"""Letter and step of a ramp for each of ``insight.ledger.CAUSES``, by position."""
CURSOR_MARK = "+"
RANKS_LONGEST = 11
"""Characters to which a node's ranks are cut."""


@dataclass(frozen=True, eq=False)
class DrawingContext:
    """Colours, time, cursor and width for drawing the heatmap, and the time range of sparklines.

    ``causes`` are each node's GPUs now, as in ``FleetExamined``, to draw instead of the metric's values.
    """

    colours: Palette
    now: float
    cursor: Cursor
    width: int
    span_s: float
    causes: Mapping[str, bytes] | None = None


def host_text(name: str, host: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> str:
    """Format a host value of the widest layout; traffic is the fabric's where it is measured, in GB/s."""
    value = dict(zip(HOST_COLUMNS, host.tolist(), strict=True))
    if name == "cpu":
        return quantities.percent(value["cpu_pct"])
    if name == "iowait":
        return quantities.percent(value["cpu_iowait_pct"])
    if name == "mem":
        return quantities.mebibytes(value["memory_used_mib"]).removesuffix("iB")
    fabric, network = ((value[f"{kind}_rx_mb_s"], value[f"{kind}_tx_mb_s"]) for kind in ("ib", "net"))
    rates = fabric if np.isfinite(fabric).all() else network
    return "/".join(quantities.DASH if np.isnan(rate) else numbers.digits(rate / 1000) for rate in rates)


def ranks_text(node: NodeState) -> str:
    """Return a node's ranks: "8–15", "8–13,15" without 14; empty if unknown."""
    ranks = sorted({p.rank for p in node.processes if p.rank is not None})
    # Consecutive ranks differ from their places in the list by the same number.
    runs = [[rank for _, rank in run] for _, run in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])]
    parts = [f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return clip(",".join(parts), RANKS_LONGEST)


def block_name(picture: HeatmapData, row: int) -> str:
    """Return the name of a block: its node's, or its ranks in a fleet that is laid out by rank."""
    node = picture.nodes[row]
    return (picture.by_rank and ranks_text(node)) or clean(node.name)


def draw_line(picture: HeatmapData, layout: Layout, line: int, pen: DrawingContext) -> Strip:
    """Draw a line of the heatmap; blank below its last line."""
    nodes = layout.nodes_on(line)
    drawing = _Drawing(picture, layout, pen)
    if nodes:
        drawing.margin(nodes)
    for row in nodes:
        drawing.node(row)
    return drawing.strip()


class _Drawing:
    """Collects a line's segments and joins neighbours of one style."""

    def __init__(self, picture: HeatmapData, layout: Layout, pen: DrawingContext) -> None:
        self._picture = picture
        self._layout = layout
        self._pen = pen
        self._colours = pen.colours
        self._text = pen.colours["text"]
        self._ramp = ramp_of(picture.metric)
        self._runs: list[tuple[str, Style]] = []
        self._width = 0

    def put(self, text: str, style: Style, cells: int | None = None) -> None:
        if self._runs and self._runs[-1][1] is style:
            self._runs[-1] = (self._runs[-1][0] + text, style)
        else:
            self._runs.append((text, style))
        self._width += len(text) if cells is None else cells

    def strip(self) -> Strip:
        if self._width < self._pen.width:
            self.put(" " * (self._pen.width - self._width), self._text)
        made = Strip([Segment(text, style) for text, style in self._runs], self._width)
        return made if self._width == self._pen.width else made.crop(0, self._pen.width)

    def margin(self, rows: list[int]) -> None:
        wide = self._layout.margin
        if self._layout.name:
            self.put(" " * wide, self._text)
            return
        name = clip_left(block_name(self._picture, rows[0]), wide - 3)
        self.put(f" {pad(name, wide - 2)} ", self._colours["dim"], wide)

    def node(self, row: int) -> None:
        start = self._width
        standing = self._picture.standings[row]
        self._name(row, standing)
        if standing in FRESH and self._picture.present[row, 0]:
            self._cells(row, standing)
            if self._layout.zoom is Zoom.ROWS:
                self._extras(row, standing)
            else:
                self._mean(row, standing)
        else:
            self._status(row, standing, start)
        end = start + self._layout.block
        if self._width < end:
            # Blanks that continue the style before them make no run of their own.
            last = self._runs[-1][1]
            style = last if last.bgcolor == self._text.bgcolor else self._text
            self.put(" " * (end - self._width), style)

    def _on(self, row: int) -> bool:
        return self._pen.cursor is not None and self._pen.cursor[0] == row

    def _name(self, row: int, standing: Standing) -> None:
        wide = self._layout.name
        if not wide:
            return
        by_rows = self._layout.zoom is Zoom.ROWS
        name = clean(self._picture.nodes[row].name) if by_rows else block_name(self._picture, row)
        name = pad(clip_left(name, wide), wide)
        on_node = self._on(row) and self._pen.cursor == (row, None)
        role = "title" if self._on(row) else "text" if standing in FRESH else "dim"
        self.put(name, self._colours["cursor"] if on_node else self._colours[role], wide)
        sign, role = SIGNS[standing], ROLES[standing]
        if self._picture.named[row].any():
            sign, role = NAMED, "accent"
        elif standing is Standing.LIVE and self._picture.throttled[row].any():
            sign, role = THROTTLED, "warning"
        elif by_rows:  # the status follows in words
            sign = ""
        self.put(f"{sign:{'>' if by_rows else '<'}{self._layout.sign}}", self._colours[role])
        if self._layout.rank:
            ranks = ranks_text(self._picture.nodes[row])
            self.put(pad(ranks, self._layout.rank - 1, right=True) + " ", self._colours["dim"])

    def _cells(self, row: int, standing: Standing) -> None:
        picture, wide = self._picture, self._layout.cell
        with_numbers = self._layout.zoom <= Zoom.NUMBERS
        steps = picture.steps[row].tolist()
        dims = picture.dim[row].tolist()
        signs = np.where(picture.named[row], NAMED, np.where(picture.throttled[row], THROTTLED, "")).tolist()
        chosen = self._pen.cursor[1] if self._pen.cursor is not None and self._on(row) else None
        if chosen is None and self._on(row) and not self._layout.name:
            chosen = 0  # where no name can show the cursor
        causes = None if self._pen.causes is None else self._pen.causes.get(picture.nodes[row].name, b"")
        for cell, there in enumerate(picture.present[row].tolist()):
            if not there:
                self.put(" " * wide, self._text)
                continue
            step = steps[cell]
            if causes is not None:
                letter, shade = CAUSE_SIGNS[causes[cell]] if cell < len(causes) else NO_CAUSE
                text = f"{letter:>{wide - 1}}{signs[cell] or ' '}" if with_numbers else letter * wide
                style = self._colours[f"{'heat' if with_numbers else 'ink'}{shade}"]
            elif with_numbers:
                text = numbers.cell(float(picture.values[row, cell]), picture.metric)
                sign = signs[cell]
                text = f"{text:>{wide - 1}}{sign or ' '}" if len(text) < wide else f"{sign or text:>{wide}}"
                style = self._colours[f"heat{self._ramp}{step}"]
            else:
                sign = CURSOR_MARK if cell == chosen else signs[cell] or BLOCK_OF[step]
                text = sign * wide
                style = self._colours[f"ink{self._ramp}{step}"]
            if dims[cell] or standing is Standing.STALE:
                style = self._colours["faint"]
            self.put(text, self._colours["cursor"] if cell == chosen else style)

    def _mean(self, row: int, standing: Standing) -> None:
        if not self._layout.mean:
            return
        mean, metric = float(self._picture.means[row]), self._picture.metric
        text = numbers.cell(mean, metric) if metric.unit not in ("bits", "P") else ""
        role = "text" if standing is Standing.LIVE else "faint"
        self.put(f"{text:>{MEAN_WIDTH}}", self._colours[role])

    def _extras(self, row: int, standing: Standing) -> None:
        layout, pen = self._layout, self._pen
        self._mean(row, standing)
        if standing is Standing.STALE:
            words = full_status(self._picture.nodes[row], standing, pen.now)
            self.put(f"  {words}", self._colours["warning"])
            return
        if layout.spark:
            self.put("  ", self._text)
            for step in buckets(self._picture.spark(row, pen.now, layout.spark, pen.span_s)).tolist():
                self.put(" " if step < 0 else BLOCK_OF[step], self._colours[f"ink{self._ramp}{step}"])
            self.put(" ", self._text)
        for name in layout.hosts:
            text = host_text(name, self._picture.nodes[row].host)
            role = "dim" if text == quantities.DASH else "text"
            self.put(f"{text:>{HOST_WIDTHS[name]}}", self._colours[role])

    def _status(self, row: int, standing: Standing, start: int) -> None:
        """Write the status of a node without numbers."""
        node = self._picture.nodes[row]
        if self._layout.zoom is Zoom.ROWS:
            room = self._pen.width - self._width
            words = full_status(node, standing, self._pen.now, room) or "no GPUs"
        else:
            words = short_status(node, standing, self._pen.now) or "no GPUs"
            words = words[2:] if self._layout.name and standing is not Standing.LIVE else words
            room = start + self._layout.block - 1 - self._width
            if len(words) > room and standing is Standing.LOST:
                words = f"{SIGNS[standing]} {quantities.age(self._pen.now - node.since)}"
        role = ROLES[standing] if standing is not Standing.LIVE else "dim"
        role = "cursor" if self._on(row) and not self._layout.name else role
        self.put(pad(words, room), self._colours[role], room)
