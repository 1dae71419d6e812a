"""``gswarm-tui diagnose``: find what slows or ends a job, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any, cast

from gswarm_tui.commands.recording_choice import add_session, open_session
from gswarm_tui.common.errors import printable
from gswarm_tui.fleet.findings import CANNOT_TELL, Finding
from gswarm_tui.insight.recorded import Diagnosis, diagnose
from gswarm_tui.insight.watch import time_scale
from gswarm_tui.options.arguments import CommandParser
from gswarm_tui.printing.json_output import print_json, utc
from gswarm_tui.printing.progress import Progress
from gswarm_tui.store.querying.arrays import ArraySource

SHOWN = 3
"""Findings that are printed in full; the rest is counted."""


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print what the rules find in a session. Raises UserError, StoreError."""
    parser = CommandParser(
        "diagnose",
        "[SESSION] [--db PATH] [--json] [--all]",
        "Find what slows or ends a job: who, since when, by which numbers, at what cost, and what to do.",
    )
    add_session(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--all", action="store_true", help="print all findings, not only three")
    arguments = parser.read(args)
    with (
        open_session(arguments.session, arguments.db, environ) as (source, period),
        Progress(f"diagnosing {printable(period.name)}") as progress,
    ):
        found = diagnose(
            cast(ArraySource, source),
            period.recording_id,
            period.started_at.replace(tzinfo=UTC).timestamp(),
            period.until.replace(tzinfo=UTC).timestamp(),
            scale=time_scale(environ),
            progress=progress.report,
        )
    if arguments.json:
        print_json(as_json(found))
        return 0
    shown = found.findings if arguments.all else found.findings[:SHOWN]
    for finding in shown:
        print(f"{finding.severity}  {finding.sentence}")
    return 0


def as_json(found: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis as a JSON object."""
    named = [one for one in found.findings if one.kind != CANNOT_TELL]
    return {
        "findings": [finding_json(one) for one in named],
        "cannot_tell": [finding_json(one) for one in found.findings if one.kind == CANNOT_TELL],
        "not_measured": [{"signal": signal, "nodes": nodes} for signal, nodes in found.not_measured.items()],
        "ledger": {cause: round(seconds / 3600, 6) for cause, seconds in found.ledger.items()},
    }


def finding_json(finding: Finding) -> dict[str, Any]:
    """Return a finding as a JSON object; times are ISO 8601 in UTC."""
    plain = finding.plain()
    del plain["finding_id"]
    return plain | {name: utc(plain[name]) for name in ("since", "until")}
