"""Traces of PyTorch's profiler (Kineto's Chrome format) as rows of a profile, in batches.

Only names, times and the facts of collectives are taken from a trace: its arguments may hold shapes, paths
and call stacks of any length.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader
from itertools import chain, islice
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np

from gswarm_tui.common.quantities import plural
from gswarm_tui.exchange.json_stream import JsonStream, MalformedError
from gswarm_tui.profiling.report_text import ReportError, clean_text
from gswarm_tui.store.recording.profiles import UNKNOWN, ProfileFacts, RowTarget
from gswarm_tui.store.sql.profile_views import COMMUNICATION, FUSED
from gswarm_tui.store.sql.schema import TRACE_KERNEL_EVENTS, TRACE_OP_EVENTS, TableSchema

SUFFIXES = (".json", ".json.gz")
BATCH = 16_384
_MOST_DEVICES = 1 << 16
_HEAD_BYTES = 64 << 20
_CHUNK = 1 << 20
_GZIP = b"\x1f\x8b"
_MOST_RANKS = 10**6
_LONGEST_LIST = 64 * 1024
_LATEST_NS = 4 * 10**18
_FARTHEST_NS = 86_400 * 10**9
"""An event that lasts longer, or is farther from most others, has a wrong time."""
_LONGEST_BEFORE_NS = 3600 * 10**9
"""A capture may begin before its first event."""
_SAMPLE = 1000
"""Events at the beginning whose median time is near that of the others."""
_ON_GPU = {"kernel": "compute", "gpu_memcpy": "copy", "gpu_memset": "copy"}
_ON_CPU = frozenset(
    ("cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver", "cpu_instant_event")
)
_CAPTURE = "Trace"
"""Category of the event with which the capture begins: the GPU may idle until the first kernel."""
_CAPTURE_END = "Record Window End"
_COMMUNICATES = re.compile(COMMUNICATION)
_LITTLE = 0.01
"""A job of several ranks that spends less of its kernels' time in communication may use unknown kernels."""
_MISSING = (
    "communication may be missing: ranks worked together, but hardly any kernel communicates by its name."
)
_IS_TRACE = re.compile(rb'"traceEvents"')
_BASE = re.compile(rb'"baseTimeNanoseconds": *([0-9]{1,19})[^0-9]')
_RANK = re.compile(r"rank[-_]?(\d{1,6})")


def is_trace(path: Path) -> bool:
    """Return whether a file is a trace of PyTorch by its name and, unless that says it, its beginning.

    Metadata of any length may come before the events. No other format that is imported is compressed.
    """
    if not path.name.endswith(SUFFIXES) or not path.is_file():
        return False
    try:
        with path.open("rb") as raw:
            return path.name.endswith(".gz") or _first(_IS_TRACE, raw, _HEAD_BYTES) is not None
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return True  # damaged: reading it explains that
    except OSError:
        return False


