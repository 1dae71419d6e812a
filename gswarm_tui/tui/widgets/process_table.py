"""Processes on GPUs as rows of a table."""

from __future__ import annotations

from collections.abc import Iterable

from gswarm_agent.frame import Hello, ProcessSample
from gswarm_agent.metrics import PROCESS_COLUMNS, PROCESS_METRICS
from gswarm_tui.common.units import shown_unit
from gswarm_tui.tui.format import DASH, cell
from gswarm_tui.tui.text import clean
from gswarm_tui.tui.widgets.bar import Span
from gswarm_tui.tui.widgets.table import Column, Row

_NUMBERS = tuple(Column(m.short, max(len(m.short), 5), shown_unit(m).name) for m in PROCESS_METRICS)
_BEFORE_COMMAND = 4

PROCESS_TABLE = (
    Column("GPU", 4, frozen=True),
    Column("rank", 5),
    Column("pid", 8),
    Column("user", 10, left=True),
    *_NUMBERS[:_BEFORE_COMMAND],
    Column("command", 16, left=True, grows=True),
    *_NUMBERS[_BEFORE_COMMAND:],
)


def process_rows(hello: Hello, processes: Iterable[ProcessSample], *, old: bool) -> list[Row]:
    """One row a process and GPU, by GPU and then by its memory; dim where the data isn't fresh."""
    rows = []
    for process in sorted(processes, key=lambda p: (p.gpu, -_number(hello, p, "gpu_memory_mib"), p.pid)):
        index = hello.gpus[process.gpu].index if process.gpu < len(hello.gpus) else process.gpu
        numbers = [
            cell(_value(hello, process, name), metric)
            for name, metric in zip(PROCESS_COLUMNS, PROCESS_METRICS, strict=True)
        ]
        texts = [
            f"{index}",
            DASH if process.rank is None else f"{process.rank}",
            f"{process.pid}",
            clean(process.user) if process.user else DASH,
            *numbers[:_BEFORE_COMMAND],
            clean(process.command) if process.command else DASH,
            *numbers[_BEFORE_COMMAND:],
        ]
        rows.append(tuple(Span(text, "dim" if old or text == DASH else "text") for text in texts))
    return rows


def _value(hello: Hello, process: ProcessSample, name: str) -> float | None:
    if name not in hello.process_columns:
        return None
    return process.row[hello.process_columns.index(name)]


def _number(hello: Hello, process: ProcessSample, name: str) -> float:
    return float(_value(hello, process, name) or 0)
