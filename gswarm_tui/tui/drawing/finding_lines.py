"""Lines about findings: the header's line, an entry of the list, and a strip of peers. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, tzinfo

from gswarm_agent.metrics import GPU_BY_NAME, HOST_BY_NAME
from gswarm_tui.fleet.findings import FAULT, NOTE, WASTE, Finding
from gswarm_tui.fleet.history import Floats
from gswarm_tui.insight.notes import shares
from gswarm_tui.tui.drawing.curve import bar
from gswarm_tui.tui.drawing.ramp import BLOCK_OF, buckets
from gswarm_tui.tui.drawing.spans import CURSOR_MARK, Line, Span, Spans, heading_rule, measure
from gswarm_tui.tui.drawing.text import clean, clip, width, wrap

SIGNS = {FAULT: ("╳", "error"), WASTE: ("▲", "warning"), NOTE: ("·", "accent")}
"""Sign and role of each severity; those of events, but a note has no warning's colour."""
INDENT = 13
"""Cells before the sentence of a finding in the list: cursor, sign, time."""


def first_line(findings: Sequence[Finding], cells: int) -> Line:
    """Return the first finding in a line: who, signal, how long and cost; then what else fits, in order."""
    finding = findings[0]
    sign, role = SIGNS[finding.severity]
    others = f"+{len(findings) - 1}" if len(findings) > 1 else ""
    end = [Span(f"  {others} " if others else "  ", "dim"), Span("!", "key"), Span(" why ", "dim")]
    room = cells - measure(end) - 3
    parts = clean(finding.sentence).split(" · ")
    signal = next((at for at, part in enumerate(parts) if at and not part.startswith("rank ")), 0)
    cost = [at for at, part in enumerate(parts) if part.startswith("≈")]
    first = dict.fromkeys((0, signal, *cost))
    if width(" · ".join(parts[at] for at in first)) > room:
        parts[signal] = parts[signal].partition(", ")[0]
    shown: set[int] = set()
    for at in dict.fromkeys((*first, *range(len(parts)))):
        if width(" · ".join(parts[each] for each in sorted({*shown, at}))) <= room:
            shown.add(at)
    who, *more = (parts[at] for at in sorted(shown or {0}))
    words = clip("".join(f" · {part}" for part in more), room - width(who))
    line = [Span(f" {sign} ", role), Span(clip(who, room), "title"), Span(words)]
    click = "app.findings()"
    line = [span._replace(click=click) for span in (*line, *end)]
    return [*line[:3], Span(" " * (cells - measure(line)), "text"), *line[3:]]


def entry_lines(finding: Finding, cells: int, zone: tzinfo | None, *, chosen: bool) -> list[Spans]:
    """Return a finding of the list in full; one that ended or was dismissed is dim."""
    sign, role = SIGNS[finding.severity]
    old = "dismissed" if finding.dismissed else "" if finding.until is None else "ended"
    role, text = ("dim", "dim") if old else (role, "text")
    who, _, rest = clean(finding.sentence).partition(" · ")
    lines = wrap(f"{who} · {rest}" + (f" · {old}" if old else ""), max(20, cells - INDENT - 1))
    mark = Span(f"{CURSOR_MARK if chosen else ' '}", "accent")
    since = f" {datetime.fromtimestamp(finding.since, zone):%H:%M:%S} "
    first = (Span(who, "dim" if old else "title"), Span(lines[0].removeprefix(who), text))
    head: Spans = (mark, Span(f" {sign}", role), Span(since, "dim"), *first)
    return [head, *((Span(" " * INDENT), Span(line, text)) for line in lines[1:])]


def kind_name(kind: str) -> str:
    """Return a kind or a signal in words."""
    metric = GPU_BY_NAME.get(kind) or HOST_BY_NAME.get(kind)
    return metric.label if metric else clean(kind).replace("_", " ")


def ledger_bars(ledger: Mapping[str, float], cells: int) -> list[Spans]:
    """Return a heading, and a bar for each cause as long as its share of the job's GPU time."""
    room = max(10, cells - 2 * INDENT)
    return [heading_rule("GPU time by cause", cells)] + [
        (Span(f" {cause:<{INDENT}}{share:>4} %  ", "dim"), Span(bar(share / 100, room), "accent"))
        for cause, share in shares(ledger).items()
        if share
    ]


def strip_line(levels: Floats, culprits: Collection[int], cells: int, ramp: str) -> Spans:
    """Return one cell for each GPU or node, those of the finding in brackets; as many as fit around them."""
    room = max(8, (cells - 12) - 2 * len(culprits))
    begin = max(0, min(min(culprits, default=0) - room // 2, len(levels) - room))
    spans = [Span(" peers " + ("…" if begin else " "), "dim")]
    steps = buckets(levels)
    for at in range(begin, min(begin + room, len(levels))):
        cell = Span(BLOCK_OF[steps[at]], f"ink{ramp}{steps[at]}")
        spans += [Span("[", "title"), cell, Span("]", "title")] if at in culprits else [cell]
    return (*spans, Span("…" if begin + room < len(levels) else "", "dim"))
