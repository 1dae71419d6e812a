"""Step time of a job without code in it: the period of its traffic. No I/O and no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from gswarm_agent.metrics import GPU_BY_NAME, HOST_BY_NAME
from gswarm_tui.fleet.findings import WASTE, Finding
from gswarm_tui.fleet.history import Floats, Singles

STRONG, SAME = 0.7, 0.85
"""Autocorrelation from which traffic counts as periodic (Greyhound), and the share of the highest peak that
makes a shorter period count, as its multiples are about as high."""
EARLY = 0.3
"""Steps are shorter than ``LEAST_SAMPLES`` if a peak before that has this share of the period's height."""
LEAST_SAMPLES, LEAST_PERIODS = 5, 4
"""A period has at least so many samples, and the series at least so many periods."""
QUIET = 0.25
"""Steps are quiet for this share of the time, while they compute. Else a job pauses now and then."""
FINER = 8
"""Lags at which the autocorrelation is computed, per sample."""
TRAFFIC = ("ib_tx_mb_s", "nvlink_tx_mb_s", "pcie_rx_mb_s", "net_tx_mb_s")
"""Counts of bytes; the first one with a period decides."""
LEAST_MB_S = 20.0
"""Less traffic than this is that of logs and heartbeats."""
WINDOW = 256
"""The newest seconds that are judged; with more than a second between samples, the newest samples."""
NODES_READ = 2
"""Ranks in lock-step exchange together, so the traffic of one of a few nodes shows the steps of all."""
LATELY_S, TREND_S, CHANGED = 60.0, 600.0, 0.03
"""Seconds over which the median step time is taken, seconds before that it is compared with, and the relative
change from which a trend is shown: a smaller change is within the error."""

Track = tuple[Floats, Floats | Singles]
"""Times and values of one node's traffic, oldest first."""
Reader = Callable[[str, float], Iterable[Track]]
"""Returns the tracks of a metric since a time."""


class Pace:
    """The step times of a job, seen in its traffic: the newest 720, which is an hour of looks every 5 s."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=720)

    def look(self, read: Reader, now: float, interval_s: float) -> None:
        """Look at the traffic before a time."""
        seconds = step_time(read, now, interval_s)
        if seconds is not None:
            self._seen.append((now, seconds))

    def before(self, end: float) -> float | None:
        """Return the median of the step times seen in the minute before a time, None without any."""
        found = [seconds for at, seconds in self._seen if 0 <= end - at <= LATELY_S]
        return float(np.median(found)) if found else None

    def with_effect(self, finding: Finding, until: float) -> Finding:
        """Return a finding that costs time with the step times before it and at a time, if longer."""
        was, now = self.before(finding.since), self.before(until)
        if finding.severity != WASTE or not was or not now or now / was < 1 + CHANGED:
            return finding
        rest, _, advice = finding.sentence.rpartition(" · ")
        steps = f"steps about {_digits(was)} → {_digits(now)} s"
        return replace(finding, sentence=f"{rest} · {steps} · {advice}")


def pace_text(seconds: float | None, before: float | None) -> str:
    """Return a step time and its trend, as in "about 2.1 s a step, 4 % slower than 10 min ago"."""
    if seconds is None:
        return ""
    text, change = f"about {_digits(seconds)} s a step", seconds / (before or seconds) - 1
    if abs(change) < CHANGED:
        return text
    return f"{text}, {abs(100 * change):.0f} % {'slower' if change > 0 else 'faster'} than 10 min ago"


def _digits(seconds: float) -> str:
    return f"{float(f'{seconds:.2g}'):g}" if seconds < 10 else f"{seconds:.0f}"


def step_time(read: Reader, end: float, interval_s: float) -> float | None:
    """Return the step time that the traffic before a time shows, None without one."""
    for metric in TRAFFIC:
        every_s = max(interval_s, (GPU_BY_NAME.get(metric) or HOST_BY_NAME[metric]).period_s)
        for times, rates in read(metric, end - WINDOW * max(1.0, every_s)):
            known = np.isfinite(rates) & (times <= end)
            series = evenly(times[known], rates[known], every_s)
            if len(series) > 1 and series.mean() >= LEAST_MB_S and end - times[known][-1] < LATELY_S:
                # PCIe without GPM is a sample of 20 ms that is repeated for 4 s, which shows no steps.
                repeated = np.isclose(series[1:], series[:-1]) & (series[1:] > 0)
                found = None if repeated.mean() > 0.4 else period(series)
                if found is not None:
                    return found * every_s
    return None


def evenly(times: Floats, rates: Floats | Singles, every_s: float) -> Floats:
    """Return mean rates in equal spans of time up to the last sample.

    Each rate is the mean since the sample before, so bytes are spread without losing any.
    """
    if len(times) < 2:
        return np.empty(0)
    edges = times[-1] - every_s * np.arange(int((times[-1] - times[0]) / every_s), -1, -1)
    moved = np.append(0.0, np.cumsum(rates[1:] * np.diff(times), dtype=np.float64))
    spread: Floats = np.diff(np.interp(edges, times, moved)) / every_s
    return spread


def period(series: Floats) -> float | None:
    """Return the period of equally spaced samples, in samples; None without one.

    Where the period holds parts that are nearly alike, as micro-batches, it is the length of a part.
    """
    count = len(series)
    if count < LEAST_PERIODS * LEAST_SAMPLES or (series < np.percentile(series, 90) / 2).mean() < QUIET:
        return None
    at = np.arange(count) - (count - 1) / 2
    values = series - series.mean() - at * (at @ series / (at @ at))
    size = 1 << (count + count // LEAST_PERIODS).bit_length()
    spectrum = np.abs(np.fft.rfft(values, size)) ** 2
    # Longer lags have fewer pairs of samples.
    pairs = count - np.arange(FINER * count // LEAST_PERIODS) / FINER
    # Blurred over three samples, short bursts don't fall between two samples.
    blurred = spectrum * np.cos(np.linspace(0, np.pi / 2, len(spectrum))) ** 4
    exact, curve = (np.fft.irfft(of, FINER * size)[: len(pairs)] / pairs for of in (spectrum, blurred))
    peaks = _peaks(curve / curve[0])
    highest = max(peaks.values(), default=0.0)
    lag, height = next((peak for peak in peaks.items() if peak[1] >= max(STRONG, SAME * highest)), (0, 0.0))
    least = FINER * LEAST_SAMPLES - 1
    # Steps shorter than a few samples beat with the sampling, and show in the exact curve before.
    if lag < least or max(_peaks(exact[:least] / exact[0]).values(), default=0.0) > EARLY * height:
        return None
    return lag / FINER


def _peaks(curve: Floats) -> dict[int, float]:
    """Return place and height of each peak, in order."""
    inner = curve[1:-1]
    places = 1 + np.flatnonzero((inner >= curve[:-2]) & (inner > curve[2:]))
    return {at: float(curve[at]) for at in places.tolist()}
