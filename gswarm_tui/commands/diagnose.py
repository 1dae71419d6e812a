"""``gswarm-tui diagnose``: find what slows or ends a job, and what to do."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from gswarm_tui.analysis import periods
from gswarm_tui.analysis.periods import Period
from gswarm_tui.commands.recording_choice import (
    add_session,
    choose_session,
    open_source,
    parse_words,
    require_samples,
)
from gswarm_tui.commands.site_mail import site_mail
from gswarm_tui.common.errors import print_notice, printable
from gswarm_tui.common.quantities import duration, gpu_time, plural
from gswarm_tui.fleet.findings import CANNOT_TELL, Finding, in_order
from gswarm_tui.insight import notes
from gswarm_tui.insight.catalogue import RULES
from gswarm_tui.insight.recorded import Diagnosis, diagnose
from gswarm_tui.options.arguments import CommandParser
from gswarm_tui.printing.json_output import findings_object, print_json
from gswarm_tui.printing.progress import Progress
from gswarm_tui.runs import lemons, usual
from gswarm_tui.runs.finding_runs import known_runs
from gswarm_tui.store.querying.results import QuerySource

SHOWN = 3
"""Findings that are printed in full; the rest is counted."""


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print what the rules find; return 0, whatever they find. Raises UserError, StoreError."""
    parser = CommandParser(
        "diagnose",
        "[SESSION] [--db PATH] [--json | --for-site] [options]",
        "Find what slows or ends a job: who, since when, by which numbers, at what cost, and what to do.",
    )
    add_session(parser, "the whole newest recording")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--all", action="store_true", help="print all findings, not only three")
    output.add_argument("--for-site", action="store_true", help="print a mail to the site's administrators")
    arguments = parser.read(args)
    named = parse_words(arguments.session, arguments.db)
    with contextlib.closing(open_source(named.file, environ)) as source:
        period = choose_session(source, named.name) if named.name else _whole(source)
        require_samples(source, period, "diagnose")
        with Progress(f"diagnosing {printable(period.name)}") as progress:
            found = diagnose(source, period.recording_id, *period.bounds, environ, progress=progress.report)
        former, slower = _former_runs(source, period)
        # The recorder adds this finding at its end.
        if slower is not None and not any(one.kind == slower.kind for one in found.findings):
            found = replace(found, findings=in_order([*found.findings, slower]))
        if arguments.for_site:
            if mail := site_mail(source, period, found.findings):
                print(mail)
            else:
                print_notice("no finding names a node that the site could mend")
            return 0
        if arguments.json:
            print_json(findings_object(found.findings, found.not_measured, found.ledger))
            return 0
        _print_text(found, period, source.path, former, everything=arguments.all)
    return 0


def _whole(source: QuerySource) -> Period:
    """Return the newest recording, as a job is slow whatever sessions its user named. Raises UserError."""
    recordings = periods.load_recordings(source)
    if not recordings:
        return periods.find_period(source)
    if len(recordings) > 1:
        older = ", ".join(one.name for one in recordings[:-1])
        print_notice(f"{source.path} has {len(recordings)} recordings; using the newest. Others: {older}.")
    return recordings[-1]


def _former_runs(source: QuerySource, period: Period) -> tuple[list[tuple[str, str]], Finding | None]:
    """Compare a run with former ones; return labelled lines on them and on its nodes, and the finding."""
    from gswarm_tui.runs.reading import read_lines

    if not (known := known_runs()):
        return [], None
    line = next(one for one in read_lines(source) if one.recording_id == period.recording_id)
    text, slower = usual.compare(line, known)
    bad = "; ".join(one.text for one in lemons.find(known) if one.node in line.nodes)
    return [pair for pair in (("usual", text), ("lemons", bad)) if pair[1]], slower


def _print_text(
    found: Diagnosis, period: Period, path: Path, former: Sequence[tuple[str, str]], *, everything: bool
) -> None:
    from gswarm_tui.printing.table import print_labelled

    began, until = map(_local, period.bounds)
    job = f" · job {period.job}" if period.job else ""
    print(printable(f"{period.name} · {path}"))
    print(printable(f"{began} to {until} · {duration(period.seconds)}{job}"), end="\n\n")
    paced = [("steps", found.pace)] if found.pace else []
    print_labelled([("GPU time", notes.ledger_text(found.ledger)), *paced, *former], sys.stdout)
    named = [one for one in found.findings if one.kind != CANNOT_TELL]
    unnamed = [one for one in found.findings if one.kind == CANNOT_TELL]
    shown = named if everything else [one for one in named if not one.dismissed][:SHOWN]
    for finding in shown:
        print()
        print_labelled(_finding_lines(finding, running=period.ended_at is None), sys.stdout)
    print()
    rest = [one for one in named if one not in shown]
    lines = [("more", f"{notes.counted(rest)}; --all prints them")] if rest else []
    lines += [(CANNOT_TELL.replace("_", " "), one.sentence) for one in unnamed]
    lines += [] if named or unnamed else [("no finding", "the rules found nothing in what they watched")]
    watched = f"{plural(found.nodes, 'node')}, {plural(found.gpus, 'GPU')}, by {plural(len(RULES), 'rule')}"
    lines.append(("watched", watched))
    if found.not_measured:
        lines.append(("not measured", notes.unmeasured_text(found.not_measured, found.nodes)))
    lines.append(("last look", _local(found.looked_at)))
    print_labelled(lines, sys.stdout)


def _finding_lines(finding: Finding, *, running: bool) -> list[tuple[str, str]]:
    """Return the labelled lines of a finding in full."""
    holds = "still holds" if running else "until the end"
    holds = holds if finding.until is None else f"until {_local(finding.until)}"
    cost = f", {gpu_time(3600 * finding.gpu_hours)} lost" if finding.gpu_hours > 0 else ""
    label = "dismissed" if finding.dismissed else finding.severity
    lines = [
        (label, notes.what(finding)),
        ("when", f"since {_local(finding.since)}, {holds}{cost}"),
        ("evidence", notes.evidence_text(finding.evidence)),
        ("to do", finding.advice),
        ("", notes.exclude_line([finding])),
        ("rule", f"{finding.kind}: {finding.source}"),
    ]
    return [line for line in lines if line[1]]


def _local(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC).astimezone():%Y-%m-%d %H:%M:%S}"
