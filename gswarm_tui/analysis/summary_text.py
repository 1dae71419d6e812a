"""Text of a summary: lines on the whole period, and tables of nodes and GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from gswarm_agent.frame import gpu_label
from gswarm_tui.analysis.summary_data import Figures, NodeCoverage, ProcessPeaks, Summary
from gswarm_tui.common.quantities import (
    DASH,
    celsius,
    duration,
    energy,
    gpu_time,
    mebibytes,
    percent,
    plural,
    used_of,
    watts,
)
from gswarm_tui.fleet.program import program
from gswarm_tui.slurm import hosts

LabelledLine = tuple[str, str]

_HOUR_S = 3600


@dataclass(frozen=True)
class TextTable:
    """A table of text; columns in ``right`` are numbers."""

    names: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    right: frozenset[int]


def heading(summary: Summary, zone: tzinfo | None = None) -> str:
    """Return the heading: times in a zone (None: local), duration, nodes, GPUs and job."""
    period = summary.period
    began, until = local_time(period.started_at, zone), local_time(period.until, zone)
    end = f"{until:%H:%M:%S}" if began.date() == until.date() else f"{until:%Y-%m-%d %H:%M:%S}"
    parts = [f"{began:%Y-%m-%d %H:%M:%S} to {end}", duration(period.seconds)]
    if period.ended_at is None:
        parts.append("still running" if summary.running else "no end")
    parts += [plural(len(summary.covered), "node"), plural(sum(one.gpus for one in summary.gpus), "GPU")]
    if period.job:
        parts.append(f"job {period.job}")
    return " · ".join(parts)


def local_time(at: datetime, zone: tzinfo | None = None) -> datetime:
    """Convert a time of the database to a zone (None: local)."""
    return at.replace(tzinfo=UTC).astimezone(zone)


def share(part: float | None) -> str:
    """Format a share of 1 in percent; rounds to "100 %" and "0 %" only if exact: "99.9 %", "0.1 %"."""
    if part is None:
        return DASH
    hundredfold = 100 * part
    if 0 < hundredfold < 9.95:
        return f"{max(0.1, hundredfold):.1f} %"
    if 99 < hundredfold < 100:
        return f"{min(99.9, hundredfold):.1f} %"
    return f"{hundredfold:.0f} %"


def part_of(some: float | None, whole: float | None) -> float | None:
    """Return the share, None if either is unknown."""
    return some / whole if some is not None and whole else None


def throttled_s(one: Figures) -> float | None:
    """Return the seconds throttled for the longest-lasting reason, None if unmeasured."""
    known = (s for s in (one.throttle_thermal_s, one.throttle_brake_s) if s is not None)
    return max(known, default=None)


def summary_lines(summary: Summary) -> list[LabelledLine]:
    """Return the labelled lines on the whole period; none without samples."""
    one = summary.whole
    if one is None:
        return []
    memory = used_of(one.mem_used_max_mib, one.mem_total_mib).replace("/", " of ")
    host_memory = used_of(one.host_memory_max_mib, one.host_memory_total_mib).replace("/", " of ")
    lines = [
        (
            "utilisation",
            f"mean {percent(one.util_mean_pct)}, median {percent(one.util_median_pct)}, "
            f"p95 {percent(one.util_p95_pct)}, max {percent(one.util_max_pct)}",
        ),
        *activity_lines(one),
        (
            "busy",
            f"{share(part_of(one.busy_s, one.measured_s))} of the measured time: "
            f"busy {gpu_time(one.busy_s)}, idle {gpu_time(one.idle_s)}",
        ),
        ("bubbles", _bubbles(one, summary)),
        ("throttled", _throttled(one)),
        ("power", _power(one, summary)),
        ("energy", _energy(one)),
        ("GPU memory", f"max {memory}{_holder(summary, 'mem_used_max_mib')}"),
        ("temperature", f"max {_maximum(summary, 'temp_max_c', celsius)}"),
        ("hosts", f"max CPU {percent(one.host_cpu_max_pct)}, max memory {host_memory}"),
        ("coverage", f"{share(one.coverage)} of the GPU time, {plural(one.samples, 'sample')}"),
    ]
    if summary.silent:
        lines.append(("silent", f"{hosts.fold(summary.silent)}: no samples in this time"))
    partial = partial_sentence(summary.covered)
    return [*lines, ("", partial)] if partial else lines


def activity_lines(one: Figures) -> list[LabelledLine]:
    """Return the line on what the chips really did; none before Hopper, where it isn't measured."""
    peak = "" if one.of_peak is None else f" (use of peak, about {share(one.of_peak)})"
    shares = {
        "SM": (one.sm_active_mean_pct, ""),
        "tensor": (one.tensor_active_mean_pct, peak),
        "DRAM": (one.dram_active_mean_pct, ""),
    }
    known = [f"{name} {percent(value)}{more}" for name, (value, more) in shares.items() if value is not None]
    return [("active", ", ".join(known))] if known else []


