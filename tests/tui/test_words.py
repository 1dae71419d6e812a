"""Formats of numbers, text and colours."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gswarm_agent.frame import GpuFacts
from gswarm_agent.metrics import GPU_BY_NAME, HOST_BY_NAME
from gswarm_tui.common import quantities
from gswarm_tui.common.colours import ANSI, DARK, LIGHT, THEME_NAMES
from gswarm_tui.tui.drawing import numbers
from gswarm_tui.tui.drawing.ramp import (
    BLOCK_OF,
    BUCKETS,
    HOT,
    UNMEASURED,
    bucket,
    buckets,
    fractions,
    ramp_of,
    top_of,
)
from gswarm_tui.tui.drawing.text import clean, clip, clip_left, pad
from gswarm_tui.tui.drawing.themes import luminance, palette, theme_for

NAN = float("nan")


@pytest.mark.parametrize(
    ("metric", "value", "shown"),
    [
        ("util_pct", 98, "98 %"),
        ("util_pct", 0, "0 %"),
        ("util_pct", NAN, "–"),
        ("mem_used_mib", 62_464, "61 GiB"),
        ("mem_used_mib", 512, "0.5 GiB"),
        ("power_w", 612.4, "612 W"),
        ("sm_clock_mhz", 1980, "1980 MHz"),
        ("nvlink_tx_mb_s", 450_000, "450 GB/s"),
        ("pcie_tx_mb_s", 310, "0.3 GB/s"),
        ("ecc_corrected", 12_345, "12k"),
        ("clock_reasons", 0x4, "cap"),
        ("clock_reasons", 0x44, "slow"),
        ("clock_reasons", 0x1, "ok"),
        ("pstate", 0, "P0"),
    ],
)
def test_metric_is_formatted_with_its_unit(metric: str, value: float, shown: str) -> None:
    assert numbers.quantity(value, GPU_BY_NAME[metric]) == shown


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (quantities.watts(18_432), "18.4 kW"),
        (quantities.energy(900), "0.25 Wh"),
        (quantities.energy(2_820), "0.78 Wh"),
        (quantities.energy(13_752_000), "3.82 kWh"),
        (quantities.energy(4.32e13), "12,000 MWh"),
        (quantities.file_size(14_200_000), "14.2 MB"),
        (quantities.count(1_234_567), "1.23 M"),
        (quantities.mebibytes(2_097_152), "2 TiB"),
        (quantities.mebibytes(1_047_552), "1,023 GiB"),
        (quantities.used_of(2_150_000, 2_621_440), "2.05/2.50 TiB"),
        (quantities.used_of(None, 81_920), "–/80 GiB"),
        (quantities.duration(0.0), "0 s"),
        (quantities.duration(0.25), "0.2 s"),
        (quantities.duration(3.0), "3 s"),
        (quantities.duration(22.4), "22 s"),
        (quantities.duration(99.7), "00:01:40"),
        (quantities.duration(751.9), "00:12:31"),
        (quantities.duration(183_845), "2 d 03:04:05"),
        (quantities.duration(None), "–"),
        (quantities.elapsed(3.7), "3 s"),
        (quantities.elapsed(-1), "0 s"),
        (quantities.elapsed(99.7), "99 s"),
        (quantities.gpu_time(45), "45 GPU-s"),
        (quantities.gpu_time(3.4), "3.40 GPU-s"),
        (quantities.gpu_time(1374), "22.9 GPU-min"),
        (quantities.gpu_time(3_686_400), "1,024 GPU-h"),
        (quantities.gpu_time(None), "–"),
        (quantities.age(12.3), "12 s"),
        (quantities.age(260), "4 min"),
        (quantities.percent(None), "–"),
    ],
)
def test_quantities_are_readable(made: str, shown: str) -> None:
    assert made == shown


@pytest.mark.parametrize(
    "dirty", ["\x1b[31mred", "a\nb", "a\tb", "\u202eabc", "x\x00y", "\x9b31m", "a\u2028b", "\ud800"]
)
def test_no_text_can_steer_the_terminal(dirty: str) -> None:
    safe = clean(dirty)
    assert safe.isprintable()
    assert "\x1b" not in safe


def test_markup_stays_text() -> None:
    assert clean("[red]a[/]") == "[red]a[/]"


@given(st.text(max_size=30), st.integers(0, 20))
def test_cut_and_padded_text_has_its_width(text: str, cells: int) -> None:
    safe = clean(text)
    assert cell_len(clip(safe, cells)) <= cells
    assert cell_len(clip_left(safe, cells)) <= cells
    assert cell_len(pad(safe, cells)) == cells
    if cell_len(safe) <= cells:
        assert clip(safe, cells) == clip_left(safe, cells) == safe


def test_one_value_is_one_bucket_on_every_device_of_its_kind() -> None:
    assert [bucket(f) for f in (0.0, 0.049, 0.05, 0.999, 1.0, NAN)] == [0, 0, 1, 19, 19, UNMEASURED]
    power = GPU_BY_NAME["power_w"]
    h100 = GpuFacts(0, "GPU-0", "H100", power_limit_w=700.0)
    assert top_of(power, h100) == 700.0
    half = fractions(power, np.array([350.0, NAN]), np.array([700.0, 700.0]))
    assert buckets(half).tolist() == [BUCKETS // 2, UNMEASURED]


def test_traffic_is_logarithmic_and_errors_stand_out() -> None:
    traffic = fractions(HOST_BY_NAME["net_rx_mb_s"], np.array([0.0, 1.0, 316.2, 100_000.0]), 100_000.0)
    assert traffic.round(2).tolist() == [0.0, 0.0, 0.5, 1.0]
    errors = fractions(GPU_BY_NAME["ecc_corrected"], np.array([0.0, 1.0, 10_000.0]), 10_000.0)
    assert errors.tolist() == [0.0, 0.5, 1.0]


def test_block_heights_match_buckets() -> None:
    heights = [BLOCK_OF[step] for step in range(BUCKETS)]
    assert heights == sorted(heights)
    assert len(set(heights)) == 8
    assert BLOCK_OF[UNMEASURED] == "–"


@pytest.mark.parametrize("theme", THEME_NAMES)
def test_cursor_has_a_background_of_its_own(theme: str) -> None:
    cursor = palette(theme)["cursor"]
    assert not cursor.reverse, "text may have the colour of a step"
    ramps = {palette(theme)[f"heat{ramp}{step}"].bgcolor for ramp in ("", HOT) for step in range(-1, BUCKETS)}
    assert cursor.bgcolor not in ramps


@pytest.mark.parametrize("theme", sorted({*THEME_NAMES} - {ANSI}))
def test_texts_of_every_theme_are_readable_and_its_ramps_show_without_hue(theme: str) -> None:
    for role in ("text", "dim", "accent", "good", "warning", "error"):
        style = palette(theme)[role]
        assert style.color is not None
        assert style.bgcolor is not None
        text, ground = (luminance((*each.get_truecolor(),)) for each in (style.color, style.bgcolor))
        contrast = (max(text, ground) + 0.05) / (min(text, ground) + 0.05)
        assert contrast >= 4.5, f"{role}, by WCAG 2.2"
    for ramp in ("heat", "ink", f"heat{HOT}", f"ink{HOT}"):
        styles = [palette(theme)[f"{ramp}{step}"] for step in range(BUCKETS)]
        colours = [style.bgcolor if ramp.startswith("heat") else style.color for style in styles]
        light = [luminance((*colour.get_truecolor(),)) for colour in colours if colour is not None]
        assert light in (sorted(set(light)), sorted(set(light), reverse=True)), (
            "a grey picture shows the same"
        )


def test_hot_is_where_more_is_worse() -> None:
    hot = ("temp_c", "mem_used_mib", "clock_reasons", "throttle_thermal_pct", "psi_memory_pct")
    assert {ramp_of({**GPU_BY_NAME, **HOST_BY_NAME}[name]) for name in hot} == {HOT}
    assert {ramp_of(GPU_BY_NAME[name]) for name in ("util_pct", "power_w", "sm_clock_mhz")} == {""}


@pytest.mark.parametrize(
    ("environ", "theme"),
    [
        ({"TERM": "xterm-256color"}, DARK),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, DARK),
        ({"TERM": "xterm-kitty", "COLORFGBG": "0;15"}, LIGHT),
        ({"TERM": "xterm-256color", "COLORFGBG": "15;default;0"}, DARK),
        ({"TERM": "linux"}, ANSI),
        ({"TERM": "screen"}, ANSI),
        ({}, ANSI),
    ],
)
def test_theme_fits_the_terminal(environ: dict[str, str], theme: str) -> None:
    assert theme_for(environ) == theme


def test_ansi_theme_uses_only_terminal_colours() -> None:
    for style in palette(ANSI).values():
        for colour in (style.color, style.bgcolor):
            assert colour is None or colour.is_default or colour.number is not None


def test_energy_of_a_short_run_is_not_zero() -> None:
    energy = GPU_BY_NAME["energy_mj"]
    shown = [numbers.cell(kwh * 3.6e9, energy) for kwh in (0.0, 0.0004, 0.0012, 0.0994, 0.0996, 2.0)]
    assert shown == ["0", "0", ".001", ".099", "0.1", "2.0"]
