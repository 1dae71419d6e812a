"""Step time of a job without code in it: the period of its traffic. No I/O and no clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gswarm_agent.metrics import GPU_BY_NAME, HOST_BY_NAME
from gswarm_tui.fleet.findings import WASTE, Evidence, Finding
from gswarm_tui.fleet.history import Floats, Singles

STRONG, SAME = 0.7, 0.85
"""Autocorrelation from which traffic counts as periodic (Greyhound), and the share of the highest peak that
makes a shorter period count, as its multiples are about as high."""
VALLEY, EARLY = 0.35, 0.4
"""Traffic drifts if its autocorrelation doesn't fall by so much before the peak. It has shorter steps if this
share of the peak is reached within fewer than ``LEAST_SAMPLES``."""
LEAST_SAMPLES, LEAST_PERIODS = 5, 4
"""A period has at least so many samples, and the series at least so many periods."""
TRAFFIC = ("ib_tx_mb_s", "nvlink_tx_mb_s", "pcie_rx_mb_s", "net_tx_mb_s")
"""Counts of bytes, of which the first two that carry traffic decide; only PCIe without GPM is sampled."""
LEAST_MB_S = 20.0
"""Less traffic than this is that of logs and heartbeats."""
WINDOW, COARSER = 256, 3
"""The newest samples that are judged, and how often the window and the time between samples are doubled."""
QUIET, LONGEST_S = 0.25, 120.0
"""Steps are quiet for this share of the time, while they compute, and aren't longer. Else it is a job that
pauses again and again, as for checkpoints or evaluation."""
NODES_READ = 2
"""Ranks in lock-step exchange together, so the traffic of a few nodes shows the steps of all."""
LOOK_S, LATELY_S, TREND_S, KEPT_S = 15.0, 60.0, 600.0, 3600.0
"""The traffic is looked at this often; the median of what was seen lately is compared with that of before."""
JUMP, CHANGED = 1.5, 0.03
"""A step time longer by this factor must show in traffic of its own. A smaller change is within the error."""

Track = tuple[Floats, Floats | Singles]
"""Times and values of one node's traffic, oldest first."""
Reader = Callable[[str, float, float], Iterable[Track]]
"""Returns the tracks of a metric between two times."""


class Seen(NamedTuple):
    """A step time in seconds, seen in the traffic between two times."""

    since: float
    until: float
    seconds: float


class Pace:
    """The step times of a job, seen in its traffic; ``scale`` shortens all times, for tests."""

    def __init__(self, scale: float = 1.0) -> None:
        self._scale, self._looked_at = scale, -math.inf
        self._seen: deque[Seen] = deque(maxlen=round(KEPT_S / LOOK_S))

    def look(self, read: Reader, now: float, interval_s: float) -> None:
        """Look at the traffic before a time, unless the last look was a moment before."""
        if now - self._looked_at < LOOK_S * self._scale:
            return
        self._looked_at, last = now, self._seen[-1] if self._seen else None
        seen = step_time(read, now, interval_s)
        # After a change, a window has steps of two lengths, which agree in a common multiple.
        if seen is not None and (
            last is None or seen.seconds < JUMP * last.seconds or seen.since >= last.until
        ):
            self._seen.append(seen)

    def before(self, end: float, seconds: float = LATELY_S) -> float | None:
        """Return the median of the step times seen in the seconds before a time, None without any."""
        found = [one.seconds for one in self._seen if 0 <= end - one.until <= seconds * self._scale]
        return float(np.median(found)) if found else None

    def with_effect(self, finding: Finding, until: float) -> Finding:
        """Return a finding that costs time with the step times before it and at a time, if longer."""
        was, now = self.before(finding.since, TREND_S), self.before(until)
        if finding.severity != WASTE or not was or not now or now / was < 1 + CHANGED:
            return finding
        rest, _, advice = finding.sentence.rpartition(" · ")
        sentence = f"{rest} · steps about {_digits(was)} → {_digits(now)} s · {advice}"
        shown = Evidence("step_s", float(_digits(now)), float(_digits(was)), "s")
        return replace(finding, sentence=sentence, evidence=(*finding.evidence, shown))


def pace_text(seconds: float | None, before: float | None, when: str = "10 min ago") -> str:
    """Return a step time and its trend, as in "about 2.1 s a step, 4 % slower than 10 min ago"."""
    if seconds is None:
        return ""
    text, change = f"about {_digits(seconds)} s a step", seconds / (before or seconds) - 1
    if abs(change) < CHANGED:
        return text
    return f"{text}, {abs(100 * change):.0f} % {'slower' if change > 0 else 'faster'} than {when}"


def _digits(seconds: float) -> str:
    return f"{float(f'{seconds:.2g}'):g}" if seconds < 10 else f"{seconds:.0f}"