def _bubbles(one: Figures, summary: Summary) -> str:
    if not one.bubbles:
        return DASH if one.bubbles is None else "none: no GPU was idle between busy phases"
    longest = _maximum(summary, "bubble_longest_s", duration)
    return (
        f"{share(one.bubble_share)} of the time between busy phases: {plural(one.bubbles, 'bubble')}, "
        f"total {gpu_time(one.bubble_s)}, longest {longest}"
    )


def _throttled(one: Figures) -> str:
    causes = ("heat", one.throttle_thermal_s), ("power brake", one.throttle_brake_s)
    known = [(cause, s) for cause, s in causes if s is not None]
    if not known:
        return DASH
    parts = [f"{cause} {gpu_time(s)} ({share(part_of(s, one.measured_s))})" for cause, s in known if s > 0]
    return ", ".join(parts) or "never"


def _power(one: Figures, summary: Summary) -> str:
    text = f"mean {watts(one.power_mean_w)} per GPU, max {_maximum(summary, 'power_max_w', watts)}"
    if not one.throttle_power_s:
        return text
    return f"{text}, {share(part_of(one.throttle_power_s, one.measured_s))} of the time at the power limit"


def _energy(one: Figures) -> str:
    if one.energy_j is None or one.energy_j < _HOUR_S:
        return energy(one.energy_j)
    return f"{energy(one.energy_j)} ({one.energy_j:,.0f} J)"


def _maximum(summary: Summary, name: str, shown: Callable[[float | None], str]) -> str:
    return shown(getattr(summary.whole, name)) + _holder(summary, name)


def _holder(summary: Summary, name: str) -> str:
    """Return the GPU with the maximum in parentheses; empty if several GPUs share it or only one exists."""
    most = getattr(summary.whole, name)
    holders = [gpu.label for gpu in summary.gpus if getattr(gpu, name) == most]
    return f" ({holders[0]})" if most is not None and len(holders) == 1 < len(summary.gpus) else ""


def partial_sentence(covered: Sequence[NodeCoverage]) -> str:
    """Return which nodes don't cover a whole period, empty if all do."""
    partial = [one for one in covered if not one.complete]
    if not partial:
        return ""
    least = min(one.coverage or 0.0 for one in partial)
    whole_ones = len(covered) - len(partial)
    return (
        f"partial: {whole_ones:,} of {len(covered):,} nodes cover all of it; "
        f"{hosts.fold([one.node for one in partial])} "
        f"{'covers' if len(partial) == 1 else 'cover as little as'} {share(least)}"
    )


_SM, _TENSOR = "SM %", "tensor %"
_COLUMNS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("util %", lambda one: _number(one.util_mean_pct)),
    (_SM, lambda one: _number(one.sm_active_mean_pct)),
    (_TENSOR, lambda one: _number(one.tensor_active_mean_pct)),
    ("p95 %", lambda one: _number(one.util_p95_pct)),
    ("busy", lambda one: share(part_of(one.busy_s, one.measured_s))),
    ("bubbles", lambda one: share(one.bubble_share)),
    ("W", lambda one: _number(one.power_mean_w)),
    ("energy", lambda one: energy(one.energy_j)),
    ("memory", lambda one: mebibytes(one.mem_used_max_mib)),
    ("throttled", lambda one: share(part_of(throttled_s(one), one.measured_s))),
    ("coverage", lambda one: share(one.coverage)),
    ("max W", lambda one: _number(one.power_max_w)),
    ("median %", lambda one: _number(one.util_median_pct)),
    ("max %", lambda one: _number(one.util_max_pct)),
    ("max °C", lambda one: _number(one.temp_max_c)),
)


def figures_table(figures: Sequence[Figures]) -> TextTable:
    """Return a table with a row for each node or GPU; narrow terminals hide the last columns."""
    first = "node" if figures[0].gpu_index is None else "GPU"
    measured = any(one.sm_active_mean_pct is not None for one in figures)
    columns = [column for column in _COLUMNS if measured or column[0] not in (_SM, _TENSOR)]
    if any(one.rank is not None for one in figures):
        columns.insert(0, ("rank", lambda one: _number(one.rank)))
    rows = [(one.label, *(shown(one) for _, shown in columns)) for one in figures]
    return TextTable((first, *(name for name, _ in columns)), rows, frozenset(range(1, len(columns) + 1)))


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:.0f}"


def process_table(processes: Iterable[ProcessPeaks]) -> TextTable:
    """Return a table with a row for each process and GPU."""
    rows = [
        (
            f"{one.node}:{gpu_label(one.gpu_index)}",
            str(one.pid),
            DASH if one.rank is None else str(one.rank),
            mebibytes(one.gpu_memory_max_mib),
            _number(one.sm_max_pct),
            _number(one.cpu_max_pct),
            mebibytes(one.memory_max_mib),
            program(one.command or DASH),
            one.user_name or DASH,
        )
        for one in processes
    ]
    names = ("GPU", "pid", "rank", "GPU memory", "SM %", "CPU %", "memory", "command", "user")
    return TextTable(names, rows, frozenset({1, 2, 3, 4, 5, 6}))
