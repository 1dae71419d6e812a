"""Import of a JSON file, from gswarm-profiler or our JSON export, as a recording with one session.

A frame becomes a sample of each of its GPUs, and a host sample without values of each of their nodes.
``gpu_memory`` is a share, so it needs the memory of the GPUs, which exports contain and files of
gswarm-profiler don't.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gswarm_agent.frame import INFO
from gswarm_tui.common.errors import quote
from gswarm_tui.exchange.gswarm_profiler_values import (
    Units,
    Values,
    WrongValueError,
    moment,
    read_frame,
)
from gswarm_tui.exchange.json_export import MADE_BY
from gswarm_tui.exchange.json_profiles import ProfilesImport
from gswarm_tui.exchange.json_stream import JsonStream, MalformedError
from gswarm_tui.fleet.events import INTERVAL_CHANGED, new_interval_ms
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.sql.schema import (
    EVENTS,
    GPU_SAMPLES,
    GPUS,
    HOST_SAMPLES,
    NODES,
    RECORDINGS,
    SCHEMA_VERSION,
    SESSIONS,
    TableSchema,
)
from gswarm_tui.store.transfer.importing import Importing, mark

USUAL_INTERVAL_MS = 1000
"""Default interval: gswarm-profiler always records a frame a second."""

ROWS_AT_ONCE = 50_000

LINES_SUFFIX = ".jsonl"
"""JSON Lines: the frames that gswarm-profiler keeps of a session that it didn't finish."""

Places = npt.NDArray[np.int64]

_LONGEST_TEXT = 1000
_GPU_ID = re.compile(r"(.+):(\d{1,4}):(.*)", re.DOTALL)
_SKIPPED = ("request_time_info", "summary_by_client")
_MEMBERS = frozenset({"session_name", "start_time", "end_time", "recording", "session", "devices"})
_RECORDING_TEXTS = ("host", "user_name", "slurm_job_id", "slurm_cluster", "command", "tool_version")


@dataclass(frozen=True)
class ImportCounts:
    """Numbers of imported samples and GPUs; ``notice`` reports values that weren't imported."""

    samples: int
    gpus: int
    notice: str


@dataclass(frozen=True)
class _IntervalChange:
    """A change of the sampling interval, with the event's message and detail."""

    us: int
    interval_ms: int
    message: str
    detail: str


class _LastSamples:
    """Times of the devices' latest samples, from which intervals are computed."""

    def __init__(self) -> None:
        self._last_us = np.zeros(0, np.int64)

    def intervals(self, places: Places, us: int, usual_ms: int) -> Values:
        """Return the time since each device's sample before in ms, NaN after a start or a gap.

        A time close to the usual interval becomes it: a frame has one time for all its GPUs.
        """
        if places.size and places.max() >= self._last_us.size:
            self._last_us = np.append(self._last_us, np.zeros(places.max() + 1, np.int64))
        before = self._last_us[places]
        self._last_us[places] = us
        passed = np.round((us - before) / 1000)
        passed[np.abs(passed - usual_ms) * 5 < usual_ms] = usual_ms
        passed[(before == 0) | (passed <= 0) | (passed > 3 * usual_ms)] = np.nan
        return passed


