"""A line about a node's ports, what is odd first, and one about its file systems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gswarm_agent.metrics import MOUNTS, PORT_COLUMNS, PORT_METRICS, PORTS
from gswarm_tui.common.quantities import DASH, mebibytes, plural
from gswarm_tui.fleet.node import NodeState
from gswarm_tui.tui.drawing.spans import Span, Spans, measure
from gswarm_tui.tui.drawing.text import clean, clip

_Rows = Mapping[str, Mapping[str, float | None]]
_STATE = PORT_METRICS[PORT_COLUMNS.index("state")]
_FEW_INODES, _SHORTEST = 10_000, 8
"""Free inodes below the first are shown; a text isn't shown in fewer cells than the second."""


def listing_lines(node: NodeState, cells: int, label_width: int, *, old: bool) -> list[Spans]:
    """Return the lines, none about what the node didn't list; stale ones are faint."""
    lines = []
    for label, parts in (("ports", _ports(node.listed(PORTS))), ("files", _files(node.listed(MOUNTS)))):
        shown = [Span(f" {label:<{label_width}} ", "dim")]
        for at, (text, role) in enumerate(parts):
            between = Span(" · " if at else "", "faint")
            room = cells - measure([*shown, between])
            if room >= _SHORTEST:
                shown += [between, Span(clip(text, room), "dim" if old else role)]
        lines += [tuple(shown)] if parts else []
    return lines


def _ports(ports: _Rows) -> list[tuple[str, str]]:
    """Return texts and roles of odd ports, then of a summary; an interface without a cable isn't odd."""
    rates, unused, odd = Counter[str](), 0, []
    for name, row in ports.items():
        state, errors = row.get("state"), round(row.get("new_errors") or 0)
        word = "" if state is None else _STATE.word(state)
        if word == "ACTIVE":
            rate = row.get("rate_gbit_s")
            rates["" if rate is None else f"{rate:g}"] += 1
        if word == "DOWN" and row.get("phys_state") is None and not errors:
            unused += 1
        elif word not in ("", "ACTIVE") or errors:
            what = (word, plural(errors, "new error") if errors else "")
            odd.append((f"! {clean(name)} {', '.join(filter(None, what))}", "warning"))
    active = "all" if rates.total() == len(ports) else f"{rates.total()}"
    known = [rate if len(rates) == 1 else f"{n} × {rate}" for rate, n in rates.most_common() if rate]
    words = [plural(len(ports), "port"), f"{active} ACTIVE", f"{', '.join(known)} Gbit/s" if known else ""]
    words += [f"{unused} without a cable" if unused else ""]
    return [*odd, (", ".join(filter(None, words)), "text")] if ports else []


def _files(mounts: _Rows) -> list[tuple[str, str]]:
    parts = []
    for path, row in mounts.items():
        free, inodes = row.get("free_mib"), row.get("free_inodes")
        words = [DASH if free is None else f"{mebibytes(free)} free"]
        words += [f"{inodes:.0f} inodes"] if inodes is not None and inodes < _FEW_INODES else []
        took = {way: row.get(f"{way}_ms") for way in ("read", "write")}
        words += [f"{way} {ms:.1f} ms" for way, ms in took.items() if ms is not None]
        parts.append((f"{clean(path)} {', '.join(words)}", "text"))
    return parts
