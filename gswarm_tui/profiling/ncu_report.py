"""The raw page of a report of Nsight Compute: each metric of each kernel, as ncu prints it."""

from __future__ import annotations

import csv
import hashlib
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from gswarm_tui.profiling.report_text import clean_text
from gswarm_tui.profiling.tools import explain_failure, find_tool, run_tool, tool_version
from gswarm_tui.store.recording.profiles import UNKNOWN, ProfileFacts, RowTarget
from gswarm_tui.store.sql.schema import PROFILE_METRIC_VALUES

_DESCRIPTION = frozenset(
    {
        *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream"),
        *("Block Size", "Grid Size", "Device", "CC"),
    }
)
"""Columns of the page that aren't metrics. Names of processes may be paths and aren't imported."""
_NUMBER = re.compile(r"-?(\d+|\d{1,3}(,\d{3})+)(\.\d+)?([eE][+-]?\d+)?")
_LARGEST = 1e15
_SECOND_NS = 10**9
_HERE = "127.0.0.1"
"""Host that ncu names if it ran on the kernels' own node, whatever that is called."""
_LONGEST_FIELD = 2**24
"""Names of kernels with all template arguments can be longer than csv's limit of 128 KiB."""


@dataclass(frozen=True)
class _Kernel:
    launch: int
    name: str
    host: str
    at_ns: int | None
    values: tuple[str, ...]


class NcuReport:
    """A report of Nsight Compute, read by the user's ncu; ``notice`` is what its user should know."""

    def __init__(self, path: Path, environ: Mapping[str, str]) -> None:
        """Read the report. Raises ReportError."""
        ncu = find_tool("ncu", path, environ, "")
        done = run_tool([ncu, "--import", str(path.absolute()), "--csv", "--page", "raw"], environ)
        self._metrics: Sequence[str] = ()
        self._units: Sequence[str] = ()
        self._kernels = list(self._read(done))
        if done.returncode != 0 or not self._kernels:
            raise explain_failure(path, ncu, done.stdout[-2000:] + done.stderr, environ)
        self._path = path
        self._version = tool_version(ncu, environ)
        self.notice = ""

    def _read(self, done: subprocess.CompletedProcess[str]) -> Iterator[_Kernel]:
        csv.field_size_limit(_LONGEST_FIELD)
        rows = csv.reader(line for line in done.stdout.splitlines() if line.startswith('"'))
        names = next(rows, [])
        units = next(rows, [])
        if "Kernel Name" not in names or len(units) != len(names):
            return
        metrics = [at for at, name in enumerate(names) if name not in _DESCRIPTION]
        self._metrics = [clean_text(names[at]) for at in metrics]
        self._units = [clean_text(units[at]) for at in metrics]
        for launch, row in enumerate(rows):
            if len(row) == len(names):
                known = dict(zip(names, row, strict=True))
                yield _Kernel(
                    launch,
                    clean_text(known["Kernel Name"]),
                    clean_text(known.get("Host Name", "")),
                    _time_ns(known.get("Kernel Time", "")),
                    tuple(row[at] for at in metrics),
                )

    def facts(self, file: str) -> ProfileFacts:
        """Return the report's description; it starts with its first kernel.

        Newer versions of ncu print no time of a kernel: the profile ends at the report's last change.
        """
        times = [kernel.at_ns for kernel in self._kernels if kernel.at_ns is not None]
        if not times:
            changed_ns = self._path.stat().st_mtime_ns
            times = [changed_ns - _SECOND_NS]
            changed = datetime.fromtimestamp(changed_ns // _SECOND_NS, UTC)
            self.notice = (
                f"ncu {self._version} prints no times of kernels, so the profile has the time of the "
                f"report's last change, {changed:%Y-%m-%d %H:%M:%S} UTC."
            )
        return ProfileFacts(
            file=file,
            tool="ncu",
            tool_version=self._version,
            digest=hashlib.sha256(self._path.read_bytes()).hexdigest(),
            node=UNKNOWN if self._kernels[0].host in ("", _HERE) else self._kernels[0].host,
            rank=None,
            zero_ns=min(times),
            started_ns=min(times),
            ended_ns=max(times) + _SECOND_NS,
        )

    def write(self, target: RowTarget) -> int:
        """Write each metric of each kernel and return their number. Raises StoreError."""
        names = sorted({kernel.name for kernel in self._kernels})
        ids = dict(zip(names, target.name_ids(names), strict=True))
        for kernel in self._kernels:
            numbers = [_number(value) for value in kernel.values]
            texts = [
                None if number is not None else clean_text(value) or None
                for value, number in zip(kernel.values, numbers, strict=True)
            ]
            size = len(numbers)
            target.add(
                PROFILE_METRIC_VALUES,
                {
                    "launch": np.full(size, kernel.launch),
                    "name_id": np.full(size, ids[kernel.name]),
                    "metric": np.array(self._metrics, dtype=object),
                    "unit": np.array([unit or None for unit in self._units], dtype=object),
                    "number": np.array([np.nan if one is None else one for one in numbers], dtype=np.float64),
                    "text": np.array(texts, dtype=object),
                },
            )
        return len(self._kernels) * len(self._metrics)


def _number(text: str) -> float | None:
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text.replace(",", ""))
    return number if abs(number) <= _LARGEST else None


def _time_ns(text: str) -> int | None:
    """Return a kernel's time, which ncu prints in UTC and whole seconds."""
    try:
        at = datetime.strptime(text, "%Y-%b-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    return round(at.timestamp()) * _SECOND_NS
