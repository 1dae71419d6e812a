"""Figures of a trial's runs from their samples: energy, balance, traffic, and what GPUs waited for."""

from __future__ import annotations

from collections.abc import Sequence

from gswarm_tui.analysis.comparison import balance
from gswarm_tui.analysis.periods import Period, load_sessions
from gswarm_tui.analysis.summary_data import summarize
from gswarm_tui.insight.ledger import BLOCKED_PCT, CORE_PCT, SPINS_PCT
from gswarm_tui.store.figures.definitions import (
    IDLE,
    LONGEST_INTERVAL_S,
    MINE,
    growth,
    inside_us,
    reaches_into,
)
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.trials.outcome import RunOutcome
from gswarm_tui.trials.results import (
    CAUSES,
    CPU,
    DISKS,
    NETWORK,
    SLOWEST,
    UNEXPLAINED,
    MeasuredRun,
    RunFigures,
)

NETWORK_FROM_MB_S = 10
"""A node uses the network if it sends and receives this much: less is what systems send anyway."""
SPINS_BELOW_POWER = 0.5
"""A GPU that waits in a communication kernel is utilised, below this share of its power limit."""

_BOUNDS_US = "epoch_us($1::TIMESTAMP)", "epoch_us($2::TIMESTAMP)"
_NEAR = f"s.ts > $1::TIMESTAMP AND s.ts < $2::TIMESTAMP + INTERVAL {LONGEST_INTERVAL_S} SECOND"
_IN_RUN = f"{_NEAR} AND {reaches_into(_BOUNDS_US[1])}"
_WAITS = f"""
WITH hosts AS (
  SELECT node_id, ts,
         coalesce(net_rx_mb_s, 0) + coalesce(net_tx_mb_s, 0)
           + coalesce(ib_rx_mb_s, 0) + coalesce(ib_tx_mb_s, 0) >= {NETWORK_FROM_MB_S} AS sends,
         cpu_iowait_pct >= {BLOCKED_PCT} AS on_disks,
         cpu_busiest_pct >= {CORE_PCT} AS on_core
  FROM host_samples s
  WHERE {_NEAR}
), s AS (
  SELECT s.ts, {inside_us(*_BOUNDS_US)} / 1000 AS ms,
         -- Nodes sample at the same times, give or take some milliseconds.
         to_milliseconds(s.interval_ms / 2) AS near,
         s.{IDLE} AS idle,
         s.util_pct >= {SPINS_PCT} AND s.power_w < {SPINS_BELOW_POWER} * g.power_limit_w AS spins,
         coalesce(h.sends, false) AS sends, coalesce(h.on_disks, false) AS on_disks,
         coalesce(h.on_core, false) AS on_core
  FROM gpu_samples s
  JOIN gpus g USING (gpu_id)
  LEFT JOIN hosts h ON h.node_id = g.node_id AND h.ts = s.ts
  WHERE {_IN_RUN} AND s.util_pct IS NOT NULL AND s.interval_ms > 0 AND s.gpu_id IN ({{gpus}})
), caused AS (
  SELECT ms,
         CASE WHEN (idle OR spins) AND sends THEN '{NETWORK}'
              WHEN NOT idle THEN NULL
              WHEN on_disks THEN '{DISKS}'
              WHEN on_core THEN '{CPU}'
              WHEN bool_or(NOT idle) OVER (ORDER BY ts RANGE BETWEEN near PRECEDING AND near FOLLOWING)
                THEN '{SLOWEST}'
              ELSE '{UNEXPLAINED}' END AS cause
  FROM s
)
SELECT cause, sum(ms) / sum(sum(ms)) OVER () FROM caused GROUP BY cause
"""  # noqa: S608 (own names and numbers)
_GROWN_MS = "coalesce(h.growth_ms, s.interval_ms)"
_GROWN_S = f"{inside_us(*_BOUNDS_US, _GROWN_MS)} / 1e6"
_FRAMES = f"""
WITH h AS ({
    growth(
        "ts > $1::TIMESTAMP - INTERVAL 1 MINUTE "
        f"AND ts < $2::TIMESTAMP + INTERVAL {LONGEST_INTERVAL_S} SECOND"
    )
})
"""
# A rate of a GPU that didn't answer for a while is of all the time since its sample before: the growth of all
# frames in between, of which lost ones have none.
_GPU_GROWN_MS = "coalesce(s.growth_ms, s.interval_ms)"
_NVLINK = f"""{_FRAMES}, f AS (
  SELECT node_id, ts, sum(growth_ms) OVER (PARTITION BY node_id ORDER BY ts) AS until_ms FROM h
), s AS (
  SELECT s.ts, s.interval_ms, s.nvlink_rx_mb_s,
         f.until_ms - lag(f.until_ms, 1, 0) OVER (PARTITION BY gpu_id ORDER BY s.ts) AS growth_ms
  FROM gpu_samples s
  JOIN gpus g USING (gpu_id)
  LEFT JOIN f ON f.node_id = g.node_id AND f.ts = s.ts
  WHERE s.ts > $1::TIMESTAMP - INTERVAL 1 MINUTE
    AND s.ts < $2::TIMESTAMP + INTERVAL {LONGEST_INTERVAL_S} SECOND AND s.gpu_id IN ({{gpus}})
)
SELECT sum(s.nvlink_rx_mb_s * {inside_us(*_BOUNDS_US, _GPU_GROWN_MS)} / 1e6)
FROM s
WHERE s.ts > $1::TIMESTAMP AND {reaches_into(_BOUNDS_US[1], _GPU_GROWN_MS)}
"""  # noqa: S608 (own names)
_NETWORK = f"""{_FRAMES}
SELECT sum((coalesce(s.net_rx_mb_s, 0) + coalesce(s.ib_rx_mb_s, 0)) * {_GROWN_S})
FROM host_samples s
JOIN h USING (node_id, ts)
WHERE {_NEAR} AND {reaches_into(_BOUNDS_US[1], _GROWN_MS)}
  AND (s.net_rx_mb_s IS NOT NULL OR s.ib_rx_mb_s IS NOT NULL)
  AND s.node_id IN (SELECT node_id FROM gpus WHERE gpu_id IN ({{gpus}}))
"""  # noqa: S608 (own names)
_WITH_PROCESSES = """
SELECT DISTINCT n.node, g.gpu_index
FROM process_samples p JOIN gpus g USING (gpu_id) JOIN nodes n USING (node_id)
WHERE p.ts > $1::TIMESTAMP AND p.ts <= $2::TIMESTAMP AND n.recording_id = $3
"""
_IDS = f"""
SELECT node, gpu_index, gpu_id FROM gpus JOIN nodes USING (node_id)
WHERE recording_id = ? AND {MINE}
"""  # noqa: S608 (own names)


