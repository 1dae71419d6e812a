"""SQL for the earliest events of a period."""


def first_events(columns: str, condition: str, most: int) -> str:
    """Return a query for the ``most`` earliest events in order; its parameters are recording, start and end.

    ``columns`` and ``condition`` refer to the event e, its node n and its GPU g. The time of the last one is
    found first: sorting millions of events with their messages would take gigabytes.
    """
    chosen = f"""
FROM events e LEFT JOIN nodes n USING (node_id) LEFT JOIN gpus g USING (gpu_id)
WHERE e.recording_id = $1 AND e.ts >= $2::TIMESTAMP AND e.ts < $3::TIMESTAMP AND {condition}"""
    return f"""
WITH latest AS (SELECT max(ts) FROM (SELECT e.ts {chosen} ORDER BY e.ts LIMIT {most}))
FROM (
  (SELECT e.ts, {columns} {chosen} AND e.ts < (FROM latest))
  UNION ALL
  (SELECT e.ts, {columns} {chosen} AND e.ts = (FROM latest) LIMIT {most})
)
ORDER BY ts LIMIT {most}
"""  # noqa: S608 (own names and numbers)
