"""A line about a node's ports and one about its file systems, what is odd first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gswarm_agent.metrics import MOUNTS, PORT_COLUMNS, PORT_METRICS, PORTS
from gswarm_tui.common.quantities import DASH, mebibytes, plural
from gswarm_tui.fleet.node import NodeState
from gswarm_tui.tui.drawing.spans import Span, Spans, measure
from gswarm_tui.tui.drawing.text import clean, clip, width

_Rows = Mapping[str, Mapping[str, float | None]]
_STATE = PORT_METRICS[PORT_COLUMNS.index("state")]
_BETWEEN = Span(" · ", "faint")
_FEW_INODES = 10_000


def listing_lines(node: NodeState, cells: int, label_width: int, *, old: bool) -> list[Spans]:
    """Return the lines, none about what the node didn't list; stale ones are faint."""
    lines = []
    for label, parts in (("ports", _ports(node.listed(PORTS))), ("files", _files(node.listed(MOUNTS)))):
        shown = [Span(f" {label:<{label_width}} ", "dim")]
        for part in parts:
            room = cells - measure(shown) - width(_BETWEEN.text)
            if len(shown) > 1 and width(part.text) > room:
                shown.append(Span(" …", "dim"))
                break
            text = clip(part.text, room)
            shown += [*([_BETWEEN] if len(shown) > 1 else []), Span(text, "dim" if old else part.role)]
        lines += [tuple(shown)] if parts else []
    return lines


def _ports(ports: _Rows) -> list[Span]:
    """Return the ports that are odd, then a summary. An interface without a cable is usual, a port isn't."""
    active, unused, odd = [], 0, []
    for name, row in ports.items():
        state = "" if row["state"] is None else _STATE.word(row["state"])
        errors = round(row["new_errors"] or 0)
        words = [state] if state not in ("", "ACTIVE") else []
        words += [plural(errors, "new error")] if errors else []
        if state == "ACTIVE":
            active.append(row["rate_gbit_s"])
        if state == "DOWN" and row["phys_state"] is None and not errors:
            unused += 1
        elif words:
            odd.append(Span(f"! {clean(name)} {', '.join(words)}", "warning"))
    if not ports:
        return []
    rates = Counter(f"{gbit:g}" for gbit in active if gbit is not None).most_common()
    each = ", ".join(gbit if len(rates) == 1 else f"{n} × {gbit}" for gbit, n in rates)
    words = [plural(len(ports), "port"), f"{'all' if len(active) == len(ports) else len(active)} ACTIVE"]
    words += [f"{each} Gbit/s"] if each else []
    words += [f"{unused} without a cable"] if unused else []
    return [*odd, Span(", ".join(words))]


def _files(mounts: _Rows) -> list[Span]:
    parts = []
    for path, row in mounts.items():
        free, inodes = row["free_mib"], row["free_inodes"]
        words = [DASH if free is None else f"{mebibytes(free)} free"]
        words += [f"{inodes:.0f} inodes"] if inodes is not None and inodes < _FEW_INODES else []
        took = {way: row[f"{way}_ms"] for way in ("read", "write")}
        words += [f"{way} {ms:.1f} ms" for way, ms in took.items() if ms is not None]
        parts.append(Span(f"{clean(path)} {', '.join(words)}"))
    return parts
