"""Heatmap: all nodes and GPUs with one metric as colour, drawn by line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from textual.events import Click
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gswarm_tui.fleet.findings import Finding
from gswarm_tui.fleet.node import NodeState
from gswarm_tui.tui.drawing.cells import Cursor, DrawingContext, block_name, draw_line, ranks_text
from gswarm_tui.tui.drawing.heatmap_data import HeatmapData
from gswarm_tui.tui.drawing.layout import NAME_LONGEST, Layout, LayoutRequest, Zoom, choose_layout
from gswarm_tui.tui.drawing.numbers import cell_width
from gswarm_tui.tui.drawing.text import clean, width
from gswarm_tui.tui.drawing.themes import palette


class Heatmap(ScrollView, can_focus=False):
    """Heatmap with a cursor on a node and one of its GPUs.

    ``show_nodes`` redraws only the lines that changed, one region each. ``now`` is the clock, ``spare`` the
    lines that it would get in addition if it needed them, ``span_s`` the time range of sparklines. ``causes``
    are each node's GPUs by cause of time, to show instead of the metric.
    """

    DEFAULT_CSS = "Heatmap { height: 1fr; width: 1fr; overflow-x: hidden; scrollbar-gutter: auto; }"

    class Opened(Message):
        """A node under the cursor was clicked."""

    class Pointed(Message):
        """The cursor moved to another GPU."""

    class Replanned(Message):
        """The layout changed."""

    def __init__(self, now: Callable[[], float], metric: str) -> None:
        super().__init__()
        self._now = now
        self.picture = HeatmapData(metric)
        self.layout_plan: Layout = choose_layout(LayoutRequest(0, 1, 3, 1, 0, 80, 1))
        self.zoom_wanted: Zoom | None = None
        self.causes: Mapping[str, bytes] | None = None
        self.spare = 0
        self.span_s = 300.0
        self.at: tuple[str, int | None] | None = None
        self._rows: dict[str, int] = {}
        self._strips: dict[int, Strip] = {}

    def show_nodes(
        self,
        nodes: Sequence[NodeState],
        hidden: Sequence[npt.NDArray[np.bool_]] | None = None,
        found: Sequence[Finding] = (),
    ) -> None:
        """Show these nodes; ``hidden`` marks each node's GPUs that a filter leaves out.

        The GPUs that the findings ``found`` name have a sign.
        """
        self.picture.update(nodes, self._now(), hidden, found)
        self._rows = {node.name: row for row, node in enumerate(nodes)}
        row = None if self.at is None else self._rows.get(self.at[0])
        if self.at is None or row is None:
            self.at = (nodes[0].name, 0 if self._counts(0) else None) if nodes else None
        elif self.at[1] is None and self._counts(row):
            self.at = (self.at[0], 0)  # its agent has just connected
        self._plan()
        self._refresh_lines()

    def _plan(self) -> None:
        nodes = self.picture.nodes
        if not self.size.width:
            return
        names = (max(width(clean(n.name)), width(block_name(self.picture, at))) for at, n in enumerate(nodes))
        name = min(max(names, default=1), NAME_LONGEST)
        height = self.container_size.height + self.spare
        by_rows = self.zoom_wanted is Zoom.ROWS or (self.zoom_wanted is None and len(nodes) <= height)
        ranks = max((len(ranks_text(node)) for node in nodes), default=0) if by_rows else 0
        cells, digits = self.picture.cells, cell_width(self.picture.metric, self.picture.top)
        room = LayoutRequest(len(nodes), cells, digits, name, ranks, self.container_size.width, height)
        made = choose_layout(room, self.zoom_wanted)
        if made != self.layout_plan:
            self.layout_plan = made
            self.virtual_size = Size(self.container_size.width, made.lines)
            self.call_after_refresh(self._show_cursor)
            self.post_message(self.Replanned())

    def _refresh_lines(self) -> None:
        """Draw the visible lines, and show those that look different now."""
        top, pen = round(self.scroll_y), self._pen()
        before, self._strips = self._strips, {}
        for line in range(top, top + self.size.height):
            self._strips[line] = draw_line(self.picture, self.layout_plan, line, pen)
            if before.get(line) != self._strips[line]:
                self.refresh(Region(0, line - top, self.size.width, 1))

    def _pen(self) -> DrawingContext:
        colours, causes = palette(self.app.theme), None if self.picture.of_host else self.causes
        return DrawingContext(colours, self._now(), self.cursor, self.size.width, self.span_s, causes)

    def render_line(self, y: int) -> Strip:
        """Draw a line, or return the drawn one."""
        line = y + round(self.scroll_y)
        if line not in self._strips:
            self._strips[line] = draw_line(self.picture, self.layout_plan, line, self._pen())
        return self._strips[line]

    def notify_style_update(self) -> None:
        """Drop drawn lines when the theme changes."""
        super().notify_style_update()
        self._strips.clear()

    def on_resize(self) -> None:
        """Lay out for the new size."""
        self._plan()
        self._refresh_lines()

    @property
    def cursor(self) -> Cursor:
        """Row of the data and cell under the cursor."""
        if self.at is None or self.at[0] not in self._rows:
            return None
        return self._rows[self.at[0]], None if self.picture.of_host else self.at[1]

    def _counts(self, row: int) -> int:
        """Return a node's number of GPUs."""
        return len(self.picture.nodes[row].facts)

    def point_at(self, node: str, gpu: int | None) -> None:
        """Move the cursor to a GPU."""
        self.at = (node, gpu)
        self._show_cursor()
        self._refresh_lines()
        self.post_message(self.Pointed())

    def _show_cursor(self) -> None:
        """Scroll the cursor's line into view."""
        if self.cursor is None:
            return
        line, _ = self.layout_plan.place(self.cursor[0])
        top, height = round(self.scroll_y), self.size.height
        if not top <= line < top + height:
            wanted = line if line < top else line - height + 1
            self.scroll_to(y=wanted, animate=False, immediate=True)

    def move(self, direction: str) -> None:
        """Move the cursor: up, down, left, right, page_up, page_down, first, last."""
        if self.at is None or not self.picture.nodes:
            return
        row, gpu = self._rows[self.at[0]], self.at[1]
        if direction in ("left", "right"):
            self._sideways(row, gpu, 1 if direction == "right" else -1)
            return
        last = len(self.picture.nodes) - 1
        by = {"up": -1, "down": 1, "page_up": -self.size.height, "page_down": self.size.height}
        if direction in by:
            step = self.layout_plan.columns if self.layout_plan.zoom is Zoom.PLAIN else 1
            row = min(last, max(0, row + by[direction] * step))
        else:
            row = 0 if direction == "first" else last
        self._to(row, gpu or 0)

    def _sideways(self, row: int, gpu: int | None, step: int) -> None:
        """Move one GPU sideways, also to the next node on the line."""
        wanted = (gpu or 0) + step
        if not self.picture.of_host and 0 <= wanted < self._counts(row):
            self._to(row, wanted)
            return
        line, column = self.layout_plan.place(row)
        on_line = self.layout_plan.nodes_on(line)
        if 0 <= column + step < len(on_line):
            neighbour = on_line[column + step]
            self._to(neighbour, 0 if step > 0 else max(0, self._counts(neighbour) - 1))

    def _to(self, row: int, gpu: int) -> None:
        count = self._counts(row)
        self.point_at(self.picture.nodes[row].name, min(gpu, count - 1) if count else None)

    def _under(self, x: int, y: int) -> tuple[str, int | None] | None:
        found = self.layout_plan.at(x, y + round(self.scroll_y))
        if found is None or found[0] >= len(self.picture.nodes):
            return None
        row, cell = found
        if self.picture.of_host:
            cell = self.at[1] if self.at is not None and self._counts(row) else None
        elif cell is None or cell >= self._counts(row):
            cell = 0 if self._counts(row) else None
        return self.picture.nodes[row].name, cell

    def on_click(self, event: Click) -> None:
        """Select the clicked GPU; open it if it was selected."""
        under = self._under(event.x, event.y)
        if under is not None and under == self.at:
            self.post_message(self.Opened())
        elif under is not None:
            self.point_at(*under)
