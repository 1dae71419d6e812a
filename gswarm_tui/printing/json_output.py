"""JSON on standard output, as all commands with ``--json`` print it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from gswarm_tui.printing import cells

if TYPE_CHECKING:
    from gswarm_tui.fleet.findings import Finding


def print_json(value: Any, out: TextIO | None = None) -> None:
    """Print a value as indented JSON; a terminal gets ASCII, which has no escapes of its own."""
    out = out or sys.stdout
    print(json.dumps(value, indent=2, ensure_ascii=out.isatty(), allow_nan=False), file=out)


def utc(at: float | None) -> str | None:
    """Return a Unix time as text in UTC, as in exports."""
    return None if at is None else cells.exact(datetime.fromtimestamp(at, UTC))


def with_times(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with its times, ``now`` and names that end in ``_at``, as text in UTC."""
    return {key: utc(value) if key == "now" or key.endswith("_at") else value for key, value in row.items()}


def findings_object(
    findings: Iterable[Finding], not_measured: Mapping[str, list[str]], ledger: Mapping[str, float]
) -> dict[str, Any]:
    """Return findings in order, the signals that nodes lack, and the ledger's GPU-hours as a JSON object."""
    from gswarm_tui.fleet.findings import CANNOT_TELL

    listed = [(one.kind == CANNOT_TELL, finding_object(one)) for one in findings]
    return {
        "findings": [one for unknown, one in listed if not unknown],
        "cannot_tell": [one for unknown, one in listed if unknown],
        "not_measured": [{"signal": signal, "nodes": nodes} for signal, nodes in not_measured.items()],
        "ledger": {cause: round(seconds / 3600, 6) for cause, seconds in ledger.items()},
    }


def finding_object(finding: Finding) -> dict[str, Any]:
    """Return a finding as a JSON object, without its number in the file."""
    plain = finding.plain()
    del plain["finding_id"]
    times = {name: utc(plain[name]) for name in ("since", "until")}
    return plain | times | {"gpu_hours": round(plain["gpu_hours"] or 0.0, 6)}
