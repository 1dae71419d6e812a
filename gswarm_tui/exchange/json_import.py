"""Import of a JSON file that gswarm-profiler wrote, as a recording with one session.

The program (``collect_gpu_metrics`` and ``collect_and_store_frame`` of 0.4) writes shares from 0 to 1 and
PCIe in KiB/s, with bytes that the GPU sent in ``dram_bandwidth_rx`` and those that it received in
``dram_bandwidth_tx``. Its ``gpu_bandwidth`` is the capacity of NVLink, which is no sample. ``gpu_memory`` is
a share, so it needs the memory of the GPUs, which the file doesn't contain.

A frame becomes a sample of each of its GPUs, and a host sample without values of each of their nodes.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gswarm_tui.common.errors import quote
from gswarm_tui.exchange.json_export import MADE_BY
from gswarm_tui.exchange.json_stream import JsonStream, MalformedError
from gswarm_tui.exchange.time_windows import utc_micros
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.sql import schema
from gswarm_tui.store.transfer.importing import Importing, mark

INTERVAL_MS = 1000
"""gswarm-profiler records a frame a second, and doesn't store the time between two frames."""
ROWS_AT_ONCE = 50_000
FIRST_YEAR, LAST_YEAR = 1971, 2500

Values = npt.NDArray[np.float64]

_SHARE, _KIB_S = (100.0, 100.0), (1024e-6, 1e8)
"""Factor of a unit to the column's (%, MB/s), and the column's largest value."""
_FIELDS = {
    "util_pct": ("gpu_util", *_SHARE),
    "mem_used_mib": ("gpu_memory", *_SHARE),
    "pcie_rx_mb_s": ("dram_bandwidth_tx", *_KIB_S),
    "pcie_tx_mb_s": ("dram_bandwidth_rx", *_KIB_S),
}
"""Field of a frame for each column of samples."""
_LONGEST_TEXT = 1000
_GPU_ID = re.compile(r"(.+):(\d{1,4}):(.*)", re.DOTALL)


class WrongValueError(ValueError):
    """Raised for an invalid value; the message gives the reason."""


@dataclass(frozen=True)
class ImportCounts:
    """Numbers of imported samples and GPUs; ``notice`` reports values that weren't imported."""

    samples: int
    gpus: int
    notice: str


@dataclass
class _Rows:
    """Rows to be added to a table, as pieces of columns."""

    table: schema.TableSchema
    pieces: dict[str, list[Any]] = field(default_factory=dict)
    count: int = 0

    def add(self, count: int, **columns: Any) -> None:
        """Add rows; each column is an array, or one value for all rows. Every call needs the same columns."""
        self.count += count
        for name, values in columns.items():
            self.pieces.setdefault(name, []).append(np.broadcast_to(values, count))

    def flush(self, target: Importing) -> None:
        """Add the rows to the file. Raises StoreError."""
        if self.count:
            target.add(self.table, {name: np.concatenate(pieces) for name, pieces in self.pieces.items()})
        self.pieces, self.count = {}, 0


