"""Rules about what holds one GPU's clock down."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gswarm_tui.fleet.findings import NOTE, WASTE
from gswarm_tui.fleet.history import Floats
from gswarm_tui.insight.effect import COSTS, leads, slowdown
from gswarm_tui.insight.rule import LOCAL, Match, Rule
from gswarm_tui.insight.rules.matches import ago, evidence, grouped, matched
from gswarm_tui.insight.window import Mask, Window

SHARE_PCT = 10.0
"""Least share of busy time with a clock held down that counts (Omnistat: any; 10 % ignores blips)."""
CAP_POINTS = 20.0
"""Points by which a GPU must be capped more often than its peers: GEMMs run into the cap on all GPUs."""
LOW_CLOCK = 0.93
"""Share of the peers' clock below which a clock counts as lower, if only the clock is measured."""
HOT_C, HOTTER_C = 80.0, 8.0
MARGIN_C, LESS_C = 3.0, 5.0
"""Degrees below the slowdown temperature that are few, and how many fewer than the peers have."""
LOWER_LIMIT = 0.95
MINUTE = 60.0
Cause = tuple[str, str, Floats, Mask]
"""One cause of low clocks: its metric, a text for the value and that of the peers, the value of each GPU, and
the GPUs for which it counts."""


def _low(window: Window) -> Mask:
    """Return the GPUs whose clock is lower than that of their peers."""
    peers = window.peers_of("sm_clock_mhz", MINUTE)
    low: Mask = window.settled & (window.mean("sm_clock_mhz", MINUTE) / peers < LOW_CLOCK)
    return low


def _percent(window: Window, name: str) -> Floats:
    """Return for how much of the last minute something held each GPU's clock down, by counter or reason."""
    counted, sampled = (window.mean(f"{kind}_{name}_pct", MINUTE) for kind in ("throttle", "reason"))
    percent: Floats = np.fmax(counted, sampled)
    return percent


def _held(window: Window, name: str) -> Mask:
    """Return for each GPU whether something holds its clock down in more than a tenth of its busy time."""
    share = np.fmax(window.gpu(f"throttle_{name}_pct", MINUTE), window.gpu(f"reason_{name}_pct", MINUTE))
    if not (share > SHARE_PCT).any():
        return np.zeros(len(window.gpus), dtype=bool)
    busy = np.isfinite(share) & ~(window.gpu("util_pct", MINUTE) < 20)
    held = window.settled & window.holds(busy, busy, MINUTE)
    # Reasons are samples: a clock held down for a third of the time has steps without any. The means
    # of both halves count.
    for half in np.array_split(np.arange(len(share)), 2):
        sums = np.where(busy[half], share[half], 0.0).sum(axis=0)
        held &= sums > SHARE_PCT * busy[half].sum(axis=0) if len(half) else True
    return held


def _thermal(window: Window) -> Iterable[Match]:
    held, low = _held(window, "thermal"), _low(window)
    if not held.any() and not low.any():
        return ()
    percent, temp = _percent(window, "thermal"), window.mean("temp_c", MINUTE)
    if low.any():
        # Where the reason isn't measured, a GPU counts that is hotter than its peers and slower.
        hotter = (temp >= HOT_C) & (temp >= window.peers(temp, window.settled) + HOTTER_C)
        held |= low & np.isnan(percent) & hotter
    heat = ("throttle_thermal_pct", "heat {0:.0f} % of that time", percent, np.isfinite(percent))
    return _slower(window, held, heat, ("temp_c", "{0:.0f} °C", temp, np.isfinite(temp)))


def _brake(window: Window) -> Iterable[Match]:
    held = _held(window, "brake")
    if not held.any():
        return ()
    # Heat also sets the bit of a hardware slowdown.
    held &= ~_held(window, "thermal")
    text, percent = "power brake {0:.0f} % of that time", _percent(window, "brake")
    return _slower(window, held, ("throttle_brake_pct", text, percent, held), alike=True)