def step_time(read: Reader, end: float, interval_s: float) -> Seen | None:
    """Return the newest step time before a time; the finest samples that show one decide."""
    carrying = 0
    for metric in TRAFFIC:
        every_s = max(interval_s, (GPU_BY_NAME.get(metric) or HOST_BY_NAME[metric]).period_s)
        tracks = list(read(metric, end - (WINDOW << COARSER) * every_s, end))
        series, until = joined(tracks, every_s)
        if not len(series) or series.mean() < LEAST_MB_S or end - until > LATELY_S:
            continue
        for _ in range(COARSER + 1):
            found = period(series[-WINDOW:], every_s)
            if found is not None and found[0] <= LONGEST_S:
                return Seen(until - min(len(series), WINDOW) * every_s, until, found[0])
            series, every_s = series[len(series) % 2 :].reshape(-1, 2).mean(axis=1), 2 * every_s
        carrying += 1
        if carrying == 2:
            break
    return None


def joined(tracks: Sequence[Track], every_s: float) -> tuple[Floats, float]:
    """Return the mean rates of all tracks in equal spans of the time that all cover, and the end of that.

    Each rate is the mean since the sample before, so bytes are spread without losing any.
    """
    known = [(times[of], rates[of]) for times, rates in tracks if (of := np.isfinite(rates)).sum() > 1]
    if not known:
        return np.empty(0), 0.0
    low, high = max(times[0] for times, _ in known), min(times[-1] for times, _ in known)
    edges = high - every_s * np.arange(max(0, int((high - low) / every_s)), -1, -1)
    sums = np.zeros(len(edges))
    for times, rates in known:
        moved = np.append(0.0, np.cumsum(rates[1:] * np.diff(times), dtype=np.float64))
        sums += np.interp(edges, times, moved)
    return np.diff(sums) / every_s / len(known), high


def period(series: Floats, interval_s: float) -> tuple[float, float] | None:
    """Return the period in seconds of equally spaced samples and its strength up to 1, None without one.

    Where the period holds parts that are nearly alike, as micro-batches, it is the length of a part.
    """
    count = len(series)
    longest = count // LEAST_PERIODS
    if longest <= LEAST_SAMPLES:
        return None
    if (series < np.percentile(series, 90) / 2).mean() < QUIET:
        return None
    depth = series.std() / max(1e-9, series.mean())
    at = np.arange(count) - (count - 1) / 2
    values = series - series.mean() - at * (at @ series / (at @ at))
    spectrum = np.abs(np.fft.rfft(values, 1 << (count + 3 * longest).bit_length())) ** 2
    # Blurred over three samples, short bursts don't fall between two lags.
    blur = np.cos(np.linspace(0, np.pi / 2, len(spectrum))) ** 4
    # Longer lags have fewer pairs of samples.
    lags = np.arange(3 * longest)
    curve = np.fft.irfft(spectrum * blur)[: len(lags)] / (count - lags)
    if curve[0] <= 1e-12 * spectrum.max(initial=0.0) or depth < 1e-3:
        return None
    curve /= curve[0]
    tops = [_top(curve, peak) for peak in _peaks(curve, LEAST_SAMPLES - 1, longest)]
    highest = max((height for _, height in tops), default=0.0)
    if highest < STRONG:
        return None
    lag, strength = next(top for top in tops if top[1] >= max(SAME * highest, STRONG))
    if lag < LEAST_SAMPLES - 0.01 or curve[1 : round(lag)].min() > strength - VALLEY:
        return None
    # Steps shorter than a few samples beat with the sampling: they repeat earlier, or vary little.
    exact = np.fft.irfft(spectrum)[: LEAST_SAMPLES + 2]
    exact /= exact[0]
    below = [_top(of, peak) for of in (exact, curve) for peak in _peaks(of, 2, LEAST_SAMPLES)]
    early = max((height for at_lag, height in below if at_lag < LEAST_SAMPLES - 0.01), default=0.0)
    if early > EARLY * strength or depth < (lag - 1) ** -0.5:
        return None
    # Two periods on, traffic has to repeat, too; noise rarely does. The later peak is the more exact one.
    later = round(2 * lag) - 1 + int(np.argmax(curve[round(2 * lag) - 1 : round(2 * lag) + 2]))
    twice, again = _top(curve, later)
    return None if again < STRONG - 0.2 else (twice / 2 * interval_s, strength)


def _peaks(curve: Floats, low: int, high: int) -> list[int]:
    inner = np.arange(low, high + 1)
    found: list[int] = inner[(curve[inner] >= curve[inner - 1]) & (curve[inner] > curve[inner + 1])].tolist()
    return found


def _top(curve: Floats, peak: int) -> tuple[float, float]:
    """Return place and height of the parabola through a peak and its neighbours."""
    left, middle, right = curve[peak - 1 : peak + 2].tolist()
    bend = left - 2 * middle + right
    shift = 0.0 if bend >= 0 else min(0.5, max(-0.5, (left - right) / (2 * bend)))
    return peak + shift, middle - (left - right) * shift / 4