@dataclass
class _Rows:
    """Rows to be added to a table, as pieces of columns."""

    table: TableSchema
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

    def __init__(
        self, target: Importing, path: Path, units: Units = Units.AUTO, total_mib: int | None = None
    ) -> None:
        """``total_mib`` is the memory of each GPU where the file doesn't contain it."""
        self._target = target
        self._path = path
        self._units = units
        self._total_mib = total_mib
        self._first_node, self._first_gpu = target.next_free("node_id"), target.next_free("gpu_id")
        self._members: dict[str, Any] = {}
        self._nodes: dict[str, dict[str, Any]] = {}
        self._gpus: dict[str, dict[str, Any]] = {}
        self._node_of = np.zeros(0, np.int64)
        self._total_of = np.zeros(0)
        self._named: tuple[list[str], Places] = ([], np.zeros(0, np.int64))
        self._gpu_seen, self._node_seen = _LastSamples(), _LastSamples()
        self._gpu_rows, self._host_rows = _Rows(GPU_SAMPLES), _Rows(HOST_SAMPLES)
        self._first_ms = self._usual_ms = USUAL_INTERVAL_MS
        self._interval_changes: list[_IntervalChange] = []
        self._samples = 0
        self._began_us, self._ended_us = 0, 0
        self._memory_lost = False
        self._profiles: ProfilesImport | None = None
        self._skipped: list[str] = []

    def read(self, report: Callable[[float], None]) -> ImportCounts:
        """Import the whole file; calls ``report`` with the share done. Raises StoreError."""
        try:
            size = max(1, self._path.stat().st_size)
            with self._path.open("rb") as raw:
                stream = JsonStream(raw)
                try:
                    lines = self._path.suffix == LINES_SUFFIX
                    members = (("frames", frame) for frame in stream.lines())
                    for name, value in members if lines else stream.members("frames", "profiles"):
                        if name == "frames":
                            self._frame(value)
                        elif name == "profiles":
                            self._profile_rows(value)
                        else:
                            self._member(name, value)
                        report(min(1.0, raw.tell() / size))
                    self._finish()
                except (WrongValueError, MalformedError) as error:
                    raise StoreError(f"{self._path}, line {stream.line}: {error}") from error
        except OSError as error:
            raise StoreError(f"{self._path} can't be read: {error.strerror}") from error
        notices = []
        if self._memory_lost and self._total_mib is None:
            notices.append(
                "gpu_memory was skipped: it is a share, and the file doesn't contain the GPUs' memory size; "
                "set it with --gpu-memory-mib."
            )
        if self._skipped:
            notices.append(f"{' and '.join(self._skipped)} was skipped, because it has no times.")
        return ImportCounts(self._samples, len(self._gpus), " ".join(notices))

    def _member(self, name: str, value: Any) -> None:
        if name in _MEMBERS:
            self._members[name] = value
        if name in _SKIPPED and value:
            self._skipped.append(name)
        if name == "made_by" and str(value).startswith(MADE_BY + " "):
            self._units = Units.DOCUMENTED
        if name == "recording":
            interval = _whole(_object(value, name).get("interval_ms"), "interval_ms", 10**6)
            self._first_ms = self._usual_ms = interval or USUAL_INTERVAL_MS
        if name == "events":
            self._interval_changes = sorted(_interval_changes(value), key=lambda change: change.us)

    def _profile_rows(self, piece: Any) -> None:
        """Add a piece of ``profiles``, which follows the frames, whose nodes and GPUs it names."""
        if self._profiles is None:
            nodes = {name: number for number, name in enumerate(self._nodes, self._first_node)}
            gpus = {name: number for number, name in enumerate(self._gpus, self._first_gpu)}
            self._profiles = ProfilesImport(self._target, self._target.next_free("recording_id"), nodes, gpus)
        self._profiles.add(piece)

    def _frame(self, frame: Any) -> None:
        read = read_frame(frame, self._units)
        if "session_name" in frame:  # each line of frames.jsonl has it
            self._members.setdefault("session_name", frame["session_name"])
        self._began_us = min(read.us, self._began_us or read.us)
        self._ended_us = max(read.us, self._ended_us)
        for change in self._interval_changes:
            if change.us < read.us:
                self._usual_ms = change.interval_ms
        places, measured = self._places(read.gpus), read.measured
        places = places[measured]
        shares, totals = read.memory_pct[measured], self._total_of[places]
        self._memory_lost |= bool((np.isnan(totals) & ~np.isnan(shares)).any())
        self._samples += places.size
        nodes = np.unique(self._node_of[places])
        intervals = self._gpu_seen.intervals(places, read.us, self._usual_ms)
        node_intervals = self._node_seen.intervals(nodes, read.us, self._usual_ms)
        if read.interval_ms is not None:
            intervals = read.interval_ms[measured]
            of_nodes = np.full(len(self._nodes), np.nan)
            of_nodes[self._node_of[places]] = intervals
            node_intervals = of_nodes[nodes]
        self._gpu_rows.add(
            places.size,
            ts=np.int64(read.us),
            gpu_id=self._first_gpu + places,
            interval_ms=intervals,
            util_pct=np.round(read.util_pct[measured]),
            mem_used_mib=np.round(shares / 100 * totals),
            pcie_rx_mb_s=read.pcie_rx_mb_s[measured],
            pcie_tx_mb_s=read.pcie_tx_mb_s[measured],
            nvlink_rx_mb_s=read.nvlink_rx_mb_s[measured],
            nvlink_tx_mb_s=read.nvlink_tx_mb_s[measured],
        )
        self._host_rows.add(
            nodes.size,
            ts=np.int64(read.us),
            node_id=self._first_node + nodes,
            interval_ms=node_intervals,
        )
        if self._gpu_rows.count >= ROWS_AT_ONCE:
            self._flush()

    def _places(self, gpus: list[str]) -> Places:
        """Return the numbers of GPUs in order of their first appearance."""
        if gpus != self._named[0]:
            for gpu in gpus:
                if gpu not in self._gpus:
                    self._add_gpu(gpu)
            order = {gpu: place for place, gpu in enumerate(self._gpus)}
            self._named = gpus, np.array([order[gpu] for gpu in gpus], np.int64)
        return self._named[1]

    def _add_gpu(self, gpu: str) -> None:
        """Register a new GPU and its node."""
        facts = _object(_object(self._members.get("devices"), "devices").get(gpu), f"devices of {quote(gpu)}")
        parts = _GPU_ID.fullmatch(gpu)
        if parts is None and not facts:
            raise WrongValueError(f"{quote(gpu)} isn't hostname:index:name")
        host, index, name = parts.groups() if parts else (gpu, "0", "")
        node = _text(facts.get("node"), "node") or _text(host, "hostname") or "?"
        simulated = facts.get("simulated")
        if simulated is not None and not isinstance(simulated, bool):
            raise WrongValueError("simulated should be true or false")
        self._nodes.setdefault(node, {"simulated": simulated})
        total = _whole(facts.get("memory_total_mib"), "memory_total_mib", 2**31)
        total = self._total_mib if total is None else total
        place = _whole(facts.get("gpu_index"), "gpu_index", 10**4)
        number = list(self._nodes).index(node)
        self._gpus[gpu] = {
            "node_id": self._first_node + number,
            "gpu_index": int(index) if place is None else place,
            "uuid": _text(facts.get("uuid"), "uuid"),
            "name": _text(facts.get("name"), "name") or _text(name, "name"),
            "memory_total_mib": total,
        }
        self._node_of = np.append(self._node_of, number)
        self._total_of = np.append(self._total_of, np.nan if total is None else total)

    def _flush(self) -> None:
        self._gpu_rows.flush(self._target)
        self._host_rows.flush(self._target)

    def _finish(self) -> None:
        if not self._samples:
            raise WrongValueError("no frame has values of GPUs: this isn't a file of gswarm-profiler")
        self._flush()
        members = self._members
        began = moment(members["start_time"]) if members.get("start_time") else self._began_us
        ended = moment(members["end_time"]) if members.get("end_time") else None
        ended = ended or self._ended_us + self._usual_ms * 1000
        recording_id = self._target.next_free("recording_id")
        self._add_recording(recording_id, began, ended)
        for number, (name, facts) in enumerate(self._nodes.items(), self._first_node):
            self._add(NODES, node_id=number, recording_id=recording_id, node=name, hostname=name, **facts)
        for number, facts in enumerate(self._gpus.values(), self._first_gpu):
            self._add(GPUS, gpu_id=number, **facts)
        for change in self._interval_changes:
            self._add(
                EVENTS,
                ts=change.us,
                recording_id=recording_id,
                kind=INTERVAL_CHANGED,
                severity=INFO,
                message=change.message,
                detail=change.detail,
            )
        if "session" not in members or members["session"] is not None:
            self._add_session(recording_id, began, ended)
        self._target.refuse_repeated(self._path)

    def _add_recording(self, recording_id: int, began: int, ended: int) -> None:
        facts = _object(self._members.get("recording"), "recording")
        texts = {name: _text(facts.get(name), name) for name in _RECORDING_TEXTS}
        if not facts:
            texts["command"] = "gswarm-profiler"
        self._add(
            RECORDINGS,
            recording_id=recording_id,
            started_at=moment(facts["started_at"]) if facts.get("started_at") else began,
            ended_at=moment(facts["ended_at"]) if facts.get("ended_at") else ended,
            interval_ms=self._first_ms,
            schema_version=SCHEMA_VERSION,
            options=mark(self._path.name, _text(facts.get("run"), "run") or self._digest()),
            **texts,
        )

    def _digest(self) -> str:
        """Return a name for the run of a file that has none."""
        with self._path.open("rb") as file:
            return f"json-{hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"

    def _add_session(self, recording_id: int, began: int, ended: int) -> None:
        facts = _object(self._members.get("session"), "session")
        self._add(
            SESSIONS,
            session_id=self._target.next_free("session_id"),
            recording_id=recording_id,
            name=_text(self._members.get("session_name"), "session_name") or self._path.stem,
            started_at=began,
            ended_at=ended,
            status=_ended(_text(facts.get("status"), "status")),
            note=_text(facts.get("note"), "note") or "",
        )

    def _add(self, table: TableSchema, **row: Any) -> None:
        self._target.add(table, {name: [value] for name, value in row.items()})


def _interval_changes(events: Any) -> Iterator[_IntervalChange]:
    if not isinstance(events, list):
        raise WrongValueError("events should be an array")
    for event in (_object(event, "an event") for event in events):
        if event.get("kind") != INTERVAL_CHANGED:
            continue
        detail = json.dumps(_object(event.get("detail"), "detail"))
        if (interval_ms := new_interval_ms(detail)) is None:
            raise WrongValueError("an interval_changed event needs a valid new_ms in its detail")
        message = _text(event.get("message"), "message") or ""
        yield _IntervalChange(moment(event.get("time")), interval_ms, message, detail)


def _ended(status: str | None) -> str:
    """Return a session's status: one that was running when it was exported ends with the export."""
    return "ended" if status == "running" else status or "stopped"


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise WrongValueError(f"{name} should be an object")
    return value


def _text(value: Any, name: str) -> str | None:
    """Check a text and replace its unprintable characters by spaces."""
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise WrongValueError(f"{name} should be a string of at most {_LONGEST_TEXT} characters")
    return value if value.isprintable() else "".join(c if c.isprintable() else " " for c in value)


def _whole(value: Any, name: str, below: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < below:
        raise WrongValueError(f"{name} should be a whole number below {below}")
    return value
