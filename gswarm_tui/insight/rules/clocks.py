"""Rules about what holds one GPU's clock down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from gswarm_tui.fleet.findings import NOTE, WASTE, Evidence
from gswarm_tui.fleet.history import Floats
from gswarm_tui.insight.effect import COSTS, behind_peers, slowdown
from gswarm_tui.insight.rule import LOCAL, Match, Rule
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
Say = Callable[[Sequence[int]], tuple[str, tuple[Evidence, ...]]]
"""Returns a phrase for what holds down the clocks of some GPUs, and its evidence."""


def _clocks(window: Window) -> tuple[Floats, Floats]:
    """Return each GPU's clock as a share of its peers', and theirs."""
    peers = window.peers_of("sm_clock_mhz", MINUTE)
    return window.mean("sm_clock_mhz", MINUTE) / peers, peers


def _share(window: Window, counter: str, reason: str) -> Mask:
    """Return for each GPU whether something holds its clock down in more than a tenth of its busy time."""
    share = np.fmax(window.gpu(counter, MINUTE), window.gpu(reason, MINUTE))
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


def _heated(window: Window) -> Mask:
    """Return which GPUs heat slows; where the reason isn't measured, those that are hotter and slower."""
    held = _share(window, "throttle_thermal_pct", "reason_thermal_pct")
    ratio, _ = _clocks(window)
    low = window.settled & (ratio < LOW_CLOCK)
    if low.any():
        unknown = np.isnan(window.mean("throttle_thermal_pct", MINUTE))
        unknown &= np.isnan(window.mean("reason_thermal_pct", MINUTE))
        temp = window.mean("temp_c", MINUTE)
        held |= low & unknown & (temp >= HOT_C) & (temp >= window.peers(temp, window.settled) + HOTTER_C)
    return held


def _thermal(window: Window) -> Iterable[Match]:
    held = _heated(window)
    if not held.any():
        return ()
    percent = np.fmax(window.mean("throttle_thermal_pct", MINUTE), window.mean("reason_thermal_pct", MINUTE))
    temp = window.mean("temp_c", MINUTE)

    def say(of: Sequence[int]) -> tuple[str, tuple[Evidence, ...]]:
        heat, degrees = float(np.nanmax(percent[of], initial=-1)), float(np.nanmax(temp[of], initial=-1))
        evidence = [Evidence("throttle_thermal_pct", round(heat), None, "%")] if heat >= 0 else []
        evidence += [Evidence("temp_c", round(degrees), None, "°C")] if degrees >= 0 else []
        return (f"heat {heat:.0f} % of that time" if heat >= 0 else f"{degrees:.0f} °C"), tuple(evidence)

    return _slower(window, held, say)


def _brake(window: Window) -> Iterable[Match]:
    held = _share(window, "throttle_brake_pct", "reason_brake_pct")
    if not held.any():
        return ()
    # Heat also sets the bit of a hardware slowdown.
    held &= ~_share(window, "throttle_thermal_pct", "reason_thermal_pct")
    percent = np.fmax(window.mean("throttle_brake_pct", MINUTE), window.mean("reason_brake_pct", MINUTE))

    def say(of: Sequence[int]) -> tuple[str, tuple[Evidence, ...]]:
        share = float(np.nanmax(percent[of], initial=0))
        return f"power brake {share:.0f} % of that time", (
            Evidence("throttle_brake_pct", round(share), None, "%"),
        )

    return _slower(window, held, say, alike=True)


def _cap(window: Window) -> Iterable[Match]:
    ratio, _ = _clocks(window)
    limit = window.value("power_limit_now_w")
    limits = window.peers(limit, window.settled)
    slower = window.settled & (ratio < LOW_CLOCK)
    if not slower.any():
        return ()
    capped = np.fmax(window.mean("throttle_power_pct", MINUTE), window.mean("reason_power_pct", MINUTE))
    held = slower & (capped >= window.peers(capped, window.settled) + CAP_POINTS)
    held |= slower & (limit < LOWER_LIMIT * limits) & ~(capped < SHARE_PCT)

    def say(of: Sequence[int]) -> tuple[str, tuple[Evidence, ...]]:
        at, evidence = of[0], []
        if np.isfinite(capped[at]):
            evidence.append(Evidence("throttle_power_pct", round(float(capped[at])), None, "%"))
        if limit[at] < LOWER_LIMIT * limits[at]:
            evidence.append(
                Evidence("power_limit_now_w", round(float(limit[at])), round(float(limits[at])), "W")
            )
            return f"power limit {limit[at]:.0f} W, the others {limits[at]:.0f} W", tuple(evidence)
        return f"power cap {capped[at]:.0f} % of that time", tuple(evidence)

    return _slower(window, held, say)


