"""The events of a SQLite export of Nsight Systems as rows of a profile, in batches.

Tables are absent where nothing was traced, and columns differ between versions: what is needed is looked up,
what is optional is left out. Names are ids of the table StringIds, which holds the job's environment, too:
only the names that rows use are read from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from gswarm_tui.common.quantities import plural
from gswarm_tui.profiling.nsys_export import NsysExport
from gswarm_tui.profiling.nsys_facts import plain_uuid
from gswarm_tui.profiling.report_text import LONGEST_READ, clean_text
from gswarm_tui.store.recording.profiles import RowTarget
from gswarm_tui.store.sql.profile_views import OS_RUNTIME
from gswarm_tui.store.sql.schema import (
    PROFILE_API_EVENTS,
    PROFILE_KERNEL_EVENTS,
    PROFILE_MEMORY_EVENTS,
    PROFILE_RANGE_EVENTS,
    TableSchema,
)

Numbers = npt.NDArray[np.int64]

BATCH = 32_768
"""Rows that are read at once: about 30 MB as Python's numbers."""

_PUSH_POP, _START_END, _NEW_DOMAIN = (59, 70), (60, 71), 75
_COPIES = ("HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
_UNKNOWN_COPY = "[CUDA memcpy Unknown]"
_MEMORY_OPERATIONS = {
    **{kind: f"[CUDA memcpy {name}]" for kind, name in enumerate(_COPIES, 1)},
    **{11 + at: f"[CUDA Unified Memory memcpy {name}]" for at, name in enumerate(("HtoD", "DtoH", "DtoD"))},
}
"""Names of copies by their kind, as nsys stats prints them for exports without a table of kinds."""
_MEMSET = "[CUDA memset]"
_ON_GPU = ("deviceId", "streamId?", "globalPid?", "correlationId?")
_LAUNCH = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_LAUNCH_COLUMNS = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
_MOST_DEVICES = 1 << 16
_LATEST_NS = 10**17
_CALLS, _GRAPHS = "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_NO_WORK = {"CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_CUDA_EVENT"}
"""Tables of CUPTI in which the host waits; no GPU works."""


class NsysEvents:
    """One pass over the events of an export, which writes them as rows of a profile.

    After ``run``, ``span_ns`` is the time of the first start and the last end but for calls of CUDA, or None.
    ``unread`` names the tables whose events on GPUs this reader doesn't know.
    """

    def __init__(self, export: NsysExport, target: RowTarget, report: Callable[[float], None]) -> None:
        """``report`` is called with the share done. Raises ReportError, UNREADABLE."""
        self._export, self._target, self._report = export, target, report
        self._name_ids: npt.NDArray[np.int32] = np.zeros(export.most("StringIds", "id") + 2, dtype=np.int32)
        self._text_ids: dict[str, int] = {}
        self._known_gpus = self._devices()
        self._rows = self._total = 0
        self._left_out: Counter[str] = Counter()
        self.unread: tuple[str, ...] = ()
        self.span_ns: tuple[int, int] | None = None

    def run(self) -> int:
        """Write all tables and return the number of rows. Raises ReportError, StoreError, UNREADABLE."""
        tables = {
            _CALLS: self._calls,
            "OSRT_API": self._calls,
            "CUPTI_ACTIVITY_KIND_KERNEL": self._kernels,
            _GRAPHS: self._graphs,
            "CUPTI_ACTIVITY_KIND_MEMCPY": self._memory,
            "CUPTI_ACTIVITY_KIND_MEMSET": self._memory,
            "NVTX_EVENTS": self._ranges,
        }
        present = {table: write for table, write in tables.items() if self._export.has(table)}
        self._total = sum(self._export.most(table, "rowid") for table in present)
        self.unread = tuple(sorted(self._unknown_work(tables.keys() | _NO_WORK)))
        for table, write in present.items():
            before = self._rows
            write(table)
            if (bad := self._left_out[table]) > self._rows - before:
                problem = f"has {bad:,} records without valid times, numbers or names, more than half of them"
                raise self._export.invalid(table, problem)
        return self._rows

    def notices(self) -> list[str]:
        """Return what isn't in the profile although the report has it, as sentences."""
        unread = (
            f"this version of gswarm-tui doesn't know the table {table}: its GPU work is missing, and the "
            "share of time without a kernel is unknown; update gswarm-tui."
            for table in self.unread
        )
        left_out = (
            f"{plural(count, 'record')} of {table} left out: no valid times, numbers or names."
            for table, count in self._left_out.items()
        )
        return [*unread, *left_out]

    def _unknown_work(self, known: Set[str]) -> Iterator[str]:
        """Yield the tables that have rows and look like work of GPUs, except those that are known."""
        for table, columns in self._export.columns.items():
            is_cupti = table.startswith("CUPTI_ACTIVITY_KIND_")
            if table in known or not columns >= {"start", "end"} or not (is_cupti or "deviceId" in columns):
                continue
            if self._export.has_rows(table):
                yield clean_text(table)

    def _calls(self, table: str) -> None:
        is_os = table == "OSRT_API"
        names = ["start", "end", "nameId", "eventClass?", "globalTid?"]
        names += [] if is_os else ["correlationId?"]
        where = f"eventClass = {OS_RUNTIME}" if is_os else "true"
        for start, end, name, kind, thread, *correlation in self._batches(table, names, where):
            self._add(
                PROFILE_API_EVENTS, table, start, end,
                name_id=self._names(name), event_class=np.maximum(kind, 0),
                **_threads(thread), **({"correlation_id": correlation[0]} if correlation else {}),
            )  # fmt: skip

    def _kernels(self, table: str) -> None:
        names = ("start", "end", *_ON_GPU, "demangledName", "shortName", *_LAUNCH)
        for batch in self._batches(table, names):
            start, end, device, stream, process, correlation, name, short_name, *sizes = batch
            self._add(
                PROFILE_KERNEL_EVENTS, table, start, end,
                name_id=self._names(name), short_name_id=self._names(short_name),
                **self._on_gpu(device, stream, process), correlation_id=correlation,
                **dict(zip(_LAUNCH_COLUMNS, sizes, strict=True)),
            )  # fmt: skip

    def _graphs(self, table: str) -> None:
        """Write CUDA graphs that were traced as a whole, nsys's default, as one kernel each."""
        for batch in self._batches(table, ("start", "end", *_ON_GPU, "graphId?")):
            start, end, device, stream, process, correlation, graph = batch
            names = self._texts(
                [f"[CUDA graph {one}]" if one >= 0 else "[CUDA graph]" for one in graph.tolist()]
            )
            self._add(
                PROFILE_KERNEL_EVENTS, table, start, end,
                name_id=names, short_name_id=names,
                **self._on_gpu(device, stream, process), correlation_id=correlation,
            )  # fmt: skip

    def _memory(self, table: str) -> None:
        labels = self._export.labels("ENUM_CUDA_MEMCPY_OPER")
        operations = {key: f"[CUDA memcpy {label}]" for key, label in labels.items()} or _MEMORY_OPERATIONS
        # Memory sets have no kind.
        unknown = _MEMSET if table.endswith("MEMSET") else _UNKNOWN_COPY
        names = ("start", "end", "copyKind?", "bytes", *_ON_GPU)
        for start, end, kind, size, device, stream, process, correlation in self._batches(table, names):
            texts = [operations.get(one, unknown) for one in kind.tolist()]
            self._add(
                PROFILE_MEMORY_EVENTS, table, start, end,
                name_id=self._texts(texts), bytes=size,
                **self._on_gpu(device, stream, process), correlation_id=correlation,
            )  # fmt: skip

    def _ranges(self, table: str) -> None:
        self._export.require(table, ("start", "end", "eventType", "text"))
        there = self._export.columns[table]
        kinds = ", ".join(map(str, (*_PUSH_POP, *_START_END)))
        text = "coalesce(s.value, e.text, '')" if "textId" in there else "coalesce(e.text, '')"
        text = f"substr({text}, 1, {LONGEST_READ})"  # many rows may share one text of any length
        join = "LEFT JOIN StringIds s ON s.id = e.textId" if "textId" in there else ""
        thread = "coalesce(e.globalTid, -1)" if "globalTid" in there else "-1"
        domain = "e.domainId" if "domainId" in there else "NULL"
        domains = self._domains() if "domainId" in there else {}
        # A range that was open at the end of the capture lasts until its last event, as for nsys stats.
        last = self._export.rows(
            'SELECT max(max(start), coalesce(max("end"), 0)) FROM NVTX_EVENTS '
            "WHERE typeof(start) = 'integer' AND typeof(\"end\") IN ('integer', 'null')"
        )[0][0]
        rows = self._export.execute(
            f'SELECT e.start, coalesce(e."end", {last or 0}), e.eventType, {thread}, {domain}, {text} '  # noqa: S608
            f"FROM NVTX_EVENTS e {join} WHERE e.eventType IN ({kinds})"
        )
        while batch := rows.fetchmany(BATCH):
            starts, ends, types, threads, in_domains, texts = zip(*batch, strict=True)
            start, end, thread_ids = _whole(list(zip(starts, ends, threads, strict=True))).T
            prefixes = (
                domains.get((one, at >> 24 & 0xFFFFFF), "")
                for one, at in zip(in_domains, thread_ids.tolist(), strict=True)
            )
            names = [prefix + str(text) for prefix, text in zip(prefixes, texts, strict=True)]
            style = ["PushPop" if one in _PUSH_POP else "StartEnd" for one in types]
            self._add(
                PROFILE_RANGE_EVENTS, table, start, end,
                name_id=self._texts(names), style=np.array(style, dtype=object), **_threads(thread_ids),
            )  # fmt: skip

    def _domains(self) -> dict[tuple[int, int], str]:
        """Return the prefixes of names by domain and process."""
        rows = self._export.execute(
            f"SELECT domainId, globalTid, substr(text, 1, {LONGEST_READ}) FROM NVTX_EVENTS "  # noqa: S608
            f"WHERE eventType = {_NEW_DOMAIN} AND text IS NOT NULL ORDER BY start DESC"
        )
        return {
            (domain, thread >> 24 & 0xFFFFFF): f"{text}:"
            for domain, thread, text in rows
            if isinstance(thread, int)
        }

    def _add(
        self, table: TableSchema, source: str, start: Numbers, end: Numbers, **columns: npt.NDArray[Any]
    ) -> None:
        """Add rows with their times after the start of the capture, and report the share done."""
        good = (start >= 0) & (end >= start) & (end <= _LATEST_NS) & (columns["name_id"] > 0)
        if "device" in columns:
            good &= columns["device"] >= 0
        if not good.all():
            self._left_out[source] += int((~good).sum())
            start, end = start[good], end[good]
            columns = {name: values[good] for name, values in columns.items()}
        if len(start):
            # A call of CUDA may have begun before the capture did: the capture begins with its GPU's work.
            if source != _CALLS:
                first, last = self.span_ns or (int(start[0]), 0)
                self.span_ns = min(first, int(start.min())), max(last, int(end.max()))
            self._target.add(table, {"start_ns": start, "duration_ns": end - start} | columns)
            self._rows += len(start)
        self._report(min(1.0, self._rows / max(self._total, 1)))

    def _batches(self, table: str, names: Sequence[str], where: str = "true") -> Iterator[list[Numbers]]:
        """Yield columns in batches; columns with ? may be missing or NULL: -1."""
        self._export.require(table, [name for name in names if not name.endswith("?")])
        columns = ", ".join(self._column(table, name) for name in names)
        rows = self._export.execute(f"SELECT {columns} FROM {table} WHERE {where}")  # noqa: S608 (own names)
        while batch := rows.fetchmany(BATCH):
            yield list(np.ascontiguousarray(_whole(batch).T))

    def _column(self, table: str, name: str) -> str:
        if not name.endswith("?"):
            return f'"{name}"'
        bare = name.removesuffix("?")
        return f'coalesce("{bare}", -1)' if bare in self._export.columns[table] else "-1"

    def _names(self, ids: Numbers) -> Numbers:
        """Return our ids of names for those of StringIds, -1 for names that it lacks."""
        lacking = len(self._name_ids) - 1
        ids = np.where((ids < 0) | (ids > lacking), lacking, ids)
        if len(unknown := np.unique(ids[self._name_ids[ids] == 0])):
            listed = ", ".join(map(str, unknown.tolist()))
            found = dict(self._export.execute(f"SELECT id, value FROM StringIds WHERE id IN ({listed})"))  # noqa: S608
            self._name_ids[unknown] = -1
            self._name_ids[list(found)] = self._texts([str(text) for text in found.values()])
        return self._name_ids[ids].astype(np.int64)

    def _texts(self, texts: Sequence[str]) -> Numbers:
        """Return our ids of texts, without paths and secrets."""
        if new := [text for text in dict.fromkeys(texts) if text not in self._text_ids]:
            ids = self._target.name_ids([clean_text(text) for text in new])
            self._text_ids.update(zip(new, ids, strict=True))
        return np.fromiter((self._text_ids[text] for text in texts), np.int64, len(texts))

    def _on_gpu(self, device: Numbers, stream: Numbers, process: Numbers) -> dict[str, Numbers]:
        pid = np.where(process < 0, -1, process >> 24 & 0xFFFFFF)
        device = np.where((device < 0) | (device >= _MOST_DEVICES), -1, device)
        known = self._known_gpus
        keys, places = np.unique(pid << 16 | device & 0xFFFF, return_inverse=True)
        ids = [
            known.get((key >> 16, key & 0xFFFF), known.get((None, key & 0xFFFF), -1)) for key in keys.tolist()
        ]
        gpu_id = np.array(ids, dtype=np.int64)[places]  # -1 where it is unknown
        return {"gpu_id": gpu_id, "device": device, "stream": stream, "pid": pid}

    def _devices(self) -> dict[tuple[int | None, int], int]:
        """Return the ids of GPUs by process and CUDA device, with None for all processes."""
        known: dict[tuple[int | None, int], int] = {}
        if self._export.has("TARGET_INFO_GPU", "id", "uuid"):
            for index, uuid in self._export.rows("SELECT id, uuid FROM TARGET_INFO_GPU"):
                if (gpu_id := self._target.gpu_ids.get(plain_uuid(uuid))) is not None:
                    known[None, index] = gpu_id
        if self._export.has("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid"):
            rows = self._export.rows("SELECT pid, cudaId, gpuId FROM TARGET_INFO_CUDA_DEVICE")
            known |= {(pid, cuda): known.get((None, gpu), -1) for pid, cuda, gpu in rows}
        return known


def _whole(rows: Sequence[tuple[Any, ...]]) -> Numbers:
    """Return rows as whole numbers; a row with another value gets a start and an end that are invalid."""
    try:
        return np.array(rows, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        whole = (all(isinstance(one, int) for one in row) for row in rows)
        return np.array([row if ok else (-1,) * len(row) for row, ok in zip(rows, whole, strict=True)])


def _threads(thread: Numbers) -> dict[str, Numbers]:
    """Return the process and thread ids in a serialised thread id, -1 where it is NULL."""
    known = thread >= 0
    return {
        "pid": np.where(known, thread >> 24 & 0xFFFFFF, -1),
        "tid": np.where(known, thread & 0xFFFFFF, -1),
    }
