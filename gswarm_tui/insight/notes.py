"""Texts of findings and of the ledger for the end of a recording, for summaries and for reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from gswarm_tui.common.quantities import first_of, gpu_time, plural
from gswarm_tui.fleet.findings import CONTEXT, NOTE, SEVERITIES, SLOWER_THAN_USUAL, Evidence, Finding

OF_NODES = frozenset(
    (
        *("gpu_lost", "memory_error", "nvlink_degraded", "pcie_degraded", "slow_gpu"),
        *("thermal", "thermal_margin", "power_brake", "power_cap", "clocks_locked"),
        *("port_down", "port_errors", "port_slow", "other_users", "foreign_process"),
    )
)
"""Kinds that the site can mend and that another node wouldn't have."""
NODES_NAMED = 4
"""Nodes without a signal that are named; of more, the rest is counted."""
_WORDS = {"waiting": "waiting for others"}


def shares(ledger: Mapping[str, float]) -> dict[str, int]:
    """Return the share of each cause in whole percent, which add up to 100; without time, none."""
    total = sum(ledger.values())
    if total <= 0:
        return {}
    exact = {cause: 100 * seconds / total for cause, seconds in ledger.items()}
    whole = {cause: int(share) for cause, share in exact.items()}
    most_cut = sorted(exact, key=lambda cause: whole[cause] - exact[cause])
    for cause in most_cut[: 100 - sum(whole.values())]:
        whole[cause] += 1
    return whole


def ledger_text(ledger: Mapping[str, float]) -> str:
    """Return where GPU time went, as in "12.4 GPU-h: working 61 %, waiting for others 39 %"."""
    parts = [f"{_WORDS.get(cause, cause)} {share} %" for cause, share in shares(ledger).items() if share]
    return f"{gpu_time(sum(ledger.values()))}: {', '.join(parts)}" if parts else "none was measured"


def exclude_line(findings: Iterable[Finding]) -> str:
    """Return the line for a job script that leaves out nodes at fault, empty if others are no better."""
    nodes = {
        node: None
        for one in findings
        if one.kind in OF_NODES and one.severity != NOTE
        for node in (one.nodes if one.node is None else (one.node,))
    }
    return f"#SBATCH --exclude={','.join(nodes)}" if nodes else ""


def what(finding: Finding) -> str:
    """Return a finding's sentence without the advice."""
    return finding.sentence.removesuffix(" · " + clause(finding.advice))


def clause(advice: str) -> str:
    """Return advice as the last part of a finding's sentence."""
    return f"{advice[:1].lower()}{advice[1:].rstrip('.')}"


def evidence_text(evidence: Iterable[Evidence]) -> str:
    """Return the numbers of a finding: "sm_clock_mhz 1,215 MHz (peers 1,965), temp_c 91 °C"."""
    return ", ".join(
        f"{one.metric} {_number(one.value)} {one.unit}".rstrip()
        + ("" if one.peers is None else f" (peers {_number(one.peers)})")
        for one in evidence
    )


def counted(findings: Iterable[Finding]) -> str:
    """Return how many findings there are of each severity, with their kinds: "2 waste (thermal, hang)"."""
    listed = list(findings)
    parts = []
    for severity in SEVERITIES:
        if kinds := Counter(one.kind for one in listed if one.severity == severity):
            names = ", ".join(kind if count == 1 else f"{count} {kind}" for kind, count in kinds.items())
            parts.append(f"{plural(kinds.total(), severity).replace('wastes', 'waste')} ({names})")
    return ", ".join(parts)


def unmeasured_text(
    missing: Mapping[str, Sequence[str]], nodes: int, name: Callable[[str], str] = str
) -> str:
    """Return the signals that rules lack, together if the same of ``nodes`` nodes don't measure them."""
    by_nodes: dict[tuple[str, ...], list[str]] = {}
    for signal, lacking in missing.items():
        by_nodes.setdefault(tuple(lacking), []).append(name(signal))
    return "; ".join(
        f"{', '.join(signals)} ({'all nodes' if len(lacking) >= nodes else first_of(lacking, NODES_NAMED)})"
        for lacking, signals in by_nodes.items()
    )


def closing_note(
    findings: Sequence[Finding], ledger: Mapping[str, float], command: str, pace: str = ""
) -> list[tuple[str, str]]:
    """Return labelled lines on where GPU time went, the first finding, and one thing to change.

    ``findings`` are in order; ``command`` is what prints the others, ``pace`` the text of the step time.
    Without a ledger, the findings are stored ones of a recording that the rules can't look at.
    """
    lines = [("GPU time", ledger_text(ledger))] if ledger else []
    lines += [("steps", pace)] if pace else []
    lines += [("usual", what(one)) for one in findings if one.kind == SLOWER_THAN_USUAL]
    shown = [one for one in findings if not one.dismissed and one.kind not in {*CONTEXT, SLOWER_THAN_USUAL}]
    if not shown:
        none = "no others" if any(one.kind == SLOWER_THAN_USUAL for one in findings) else "none"
        return [*lines, ("findings", f"{none} {'in what the rules watched' if ledger else 'were stored'}")]
    first, *others = shown
    lines.append((first.severity, what(first)))
    if first.severity != NOTE:
        lines.append(("to change", first.advice))
        lines += [("", line)] if (line := exclude_line([first])) else []
    lines += [("more", counted(others))] if others else []
    return [*lines, ("evidence", command)]


def _number(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
