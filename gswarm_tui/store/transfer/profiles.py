"""Writing a profile into a recording file that no recorder has open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gswarm_tui.store.recording.profiles import ProfileFacts, StoredProfile
from gswarm_tui.store.transfer.importing import importing


@contextmanager
def writing_profile(path: Path, facts: ProfileFacts) -> Iterator[StoredProfile]:
    """Write a profile in one transaction, which is committed at the end. Raises StoreError."""
    with importing(path) as target:
        yield StoredProfile(target.connection, path, facts)