def _cap(window: Window) -> Iterable[Match]:
    if not (low := _low(window)).any():
        return ()
    limit, capped = window.value("power_limit_now_w"), _percent(window, "power")
    lower = limit < LOWER_LIMIT * window.peers(limit, window.settled)
    often = capped >= window.peers(capped, window.settled) + CAP_POINTS
    limited = ("power_limit_now_w", "power limit {:.0f} W, the others {:.0f} W", limit, lower)
    cap = ("throttle_power_pct", "power cap {0:.0f} % of that time", capped, often)
    return _slower(window, low & (often | (lower & ~(capped < SHARE_PCT))), limited, cap)


def _locked(window: Window) -> Iterable[Match]:
    if not (low := _low(window)).any():
        return ()
    limit = window.value("app_sm_clock_mhz")
    lower = limit < LOWER_LIMIT * window.peers(limit, window.settled)
    held = low & ((window.mean("reason_locked_pct", MINUTE) > 50) | lower)
    limited = ("app_sm_clock_mhz", "application clock {:,.0f} MHz, the others {:,.0f}", limit, lower)
    return _slower(window, held, limited, otherwise="clocks are locked")


def _slower(
    window: Window, held: Mask, *causes: Cause, alike: bool = False, otherwise: str = ""
) -> Iterable[Match]:
    """Return a match for each GPU whose clock is held down, or for each node with most of its GPUs.

    If most of all GPUs are, nobody is the culprit; ``alike`` causes still count, in one match for all nodes.
    """
    settled = window.settled
    most = 2 * int(held.sum()) > int(settled.sum()) > 1
    if not held.any() or (most and not alike):
        return
    clock, others = window.mean("sm_clock_mhz", MINUTE), settled & ~held
    peers = window.peers(clock, others if others.any() else settled)
    since, waiting = ago(window, MINUTE), int(others.sum())
    slower, ahead = slowdown(window, since), np.nan_to_num(leads(window, MINUTE)[1])
    theirs = [window.peers(values, settled) for _, _, values, _ in causes]
    for who, here in grouped(window, held, "most"):
        mhz, usual = float(np.median(clock[here])), float(np.median(peers[here]))
        behind, lower = max(0.0, float(ahead[here].max())), 1.0 - mhz / usual
        # A clock that is 5 % lower can't cost more than 5 %, whatever else slows the job. Where the pace of
        # the job isn't measured, the clock alone decides; a GPU without peers then has no known cost.
        measured = slower if slower is not None and slower >= COSTS else behind
        cost = lower if slower is None and not behind else float(np.fmin(measured, lower + 0.02))
        if most:
            cost = slower or 0.0
        costly = cost >= COSTS
        words, shown = list[str](), evidence("sm_clock_mhz", mhz, usual)
        for (metric, text, values, counts), of_peers in zip(causes, theirs, strict=True):
            value, peer = (float(np.fmax.reduce(of[here])) for of in (values, of_peers))
            shown += evidence(metric, value, peer)
            words += [text.format(value, peer)] if counts[here].any() else []
        yield matched(
            *(window, who, since),
            f"clock {mhz:,.0f} MHz" if np.isfinite(mhz) else "clock held down",
            shown,
            *(words or [otherwise])[:1],
            contrast=f"the other {waiting} at {usual:,.0f}" if np.isfinite(usual) and waiting else "",
            lost=cost * (waiting or len(here)) if costly else 0.0,
            severity=WASTE if costly else NOTE,
        )