def _locked(window: Window) -> Iterable[Match]:
    ratio, _ = _clocks(window)
    slower = window.settled & (ratio < LOW_CLOCK)
    if not slower.any():
        return ()
    limit = window.value("app_sm_clock_mhz")
    limits = window.peers(limit, window.settled)
    held = slower & ((window.mean("reason_locked_pct", MINUTE) > 50) | (limit < LOWER_LIMIT * limits))

    def say(of: Sequence[int]) -> tuple[str, tuple[Evidence, ...]]:
        at = of[0]
        if limit[at] < LOWER_LIMIT * limits[at]:
            return f"application clock {limit[at]:,.0f} MHz, the others {limits[at]:,.0f}", (
                Evidence("app_sm_clock_mhz", round(float(limit[at])), round(float(limits[at])), "MHz"),
            )
        return "clocks are locked", ()

    return _slower(window, held, say)


def _slower(window: Window, held: Mask, say: Say, *, alike: bool = False) -> Iterable[Match]:
    """Return a match for each GPU whose clock is held down, or for each node with most of its GPUs.

    If most of all GPUs are, nobody is the culprit; ``alike`` causes still count, in one match for all nodes.
    """
    if not held.any():
        return
    settled = window.settled
    most = 2 * int(held.sum()) > int(settled.sum()) > 1
    if most and not alike:
        return
    clock = window.mean("sm_clock_mhz", MINUTE)
    others = settled & ~held
    peers = window.peers(clock, others if others.any() else settled)
    nodes = list(dict.fromkeys(window.gpus[at].node for at in np.flatnonzero(held).tolist()))
    groups: list[list[int]] = []
    if alike and len(nodes) > 1:
        groups = [np.flatnonzero(held).tolist()]
    else:
        for node in nodes:
            here = window.node_at == window.nodes.index(node)
            mine: list[int] = np.flatnonzero(held & here).tolist()
            together = len(mine) > 1 and 2 * len(mine) > int((settled & here).sum())
            groups += [mine] if together else [[at] for at in mine]
    since = window.now - MINUTE * window.scale
    slower = slowdown(window, since)
    waiting = int(others.sum())
    for group in groups:
        mhz, usual = float(np.median(clock[group])), float(np.median(peers[group]))
        behind = max(behind_peers(window, at) or 0.0 for at in group)
        lower = 1.0 - mhz / usual
        # A clock that is 5 % lower can't cost more than 5 %, whatever else slows the job. Where the pace of
        # the job isn't measured, the clock alone decides; a GPU without peers then has no known cost.
        measured = slower if slower is not None and slower >= COSTS else behind
        cost = lower if slower is None and not behind else float(np.fmin(measured, lower + 0.02))
        if most:
            cost = slower or 0.0
        costly = cost >= COSTS
        text, evidence = say(group)
        single, node = len(group) == 1, window.gpus[group[0]].node
        several = len({window.gpus[at].node for at in group}) > 1
        yield Match(
            None if several else node,
            group[0] if single else None,
            since,
            f"clock {mhz:,.0f} MHz" if np.isfinite(mhz) else text,
            (
                Evidence("sm_clock_mhz", round(mhz), round(usual) if np.isfinite(usual) else None, "MHz"),
                *evidence,
            )
            if np.isfinite(mhz)
            else evidence,
            f"the other {waiting} at {usual:,.0f}" if np.isfinite(usual) and waiting else "",
            (text,) if np.isfinite(mhz) else (),
            lost=cost * (waiting or len(group)) if costly else 0.0,
            nodes=tuple(nodes) if several else (),
            severity=WASTE if costly else NOTE,
        )


