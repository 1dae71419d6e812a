"""Drawing of one line of the heatmap, from a picture and a layout."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from gswarm_agent.metrics import HOST_COLUMNS
from gswarm_tui.fleet.node import NodeState, Standing
from gswarm_tui.tui import format as form
from gswarm_tui.tui.layout import HOST_WIDTHS, MEAN_WIDTH, Layout, Zoom
from gswarm_tui.tui.picture import FRESH, Picture
from gswarm_tui.tui.ramp import BLOCK_OF, Buckets
from gswarm_tui.tui.standing import ROLES, SIGNS, long_words, short_words
from gswarm_tui.tui.text import clean, clip_left, pad
from gswarm_tui.tui.themes import Palette
from gswarm_tui.tui.widgets.unnamed import CURSOR_MARK, blocks, halves

_CPU, _MEMORY, _IOWAIT, _NET_IN, _NET_OUT = (
    HOST_COLUMNS.index(name)
    for name in ("cpu_pct", "memory_used_mib", "cpu_iowait_pct", "net_rx_mb_s", "net_tx_mb_s")
)
_IB_IN, _IB_OUT = HOST_COLUMNS.index("ib_rx_mb_s"), HOST_COLUMNS.index("ib_tx_mb_s")

Cursor = tuple[int, int | None] | None
"""The row of the picture and the cell that the cursor is on; None for no cell, and for no cursor."""


@dataclass(frozen=True, eq=False)
class Pen:
    """What drawing needs besides picture and layout."""

    colours: Palette
    now: float
    cursor: Cursor
    width: int
    spark: Callable[[int], Buckets]


def host_text(name: str, host: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> str:
    """A host column of the widest layout; traffic is that of the fabric where there is one, in GB/s."""
    if name == "cpu":
        return form.percent(host[_CPU])
    if name == "iowait":
        return form.percent(host[_IOWAIT])
    if name == "mem":
        return form.mebibytes(host[_MEMORY]).removesuffix("iB") if np.isfinite(host[_MEMORY]) else form.DASH
    pairs = ((host[_IB_IN], host[_IB_OUT]), (host[_NET_IN], host[_NET_OUT]))
    came, went = next((pair for pair in pairs if np.isfinite(pair).all()), pairs[1])
    return "/".join(form.DASH if np.isnan(rate) else form.digits(rate / 1000) for rate in (came, went))


def ranks_text(node: NodeState) -> str:
    """The ranks that run on a node: "8–15", empty where none are known."""
    ranks = [p.rank for p in node.processes if p.rank is not None]
    if not ranks:
        return ""
    return f"{min(ranks)}–{max(ranks)}" if len(set(ranks)) > 1 else str(ranks[0])


def line_key(picture: Picture, layout: Layout, line: int, pen: Pen) -> Hashable:
    """Exactly what changes the pixels of a line."""
    rows = [row for part in layout.nodes_on(line) for row in part]
    if not rows:
        return ()
    names = tuple(picture.nodes[row].name for row in rows)
    cells = picture.shown[rows] if layout.zoom <= Zoom.NUMBERS else picture.steps[rows]
    standings = tuple(picture.standings[row] for row in rows)
    troubles: tuple[str, ...] = ()
    if any(standing is not Standing.LIVE for standing in standings):
        words = long_words if layout.zoom is Zoom.ROWS else short_words
        troubles = tuple(
            words(picture.nodes[row], standing, pen.now)
            for row, standing in zip(rows, standings, strict=True)
        )
    sparks = tuple(pen.spark(row).tobytes() for row in rows) if layout.spark else ()
    extras: Hashable = ()
    if layout.zoom is Zoom.ROWS:
        node = picture.nodes[rows[0]]
        extras = (
            ranks_text(node) if layout.rank else "",
            tuple(host_text(name, node.host) for name in layout.hosts),
        )
    cursor = pen.cursor if pen.cursor is not None and pen.cursor[0] in rows else None
    return (
        names,
        cells.tobytes(),
        picture.dim[rows].tobytes(),
        picture.present[rows].tobytes(),
        troubles,
        sparks,
        extras,
        cursor,
    )


def draw_line(picture: Picture, layout: Layout, line: int, pen: Pen) -> Strip:
    """Draw a line of the heatmap."""
    parts = layout.nodes_on(line)
    drawing = _Drawing(picture, layout, pen)
    drawing.margin(parts[0])
    if layout.zoom is Zoom.HALVES:
        drawing.stretches(halves(picture, parts[0], parts[1], pen.cursor, pen.colours))
    elif layout.zoom is Zoom.PLAIN:
        for well, rows in groupby(parts[0], drawing.is_well):
            if well:
                drawing.stretches(blocks(picture, list(rows), pen.cursor, pen.colours))
            else:
                drawing.nodes(rows)
    else:
        drawing.nodes(parts[0])
    return drawing.strip()


class _Drawing:
    """Collects the segments of one line; equal neighbours become one."""

    def __init__(self, picture: Picture, layout: Layout, pen: Pen) -> None:
        self._picture = picture
        self._layout = layout
        self._pen = pen
        self._colours = pen.colours
        self._text = pen.colours.role("text")
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
        if self._layout.name or not rows:
            self.put(" " * wide, self._text)
            return
        name = clip_left(clean(self._picture.nodes[rows[0]].name), wide - 3)
        self.put(f" {pad(name, wide - 2)} ", self._colours.role("dim"), wide)

    def stretches(self, stretches: Iterable[tuple[str, Style]]) -> None:
        for text, style in stretches:
            self.put(text, style)

    def is_well(self, row: int) -> bool:
        """Whether a node has numbers to show."""
        return self._picture.standings[row] in FRESH and bool(self._picture.present[row, 0])

    def nodes(self, rows: Iterable[int]) -> None:
        for row in rows:
            self.node(row)

    def node(self, row: int) -> None:
        start = self._width
        standing = self._picture.standings[row]
        self._name(row, standing)
        if self.is_well(row):
            self._cells(row, standing)
            if self._layout.zoom is Zoom.ROWS:
                self._extras(row, standing)
            else:
                self._mean(row, standing)
                self._minutes(row)
        else:
            self._instead(row, standing, start)
        end = start + self._layout.block
        if self._width < end:
            self.put(" " * (end - self._width), self._text)

    def _on(self, row: int) -> bool:
        return self._pen.cursor is not None and self._pen.cursor[0] == row

    def _name(self, row: int, standing: Standing) -> None:
        wide = self._layout.name
        if not wide:
            return
        name = pad(clip_left(clean(self._picture.nodes[row].name), wide), wide)
        on_node = self._on(row) and self._pen.cursor == (row, None)
        role = "title" if self._on(row) else "text" if standing in FRESH else "dim"
        self.put(name, self._colours.cursor if on_node else self._colours.role(role), wide)
        if self._layout.zoom is Zoom.ROWS:
            self.put(" " * self._layout.sign, self._text)
        else:
            self.put(f"{SIGNS[standing]:<{self._layout.sign}}", self._colours.role(ROLES[standing]))
        if self._layout.rank:
            ranks = ranks_text(self._picture.nodes[row])
            self.put(pad(ranks, self._layout.rank - 1, right=True) + " ", self._colours.role("dim"))

    def _cells(self, row: int, standing: Standing) -> None:
        picture, wide = self._picture, self._layout.cell
        numbers = self._layout.zoom <= Zoom.NUMBERS
        steps = picture.steps[row].tolist()
        dims = picture.dim[row].tolist()
        chosen = self._pen.cursor[1] if self._pen.cursor is not None and self._on(row) else None
        for cell, there in enumerate(picture.present[row].tolist()):
            if not there:
                self.put(" " * wide, self._text)
                continue
            step = steps[cell]
            quiet = dims[cell] or standing is Standing.STALE
            if numbers:
                text = form.cell(float(picture.values[row, cell]), picture.metric)
                text = f"{text:>{wide - 1}} " if len(text) < wide else text
                styles = self._colours.dim_cells if quiet else self._colours.cells
            else:
                text = (CURSOR_MARK if cell == chosen else BLOCK_OF[step]) * wide
                styles = self._colours.dim_cells if quiet else self._colours.inks
            self.put(text, self._colours.cursor if cell == chosen else styles[step])

    def _mean(self, row: int, standing: Standing) -> None:
        if not self._layout.mean:
            return
        mean = float(self._picture.means[row])
        text = form.cell(mean, self._picture.metric) if self._picture.metric.unit not in ("bits", "P") else ""
        role = "text" if standing is Standing.LIVE else "faint"
        self.put(f"{text:>{MEAN_WIDTH}}", self._colours.role(role))

    def _extras(self, row: int, standing: Standing) -> None:
        layout, pen = self._layout, self._pen
        self._mean(row, standing)
        if standing is Standing.STALE:
            self.put(
                "  " + long_words(self._picture.nodes[row], standing, pen.now), self._colours.role("warning")
            )
            return
        self._minutes(row)
        for name in layout.hosts:
            text = host_text(name, self._picture.nodes[row].host)
            self.put(
                f"{text:>{HOST_WIDTHS[name]}}", self._colours.role("dim" if text == form.DASH else "text")
            )

    def _minutes(self, row: int) -> None:
        """The last minutes, the newest at the right."""
        if not self._layout.spark:
            return
        self.put("  ", self._text)
        for step in self._pen.spark(row).tolist():
            self.put(" " if step < 0 else BLOCK_OF[step], self._colours.inks[step])
        self.put(" ", self._text)

    def _instead(self, row: int, standing: Standing, start: int) -> None:
        """What stands where a node has no numbers."""
        node = self._picture.nodes[row]
        if self._layout.zoom is Zoom.ROWS:
            room = self._pen.width - self._width
            words = long_words(node, standing, self._pen.now, room) or "no GPUs"
        else:
            words = short_words(node, standing, self._pen.now) or "no GPUs"
            words = words[2:] if self._layout.name and standing is not Standing.LIVE else words
            room = start + self._layout.block - 1 - self._width
            if len(words) > room and standing is Standing.LOST:
                words = f"{SIGNS[standing]} {form.age(self._pen.now - node.since)}"
        role = ROLES[standing] if standing is not Standing.LIVE else "dim"
        style = self._colours.cursor if self._on(row) and not self._layout.name else self._colours.role(role)
        self.put(pad(words, room), style, room)
