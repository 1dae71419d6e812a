"""The HTML page of a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from importlib import resources
from pathlib import Path
from typing import Any

from gswarm_agent.metrics import COUNTER_RIGHTS
from gswarm_tui.analysis.periods import Period
from gswarm_tui.analysis.summary_data import Figures
from gswarm_tui.analysis.summary_text import outliers, part_of, process_table, share, throttled_s
from gswarm_tui.common.quantities import DASH, duration, energy, mebibytes, plural, watts
from gswarm_tui.fleet.events import json_object
from gswarm_tui.fleet.thresholds import BUSY_FROM_PCT
from gswarm_tui.plotting.annotations import MOST_EVENTS as MOST_EVENTS_READ
from gswarm_tui.plotting.timescale import moment, zone_name
from gswarm_tui.reporting.html import Html, HtmlCell, cell, fact_list, table, tag
from gswarm_tui.reporting.report_data import ReportData
from gswarm_tui.slurm import hosts
from gswarm_tui.trials.result_text import command_text, notes, scaling_table, sentence, usage_table

OPEN_UP_TO = 64
"""More GPUs than this are listed in a collapsed section."""

MOST_EVENTS, MOST_GAPS, MOST_MARKS, MOST_PROCESSES = 200, 40, 200, 20
"""Longer tables are cut, and say how many rows are missing."""

MOST_MARKED = 3
"""An extreme shared by more rows isn't marked."""


_Value = Callable[[Figures], float | None]
_Shown = Callable[[float | None], str]


def _number(value: float | None, digits: int = 0, unit: str = "") -> str:
    """Format a number with thousands separators and its unit."""
    if value is None:
        return DASH
    return f"{value:,.{digits}f}" + (f" {unit}" if unit else "")


def _tenths(value: float | None) -> str:
    return _number(value, 1)


_COLUMNS: tuple[tuple[str, _Value, _Shown], ...] = (
    ("util mean (%)", lambda one: one.util_mean_pct, _tenths),
    ("median", lambda one: one.util_median_pct, _number),
    ("p95", lambda one: one.util_p95_pct, _number),
    ("busy (%)", lambda one: _times(part_of(one.busy_s, one.measured_s), 100), _tenths),
    ("bubbles (%)", lambda one: _times(one.bubble_share, 100), _tenths),
    ("power mean (W)", lambda one: one.power_mean_w, _number),
    ("max (W)", lambda one: one.power_max_w, _number),
    ("memory max (GiB)", lambda one: _times(one.mem_used_max_mib, 1 / 1024), _tenths),
    ("energy", lambda one: one.energy_j, energy),
    ("max (°C)", lambda one: one.temp_max_c, _number),
    ("throttled (GPU-s)", throttled_s, _number),
    ("coverage (%)", lambda one: _times(one.coverage, 100), _tenths),
)
"""Heading of each column, its value in the heading's unit, and the value's format."""

_DEFINITIONS = (
    (
        "Utilisation",
        "NVML's: the share of time in which any kernel ran; copies may count, too. One busy multiprocessor "
        "can give 100 %.",
    ),
    ("Mean, median, p95", "over the measured time of single GPUs in the session; max is the highest sample."),
    (
        "Busy",
        f"the share of the measured time in which a GPU's utilisation was {BUSY_FROM_PCT:g} % or more.",
    ),
    (
        "Bubbles",
        "idle phases of a GPU between two busy ones: their share of the measured time from its first busy "
        "sample to its last.",
    ),
    (
        "Energy",
        "the growth of the GPUs' energy counters in the session, else power × time: of the boards, not of "
        "whole nodes.",
    ),
    (
        "Throttled",
        "GPU time with reduced clocks, for the longest reason: the power limit, heat, or an external power "
        "brake.",
    ),
    ("Coverage", "the share of the session's GPU time that samples cover."),
    (
        "Plots",
        "a point is the mean of the samples in its time, weighted by the time that each covers. Without "
        "data, heatmaps are hatched and curves interrupted.",
    ),
)

