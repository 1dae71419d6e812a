"""SQL for the earliest events of a period."""


def first_events(columns: str, condition: str, most: int) -> str:
    """Return a query for the ``most`` earliest events in order; its parameters are recording, start and end.

    ``columns`` and ``condition`` refer to the event e, its node n and its GPU g. The events are found by
    their times first: sorting millions with their messages would take gigabytes. Events of one time stay in
    the order of the file.
    """
    period = "recording_id = $1 AND ts >= $2::TIMESTAMP AND ts < $3::TIMESTAMP"
    numbered = "SELECT *, row_number() OVER () AS place FROM events"
    until_last = f"({numbered} WHERE {period} AND ts <= (FROM last))"
    joined = f"e LEFT JOIN nodes n USING (node_id) LEFT JOIN gpus g USING (gpu_id) WHERE {condition}"
    return f"""
WITH last AS (
  SELECT max(ts) FROM (SELECT e.ts FROM (FROM events WHERE {period}) {joined} ORDER BY e.ts LIMIT {most})
), chosen AS (
  SELECT e.place FROM {until_last} {joined} ORDER BY e.ts, e.place LIMIT {most}
)
SELECT e.ts, {columns} FROM {until_last} {joined} AND e.place IN (FROM chosen)
ORDER BY e.ts, e.place
"""  # noqa: S608 (own names and numbers)