class JsonImport:
    """Importer of one JSON file into a recording file."""

    def __init__(self, target: Importing, path: Path, total_mib: int | None = None) -> None:
        """``total_mib`` is the memory of each GPU, which the file doesn't contain."""
        self._target = target
        self._path = path
        self._total_mib = total_mib
        self._first_node, self._first_gpu = target.next_free("node_id"), target.next_free("gpu_id")
        self._name = path.stem
        self._nodes: dict[str, int] = {}
        self._gpus: dict[str, dict[str, Any]] = {}
        self._gpu_rows, self._host_rows = _Rows(schema.GPU_SAMPLES), _Rows(schema.HOST_SAMPLES)
        self._frames = self._samples = 0
        self._began_us, self._ended_us = 0, 0
        self._lacks_size = False

    def read(self, report: Callable[[float], None]) -> ImportCounts:
        """Import the whole file; calls ``report`` with the share done. Raises StoreError."""
        size = max(1, self._path.stat().st_size)
        where = ""
        try:
            with self._path.open("rb") as raw:
                for name, value in JsonStream(raw).members("frames"):
                    if name == "frames":
                        self._frames += 1
                        where = f", frame {self._frames}"
                        self._frame(value)
                    elif name == "made_by" and str(value).startswith(MADE_BY):
                        raise WrongValueError(
                            "JSON exports of gswarm-tui can't be imported; export Parquet instead"
                        )
                    elif name == "session_name":
                        self._name = _text(value)
                    where = ""
                    report(min(1.0, raw.tell() / size))
                self._finish()
        except (WrongValueError, MalformedError) as error:
            raise StoreError(f"{self._path}{where}: {error}") from error
        except OSError as error:
            raise StoreError(f"{self._path} can't be read: {error.strerror}") from error
        notice = (
            "gpu_memory was skipped: it is a share, and the file doesn't contain the GPUs' memory size; "
            "set it with --gpu-memory-mib."
        )
        return ImportCounts(self._samples, len(self._gpus), notice if self._lacks_size else "")

    def _frame(self, frame: Any) -> None:
        if not isinstance(frame, dict):
            raise WrongValueError("a frame should be an object")
        names = frame.get("gpu_id")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise WrongValueError("gpu_id should be an array of strings")
        if len(set(names)) != len(names):
            raise WrongValueError("gpu_id lists a GPU twice")
        us = _moment(frame.get("time"))
        self._began_us, self._ended_us = min(us, self._began_us or us), max(us, self._ended_us)
        columns = {name: _column(frame, *field) for name, field in _FIELDS.items()}
        measured = ~np.isnan(list(columns.values())).all(axis=0)
        gpus = [self._gpu(name) for name in names]
        totals = np.array([gpu["memory_total_mib"] for gpu in gpus], np.float64)
        self._lacks_size |= bool((np.isnan(totals) & ~np.isnan(columns["mem_used_mib"])).any())
        columns["mem_used_mib"] = np.round(columns["mem_used_mib"] / 100 * totals)
        columns["util_pct"] = np.round(columns["util_pct"])
        gpu_ids = np.array([gpu["gpu_id"] for gpu in gpus], np.int64)[measured]
        nodes, node_at = np.unique(
            np.array([gpu["node_id"] for gpu in gpus], np.int64)[measured], return_index=True
        )
        intervals = np.full(gpu_ids.size, INTERVAL_MS if self._frames > 1 else math.nan)
        self._samples += gpu_ids.size
        self._gpu_rows.add(
            gpu_ids.size,
            ts=np.int64(us),
            gpu_id=gpu_ids,
            interval_ms=intervals,
            **{name: values[measured] for name, values in columns.items()},
        )
        self._host_rows.add(nodes.size, ts=np.int64(us), node_id=nodes, interval_ms=intervals[node_at])
        if self._gpu_rows.count >= ROWS_AT_ONCE:
            self._flush()

    def _gpu(self, name: str) -> dict[str, Any]:
        """Return a GPU's row, made at its first appearance with that of its node."""
        if name not in self._gpus:
            if (parts := _GPU_ID.fullmatch(name)) is None:
                raise WrongValueError(f"{quote(name)} isn't hostname:index:name")
            number = self._first_node + len(self._nodes)
            self._gpus[name] = {
                "gpu_id": self._first_gpu + len(self._gpus),
                "node_id": self._nodes.setdefault(_text(parts[1]), number),
                "gpu_index": int(parts[2]),
                "name": _text(parts[3]),
                "memory_total_mib": self._total_mib,
            }
        return self._gpus[name]

    def _flush(self) -> None:
        self._gpu_rows.flush(self._target)
        self._host_rows.flush(self._target)

    def _finish(self) -> None:
        if not self._samples:
            raise WrongValueError("no frame has values of GPUs: this isn't a file of gswarm-profiler")
        self._flush()
        times = {"started_at": self._began_us, "ended_at": self._ended_us + INTERVAL_MS * 1000}
        with self._path.open("rb") as file:
            digest = f"json-{hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"
        recording_id = self._target.next_free("recording_id")
        self._add(
            schema.RECORDINGS,
            recording_id=recording_id,
            interval_ms=INTERVAL_MS,
            schema_version=schema.SCHEMA_VERSION,
            options=mark(self._path.name, digest),
            command="gswarm-profiler",
            **times,
        )
        for name, node_id in self._nodes.items():
            self._add(schema.NODES, recording_id=recording_id, node_id=node_id, node=name, hostname=name)
        for gpu in self._gpus.values():
            self._add(schema.GPUS, **gpu)
        self._add(
            schema.SESSIONS,
            session_id=self._target.next_free("session_id"),
            recording_id=recording_id,
            name=_text(self._name),
            status="stopped",
            **times,
        )
        self._target.refuse_repeated(self._path)

    def _add(self, table: schema.TableSchema, **row: Any) -> None:
        self._target.add(table, {name: [value] for name, value in row.items()})


def _column(frame: dict[str, Any], name: str, factor: float, most: float) -> Values:
    """Return a field's values × ``factor``, NaN where unmeasured. Raises WrongValueError."""
    count = len(frame["gpu_id"])
    values = frame.get(name)
    if values is None:
        return np.full(count, np.nan)
    wrong = WrongValueError(f"{name} should be an array with a number for each gpu_id")
    if not isinstance(values, list) or len(values) != count:
        raise wrong
    try:
        found = np.array([math.nan if value in (None, "", "N/A") else float(value) for value in values])
    except (TypeError, ValueError, OverflowError):
        raise wrong from None
    found *= factor
    if outside := found[(found < 0) | (found > most)].tolist():
        hint = "; gswarm-profiler writes shares from 0 to 1" if factor == 100 else ""
        raise WrongValueError(f"{name}: {outside[0] / factor:g} is out of range{hint}")
    return found


def _moment(text: Any) -> int:
    """Parse an ISO 8601 time into Unix microseconds; without a zone it is local, as the program writes it.

    Raises WrongValueError.
    """
    try:
        at = datetime.fromisoformat(str(text)[:60]).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise WrongValueError(f"{quote(str(text)[:60])} isn't a time such as 2026-01-31T12:00:00") from None
    if not FIRST_YEAR <= at.year < LAST_YEAR:
        raise WrongValueError(f"{quote(str(text))} is out of range")
    return utc_micros(at)


def _text(value: Any) -> str:
    """Return a text with spaces for its unprintable characters. Raises WrongValueError."""
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise WrongValueError(f"a name should be a string of at most {_LONGEST_TEXT} characters")
    return "".join(sign if sign.isprintable() else " " for sign in value)