_NO_SAMPLES = tag("p", "No GPU was sampled at this time, so the report has only profiles.")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True)
class Report:
    """Content of a page. ``plots`` are figures; ``made_at`` is naive UTC; ``running`` while recorded."""

    period: Period
    facts: ReportData
    plots: Sequence[Html]
    trial_plot: Html | None
    path: Path
    running: bool
    made_at: datetime
    zone: tzinfo | None
    tool_version: str

    def html(self) -> str:
        """Return the whole page."""
        css = (resources.files("gswarm_tui.reporting") / "style.css").read_text(encoding="utf-8")
        head = tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("title", f"{self.period.name} · gswarm-tui"),
            tag("style", Html(css)),
        )
        parts = [
            self._header(),
            self._tiles(),
            *(self._samples() if not self._profiles_alone else [_NO_SAMPLES, *self._profiles()]),
            *self._settings(),
            *([] if self._profiles_alone else self._definitions()),
            self._footer(),
        ]
        return f"<!doctype html>\n{tag('html', head, tag('body', tag('main', *parts)), lang='en')}\n"

    def _samples(self) -> list[Html]:
        return [
            *self._trial(),
            *self.plots,
            *self._per_device(),
            *self._coverage(),
            *self._profiles(),
            *self._processes(),
            *self._events(),
            *self._marks(),
        ]

    def _header(self) -> Html:
        period, recording = self.period, self.facts.recording
        end = moment(period.until, self.zone, like=period.started_at)
        when = f"{moment(period.started_at, self.zone)} – {end} {zone_name(period.started_at, self.zone)}"
        parts = [tag("h1", period.name), tag("p", when, class_="dim")]
        where = [f"job {period.job}"] if period.job else []
        if recording["slurm_cluster"]:
            where.append(f"cluster {recording['slurm_cluster']}")
        where.append(hosts.fold(self._nodes()))
        if not self._profiles_alone:
            where.append(f"recorded by {recording['user_name'] or DASH}")
        parts.append(tag("p", " · ".join(where), class_="dim"))
        if self.running:
            words = f"Still running; state at {moment(self.made_at, self.zone)}."
            parts.append(tag("p", words, class_="running"))
        elif period.ended_at is None:
            words = "No end: the recording was interrupted. gswarm-tui recover completes it."
            parts.append(tag("p", words, class_="running"))
        if period.note:
            parts.append(tag("p", period.note, class_="note"))
        return tag("header", *parts)

    @property
    def _profiles_alone(self) -> bool:
        """Whether the page is about profiles without any sample."""
        return self.facts.summary.whole is None and bool(self.facts.profiled)

    def _nodes(self) -> list[str]:
        return list(dict.fromkeys(str(row["node"]) for row in self.facts.nodes))

    def _tiles(self) -> Html:
        one, nodes = self.facts.summary.whole, plural(len(self._nodes()), "node")
        tiles = [("Duration", duration(self.period.seconds), "so far" if self.running else "")]
        if one is None:
            tiles += [] if self._profiles_alone else [("GPUs", "0", f"measured on {nodes}")]
        else:
            bubbles = f"{share(one.bubble_share)} bubbles" if one.bubble_share else ""
            throttled = throttled_s(one)
            tiles += [
                ("GPUs", f"{one.gpus:,}", f"on {nodes}"),
                (
                    "Utilisation",
                    _number(one.util_mean_pct, 1, "%"),
                    f"median {_number(one.util_median_pct)}, p95 {_number(one.util_p95_pct)}",
                ),
                ("Busy", share(part_of(one.busy_s, one.measured_s)), bubbles or "of the measured time"),
                ("Energy", energy(one.energy_j), f"mean {watts(one.power_mean_w)} per GPU"),
                (
                    "Peak memory",
                    mebibytes(one.mem_used_max_mib),
                    f"of {mebibytes(one.mem_total_mib)}" if one.mem_total_mib else "",
                ),
                (
                    "Throttled",
                    share(part_of(throttled, one.measured_s)),
                    "of the measured time" if throttled is not None else "not measured",
                ),
                ("Coverage", share(one.coverage), "of the GPU time was measured"),
            ]
        parts = (
            tag("div", tag("dt", name), tag("dd", value, tag("small", more) if more else ""))
            for name, value, more in tiles
        )
        return tag("dl", *parts, class_="tiles")

    def _trial(self) -> list[Html]:
        results = self.facts.trial
        if isinstance(results, str):
            return [tag("h2", "Trial"), tag("p", results)]
        if results is None or self.trial_plot is None:
            return []
        tables = (scaling_table(results), usage_table(results))
        return [
            tag("h2", "Trial"),
            tag("p", tag("code", command_text(results))),
            tag("p", sentence(results)),
            *(table(one.names, one.rows, right=one.right) for one in tables),
            self.trial_plot,
            *(tag("p", note, class_="dim") for note in notes(results)),
            *([tag("h2", "Session")] if self.plots else []),
        ]

    def _per_device(self) -> list[Html]:
        nodes, gpus = self.facts.summary.nodes, self.facts.summary.gpus
        found = []
        if len(nodes) > 1:
            found += [tag("h2", "Nodes"), _figures_table(nodes)]
        if gpus:
            found.append(tag("h2", "GPUs"))
            if lines := outliers(gpus):
                found.append(fact_list(lines))
            rows = _figures_table(gpus)
            if len(gpus) > OPEN_UP_TO:
                rows = tag("details", tag("summary", f"All {len(gpus):,} GPUs"), rows, class_="all")
            found.append(rows)
        return found

    def _profiles(self) -> list[Html]:
        facts = self.facts
        if not facts.profiled:
            return []
        words = tag("p", f"{facts.profiled[0].upper()}{facts.profiled[1:]}.")
        rows = [[*row[:-1], cell(row[-1], "text")] for row in facts.kernels.rows]
        listed = [table(facts.kernels.names, rows, right=facts.kernels.right)] if rows else []
        return [tag("h2", "Longest kernels" if rows else "Profiles"), words, *listed]

    def _processes(self) -> list[Html]:
        known = self.facts.processes
        if not known:
            return []
        listed = process_table(known[:MOST_PROCESSES])
        rows = [
            [
                cell(text, "text") if name == "command" else text
                for name, text in zip(listed.names, row, strict=True)
            ]
            for row in listed.rows
        ]
        return [
            tag("h2", "Peaks of processes"),
            table(listed.names, rows, right=listed.right),
            *_more(len(known) - len(rows), "processes with less GPU memory"),
        ]

    def _coverage(self) -> list[Html]:
        summary = self.facts.summary
        partial = [one for one in summary.covered if not one.complete]
        found = [tag("h2", "Coverage")]
        if summary.whole is None:
            found.append(tag("p", "No GPU was measured."))
        elif not partial:
            found.append(tag("p", f"{plural(len(summary.covered), 'node')} covered completely."))
        else:
            were = "was" if len(partial) == 1 else "were"
            words = (
                f"{len(partial):,} of {plural(len(summary.covered), 'node')} {were} not covered completely; "
                f"samples cover {share(summary.whole.coverage)} of the GPU time, and figures use only these."
            )
            rows = [
                [one.node, share(one.coverage), duration(one.covered_s), f"{one.frames:,}"] for one in partial
            ]
            heads = ["node", "covered", "time", "frames"]
            found += [tag("p", words), table(heads, rows, right=frozenset({1, 2, 3}))]
        if summary.silent:
            found.append(tag("p", f"No samples in this time: {hosts.fold(summary.silent)}."))
        if self.facts.gaps:
            listed = [
                [node, self._time(begin), self._time(end), duration((end - begin).total_seconds())]
                for node, begin, end in self.facts.gaps[:MOST_GAPS]
            ]
            found += [
                tag("h3", "Gaps"),
                table(["node", "no data from", "until", "for"], listed, right=frozenset({3})),
                *_more(len(self.facts.gaps) - len(listed), "gaps"),
            ]
        return found

    def _events(self) -> list[Html]:
        facts = self.facts
        found = [tag("h2", "Events")]
        if facts.more_events:
            words = (
                f"Only the first {MOST_EVENTS_READ:,} events and marks are counted; query the table events."
            )
            found.append(tag("p", words))
        if facts.incidents:
            found += self._listed(facts.incidents)
        else:
            found.append(tag("p", "No warnings or errors."))
        if facts.others:
            words = plural(len(facts.others), "informational event")
            found.append(tag("details", tag("summary", words), *self._listed(facts.others)))
        return found

    def _listed(self, events: Sequence[Mapping[str, Any]]) -> list[Html]:
        rows = [
            [
                self._time(row["ts"]),
                cell(row["severity"], row["severity"] if row["severity"] in ("error", "warning") else ""),
                row["node"] + (f":{row['gpu']}" if row["gpu"] is not None else ""),
                row["kind"].replace("_", " "),
                cell(row["message"] + (f" ({row['detail']})" if row["detail"] else ""), "text"),
            ]
            for row in events[:MOST_EVENTS]
        ]
        heads = ["time", "severity", "node", "kind", "message"]
        return [table(heads, rows), *_more(len(events) - len(rows), "events; query the table events")]

    def _marks(self) -> list[Html]:
        marks = self.facts.marks
        if not marks:
            return []
        rows = [
            [
                self._time(row["ts"]),
                cell(row["message"], "text"),
                row["node"],
                ", ".join(f"{name} {value}" for name, value in json_object(row["detail"]).items()),
            ]
            for row in marks[:MOST_MARKS]
        ]
        heads = ["time", "mark", "node", "values"]
        return [tag("h2", "Marks"), table(heads, rows), *_more(len(marks) - len(rows), "marks")]

    def _settings(self) -> list[Html]:
        recording = self.facts.recording
        facts: list[tuple[str, object]] = [
            ("Recording", f"{self.path.name}, recording {self.period.recording_id}"),
        ]
        if not self._profiles_alone:
            facts += [
                ("Command", tag("code", recording["command"] or DASH)),
                ("Interval", f"{(recording['interval_ms'] or 0) / 1000:g} s at the start"),
                ("Recorded on", recording["host"] or DASH),
                ("gswarm-tui", recording["tool_version"] or DASH),
            ]
        groups: dict[tuple[object, ...], list[str]] = {}
        for row in self.facts.nodes:
            memory = mebibytes(row["memory_total_mib"])
            what = (
                f"{row['gpus']} × {row['gpu_name']}" if row["gpu_name"] else "no GPU known",
                mebibytes(row["gpu_mib"]),
                _number(row["power_limit_w"], 0, "W"),
                row["driver_version"] or DASH,
                row["cuda_version"] or DASH,
                f"{row['cpu_model'] or DASH}, {row['cpus'] or DASH} CPUs, {memory}",
                row["kernel"] or DASH,
                row["agent_version"] or DASH,
            )
            groups.setdefault(what, []).append(str(row["node"]))
        heads = [
            "nodes",
            "GPUs",
            "GPU memory",
            "limit",
            "driver",
            "CUDA",
            "CPUs and memory",
            "kernel",
            "agent",
        ]
        rows = [
            [cell(text, "words") for text in (hosts.fold(names), *what)] for what, names in groups.items()
        ]
        return [
            tag("h2", "Settings and hardware"),
            fact_list(facts),
            table(heads, rows),
            *self._unmeasured(),
        ]

    def _unmeasured(self) -> list[Html]:
        """List the metrics that nodes can't measure, with reasons."""
        groups: dict[str, list[str]] = {}
        for row in self.facts.nodes:
            for what, why in json_object(row["capabilities"]).items():
                if what in COUNTER_RIGHTS:  # not a metric
                    continue
                groups.setdefault(f"{what}: {why}", []).append(str(row["node"]))
        if not groups:
            return []
        rows = [[cell(hosts.fold(names), "text"), cell(words, "text")] for words, names in groups.items()]
        return [tag("h3", "Not measured"), table(["nodes", "missing metric and reason"], rows)]

    def _definitions(self) -> list[Html]:
        return [tag("h2", "How each number is defined"), fact_list(_DEFINITIONS)]

    def _footer(self) -> Html:
        made = f"Made by gswarm-tui {self.tool_version} at {moment(self.made_at, self.zone)}."
        zone = f" All times are local times, {zone_name(self.period.started_at, self.zone)}."
        return tag("footer", made + zone, class_="dim")

    def _time(self, at: datetime) -> str:
        return moment(at, self.zone, like=self.period.started_at)


