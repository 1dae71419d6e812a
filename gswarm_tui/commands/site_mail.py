"""The mail to a site's administrators about nodes at fault, ready to paste."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from gswarm_agent import __version__
from gswarm_agent.frame import gpu_label
from gswarm_tui.analysis.periods import Period
from gswarm_tui.common.errors import printable
from gswarm_tui.common.quantities import first_of, gpu_time, held, plural
from gswarm_tui.fleet.findings import NOTE, Finding
from gswarm_tui.insight import notes
from gswarm_tui.insight.catalogue import BY_KIND
from gswarm_tui.store.querying.results import QuerySource

_GPUS = """
SELECT n.node, g.gpu_index, coalesce(g.name, 'GPU') AS name, coalesce(g.uuid, 'unknown') AS uuid,
       coalesce(g.pci_bus_id, 'unknown') AS pci_bus_id, coalesce(n.driver_version, 'unknown') AS driver
FROM gpus g JOIN nodes n USING (node_id) WHERE n.recording_id = ? ORDER BY n.node_id
"""
_XIDS = """
SELECT ts, n.node, e.message FROM rec.events e JOIN nodes n USING (node_id)
WHERE e.recording_id = ? AND e.kind = 'xid' AND ts >= ? AND ts <= ? ORDER BY ts
"""
MOST_XIDS = 10
"""XIDs of a node that the mail lists."""


def site_mail(source: QuerySource, period: Period, findings: Sequence[Finding]) -> str:
    """Return the mail about what the site can mend: notes only if that is all. Raises StoreError."""
    mendable = [one for one in findings if one.kind in notes.OF_NODES and not one.dismissed]
    chosen = [one for one in mendable if one.severity != NOTE] or mendable
    if not chosen:
        return ""
    rows = source.query(_GPUS, period.recording_id).dicts()
    gpus = {(row["node"], row["gpu_index"]): row for row in rows}
    xids = source.query(_XIDS, period.recording_id, period.started_at, period.until).rows()
    job = f"job {period.job}" if period.job else "job"
    nodes = list(dict.fromkeys(name for one in chosen for name in one.nodes))
    titles = list(dict.fromkeys(BY_KIND[one.kind].title for one in chosen))
    lines = [f"Subject: {', '.join(nodes)}: {first_of(titles, 1)}", "", "Hello,", ""]
    lines.append(f"my {job} ran into the following; all times are UTC.")
    for finding in chosen:
        lines += ["", *_facts(finding, gpus, running=period.ended_at is None)]
    listed = [(at, node, message) for at, node, message in xids if node in nodes]
    if listed:
        lines += ["", f"XIDs that the driver reported on {', '.join(nodes)}:"]
        lines += [f"- {at:%Y-%m-%d %H:%M:%S} {node}: {message}" for at, node, message in listed[:MOST_XIDS]]
        lines += [f"- {len(listed) - MOST_XIDS} more"] if len(listed) > MOST_XIDS else []
    if line := notes.exclude_line(chosen):
        lines += ["", f"My next job will have {line}."]
    lines += ["", "Could you look at it? The numbers are from NVML, read without root by"]
    lines.append(f"gswarm-tui {__version__}; I can send the recording ({source.path.name}).")
    return "\n".join(map(printable, lines))


def _facts(finding: Finding, gpus: dict[tuple[Any, Any], dict[str, Any]], *, running: bool) -> list[str]:
    where = finding.subject if finding.node is None else finding.node
    gpu = gpus.get((finding.node, finding.gpu))
    lines = [f"{where}: {BY_KIND[finding.kind].title}"]
    if gpu is not None:
        lines.append(
            f"- GPU {gpu_label(finding.gpu or 0)}, {gpu['name']}, {gpu['uuid']}, PCI {gpu['pci_bus_id']}, "
            f"driver {gpu['driver']}"
        )
    elif finding.node is None:
        lines.append(f"- {plural(len(finding.nodes), 'node')}: {', '.join(finding.nodes)}")
    since, until = datetime.fromtimestamp(finding.since, UTC), finding.until
    holds = "still holds" if running else "until the end"
    lasted = holds if until is None else f"for {held(until - finding.since)}"
    lines.append(f"- since {since:%Y-%m-%d %H:%M:%S}, {lasted}")
    lines += [f"- {notes.evidence_text([one])}" for one in finding.evidence]
    if finding.gpu_hours > 0:
        lines.append(f"- cost so far: {gpu_time(3600 * finding.gpu_hours)}")
    return [*lines, f"- rule: {finding.kind} ({finding.source})"]
