"""Part of a profile's time in bins: busy shares of kernels, copies and ranges, and the GPU's samples."""

from __future__ import annotations

from dataclasses import dataclass

from gswarm_tui.analysis.kernel_names import short_names
from gswarm_tui.analysis.profiles import Profile, ProfiledDevice
from gswarm_tui.store.querying.results import QuerySource

LANES = {
    "kernels": "profile_kernel_events",
    "copies": "profile_memory_events",
    "ranges": "profile_range_events",
}
SAMPLED = ("util_pct", "mem_used_mib", "power_w")
MOST_SAMPLES = 20_000
MOST_NAMES = 20
_MARGIN_US = 5_000_000
"""Samples around the timeline, whose intervals may reach into it."""

_SPAN = """
SELECT (epoch_us(started_at) - epoch_us(zero_at)) * 1000, (epoch_us(ended_at) - epoch_us(zero_at)) * 1000,
       epoch_us(zero_at)
FROM profiles WHERE profile_id = ? AND zero_at IS NOT NULL
"""
# $1 profile, $2 start, $3 end, $4 length of a bin, $5 last bin; a long event is in each bin that it reaches.
# Of events at the same time, such as nested ranges, each adds only what those before it left free.
_LANE = """
WITH found AS (
  SELECT greatest(start_ns, $2) AS start_ns, least(start_ns + duration_ns, $3) AS end_ns
  FROM {table}
  WHERE profile_id = $1 AND start_ns < $3 AND start_ns + duration_ns > $2 {on_gpu}
), free AS (
  SELECT greatest(start_ns, coalesce(max(end_ns) OVER before, start_ns)) AS start_ns, end_ns
  FROM found
  WINDOW before AS (ORDER BY start_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)
SELECT place, sum(least(end_ns, $2 + (place + 1) * $4) - greatest(start_ns, $2 + place * $4))
FROM (
  SELECT start_ns, end_ns,
         unnest(range((start_ns - $2) // $4, least($5, (end_ns - 1 - $2) // $4) + 1)) AS place
  FROM free
  WHERE start_ns < end_ns
)
GROUP BY place
"""
_NAMES = f"""
SELECT coalesce(name, ''), count(*) AS calls,
       sum(least(start_ns + duration_ns, $3) - greatest(start_ns, $2))::DOUBLE AS ns
FROM profile_kernel_events
LEFT JOIN profile_names USING (name_id)
WHERE profile_id = $1 AND start_ns < $3 AND start_ns + duration_ns > $2 {{on_gpu}}
GROUP BY name ORDER BY ns DESC LIMIT {MOST_NAMES}
"""  # noqa: S608 (own numbers)
_SAMPLES = f"""
SELECT epoch_us(ts) / 1e6, coalesce(interval_ms, 0) / 1e3, {", ".join(SAMPLED)}
FROM gpu_samples
WHERE gpu_id = ? AND ts >= make_timestamp(?::BIGINT) AND ts < make_timestamp(?::BIGINT)
ORDER BY ts LIMIT {MOST_SAMPLES}
"""  # noqa: S608 (own names)


@dataclass(frozen=True)
class Sampled:
    """A sample of the profile's GPU: its time in the report, the time that it covers, and ``SAMPLED``."""

    end_ns: float
    length_ns: float
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class ProfileTimeline:
    """Part of a profile's time in equal bins.

    ``lanes`` has the busy share of each bin, ``names`` the longest kernels, each with the
    number of its calls and their time here. Times are nanoseconds in the report.
    """

    start_ns: int
    end_ns: int
    lanes: dict[str, list[float]]
    samples: list[Sampled]
    names: list[tuple[str, int, float]]


def captured(source: QuerySource, profile: Profile) -> tuple[int, int]:
    """Return the start and the end of the capture in the report [ns]. Raises UserError, StoreError."""
    rows = source.query(_SPAN, profile.profile_id).rows()
    start, end, _ = rows[0] if rows else (0, 0, 0)
    return start or 0, max(end or 0, (start or 0) + 1)


def load_timeline(
    source: QuerySource, profile: Profile, device: ProfiledDevice | None, span_ns: tuple[int, int], bins: int
) -> ProfileTimeline:
    """Return part of the time of one GPU of a profile. Raises UserError, StoreError."""
    start, end = span_ns
    step = max(1, -(-(end - start) // bins))
    on_gpu = ""
    if device is not None:
        gpu = "NULL" if device.gpu_id is None else f"{device.gpu_id:d}"
        on_gpu = f"AND device = {device.device:d} AND gpu_id IS NOT DISTINCT FROM {gpu}"
    lanes = {}
    for lane, table in LANES.items():
        query = _LANE.format(table=table, on_gpu="" if lane == "ranges" else on_gpu)
        rows = source.query(query, profile.profile_id, start, end, step, bins - 1).rows()
        busy = {at: float(ns) / step for at, ns in rows}
        lanes[lane] = [min(1.0, max(0.0, busy.get(at, 0.0))) for at in range(bins)]
    found = source.query(_NAMES.format(on_gpu=on_gpu), profile.profile_id, start, end).rows()
    short = short_names([name for name, *_ in found])
    names = [(name, calls, ns) for name, (_, calls, ns) in zip(short, found, strict=True)]
    return ProfileTimeline(
        start, start + bins * step, lanes, _samples(source, profile, device, span_ns), names
    )


def _samples(
    source: QuerySource, profile: Profile, device: ProfiledDevice | None, span_ns: tuple[int, int]
) -> list[Sampled]:
    found = source.query(_SPAN, profile.profile_id).rows()
    if device is None or device.gpu_id is None or not found:
        return []
    zero_us = found[0][2]
    since, until = zero_us + span_ns[0] // 1000 - _MARGIN_US, zero_us + span_ns[1] // 1000 + _MARGIN_US
    rows = source.query(_SAMPLES, device.gpu_id, since, until).rows()
    return [Sampled((at - zero_us / 1e6) * 1e9, length * 1e9, tuple(values)) for at, length, *values in rows]
