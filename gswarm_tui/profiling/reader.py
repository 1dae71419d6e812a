"""Reading of a report in a process of its own with limits, because a report may come from a stranger.

A small file can unfold to any size, and one query on it can last for ever. The process sends the report's
facts, gets the ids of GPUs, and sends names and rows; only the import itself writes into the recording.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy.typing as npt

from gswarm_tui.profiling.ncu_report import NcuReport
from gswarm_tui.profiling.nsys_events import NsysEvents
from gswarm_tui.profiling.nsys_export import UNREADABLE, NsysExport
from gswarm_tui.profiling.nsys_facts import read_facts
from gswarm_tui.profiling.pytorch_trace import open_trace
from gswarm_tui.profiling.report_text import ReportError
from gswarm_tui.store.recording.profiles import ProfileFacts, RowTarget
from gswarm_tui.store.sql.schema import PROFILE_EVENTS, TableSchema

_TABLES = {table.name: table for table in PROFILE_EVENTS}
_START = "from gswarm_tui.profiling.reader import serve; serve({})"


@dataclass(frozen=True)
class Limits:
    """Memory that reading a report may take, and time that its import may take."""

    memory_mib: int = 2048
    seconds: float = 600.0


LIMITS = Limits()


class ReaderProcess:
    """Process that reads a report; ``close`` ends it. ``facts`` is the report's description of itself."""

    def __init__(self, path: Path, file: Path, limits: Limits, environ: Mapping[str, str]) -> None:
        """Start to read ``file``, which is the report at ``path`` or its export. Raises ReportError."""
        self._path, self._limits, self._ends_at = path, limits, time.monotonic() + limits.seconds
        self._pipe, other = Pipe()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START.format(other.fileno())],
                # The stacks of OpenBLAS's threads would count as memory.
                env={**environ, "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                start_new_session=True,
            )
        try:
            self._pipe.send((path, file, limits))
            (self.facts,) = self._receive()
        except BaseException:
            self.close()
            raise

    def write(
        self, target: RowTarget, report: Callable[[float], None]
    ) -> tuple[int, ProfileFacts, list[str]]:
        """Write all rows; return their number, the facts and what was left out. Raises ReportError."""
        self._pipe.send(target.gpu_ids)
        while True:
            match self._receive():
                case ["share", share]:
                    report(share)
                case ["names", names]:
                    self._pipe.send(target.name_ids(names))
                case ["rows", table, columns]:
                    target.add(_TABLES[table], columns)
                case [rows, facts, notices]:
                    return rows, facts, notices

    def _receive(self) -> list[Any]:
        """Return the next message. Raises ReportError."""
        # A report that has rows without end also meets this limit.
        if time.monotonic() > self._ends_at or not self._pipe.poll(self._ends_at - time.monotonic()):
            raise ReportError(
                f"{self._path} takes more than {self._limits.seconds / 60:g} minutes to import; "
                "allow more with gswarm-tui import --max-minutes."
            )
        with contextlib.suppress(EOFError, OSError):
            message: list[Any] = self._pipe.recv()
            if message[0] != "error":
                return message
            raise ReportError(message[1])
        if (status := self._process.wait()) > 0:
            raise ReportError(f"{self._path} can't be read: gswarm-tui's reader failed with status {status}.")
        raise ReportError(
            f"{self._path} needs more than {self._limits.memory_mib:,} MiB of memory to be read; "
            "allow more with gswarm-tui import --max-memory-mib."
        )

    def close(self) -> None:
        """End the process, and what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._pipe.close()


class _SentRows:
    """Rows and names of a report, sent to the process that imports them."""

    def __init__(self, pipe: Connection, facts: ProfileFacts) -> None:
        self._pipe = pipe
        pipe.send([facts])
        self.gpu_ids: Mapping[str, int] = pipe.recv()

    def name_ids(self, names: Sequence[str]) -> list[int]:
        self._pipe.send(["names", names])
        found: list[int] = self._pipe.recv()
        return found

    def add(self, table: TableSchema, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        self._pipe.send(["rows", table.name, columns])


def serve(descriptor: int) -> None:
    """Read a report for the process at the other end of a pipe; end without a word if memory runs out."""
    with Connection(descriptor) as pipe, contextlib.suppress(MemoryError):
        path, file, limits = pipe.recv()
        # The limit of CPU time ends a query that lasts for ever if the other process was killed.
        limited = {
            resource.RLIMIT_DATA: limits.memory_mib << 20,
            resource.RLIMIT_CPU: int(limits.seconds) + 1,
        }
        for what, most in (limited | {resource.RLIMIT_CORE: 0}).items():
            resource.setrlimit(what, (most, most))
        try:
            pipe.send(_read(path, file, pipe))
        except ReportError as error:
            pipe.send(["error", str(error)])


def _read(path: Path, file: Path, pipe: Connection) -> list[Any]:
    """Send a report's rows; return their number, its facts and what was left out. Raises ReportError."""

    def report(share: float) -> None:
        pipe.send(["share", share])

    if path.suffix == ".ncu-rep":
        measured = NcuReport(path, os.environ)
        facts = measured.facts(path.name)
        return [measured.write(_SentRows(pipe, facts)), facts, [measured.notice] * bool(measured.notice)]
    if path.suffix in (".json", ".gz"):
        with open_trace(path, report) as trace:
            rows = trace.write(_SentRows(pipe, trace.facts()))
            return [rows, trace.facts(), trace.notices()]
    with contextlib.closing(NsysExport(file, str(path))) as export:
        try:
            facts = read_facts(export, path.name)
            events = NsysEvents(export, _SentRows(pipe, facts), report)
            rows = events.run()
        except UNREADABLE as error:
            raise export.unreadable(error) from error
    if events.span_ns is not None:
        # The capture may begin before sampling, which the report notes.
        first, last = (facts.zero_ns + at for at in events.span_ns)
        facts = replace(facts, started_ns=min(facts.started_ns, first), ended_ns=max(facts.ended_ns, last))
    return [rows, replace(facts, unread=events.unread), events.notices()]