class PytorchTrace:
    """One pass over a trace file. ``facts`` describes it; ``write`` writes its events."""

    def __init__(self, path: Path, file: BufferedReader, report: Callable[[], None]) -> None:
        """Read what comes before the first event; ``report`` is called while reading. Raises ReportError."""
        self._path = path
        self._report = report
        self._stream = JsonStream(file, repairs=True)
        self._events: Iterator[dict[str, Any]] = self._timed_events()
        self._before: dict[str, Any] = {}
        self._zero_ns = 0
        self._name_ids: dict[str, int] = {}
        self._rows = 0
        self._capture: dict[str, float] = {}
        self._kernel_ns = {"compute": 0, "communication": 0, "copy": 0}
        self._largest_group = 1
        self.span_ns: tuple[int, int] | None = None
        self._left_out = self._timed = 0
        sample = list(islice(self._events, 1))
        # What Kineto appends on request, after the events, doesn't count: a broadcast leaves the root's rank.
        distributed, named = self._before.get("distributedInfo"), _RANK.search(path.name)
        self._distributed: dict[str, Any] = distributed if isinstance(distributed, dict) else {}
        self._rank = int(named[1]) if named else None
        if (rank := _whole(self._distributed.get("rank"), _MOST_RANKS)) >= 0:
            self._rank = rank
        self._ranks_of = dict(self._groups())
        sample += islice(self._events, _SAMPLE)
        self._events = chain(sample, self._events)
        with path.open("rb") as raw:
            base = self._before.get("baseTimeNanoseconds") or _first(_BASE, raw)
        self._base_ns = int(base) if isinstance(base, int | bytes) and 0 < int(base) < _LATEST_NS else 0
        if not sample:
            why = "no traceEvents" if not self._timed else "none with a valid time, duration and name"
            raise ReportError(
                f"{path} has no events of PyTorch: {why}. It may be another program's trace, or JSON of "
                "gswarm-profiler, which has to be unzipped first."
            )
        middle_ns = self._base_ns + _nanoseconds(median(event["ts"] for event in sample))
        if not 0 < middle_ns < _LATEST_NS:
            raise ReportError(f"{path} has no times since 1970; export it with a PyTorch of 2.0 or later.")
        self._zero_ns = self._base_ns or middle_ns - _FARTHEST_NS
        self._middle_ns = middle_ns
        with path.open("rb") as whole:
            self._digest = hashlib.file_digest(whole, "sha256").hexdigest()

    def facts(self) -> ProfileFacts:
        """Return the trace's description of itself."""
        host = self._before.get("host_name")
        first, last = self.span_ns or (self._middle_ns - self._zero_ns,) * 2
        began, ended = (self._capture_ns(what) for what in (_CAPTURE, _CAPTURE_END))
        if began is not None and max(0, first - _LONGEST_BEFORE_NS) <= began < first:
            first = began
        if ended is not None and last < ended <= last + _LONGEST_BEFORE_NS:
            last = ended
        return ProfileFacts(
            file=self._path.name,
            tool="pytorch",
            tool_version="",
            digest=self._digest,
            node=clean_text(host) if isinstance(host, str) and host else UNKNOWN,
            rank=self._rank,
            zero_ns=self._zero_ns,
            started_ns=self._zero_ns + first,
            ended_ns=self._zero_ns + last,
        )

    def write(self, target: RowTarget) -> int:
        """Write all events and return their number. Raises ReportError, StoreError."""
        ops: list[tuple[Any, ...]] = []
        kernels: list[tuple[Any, ...]] = []
        for event in self._events:
            category = event["cat"]
            at_ns = self._base_ns + _nanoseconds(event["ts"])
            if at_ns < self._zero_ns or abs(at_ns - self._middle_ns) > _FARTHEST_NS:
                self._left_out += 1
                continue
            if category in _ON_GPU:
                kernels.append(self._kernel(event, _ON_GPU[category]))
            else:
                ops.append(self._op(event, category))
            if len(kernels) >= BATCH:
                self._add(target, TRACE_KERNEL_EVENTS, kernels)
            if len(ops) >= BATCH:
                self._add(target, TRACE_OP_EVENTS, ops)
        self._add(target, TRACE_KERNEL_EVENTS, kernels)
        self._add(target, TRACE_OP_EVENTS, ops)
        if self._left_out > self._rows:
            raise ReportError(f"{self._path} isn't a valid trace: {self.notices()[0]} Trace it again.")
        return self._rows

    def notices(self) -> list[str]:
        """Return how many events ``write`` left out and whether communication is missing, as sentences."""
        left_out = f"{plural(self._left_out, 'event')} left out: no valid time, duration, device or name."
        size = _whole(self._distributed.get("world_size"))
        hardly_any = self._kernel_ns["communication"] < _LITTLE * self._kernel_ns["compute"]
        misses = max(size, self._largest_group) > 1 and hardly_any
        return [left_out] * bool(self._left_out) + [_MISSING] * misses

    def _timed_events(self) -> Iterator[dict[str, Any]]:
        """Yield events with a start, a duration and a name; keep the members before them."""
        try:
            for member, value in self._stream.members("traceEvents"):
                if member != "traceEvents":
                    self._before[member] = value
                    continue
                if not isinstance(value, dict):
                    continue
                name, ts, duration = (value.get(key) for key in ("name", "ts", "dur"))
                category = str(value.get("cat", name))
                is_timed = isinstance(ts, int | float) and abs(ts) < _LATEST_NS
                if is_timed and category in (_CAPTURE, _CAPTURE_END):
                    self._capture[category] = value["ts"]
                if value.get("ph") != "X" or (category not in _ON_GPU and category not in _ON_CPU):
                    continue
                self._timed += 1
                is_valid = isinstance(duration, int | float) and 0 <= duration <= _FARTHEST_NS / 1000
                if category in _ON_GPU:
                    is_valid = is_valid and _whole(_arguments(value).get("device", 0), _MOST_DEVICES) >= 0
                if is_timed and is_valid and isinstance(name, str):
                    yield value
                else:
                    self._left_out += 1
        except MalformedError as error:
            problem = str(error).rstrip(".")
            if problem.startswith("not JSON") and '"' in problem:
                problem += (
                    ". Some PyTorch versions write unescaped quotes in names: escape them, or trace again"
                )
            raise ReportError(f"{self._path} can't be read as a trace: {problem}.") from None
        except (EOFError, gzip.BadGzipFile, zlib.error):
            raise ReportError(f"{self._path} is cut short or damaged; fetch it again.") from None

    def _capture_ns(self, what: str) -> int | None:
        at = self._capture.get(what)
        return None if at is None else _nanoseconds(at) + self._base_ns - self._zero_ns

    def _times(self, event: dict[str, Any]) -> tuple[int, int]:
        start = _nanoseconds(event["ts"]) + self._base_ns - self._zero_ns
        duration = _nanoseconds(event["dur"])
        first, last = self.span_ns or (start, start)
        self.span_ns = min(first, start), max(last, start + duration)
        return start, duration

    def _op(self, event: dict[str, Any], category: str) -> tuple[Any, ...]:
        correlation = _arguments(event).get("correlation")
        numbers = _whole(event.get("pid")), _whole(event.get("tid")), _whole(correlation)
        return (*self._times(event), event["name"], category, *numbers)

    def _kernel(self, event: dict[str, Any], kind: str) -> tuple[Any, ...]:
        arguments = _arguments(event)
        collective, name = arguments.get("Collective name"), event["name"]
        named = _COMMUNICATES.search(name) and not name.startswith(FUSED)
        if kind == "compute" and (collective or named):
            kind = "communication"
        times, group = self._times(event), _text(arguments.get("Process Group Name"))
        group_size = _whole(arguments.get("Group size"), 2**31)
        self._kernel_ns[kind] += times[1]
        self._largest_group = max(self._largest_group, group_size)
        ranks = arguments.get("Process Group Ranks")
        # PyTorch cuts long lists: "[0, 1, ..., 63]".
        is_whole = isinstance(ranks, str | list) and "..." not in ranks
        return (
            *times,
            event["name"],
            kind,
            _whole(arguments.get("device"), _MOST_DEVICES),
            _whole(arguments.get("stream")),
            _whole(arguments.get("correlation")),
            _text(collective),
            group,
            _whole(arguments.get("Seq", arguments.get("seq"))),
            group_size,
            _ranks(ranks) if is_whole else self._ranks_of.get(group or "") or _ranks(ranks),
            _whole(arguments.get("Src Rank"), _MOST_RANKS),
            _whole(arguments.get("Dst Rank"), _MOST_RANKS),
        )

    def _groups(self) -> Iterator[tuple[str, str | None]]:
        """Yield the names and ranks of the process groups that precede the events."""
        groups = self._distributed.get("pg_config")
        for group in groups if isinstance(groups, list) else ():
            if isinstance(group, dict) and (name := _text(group.get("pg_name"))):
                yield name, _ranks(group.get("ranks"))

    def _add(self, target: RowTarget, table: TableSchema, rows: list[tuple[Any, ...]]) -> None:
        """Write rows and forget them."""
        if not rows:
            return
        columns = dict(
            zip((column.name for column in table.columns[1:]), zip(*rows, strict=True), strict=True)
        )
        names = columns.pop("name_id")
        if new := [name for name in dict.fromkeys(names) if name not in self._name_ids]:
            self._name_ids.update(zip(new, target.name_ids([clean_text(name) for name in new]), strict=True))
        arrays: dict[str, Any] = {
            name: np.array([*values, ""], dtype=object)[:-1]
            if table[name].type == "VARCHAR"
            else np.array(values)
            for name, values in columns.items()
        }
        arrays["name_id"] = np.array([self._name_ids[name] for name in names])
        target.add(table, arrays)
        self._report()
        self._rows += len(rows)
        rows.clear()


