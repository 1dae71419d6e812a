"""Step times from traffic: those of jobs in lock-step are found, and other traffic has none."""

from __future__ import annotations

import numpy as np
import pytest

from gswarm_tui.insight.pace import Track, evenly, period, step_time
from tests.jobs.model import Floats


def traffic(
    step_s: float,
    interval_s: float,
    *,
    share: float = 0.3,
    jitter: float = 0.05,
    parts: int = 1,
    uneven: float = 0.0,
) -> Floats:
    """Return 256 samples of a job that exchanges at the end of each part of a step, and most at its end."""
    rng = np.random.default_rng(round(1000 * step_s))
    edges = np.arange(257) * interval_s
    times, moved, at = [-9 * step_s], [0.0], -2 * step_s
    while at < edges[-1]:
        takes = step_s * max(0.3, rng.normal(1, jitter))
        for part in range(parts):
            size = max(0.0, rng.normal(1, uneven)) * (3 if part == parts - 1 else 1)
            end = at + takes * (part + 1) / parts
            times += [end - takes * share / parts, end]
            moved += [moved[-1], moved[-1] + size * takes * share / parts]
        at += takes
    rates = np.diff(np.interp(edges, times, moved)) / interval_s
    return np.asarray(1000 * (rates + rng.normal(0, 0.03, len(rates))), dtype=np.float64)


@pytest.mark.parametrize(
    ("step_s", "interval_s", "options"),
    [
        (5.3, 1.0, {}),
        (5.5, 1.0, {"share": 0.1}),
        (21.0, 1.0, {"share": 0.6}),
        (0.53, 0.1, {}),
        (2.1, 0.1, {"parts": 4}),
        (8.0, 1.0, {"uneven": 0.3}),
        (8.0, 1.0, {"jitter": 0.0}),
    ],
)
def test_the_step_time_of_a_job_is_found(step_s: float, interval_s: float, options: dict[str, float]) -> None:
    found = period(traffic(step_s, interval_s, **options))  # type: ignore[arg-type]
    assert found is not None
    assert found * interval_s == pytest.approx(step_s, rel=0.05)


@pytest.mark.parametrize("step_s", [0.3, 0.91, 1.1, 1.7, 2.2, 2.44, 3.1, 3.5, 4.5, 90.0])
@pytest.mark.parametrize("share", [0.1, 0.3])
@pytest.mark.parametrize("jitter", [0.0, 0.01])
def test_steps_that_samples_cant_resolve_show_no_beat(step_s: float, share: float, jitter: float) -> None:
    assert period(traffic(step_s, 1.0, share=share, jitter=jitter)) is None


def test_traffic_that_does_not_repeat_has_no_step_time() -> None:
    rng = np.random.default_rng(7)
    for _ in range(200):
        switches = np.cumsum(rng.exponential(8, 200))
        bursts = (np.searchsorted(switches, np.arange(256)) % 2).astype(np.float64)
        requests = np.convolve(rng.poisson(0.2, 256), np.ones(3), "same")
        pauses = np.where(np.arange(256) % 40 < 6, 0.0, 900.0) + rng.normal(0, 20, 256)
        drift = np.cumsum(rng.normal(0, 1, 256)) + 100
        for series in (rng.random(256), bursts, requests, pauses, drift):
            assert period(series) is None
    for flat in (np.zeros(256), np.full(256, 5e4), np.empty(0)):
        assert period(flat) is None


@pytest.mark.parametrize(
    ("interval_s", "held", "found"),
    [(1.0, 1, 20.0), (0.1, 2, 4.0), (1.0, 4, None), (0.1, 40, None), (2.0, 2, None)],
)
def test_samples_that_are_repeated_for_four_seconds_show_no_steps(
    interval_s: float, held: int, found: float | None
) -> None:
    """PCIe by GPM is repeated for 0.2 s, and PCIe before Hopper for 4 s."""
    count = 256 * max(1, round(0.2 / interval_s))
    times = interval_s * np.arange(count)
    rates = 500 + 400 * np.cos(2 * np.pi * np.arange(-(-count // held)) / 20)
    samples = np.repeat(rates, held)[:count].astype(np.float64)
    tracks: dict[str, list[Track]] = {"pcie_rx_mb_s": [(times.astype(np.float64), samples)]}
    seconds = step_time(lambda metric, _: tracks.get(metric, []), float(times[-1]), interval_s)
    assert seconds == (found and pytest.approx(found, rel=0.05))


def test_samples_are_spread_over_equal_spans_without_losing_bytes() -> None:
    times = np.cumsum(np.random.default_rng(1).uniform(0.8, 1.2, 300))
    rates = 100 + 50 * np.sin(times)
    spread = evenly(times, rates, 1.0)
    moved = (rates[1:] * np.diff(times))[times[1:] > times[-1] - 100].sum()
    assert spread[-100:].sum() == pytest.approx(moved, rel=0.02)