def figure(drawn: Html, caption: str) -> Html:
    """Return a drawn plot with its caption."""
    return tag("figure", tag("div", drawn), tag("figcaption", caption))


def _more(count: int, what: str) -> list[Html]:
    """Return a line with the number of rows that a table lacks; nothing if it is complete."""
    return [tag("p", f"{count:,} more {what}.", class_="dim")] if count else []


def _times(value: float | None, factor: float) -> float | None:
    """Return the product, None for an unknown value."""
    return None if value is None else value * factor


def _figures_table(figures: Sequence[Figures]) -> Html:
    """Return a table with a row for each GPU or node and marked extremes."""
    gpus = figures[0].gpu_index is not None
    columns = [_marked_cells([value(one) for one in figures], shown) for _, value, shown in _COLUMNS]
    names = [(one.node, one.gpu_index if gpus else one.gpus) for one in figures]
    rows = [(*name, *cells) for name, cells in zip(names, zip(*columns, strict=True), strict=True)]
    heads = ["node", "GPU" if gpus else "GPUs", *(head for head, _, _ in _COLUMNS)]
    return table(heads, rows, right=frozenset(range(1, len(heads))))


def _marked_cells(values: Sequence[float | None], shown: _Shown) -> list[HtmlCell]:
    """Return a column's cells; marks the lowest and the highest value, unless many rows share it."""
    ordered = [shown(value) for value in sorted(v for v in values if v is not None)]
    marks: dict[str, tuple[str, str]] = {}
    if len(ordered) >= 3 and ordered[0] != ordered[-1]:
        marks = {ordered[0]: ("least", "lowest"), ordered[-1]: ("most", "highest")}
    cells = []
    for text in map(shown, values):
        mark, title = marks.get(text, ("", None))
        if text in (_number(0.0), energy(0.0)) or ordered.count(text) > MOST_MARKED:
            mark, title = "", None
        cells.append(cell(text, *("n", mark) if mark else "n", title=title))
    return cells
