"""SQL for the name of a run: the same in its recording, its exports and their imports, sorted by time."""

RUN = """coalesce(
  TRY_CAST(options AS JSON) ->> 'imported_run',
  strftime(started_at, '%Y%m%d-%H%M%S-')
    || left(sha256(coalesce(nullif(uid, ''), concat_ws(' ', host, recording_id))), 8)
)"""
"""SQL over ``recordings``. It has a hash of the identifier that agents know, not the identifier itself."""
