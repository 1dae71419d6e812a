"""gswarm-tui: monitor and profile multi-node GPU jobs from the terminal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gswarm_agent import __version__

if TYPE_CHECKING:
    from gswarm_tui.store.querying.results import QuerySource

__all__ = ["__version__", "open"]


def open(path: str | os.PathLike[str]) -> QuerySource:  # noqa: A001 - read as gswarm_tui.open
    """Open a recording for queries from Python, also while it is written: ``open(path).query(sql).dicts()``.

    Queries can't change it. Call ``close`` afterwards. Raises UserError, StoreError.
    """
    from gswarm_tui.commands.recording_choice import open_source

    return open_source(Path(path), os.environ, for_people=True)