def _margin(window: Window) -> Iterable[Match]:
    margin, settled = window.value("temp_margin_c"), window.settled
    near = settled & (margin <= MARGIN_C)
    if near.any():
        near &= ~(_percent(window, "thermal") > SHARE_PCT)
    if not near.any() or 2 * near.sum() > settled.sum():
        return
    peers = window.peers(margin, settled)
    for at in np.flatnonzero(near & (margin <= peers - LESS_C)).tolist():
        signal = f"{margin[at]:.0f} °C below the slowdown temperature"
        contrast, shown = f"the others {peers[at]:.0f} °C", evidence("temp_margin_c", margin[at], peers[at])
        yield matched(window, at, ago(window, MINUTE), signal, shown, contrast=contrast, lost=0.0)


_BUSY = ("util_pct", "sm_clock_mhz")
_SWAP = "Leave {node} out and tell the site"
_NO_COST = "It is only a note while the job is no slower and no other GPU waits."
# fmt: off
RULES = (
    Rule("thermal", "Heat holds a GPU's clock down", WASTE, LOCAL, (*_BUSY, "throttle_thermal_pct"), "60 s",
         "thermal throttling for more than 10 % of the busy time, in both halves; waste if the job loses 9 %",
         "Omnistat, DCGM; 10 % is our own threshold", _SWAP + " to check the cooling of {gpu}",
         "A GPU that overheats lowers its clock. In lock-step, all other GPUs wait for it.",
         "Heat slows most GPUs of the job alike. While the job is no slower, it is a note.",
         "A warm room slows some GPUs more than others: they are named, although the room is the cause.",
         _thermal),
    Rule("power_brake", "An external power brake holds clocks down", WASTE, LOCAL,
         (*_BUSY, "throttle_brake_pct"), "60 s",
         "power brake (clock reason 0x80, or 0x8 without heat) for over 10 % of busy time, in both halves",
         "NVML: HwPowerBrakeSlowdown, HwSlowdown; 10 % is our own threshold",
         "Tell the site that the power supply of {nodes} slows GPUs down",
         "An overloaded power supply, or a rack's power control, forces GPUs to lower their clocks.",
         _NO_COST, "Clock reason 0x8 doesn't name the cause: the board's own protection sets it, too.",
         _brake),
    Rule("power_cap", "One GPU runs into its power cap, and its peers don't", WASTE, LOCAL,
         (*_BUSY, "throttle_power_pct", "power_limit_now_w"), "60 s",
         "clock below 0.93 of the peers'; capped for 20 points more of the time, or power limit 5 % lower",
         "PRISM (arXiv 2510.15596); the thresholds are our own",
         "Ask the site why the power limit or the supply of {gpu} differs; until then leave {node} out",
         "A power limit that somebody lowered, or a GPU that draws more for the same work, lowers the clock.",
         "All GPUs are capped alike, as in any large GEMM, or the clock is as high as that of the peers.",
         "A rank with more work than the others is capped more often, too.", _cap),
    Rule("clocks_locked", "A GPU's clocks are locked below those of its peers", WASTE, LOCAL,
         (*_BUSY, "app_sm_clock_mhz"), "60 s",
         "clock below 0.93 of the peers', with clock reason 0x2 or an application clock 5 % lower",
         "NVML: ApplicationsClocksSetting; GCM warns from 30 MHz on",
         "Ask the site to reset the clocks of {gpu}: nvidia-smi -rgc; nvidia-smi -rac",
         "Locked or application clocks stay after a benchmark or an earlier job, on some GPUs only.",
         "All GPUs have the same limit.", "A site may lock some nodes on purpose, to save energy.", _locked),
    Rule("thermal_margin", "A GPU is about to slow down from heat", NOTE, LOCAL, ("temp_margin_c",),
         "newest value", "at most 3 °C below the slowdown temperature, and 5 °C closer to it than the peers",
         "NVSentinel: GpuThermalMarginWatch; the thresholds are our own",
         "Tell the site to check the airflow of {gpu}",
         "The temperature at which a GPU slows down differs by model and board; the margin to it doesn't.",
         "Most GPUs are as close, or heat slows the GPU already.",
         "A GPU may run for weeks at a small margin.", _margin),
)
# fmt: on
