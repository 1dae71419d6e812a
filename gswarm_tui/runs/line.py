"""One line for each recording: all that lists, filters and comparisons with former runs need of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from gswarm_agent.frame import gpu_label
from gswarm_tui.fleet.plain_values import typed

VERSION = 3
"""Version of a line in the catalogue; lines of other versions are skipped."""
FINISHED, RUNNING, NO_END = "finished", "running", "no end"
MOST_FINDINGS = 50
_YEAR_9999 = 253_370_764_800
"""Unix seconds; later times have no date."""
RUN_PREFIX = "run="
"""A dataset has a folder for each run; the one in its table ``recordings`` stands for the run."""


@dataclass(frozen=True)
class RunFinding:
    """A finding of a run; ``node`` is empty if it names none, ``uuid`` if it names no known GPU."""

    kind: str
    severity: str
    node: str
    gpu_index: int | None
    uuid: str
    gpu_hours: float

    @property
    def subject(self) -> str:
        """Whom it names, as in "gpu04:5"; empty if it names no node."""
        return self.node if self.gpu_index is None else f"{self.node}:{gpu_label(self.gpu_index)}"


@dataclass(frozen=True)
class RunLine:
    """A recording as one row of a list of many; times are Unix seconds, None is unmeasured.

    ``path`` is its file, or its folder ``recordings/run=…`` in a dataset; ``size`` and ``mtime_ns`` are those
    of the file and its log as they were read. ``run`` is the name that exports give it, so the same recording
    in two files has it twice. ``name`` is the session that makes up most of it, else its job's, else the
    file's; ``name_s`` are the seconds of that session, else of the run. ``findings`` has the most important
    first, ``marks`` the final values of marks, ``software`` the frameworks and NCCL of its processes.
    ``sm_clock_mhz`` is the mean of busy samples, which ``thinned`` runs no longer have. ``step_s`` is the
    median step that its ranks reported.
    """

    path: str
    size: int
    mtime_ns: int
    recording_id: int
    run: str
    name: str
    name_s: float
    sessions: tuple[str, ...]
    user: str
    host: str
    cluster: str
    job: str
    command: str
    nodes: tuple[str, ...]
    gpus: int
    gpu_models: tuple[str, ...]
    started_at: float
    ended_at: float | None
    seconds: float
    state: str
    energy_j: float | None
    util_mean_pct: float | None
    coverage: float | None
    findings: tuple[RunFinding, ...]
    marks: Mapping[str, float]
    driver: str
    software: tuple[str, ...]
    sm_clock_mhz: float | None
    iowait_pct: float | None
    disk_read_mb_s: float | None
    step_s: float | None
    thinned: bool = False

    @property
    def simulated(self) -> bool:
        """Whether any of its GPUs is simulated, as the names of these say."""
        return any("(simulated)" in model for model in self.gpu_models)

    def to_json(self) -> str:
        """Return the line as a JSON object with its version."""
        return json.dumps({"version": VERSION, **asdict(self)})

    @classmethod
    def from_json(cls, text: str | bytes) -> RunLine:
        """Return the line of a JSON object. Raises ValueError, TypeError, KeyError for another text."""
        plain = json.loads(text)
        if not isinstance(plain, dict) or plain.get("version") != VERSION:
            raise ValueError("it has another version")
        for name in ("sessions", "nodes", "gpu_models", "software"):
            plain[name] = tuple(_all_of(plain[name], str))
        plain["findings"] = tuple(
            typed(RunFinding, *(one[each.name] for each in fields(RunFinding)))
            for one in _all_of(plain["findings"], dict)
        )
        line = typed(cls, *(plain[each.name] for each in fields(cls)))
        _all_of(list(line.marks.values()), int, float)
        if not all(0 <= at < _YEAR_9999 for at in (line.started_at, line.ended_at or 0, line.seconds)):
            raise ValueError("it has impossible times")
        return line


def _all_of(values: Any, *parts: type) -> list[Any]:
    """Return a list whose parts have one of the types. Raises TypeError."""
    if not isinstance(values, list) or not all(isinstance(one, parts) for one in values):
        raise TypeError("it has another type")
    return values


def size_and_time(path: Path) -> tuple[int, int]:
    """Return the bytes of a recording and when it was last written [ns]. Raises OSError if it is gone."""
    if path.name.startswith(RUN_PREFIX):
        # Walking through all files of a run takes long, so a list compares only the time of this one.
        return 0, (path / "part-0.parquet").stat().st_mtime_ns
    found = path.stat()
    try:
        log = path.with_name(path.name + ".wal").stat()
    except FileNotFoundError:
        return found.st_size, found.st_mtime_ns
    return found.st_size + log.st_size, max(found.st_mtime_ns, log.st_mtime_ns)
