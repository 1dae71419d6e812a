"""Plots: curves, bins, scales and time axes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_agent.frame import GpuFacts, HostFacts
from gswarm_agent.metrics import GPU_BY_NAME, HOST_BY_NAME
from gswarm_tui.fleet.history import Floats, Singles
from gswarm_tui.tui.drawing.plot import (
    PlotSeries,
    ago,
    area,
    bar,
    block_area,
    in_bins,
    panel,
    time_axis,
    window,
)
from gswarm_tui.tui.drawing.ramp import HOT
from gswarm_tui.tui.drawing.spans import Spans
from gswarm_tui.tui.drawing.trends import Trends, opening_span
from tests.tui.scene import Scene

NAN = math.nan
A100 = GpuFacts(0, "GPU-0", "A100", memory_total_mib=40_960, power_limit_w=400.0)


def levels(*values: float) -> Floats:
    return np.array(values, dtype=np.float64)


def text(line: Spans) -> str:
    return "".join(span.text for span in line)


def readings(*pairs: tuple[float, float]) -> tuple[Floats, Singles]:
    return np.array([t for t, _ in pairs]), np.array([v for _, v in pairs], dtype=np.float32)


def test_constant_full_load_is_drawn_full() -> None:
    assert block_area(levels(1.0, 1.0, 1.0)) == ["███"]
    assert block_area(levels(0.5, 0.5, 0.5), height=2) == ["   ", "███"]


def test_zero_is_drawn_but_gaps_are_blank() -> None:
    assert block_area(levels(0.0, NAN, 0.0)) == ["▁ ▁"]


def test_each_cell_of_a_curve_has_the_ramps_colour_at_its_height() -> None:
    lines = area(levels(1.0, 0.25, NAN), 4, HOT)
    assert [text(line) for line in lines] == ["█  ", "█  ", "█  ", "██ "]
    assert [line[0].role for line in lines] == [f"ink{HOT}{step}" for step in (19, 15, 10, 5)]


def test_bins_hold_a_sample_for_one_and_a_half_intervals() -> None:
    frame = window(now=9.9, span_s=10.0, bins=20)
    assert (frame.start, frame.end) == (0.0, 10.0)
    times, values = readings((0.0, 50.0), (1.0, 50.0), (6.0, 80.0))
    binned = in_bins((times, values, np.ones(3, dtype=np.float32)), frame, interval_s=1.0)
    assert binned.tolist()[:6] == pytest.approx([50, 50, 50, 50, 50, 50], nan_ok=True)
    assert np.isnan(binned[6:12]).all()
    assert binned[12:16].tolist() == [80, 80, 80, 80]
    assert np.isnan(binned[16:]).all()


@given(st.floats(1e9, 2e9), st.integers(1, 400))
def test_window_moves_by_whole_bins_and_contains_now(now: float, bins: int) -> None:
    frame = window(now, 300.0, bins)
    assert frame.start <= now + 1e-3
    assert now < frame.end + 1e-3
    assert frame.end - now <= frame.bin_s + 1e-3


def test_time_axis_has_round_ages_and_ends_with_now() -> None:
    axis = time_axis(300, 80)
    assert len(axis) == 80
    assert axis.endswith("now")
    assert axis.startswith("╵−5 min")
    assert axis.index("╵−2 min") == 48
    assert [ago(30), ago(90), ago(120)] == ["−30 s", "−1:30", "−2 min"]


def test_a_bar_has_eighths_and_stays_in_its_width() -> None:
    assert bar(0.5, 4) == "██  "
    assert bar(0.53, 4) == "██▏ "
    assert bar(2.0, 4) == "████"
    assert bar(NAN, 4) == "    "


def test_a_panel_prints_its_scale_its_value_and_the_time() -> None:
    plot = PlotSeries("power", levels(*[0.5] * 66), "400", "200 W", "mean 200")
    lines = panel(plot, width=40, height=6, span_s=60)
    assert len(lines) == 6
    assert text(lines[0]).split() == ["power", "200", "W", "mean", "200"]
    assert text(lines[1]).startswith("   400 ")
    assert text(lines[4]).startswith("     0 ")
    assert text(lines[5]).endswith("now")
    assert all(len(text(line)) == 40 for line in lines)


def test_scale_is_the_devices_limit() -> None:
    trends = Trends()
    assert trends.top(GPU_BY_NAME["util_pct"], A100, levels(3.0)) == 100
    assert trends.top(GPU_BY_NAME["power_w"], A100, levels(3.0)) == 400
    assert trends.top(GPU_BY_NAME["mem_used_mib"], A100, levels(3.0)) == 40_960
    assert trends.top(HOST_BY_NAME["load_1m"], HostFacts("n", "b", cpus=64), levels(900.0)) == 64


@pytest.mark.parametrize(
    ("history_s", "span_s"), [(0, 60), (60, 60), (61, 120), (120, 120), (170, 180), (240, 300), (7200, 300)]
)
def test_plots_first_show_the_time_recorded_so_far(history_s: float, span_s: float) -> None:
    assert opening_span(history_s) == span_s


def test_span_follows_the_longest_history_until_one_is_chosen() -> None:
    made = Scene(2, 1).connect("gpu01").advance(100)
    early, late = made.connect("gpu02").advance(10).fleet.nodes.values()
    trends = Trends()
    trends.settle([late], made.time)
    assert trends.span_label == "last 1 min"
    trends.settle([late, early], made.time)
    assert trends.span_label == "last 2 min"
    trends.lengthen()
    trends.settle([late], made.time)
    assert trends.span_label == "last 5 min"


def test_energy_plot_starts_at_the_first_sample() -> None:
    """Without a start at 0, a counter that has grown since the driver was loaded would look flat."""
    scene = Scene(1, 1).connect().advance(60)
    node = next(iter(scene.fleet.nodes.values()))
    plot = Trends().gpu(node, 0, GPU_BY_NAME["energy_mj"], 30, scene.time)
    measured = plot.levels[np.isfinite(plot.levels)]
    assert plot.label == "energy since start"
    assert measured[-1] > 0.1 > measured[0]