def _margin(window: Window) -> Iterable[Match]:
    margin = window.value("temp_margin_c")
    hot = window.gpu("throttle_thermal_pct", MINUTE) > SHARE_PCT
    hot |= window.gpu("reason_thermal_pct", MINUTE) > SHARE_PCT
    near = window.settled & (margin <= MARGIN_C) & ~hot.any(axis=0)
    if not near.any() or 2 * near.sum() > window.settled.sum():
        return
    peers = window.peers(margin, window.settled)
    for at in np.flatnonzero(near & (margin <= peers - LESS_C)).tolist():
        yield Match(
            window.gpus[at].node,
            at,
            window.now - MINUTE * window.scale,
            f"{margin[at]:.0f} °C below the slowdown temperature",
            (Evidence("temp_margin_c", round(float(margin[at])), round(float(peers[at])), "°C"),),
            f"the others {peers[at]:.0f} °C",
        )


_BUSY = ("util_pct", "sm_clock_mhz")
_SWAP = "Leave {node} out and tell the site"
_NO_COST = "It is only a note while the job is no slower and no other GPU waits."
RULES = (
    Rule(
        "thermal",
        "Heat holds a GPU's clock down",
        WASTE,
        LOCAL,
        (*_BUSY, "throttle_thermal_pct"),
        "60 s",
        "thermal throttling for more than 10 % of the busy time, in both halves; waste if the job loses 9 %",
        "Omnistat, DCGM; 10 % is our own threshold",
        _SWAP + " to check the cooling of {gpu}",
        "A GPU that overheats lowers its clock. In lock-step, all other GPUs wait for it.",
        "Heat slows most GPUs of the job alike. While the job is no slower, it is a note.",
        "A warm room slows some GPUs more than others: they are named, although the room is the cause.",
        _thermal,
    ),
    Rule(
        "power_brake",
        "An external power brake holds clocks down",
        WASTE,
        LOCAL,
        (*_BUSY, "throttle_brake_pct"),
        "60 s",
        "power brake (clock reason 0x80, or 0x8 without heat) for over 10 % of the busy time, in both halves",
        "NVML: HwPowerBrakeSlowdown, HwSlowdown; 10 % is our own threshold",
        "Tell the site that the power supply of {nodes} slows GPUs down",
        "An overloaded power supply, or a rack's power control, forces GPUs to lower their clocks.",
        _NO_COST,
        "Clock reason 0x8 doesn't name the cause: the board's own protection sets it, too.",
        _brake,
    ),
    Rule(
        "power_cap",
        "One GPU runs into its power cap, and its peers don't",
        WASTE,
        LOCAL,
        (*_BUSY, "throttle_power_pct", "power_limit_now_w"),
        "60 s",
        "clock below 0.93 of the peers'; capped for 20 points more of the time, or power limit 5 % lower",
        "PRISM (arXiv 2510.15596); the thresholds are our own",
        "Ask the site why the power limit or the supply of {gpu} differs; until then leave {node} out",
        "A power limit that somebody lowered, or a GPU that draws more for the same work, lowers the clock.",
        "All GPUs are capped alike, as in any large GEMM, or the clock is as high as that of the peers.",
        "A rank with more work than the others is capped more often, too.",
        _cap,
    ),
    Rule(
        "clocks_locked",
        "A GPU's clocks are locked below those of its peers",
        WASTE,
        LOCAL,
        (*_BUSY, "app_sm_clock_mhz"),
        "60 s",
        "clock below 0.93 of the peers', with clock reason 0x2 or an application clock 5 % lower",
        "NVML: ApplicationsClocksSetting; GCM warns from 30 MHz on",
        "Ask the site to reset the clocks of {gpu}: nvidia-smi -rgc; nvidia-smi -rac",
        "Locked or application clocks stay after a benchmark or an earlier job, on some GPUs only.",
        "All GPUs have the same limit.",
        "A site may lock some nodes on purpose, to save energy.",
        _locked,
    ),
    Rule(
        "thermal_margin",
        "A GPU is about to slow down from heat",
        NOTE,
        LOCAL,
        ("temp_margin_c",),
        "newest value",
        "at most 3 °C below the slowdown temperature, and 5 °C closer to it than the peers",
        "NVSentinel: GpuThermalMarginWatch; the thresholds are our own",
        "Tell the site to check the airflow of {gpu}",
        "The temperature at which a GPU slows down differs by model and board; the margin to it doesn't.",
        "Most GPUs are as close, or heat slows the GPU already.",
        "A GPU may run for weeks at a small margin.",
        _margin,
    ),
)
