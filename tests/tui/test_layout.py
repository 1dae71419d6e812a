"""Layout of the heatmap: largest size that fits, and the GPU at a point."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_tui.tui.drawing.layout import LayoutRequest, Zoom, choose_layout


def room(nodes: int, gpus: int, size: tuple[int, int], digits: int = 3) -> LayoutRequest:
    return LayoutRequest(nodes, gpus, digits, 2 + len(str(nodes)), 0, *size)


@pytest.mark.parametrize(
    ("nodes", "gpus", "size", "zoom"),
    [
        (1, 4, (80, 17), Zoom.ROWS),
        (4, 8, (120, 31), Zoom.ROWS),
        (16, 8, (80, 17), Zoom.ROWS),
        (32, 8, (80, 17), Zoom.NUMBERS),
        (64, 8, (120, 28), Zoom.NUMBERS),
        (64, 8, (80, 17), Zoom.BLOCKS),
        (128, 4, (120, 28), Zoom.NUMBERS),
        (1024, 8, (200, 50), Zoom.PLAIN),
    ],
)
def test_layout_is_the_largest_that_fits(nodes: int, gpus: int, size: tuple[int, int], zoom: Zoom) -> None:
    layout = choose_layout(room(nodes, gpus, size))
    assert layout.zoom is zoom
    assert layout.lines <= size[1]


def test_extra_columns_depend_on_the_width() -> None:
    wide = choose_layout(room(4, 8, (120, 30)))
    assert (wide.mean, wide.spark, wide.hosts) == (True, 26, ("cpu", "mem", "net", "iowait"))
    narrow = choose_layout(room(4, 8, (64, 30)))
    assert (narrow.mean, narrow.spark, narrow.hosts) == (True, 0, ("cpu",))


rooms = st.builds(
    LayoutRequest,
    nodes=st.integers(1, 300),
    cells=st.integers(1, 16),
    digits=st.sampled_from([3, 4]),
    name=st.integers(5, 18),
    rank=st.integers(0, 9),
    width=st.integers(40, 220),
    height=st.integers(5, 60),
)


@given(rooms, st.sampled_from([None, *Zoom]))
def test_each_node_is_on_exactly_one_line(where: LayoutRequest, zoom: Zoom | None) -> None:
    layout = choose_layout(where, zoom)
    seen = [node for line in range(layout.lines) for node in layout.nodes_on(line)]
    assert sorted(seen) == list(range(where.nodes))
    assert not layout.nodes_on(layout.lines), "a taller heatmap shows no node twice"
    for node in seen:
        line, column = layout.place(node)
        assert layout.nodes_on(line)[column] == node


@given(rooms, st.sampled_from([None, *Zoom]), st.data())
def test_point_maps_to_its_gpu(where: LayoutRequest, zoom: Zoom | None, data: st.DataObject) -> None:
    layout = choose_layout(where, zoom)
    node = data.draw(st.integers(0, where.nodes - 1))
    cell = data.draw(st.integers(0, where.cells - 1))
    line, column = layout.place(node)
    x = layout.margin + column * layout.block + layout.cells_at + cell * layout.cell
    assert layout.at(x, line) == (node, cell)
