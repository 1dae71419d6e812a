"""The HTML page of a report, from the template ``page.html``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gswarm_agent.frame import gpu_label
from gswarm_agent.metrics import COUNTER_RIGHTS
from gswarm_tui.analysis.comparison import ComparedRun, lines_table
from gswarm_tui.analysis.periods import Period
from gswarm_tui.analysis.summary_text import (
    TextTable,
    figures_table,
    part_of,
    process_table,
    share,
    summary_lines,
    throttled_s,
)
from gswarm_tui.common.errors import printable
from gswarm_tui.common.quantities import DASH, duration, energy, formatted, mebibytes, percent, plural, watts
from gswarm_tui.fleet.events import json_object
from gswarm_tui.fleet.findings import Finding
from gswarm_tui.fleet.thresholds import BUSY_FROM_PCT
from gswarm_tui.insight import notes
from gswarm_tui.plotting.annotations import MOST_EVENTS as MOST_EVENTS_READ
from gswarm_tui.plotting.timescale import moment, zone_name
from gswarm_tui.reporting.report_data import ReportData
from gswarm_tui.slurm import hosts

MOST = SimpleNamespace(read=MOST_EVENTS_READ, open=64, events=200, marks=200, processes=20)
"""Most rows of each table, which says how many are missing; more than ``open`` GPUs are collapsed."""


class Cell(NamedTuple):
    """A table cell with classes."""

    text: object
    classes: str = ""


@dataclass(frozen=True)
class Report:
    """Content of a page. ``plots`` are drawings with captions; ``made_at`` is naive UTC.

    ``running`` says whether the session is still recorded.
    """

    period: Period
    facts: ReportData
    plots: Sequence[tuple[Markup, str]]
    path: Path
    running: bool
    made_at: datetime
    zone: tzinfo | None
    tool_version: str

    def html(self) -> str:
        """Return the whole page."""
        facts, summary = self.facts, self.facts.summary
        return rendered(
            "page.html",
            report=self,
            period=self.period,
            data=facts,
            most=MOST,
            zone=zone_name(self.period.started_at, self.zone),
            hosts=hosts.fold(dict.fromkeys(str(row["node"]) for row in facts.nodes)),
            alone=self._profiles_alone,
            notes=notes,
            partial=[
                (one.node, share(one.coverage), duration(one.covered_s), f"{one.frames:,}")
                for one in summary.covered
                if not one.complete
            ],
            silent=hosts.fold(summary.silent) if summary.silent else "",
            processes=process_table(facts.processes[: MOST.processes]),
            unmeasured=self._unmeasured(),
            figures_table=figures_table,
            busy_from=f"{BUSY_FROM_PCT:g}",
            plural=plural,
            share=share,
        )

    @property
    def _profiles_alone(self) -> bool:
        """Whether the page is about profiles without any sample."""
        return self.facts.summary.whole is None and bool(self.facts.profiled)

    def time(self, at: datetime, *, date: bool = False) -> str:
        """Return a time of the database as local time, with its ``date`` or if it isn't that of the start."""
        return moment(at, self.zone, like=None if date else self.period.started_at)

    def as_text(self, listed: TextTable, column: int) -> list[list[object]]:
        """Return a table's rows with one column of long texts."""
        rows: list[list[object]] = [list(row) for row in listed.rows]
        for row in rows:
            row[column] = Cell(row[column], "text")
        return rows

    def tiles(self) -> list[tuple[str, str, str]]:
        """Return name, value and note of each figure at the top."""
        one = self.facts.summary.whole
        nodes = plural(len({row["node"] for row in self.facts.nodes}), "node")
        first = ("Duration", duration(self.period.seconds), "so far" if self.running else "")
        if one is None:
            return [first] if self._profiles_alone else [first, ("GPUs", "0", f"measured on {nodes}")]
        bubbles = f"{share(one.bubble_share)} bubbles" if one.bubble_share else ""
        throttled = throttled_s(one)
        spread = f"median {percent(one.util_median_pct)}, p95 {percent(one.util_p95_pct)}"
        total = f"of {mebibytes(one.mem_total_mib)}" if one.mem_total_mib else ""
        peak = f"tensor {percent(one.tensor_active_mean_pct)}, about {share(one.of_peak)} of peak"
        active = (
            [] if one.sm_active_mean_pct is None else [("SM active", percent(one.sm_active_mean_pct), peak)]
        )
        measured = "of the measured time" if throttled is not None else "not measured"
        return [
            first,
            ("GPUs", f"{one.gpus:,}", f"on {nodes}"),
            ("Utilisation", formatted(one.util_mean_pct, "{:.1f}%"), spread),
            *active,
            ("Busy", share(part_of(one.busy_s, one.measured_s)), bubbles or "of the measured time"),
            ("Energy", energy(one.energy_j), f"mean {watts(one.power_mean_w)} per GPU"),
            ("Peak memory", mebibytes(one.mem_used_max_mib), total),
            ("Throttled", share(part_of(throttled, one.measured_s)), measured),
            ("Coverage", share(one.coverage), "of the GPU time was measured"),
        ]

    def event_rows(self, events: Sequence[Mapping[str, Any]]) -> list[tuple[object, ...]]:
        """Return the rows of events."""
        return [
            (
                self.time(row["ts"]),
                Cell(row["severity"], row["severity"] if row["severity"] in ("error", "warning") else ""),
                row["node"] + (f":{gpu_label(row['gpu'])}" if row["gpu"] is not None else ""),
                row["kind"].replace("_", " "),
                Cell(row["message"] + (f" ({row['detail']})" if row["detail"] else ""), "text"),
            )
            for row in events[: MOST.events]
        ]

    def finding_rows(self, findings: Sequence[Finding]) -> list[tuple[object, ...]]:
        """Return the rows of findings."""
        return [
            (
                "dismissed" if one.dismissed else one.severity,
                Cell(notes.what(one), "text"),
                Cell(notes.evidence_text(one.evidence), "text"),
                Cell(f"{one.advice}. {notes.exclude_line([one])}".strip(), "text"),
            )
            for one in findings
        ]

    def mark_rows(self) -> list[tuple[object, ...]]:
        """Return the rows of marks."""
        return [
            (
                self.time(row["ts"]),
                Cell(row["message"], "text"),
                row["node"],
                ", ".join(f"{name} {value}" for name, value in json_object(row["detail"]).items()),
            )
            for row in self.facts.marks[: MOST.marks]
        ]

    def hardware_rows(self) -> list[list[Cell]]:
        """Return a row for each kind of node, with the names of its nodes."""
        return _grouped(
            "words",
            (
                (
                    str(row["node"]),
                    (
                        f"{row['gpus']} × {row['gpu_name']}" if row["gpu_name"] else "no GPU known",
                        mebibytes(row["gpu_mib"]),
                        watts(row["power_limit_w"]),
                        row["driver_version"] or DASH,
                        row["cuda_version"] or DASH,
                        f"{row['cpu_model'] or DASH}, {row['cpus'] or DASH} CPUs, "
                        f"{mebibytes(row['memory_total_mib'])}",
                        row["kernel"] or DASH,
                        row["agent_version"] or DASH,
                    ),
                )
                for row in self.facts.nodes
            ),
        )

    def _unmeasured(self) -> list[list[Cell]]:
        """Return the metrics that nodes can't measure, with reasons."""
        return _grouped(
            "text",
            (
                (str(row["node"]), (f"{what}: {why}",))
                for row in self.facts.nodes
                for what, why in json_object(row["capabilities"]).items()
                if what not in COUNTER_RIGHTS  # these aren't metrics
            ),
        )