def measure(source: QuerySource, outcomes: Sequence[RunOutcome]) -> list[MeasuredRun]:
    """Return the runs with the figures of their sessions. Raises StoreError."""
    periods = {one.session_id: one for one in load_sessions(source)}
    return [
        MeasuredRun(one, _figures(source, periods[one.session_id], one))
        if one.session_id in periods
        else MeasuredRun(one)
        for one in outcomes
    ]


def _figures(source: QuerySource, period: Period, outcome: RunOutcome) -> RunFigures | None:
    """Return the figures of a run; None if none of its GPUs was sampled."""
    summary = summarize(source, period)
    span = str(period.started_at), str(period.until)
    running = source.query(_WITH_PROCESSES, *span, period.recording_id).rows()
    # A run may use a part of a node's GPUs: those with processes come first, then the most utilised.
    sampled = sorted(
        (one for one in summary.gpus if one.samples),
        key=lambda one: (
            (one.node, one.gpu_index) not in running,
            -(one.util_mean_pct or 0.0),
            one.gpu_index or 0,
        ),
    )
    each = outcome.run.placement.gpus_per_node
    gpus = [gpu for node in outcome.nodes for gpu in [one for one in sampled if one.node == node][:each]]
    if not gpus:
        return None
    wanted = {(one.node, one.gpu_index) for one in gpus}
    rows = source.query(_IDS, period.recording_id).rows()
    listed = ", ".join(str(gpu_id) for node, index, gpu_id in rows if (node, index) in wanted)
    causes = dict(source.query(_WAITS.format(gpus=listed), *span).rows())
    ((nvlink,),) = source.query(_NVLINK.format(gpus=listed), *span).rows()
    ((network,),) = source.query(_NETWORK.format(gpus=listed), *span).rows()
    energies = [one.energy_j for one in gpus if one.energy_j is not None]
    means = [one.util_mean_pct for one in gpus if one.util_mean_pct is not None]
    return RunFigures(
        gpus=len(gpus),
        energy_j=sum(energies) if energies else None,
        util_mean_pct=sum(means) / len(means) if means else None,
        balance=balance(gpus),
        nvlink_mb=nvlink,
        network_mb=network,
        waits={cause: causes.get(cause, 0.0) for cause in CAUSES} if causes else {},
    )
