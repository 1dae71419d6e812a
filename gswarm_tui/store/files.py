"""Where a recording goes when the user names no file."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path


def default_path(folder: Path, now: datetime, job_id: str | None = None) -> Path:
    """A file in ``folder`` named after the Slurm job, else after the local time ``now`` to the minute.

    An existing file of that name gets one more recording, so nothing is overwritten.
    """
    name = f"job{job_id}" if job_id else f"{now:%Y%m%d-%H%M}"
    return folder / f"gswarm-{name}.duckdb"