def runs_page(runs: Sequence[ComparedRun], made_at: datetime, zone: tzinfo | None) -> str:
    """Return a page on several runs: a line each and one for all, then the figures and nodes of each."""
    figures = [(run, summary_lines(run.summary), figures_table(run.summary.nodes)) for run in runs]
    made = f"{moment(made_at, zone)} {zone_name(made_at, zone)}"
    return rendered("runs.html", lines=lines_table(runs, zone, with_total=True), runs=figures, made_at=made)


def rendered(template: str, **values: object) -> str:
    """Return a page from a template of this package."""
    environment = Environment(
        autoescape=True,
        finalize=_finalized,
        loader=PackageLoader("gswarm_tui.reporting", ""),
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    css = (resources.files("gswarm_tui.reporting") / "style.css").read_text(encoding="utf-8")
    return environment.get_template(template).render(css=Markup(css), **values)  # noqa: S704 - a file of this package


def _finalized(value: object) -> object:
    """Return a value of the template as text without control characters; HTML stays as it is."""
    return value if isinstance(value, Markup) else printable(str(value))


def _grouped(classes: str, rows: Iterable[tuple[str, tuple[str, ...]]]) -> list[list[Cell]]:
    """Return a row of cells for each different text, after the names of the nodes that have it."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for node, texts in rows:
        groups.setdefault(texts, []).append(node)
    return [[Cell(text, classes) for text in (hosts.fold(names), *what)] for what, names in groups.items()]
