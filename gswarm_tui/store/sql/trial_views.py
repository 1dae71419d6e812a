"""Views of trials, which are events with JSON objects as their details."""

from __future__ import annotations

from gswarm_tui.fleet.trial_kinds import TRIAL_PLANNED, TRIAL_RUN
from gswarm_tui.store.sql.view_columns import View, columns

TRIALS = f"""
SELECT ts, plan ->> 'trial_id' AS trial, message AS command, plan, recording_id
FROM (SELECT *, TRY_CAST(CASE WHEN kind = '{TRIAL_PLANNED}' THEN detail END AS JSON) AS plan FROM events
      WHERE kind = '{TRIAL_PLANNED}')
WHERE plan ->> 'trial_id' IS NOT NULL
ORDER BY 1
"""  # noqa: S608 (own names)
# A session's number changes when a recording is imported, its start doesn't.
TRIAL_RUNS = f"""
SELECT r.started_at AS ts, r.trial, r.run, r.nodes, r.gpus_per_node, r.placement, r."repeat", r.warm_up,
       r.status, r.wall_s, r.throughput, r.exit_status, r.reason, r.node_list, r.job,
       s.session_id, r.recording_id
FROM (
  SELECT make_timestamp(
           CAST(1e6 * greatest(0, least(1e11, TRY_CAST(d ->> 'started_at' AS DOUBLE))) AS BIGINT)
         ) AS started_at,
         d ->> 'trial_id' AS trial, TRY_CAST(d ->> 'run' AS INTEGER) AS run,
         TRY_CAST(d ->> 'nodes' AS INTEGER) AS nodes,
         TRY_CAST(d ->> 'gpus_per_node' AS INTEGER) AS gpus_per_node, d ->> 'placement' AS placement,
         TRY_CAST(d ->> 'repeat' AS INTEGER) AS "repeat", TRY_CAST(d ->> 'warm_up' AS BOOLEAN) AS warm_up,
         d ->> 'status' AS status, TRY_CAST(d ->> 'wall_s' AS DOUBLE) AS wall_s,
         TRY_CAST(d ->> 'throughput' AS DOUBLE) AS throughput,
         TRY_CAST(d ->> 'exit_status' AS INTEGER) AS exit_status, d ->> 'reason' AS reason,
         d ->> 'node_list' AS node_list, d ->> 'job' AS job, recording_id
  FROM (SELECT *, TRY_CAST(CASE WHEN kind = '{TRIAL_RUN}' THEN detail END AS JSON) AS d FROM events
        WHERE kind = '{TRIAL_RUN}')
  WHERE d ->> 'trial_id' IS NOT NULL
) r
LEFT JOIN sessions s ON s.recording_id = r.recording_id
  AND abs(epoch_us(s.started_at) - epoch_us(r.started_at)) < 1000
ORDER BY 1
"""  # noqa: S608 (own names)

# fmt: off
VIEWS = {
    "trials": View("Each trial: its command, and its plan as a JSON object", TRIALS,
        columns("ts trial command plan recording_id")),
    "trial_runs": View("Each run of a trial that ended, with its session; only those with status ok are "
        "compared", TRIAL_RUNS,
        columns("ts trial run nodes gpus_per_node placement repeat warm_up status wall_s throughput "
            "exit_status reason node_list job session_id recording_id")),
}
# fmt: on
