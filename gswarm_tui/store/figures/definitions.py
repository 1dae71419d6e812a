"""The definitions of figures as SQL. Only text.

A sample stands for the time before it: for gauges its interval (``Frame.interval_s``: at most one and a half
sampling intervals), for energy the time since the last counter value. It counts in a window by the part of
that time that lies in it; for energy, by the part of the power × time of the GPU's samples in it, as several
samples lie between two readings of a counter. Live sessions count alike, from events: ``fleet.sessions``,
``fleet.energy``.
"""

from __future__ import annotations

from gswarm_agent.frame import MAX_GAUGE_MS
from gswarm_tui.fleet.thresholds import BUSY_FROM_PCT

LONGEST_INTERVAL_S = MAX_GAUGE_MS // 1000
"""How long after a window its last sample is searched: a gauge stands for no longer."""

BUSY = f"util_pct >= {BUSY_FROM_PCT:g}"
IDLE = f"util_pct < {BUSY_FROM_PCT:g}"
MINE = "allocated IS NOT FALSE"
"""The condition that a GPU counts: Slurm gave it to the job, or nobody knows."""


def covered_from(covers_ms: str) -> str:
    """Return SQL for when the time begins that a sample ``s`` stands for, in Unix µs."""
    return f"(epoch_us(s.ts) - 1000 * coalesce({covers_ms}, 0)::BIGINT)"


def inside_us(began_us: str, until_us: str, covers_ms: str = "s.interval_ms") -> str:
    """Return SQL for the µs of a sample ``s`` that lie in a window; its ends are Unix µs as SQL."""
    return f"greatest(0, least(epoch_us(s.ts), {until_us}) - greatest({covered_from(covers_ms)}, {began_us}))"


def reaches_into(until_us: str, covers_ms: str = "s.interval_ms") -> str:
    """Return the SQL condition that the time of a sample ``s`` begins before the end of a window."""
    return f"(epoch_us(s.ts) <= {until_us} OR {covered_from(covers_ms)} < {until_us})"


def energy_mj(began_us: str, until_us: str) -> str:
    """Return SQL for the part by time of the energy of a sample ``s`` that lies in a window, in mJ."""
    inside = inside_us(began_us, until_us, "s.energy_used_ms")
    return f"(s.energy_used_mj::DOUBLE * {inside} / (1000 * nullif(s.energy_used_ms, 0)))"


def is_cut(began_us: str, until_us: str) -> str:
    """Return the SQL condition that a window cuts the energy of a sample ``s`` between other samples."""
    inside = inside_us(began_us, until_us, "s.energy_used_ms")
    return f"({inside} < 1000 * s.energy_used_ms::BIGINT AND s.energy_used_ms > coalesce(s.interval_ms, 0))"


def cut_energy_mj() -> str:
    """Return SQL for the part of a cut step ``c`` that lies in its window, in mJ; ``s`` are its samples.

    Samples stand for ``known_us`` of the step with ``work`` = power × time, of which ``known_inside_us`` and
    ``work_inside`` lie in the window. The rest of the step has the mean power of its samples::

        part = (work_inside * known_us / work + inside_us - known_inside_us) / step_us
    """
    parts = inside_us("c.since_us", "c.until_us"), inside_us("c.from_us", "c.to_us")
    work, inside = (f"sum(TRY_CAST(100 * s.power_w::DOUBLE * {part} AS BIGINT))" for part in parts)
    known, known_inside = (f"(sum({part}) FILTER (s.power_w IS NOT NULL))" for part in parts)
    more = f"coalesce({inside}::DOUBLE * {known} / nullif({work}, 0) - {known_inside}, 0)"
    time = f"any_value(c.to_us - c.from_us) + {more}"
    return f"any_value(c.mj)::DOUBLE * ({time}) / any_value(c.until_us - c.since_us)"
