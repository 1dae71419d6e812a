"""The page of a report, from its facts and plots."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from importlib import resources
from pathlib import Path
from typing import Any

from gswarm_tui import hosts
from gswarm_tui.analysis.spans import Span
from gswarm_tui.plotting.timescale import moment, short_time, zone_name
from gswarm_tui.reporting import figures
from gswarm_tui.reporting.facts import MOST_EVENTS, MOST_GAPS, MOST_MARKS, Facts
from gswarm_tui.reporting.figures import DASH, number
from gswarm_tui.reporting.html import Html, cell, join, table, tag

OPEN_UP_TO = 64
"""So many GPUs are listed at once; of more, the list has to be opened."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True)
class Plot:
    """A plot that is drawn already, with the sentence under it."""

    drawn: Html
    caption: str


@dataclass(frozen=True)
class Report:
    """What a page is made of. ``made_at`` is naive UTC, ``running`` whether the session goes on."""

    span: Span
    facts: Facts
    plots: Sequence[Plot]
    path: Path
    running: bool
    made_at: datetime
    zone: tzinfo | None
    tool_version: str

    def html(self) -> str:
        """The whole page."""
        css = (resources.files("gswarm_tui.reporting") / "style.css").read_text(encoding="utf-8")
        head = tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("title", f"{self.span.name} · gswarm-tui"),
            tag("style", Html(css)),
        )
        parts = [
            self._header(),
            self._tiles(),
            *self._plots(),
            *self._per_device(),
            *self._coverage(),
            *self._events(),
            *self._marks(),
            *self._settings(),
            *self._definitions(),
            self._footer(),
        ]
        return f"<!doctype html>\n{tag('html', head, tag('body', tag('main', *parts)), lang='en')}\n"

    def _header(self) -> Html:
        span, recording = self.span, self.facts.recording
        end = moment(span.until, self.zone, like=span.started_at)
        when = f"{moment(span.started_at, self.zone)} – {end} {zone_name(span.started_at, self.zone)}"
        parts = [tag("h1", span.name), tag("p", when, class_="dim")]
        where = [f"job {span.job}"] if span.job else []
        if recording["slurm_cluster"]:
            where.append(f"cluster {recording['slurm_cluster']}")
        where += [hosts.fold(self._nodes()), f"recorded by {recording['user_name'] or DASH}"]
        parts.append(tag("p", " · ".join(where), class_="dim"))
        if self.running:
            words = f"Still running: this is how far it was at {moment(self.made_at, self.zone)}."
            parts.append(tag("p", words, class_="running"))
        if span.note:
            parts.append(tag("p", span.note, class_="note"))
        return tag("header", *parts)

    def _nodes(self) -> list[str]:
        return list(dict.fromkeys(str(row["node"]) for row in self.facts.nodes))

    def _tiles(self) -> Html:
        row = figures.with_throttled(self.facts.whole) if self.facts.whole else {}
        busy = figures.busy_share(row)
        gpus, nodes = row.get("gpus"), len(self._nodes())
        memory = max((n["gpu_mib"] for n in self.facts.nodes if n["gpu_mib"]), default=None)
        tiles = [
            ("Duration", short_time(self.span.seconds), "so far" if self.running else ""),
            ("GPUs", number(gpus), f"on {nodes} node{'s' * (nodes != 1)}"),
            (
                "Utilisation",
                number(row.get("util_mean_pct"), 1, "%"),
                f"median {number(row.get('util_median_pct'))}, p95 {number(row.get('util_p95_pct'))}",
            ),
            ("Busy", number(None if busy is None else 100 * busy, 1, "%"), "of the GPU time"),
            (
                "Energy",
                number(row.get("energy_kwh"), 2, "kWh"),
                f"mean {number(row.get('power_mean_w'), 0, 'W')} a GPU",
            ),
            (
                "Peak memory",
                number(_gib(row.get("mem_used_max_mib")), 1, "GiB"),
                f"of {number(_gib(memory), 1, 'GiB')}" if memory else "",
            ),
            ("Throttled", number(row.get("throttled_s"), 0, "s"), "of GPU time, summed"),
            (
                "Coverage",
                number(_percent(row.get("coverage")), 1, "%"),
                row.get("partial") or "of the GPU time was measured",
            ),
        ]
        return tag(
            "dl",
            *(
                tag("div", tag("dt", name), tag("dd", value, tag("small", more) if more else ""))
                for name, value, more in tiles
            ),
            class_="tiles",
        )

    def _plots(self) -> list[Html]:
        return [tag("figure", tag("div", plot.drawn), tag("figcaption", plot.caption)) for plot in self.plots]

    def _per_device(self) -> list[Html]:
        heads = [figure.head for figure in figures.COLUMNS]
        found = []
        nodes = [figures.with_throttled(row) for row in self.facts.by_node]
        gpus = [figures.with_throttled(row) for row in self.facts.by_gpu]
        if len(nodes) > 1:
            rows = figures.rows(nodes, ([row["node"], row["gpus"]] for row in nodes))
            right = frozenset(range(1, 2 + len(heads)))
            found += [tag("h2", "Nodes"), table(["node", "GPUs", *heads], rows, right=right)]
        if gpus:
            rows = figures.rows(gpus, ([row["node"], row["gpu_index"]] for row in gpus))
            listed = table(["node", "GPU", *heads], rows, right=frozenset(range(1, 2 + len(heads))))
            found += [tag("h2", "GPUs"), *self._extremes(gpus)]
            if len(gpus) <= OPEN_UP_TO:
                found.append(listed)
            else:
                found.append(tag("details", tag("summary", f"All {len(gpus)} GPUs"), listed))
        return found

    def _extremes(self, gpus: Sequence[Mapping[str, Any]]) -> list[Html]:
        """The busiest and the idlest GPU, the hungriest, the fullest, in a sentence."""
        told = []
        for name, high, low, digits, unit in (
            ("util_mean_pct", "busiest", "idlest", 1, "%"),
            ("power_mean_w", "most power", "least", 0, "W"),
            ("throttled_s", "most throttled", "", 0, "s"),
        ):
            known = sorted(((row[name], row) for row in gpus if row[name] is not None), key=lambda it: it[0])
            if len(known) < 2 or known[0][0] == known[-1][0]:
                continue
            words = f"{high} {_gpu(known[-1][1])} with {number(known[-1][0], digits, unit)}"
            if low:
                words += f", {low} {_gpu(known[0][1])} with {number(known[0][0], digits, unit)}"
            told.append(words)
        return [tag("p", f"{text[0].upper()}{text[1:]}.") for text in ["; ".join(told)] if text]

    def _coverage(self) -> list[Html]:
        whole = self.facts.whole
        covered = whole["coverage"] if whole else None
        partial = [row for row in self.facts.coverage if not row["complete"]]
        found = [tag("h2", "Coverage")]
        if covered is None:
            found.append(tag("p", "Nothing was measured."))
        elif not partial:
            found.append(tag("p", f"All {len(self.facts.coverage)} nodes were measured throughout."))
        else:
            words = (
                f"{len(partial)} of {len(self.facts.coverage)} nodes don't cover the whole session; "
                f"{number(_percent(covered), 1, '%')} of the GPU time was measured. "
                "Means are of what was measured."
            )
            rows = [
                [row["node"], number(_percent(row["coverage"]), 1), number(row["covered_s"]), row["frames"]]
                for row in partial
            ]
            found += [
                tag("p", words),
                table(["node", "covered (%)", "covered (s)", "frames"], rows, right=frozenset({1, 2, 3})),
            ]
        if self.facts.gaps:
            listed = [
                [
                    gap.node,
                    self._time(gap.begin),
                    self._time(gap.end),
                    short_time(_length(gap.begin, gap.end)),
                ]
                for gap in self.facts.gaps[:MOST_GAPS]
            ]
            found += [
                tag("h3", "Gaps"),
                table(["node", "no data from", "until", "for"], listed, right=frozenset({3})),
            ]
            if (more := len(self.facts.gaps) - MOST_GAPS) > 0:
                found.append(tag("p", f"And {more} more.", class_="dim"))
        return found

    def _events(self) -> list[Html]:
        found = [tag("h2", "Events")]
        if not self.facts.events:
            return [*found, tag("p", "Nothing happened that is worth a line.")]
        rows = [
            [
                self._time(row["ts"]),
                cell(row["severity"], row["severity"] if row["severity"] in ("error", "warning") else ""),
                row["node"] + (f":{row['gpu']}" if row["gpu"] is not None else ""),
                row["kind"].replace("_", " "),
                cell(row["message"] + (f" ({row['detail']})" if row["detail"] else ""), "text"),
            ]
            for row in self.facts.events
        ]
        found.append(table(["time", "severity", "where", "kind", "what"], rows))
        if self.facts.event_count > MOST_EVENTS:
            words = (
                f"{self.facts.event_count:,} events in all; the recording has the others. "
                "Errors and warnings come first in this choice."
            )
            found.append(tag("p", words, class_="dim"))
        return found

    def _marks(self) -> list[Html]:
        marks = self.facts.marks
        if not marks:
            return []
        rows = [
            [self._time(row["ts"]), cell(row["message"], "text"), row["node"], _values(row["detail"])]
            for row in marks[:MOST_MARKS]
        ]
        found = [tag("h2", "Marks"), table(["time", "mark", "from", "values"], rows)]
        if (more := len(marks) - MOST_MARKS) > 0:
            found.append(tag("p", f"And {more} more.", class_="dim"))
        return found

    def _settings(self) -> list[Html]:
        recording = self.facts.recording
        facts: list[tuple[str, object]] = [
            ("Recording", f"{self.path.name}, recording {self.span.recording_id}"),
            ("Command", tag("code", recording["command"] or DASH)),
            ("Interval", f"{(recording['interval_ms'] or 0) / 1000:g} s at the start"),
            ("Recorded on", recording["host"] or DASH),
            ("gswarm-tui", recording["tool_version"] or DASH),
        ]
        groups: dict[tuple[object, ...], list[str]] = {}
        for row in self.facts.nodes:
            memory = number(_gib(row["memory_total_mib"]), 0, "GiB")
            what = (
                f"{row['gpus']} × {row['gpu_name']}" if row["gpu_name"] else "no GPU known",
                number(_gib(row["gpu_mib"]), 1, "GiB"),
                number(row["power_limit_w"], 0, "W"),
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
        rows = [[cell(hosts.fold(names), "text"), *what] for what, names in groups.items()]
        listed = [part for name, value in facts for part in (tag("dt", name), tag("dd", value))]
        return [
            tag("h2", "Settings and hardware"),
            tag("dl", *listed, class_="facts"),
            table(heads, rows),
            *self._unmeasured(),
        ]

    def _unmeasured(self) -> list[Html]:
        """What nodes could not measure, and why."""
        groups: dict[str, list[str]] = {}
        for row in self.facts.nodes:
            for what, why in _object(row["capabilities"]).items():
                groups.setdefault(f"{what}: {why}", []).append(str(row["node"]))
        if not groups:
            return []
        rows = [[cell(hosts.fold(names), "text"), cell(words, "text")] for words, names in groups.items()]
        return [tag("h3", "Not measured"), table(["nodes", "what and why"], rows)]

    def _definitions(self) -> list[Html]:
        listed = [part for name, words in figures.DEFINITIONS for part in (tag("dt", name), tag("dd", words))]
        return [tag("h2", "How each number is defined"), tag("dl", *listed, class_="facts")]

    def _footer(self) -> Html:
        made = f"Made by gswarm-tui {self.tool_version} at {moment(self.made_at, self.zone)}."
        zone = f" All times are local times, {zone_name(self.span.started_at, self.zone)}."
        return tag("footer", made + zone, class_="dim")

    def _time(self, at: datetime) -> str:
        return moment(at, self.zone, like=self.span.started_at)


def _gib(mib: float | None) -> float | None:
    return None if mib is None else mib / 1024


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _length(begin: datetime, end: datetime) -> float:
    return (end - begin).total_seconds()


def _gpu(row: Mapping[str, Any]) -> str:
    return f"{row['node']}:{row['gpu_index']}"


def _object(text: object) -> dict[str, Any]:
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def _values(detail: object) -> Html:
    return join([", ".join(f"{name} {value}" for name, value in _object(detail).items())])
