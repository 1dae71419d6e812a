"""Writing a profile into a recording file that no recorder has open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gswarm_tui.store.querying.opening import remove_with_logs
from gswarm_tui.store.recording.database import Database
from gswarm_tui.store.recording.profiles import ProfileFacts, StoredProfile


@contextmanager
def writing_profile(path: Path, facts: ProfileFacts) -> Iterator[StoredProfile]:
    """Write a profile; if that fails, remove its rows, and a file that was made for it. Raises StoreError."""
    database = Database(path)
    new, done, stored = database.next_free("recording_id", "recordings") == 1, False, None
    try:
        stored = database.profile(facts)
        yield stored
        database.describe()
        database.checkpoint()
        done = True
    finally:
        if stored is not None and not done and not new:
            stored.abandon()
        database.close()
        if new and not done:
            remove_with_logs(path)
