"""Where a recording goes when the user names no file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path


def default_paths(folder: Path, now: datetime, job_id: str | None = None) -> Iterator[Path]:
    """Files in ``folder`` named after the Slurm job, else after the local time ``now`` to the minute.

    An existing file of that name gets one more recording, so nothing is overwritten; the numbered names
    after the first are for as long as another program records into that.
    """
    name = f"gswarm-job{job_id}" if job_id else f"gswarm-{now:%Y%m%d-%H%M}"
    yield folder / f"{name}.duckdb"
    for number in itertools.count(2):
        yield folder / f"{name}-{number}.duckdb"
