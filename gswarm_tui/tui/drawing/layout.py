"""Layout of the heatmap: the largest size of GPUs that fits without scrolling. No I/O."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace


class Zoom(enum.IntEnum):
    """Size of a GPU in the heatmap, largest first."""

    ROWS = 0
    """A line per node: numbers, mean, sparkline, host."""
    NUMBERS = 1
    """Numbers in several columns of nodes."""
    BLOCKS = 2
    """One block character per GPU, as high as its value, beside the node's name."""
    PLAIN = 3
    """Blocks without names; only the first node of a line is named."""


ZOOM_NAMES = ("rows", "numbers", "blocks", "small blocks")

MEAN_WIDTH = 5
SPARK_SHORTEST, SPARK_LONGEST = 10, 60
HOST_WIDTHS = {"cpu": 7, "mem": 8, "net": 14, "iowait": 9}
NAME_SHORTEST, RANK_SHORTEST = 3, 3
"""Cells of the names and ranks of rows, so that "node" and "rank" fit above them."""
NAME_LONGEST = 18
GAP = 2


@dataclass(frozen=True)
class Layout:
    """Position of every node and GPU, in cells; nodes run down the columns, in PLAIN along the lines.

    ``columns`` of blocks, each ``block`` wide, on ``lines``, at the right of a ``margin``. A block holds the
    name (``name`` wide, 0 for none), the node's status ``sign``, the ranks, ``cells`` of ``cell`` width, and
    what else fits: ``mean``, ``spark`` bins and ``hosts``.
    """

    zoom: Zoom
    nodes: int
    cells: int
    columns: int
    lines: int
    margin: int
    block: int
    name: int
    sign: int
    cell: int
    rank: int = 0
    mean: bool = False
    spark: int = 0
    hosts: tuple[str, ...] = ()

    @property
    def cells_at(self) -> int:
        """Offset of the cells in a block, after name, sign and ranks."""
        return self.name + self.sign + self.rank

    def place(self, node: int) -> tuple[int, int]:
        """Return a node's line and column of blocks."""
        if self.zoom is Zoom.PLAIN:
            return divmod(node, self.columns)
        column, line = divmod(node, self.lines)
        return line, column

    def nodes_on(self, line: int) -> list[int]:
        """Return the nodes on a line from left to right."""
        if self.zoom is Zoom.PLAIN:
            return list(range(line * self.columns, min((line + 1) * self.columns, self.nodes)))
        return list(range(line, self.nodes, self.lines)) if line < self.lines else []

    def at(self, x: int, line: int) -> tuple[int, int | None] | None:
        """Return the node and the cell at a point; the cell is None beside the cells."""
        column, inside = divmod(x - self.margin, self.block)
        if x < self.margin or column >= self.columns:
            return None
        on_line = self.nodes_on(line)
        if not 0 <= column < len(on_line):
            return None
        cell = (inside - self.cells_at) // self.cell
        return on_line[column], cell if inside >= self.cells_at and cell < self.cells else None


@dataclass(frozen=True)
class LayoutRequest:
    """Nodes to lay out and their space: ``cells`` of the widest node, ``digits`` of the longest number.

    Names are ``name`` wide.
    """

    nodes: int
    cells: int
    digits: int
    name: int
    rank: int
    width: int
    height: int


def choose_layout(room: LayoutRequest, zoom: Zoom | None = None) -> Layout:
    """Return the largest layout that fits without scrolling, else the smallest; or that of a ``zoom``."""
    if zoom is not None:
        return _LAYOUTS[zoom](room)
    for choice in Zoom:
        layout = _LAYOUTS[choice](room)
        if _fits(layout, room):
            break
    return layout


def _fits(layout: Layout, room: LayoutRequest) -> bool:
    apart = layout.zoom is Zoom.BLOCKS or (layout.zoom is Zoom.NUMBERS and layout.mean)
    used = layout.margin + layout.columns * layout.block - (GAP if apart else 1)
    return layout.lines <= room.height and used <= room.width


def _rows(room: LayoutRequest) -> Layout:
    """Lay out one line per node; the most important columns beside the numbers come first."""
    room = replace(room, name=max(room.name, NAME_SHORTEST), rank=room.rank and max(room.rank, RANK_SHORTEST))
    start = 1 + room.name + 2
    wide = max(5, room.digits + 1)
    cell = wide if start + wide * room.cells + MEAN_WIDTH <= room.width else room.digits + 1
    cell = 8 if room.cells == 1 else cell
    left = room.width - start - cell * room.cells - 2
    mean = room.cells > 1 and left >= MEAN_WIDTH
    left -= MEAN_WIDTH if mean else 0
    spark = SPARK_SHORTEST if left >= SPARK_SHORTEST + 3 else 0
    left -= spark + 3 if spark else 0
    rank = room.rank + 2 if room.rank and left >= room.rank + 2 else 0
    left -= rank
    hosts = []
    for name, columns in HOST_WIDTHS.items():
        if left >= columns:
            hosts.append(name)
            left -= columns
    spark += min(left, SPARK_LONGEST - SPARK_SHORTEST) if spark else 0
    block, lines = max(room.width, start + cell * room.cells), max(1, room.nodes)
    plain = Layout(Zoom.ROWS, room.nodes, room.cells, 1, lines, 1, block, room.name, 2, cell)
    return replace(plain, rank=rank, mean=mean, spark=spark, hosts=tuple(hosts))


def _numbers(room: LayoutRequest) -> Layout:
    """Lay out numbers with their mean if all fit; else without means, then without gaps."""
    for cell, mean in ((room.digits + 1, True), (room.digits + 1, False), (room.digits, False)):
        wide = MEAN_WIDTH if mean and room.cells > 1 else 0
        layout = _columns(room, Zoom.NUMBERS, cell, sign=1, mean=wide, gap=GAP if wide else 1)
        if _fits(layout, room):
            break
    return layout


def _blocks(room: LayoutRequest) -> Layout:
    return _columns(room, Zoom.BLOCKS, 1 if room.cells > 1 else 2, sign=2, mean=0, gap=GAP)


def _columns(room: LayoutRequest, zoom: Zoom, cell: int, *, sign: int, mean: int, gap: int) -> Layout:
    """Lay out named nodes down the columns, in as few columns as possible."""
    block = room.name + sign + cell * room.cells + mean + gap
    columns = max(1, (room.width - 1 + gap) // block)
    lines = max(1, -(-room.nodes // min(columns, max(1, -(-room.nodes // room.height)))))
    columns = max(1, -(-room.nodes // lines))
    where = zoom, room.nodes, room.cells, columns, lines
    return Layout(*where, 1, block, room.name, sign, cell, mean=mean > 0)


def _plain(room: LayoutRequest) -> Layout:
    """Lay out nodes along the lines; the first of each line is named in the margin."""
    margin, block = room.name + 3, room.cells + 1
    columns = max(1, (room.width - margin + 1) // block)
    lines = max(1, -(-room.nodes // columns))
    return Layout(Zoom.PLAIN, room.nodes, room.cells, columns, lines, margin, block, 0, 0, 1)


_LAYOUTS = (_rows, _numbers, _blocks, _plain)
"""The layout of each ``Zoom``."""