@contextlib.contextmanager
def open_trace(path: Path, report: Callable[[float], None]) -> Iterator[PytorchTrace]:
    """Open a trace; ``report`` is called with the share read. Raises ReportError."""
    size = max(1, path.stat().st_size)
    with path.open("rb") as raw, _unzipped(raw) as file:
        yield PytorchTrace(path, file, lambda: report(min(1.0, raw.tell() / size)))


@contextlib.contextmanager
def _unzipped(raw: BufferedReader) -> Iterator[BufferedReader]:
    """Unzip a file that is compressed, whatever its name: browsers unzip and keep the name."""
    if raw.peek(len(_GZIP))[: len(_GZIP)] == _GZIP:
        with gzip.GzipFile(fileobj=raw) as zipped:
            yield BufferedReader(cast(Any, zipped), 1 << 16)
    else:
        yield raw


def _first(pattern: re.Pattern[bytes], raw: BufferedReader, most: int = sys.maxsize) -> bytes | None:
    """Return the last group of the first match in a file's first bytes after unzipping, None without one."""
    tail = b""
    with _unzipped(raw) as file:
        while most > 0 and (chunk := file.read(_CHUNK)):
            if (found := pattern.search(tail + chunk)) is not None:
                return found[found.re.groups]
            most -= len(chunk)
            tail = chunk[-64:]
    return None


def _arguments(event: dict[str, Any]) -> dict[str, Any]:
    found = event.get("args")
    return found if isinstance(found, dict) else {}


def _nanoseconds(micros: float) -> int:
    return round(micros * 1000)


def _whole(value: object, below: int = 2**62) -> int:
    """Return a whole number, -1 for anything else."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        value = int(value)
    return value if isinstance(value, int) and 0 <= value < below else -1


def _ranks(value: object) -> str | None:
    """Return a list of ranks, or its text, as "0, 1"."""
    numbers = re.findall(r"\d{1,7}", str(value)[:_LONGEST_LIST]) if isinstance(value, str | list) else ()
    return ", ".join(numbers) or None


def _text(value: object) -> str | None:
    return clean_text(value)[:200] if isinstance(value, str) and value else None
