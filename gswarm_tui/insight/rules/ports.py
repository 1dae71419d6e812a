"""Rules about network ports: down, with errors, or slower than their peers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from gswarm_agent.metrics import PORT_COLUMNS, PORT_METRICS
from gswarm_tui.fleet.findings import FAULT, NOTE, WASTE, Evidence
from gswarm_tui.insight.rows import Rows
from gswarm_tui.insight.rule import LOCAL, Match, Rule
from gswarm_tui.insight.rules.matches import BY_COST, ago, evidence, matched
from gswarm_tui.insight.window import Mask, Window

STATE = PORT_METRICS[PORT_COLUMNS.index("state")]
ACTIVE = (STATE.words.index("ACTIVE"), STATE.words.index("ACTIVE_DEFER"))
RATE, USED_MB_S = 0.75, 100.0
"""A port at up to this share of the usual rate is slow; ports with less traffic aren't compared."""
LIMITS = {
    "link_downed": 0.0, "rnr_nak_retry_err": 0.0, "symbol_error": 10.0, "port_rcv_errors": 10.0,
    "port_xmit_discards": 100.0, "roce_slow_restart": 10.0, "local_ack_timeout_err": 1.0,
    "link_error_recovery": 5 / 60, "carrier_changes": 2 / 60,
}  # fmt: skip
"""Growth a second above which a counter of a port counts (NVSentinel); the first two end connections."""


def _adapters(rows: Rows) -> Mask:
    """Return which rows are ports of adapters; on nodes without adapters, their interfaces are."""
    nodes = {node for node, name in rows.keys if "/" in name}
    return np.array(["/" in name or node not in nodes for node, name in rows.keys], dtype=bool)


def _down(rows: Rows) -> tuple[Mask, Mask]:
    """Return which ports are down, or gone, and which were active at first."""
    state, was = rows.now("state"), np.isin(rows.first("state"), ACTIVE)
    down: Mask = np.where(rows.listed, np.isfinite(state) & ~np.isin(state, ACTIVE), was)
    return down, was


def _namesakes(rows: Rows) -> dict[str, npt.NDArray[np.intp]]:
    """Return the places of the ports of each name."""
    places: dict[str, list[int]] = {}
    for at, (_, name) in enumerate(rows.keys):
        places.setdefault(name, []).append(at)
    return {name: np.array(found, dtype=np.intp) for name, found in places.items()}


def _used(window: Window) -> bool:
    """Return whether the job's nodes exchange data over adapters, as far as that is measured."""
    traffic = window.host("ib_mb_s", 600)
    return len(window.nodes) > 1 and (not np.isfinite(traffic).any() or float(np.nanmax(traffic)) > 1)


def _port_down(window: Window) -> Iterable[Match]:
    rows = window.port_rows
    down, was = _down(rows)
    if not down.any() or not (down := down & _adapters(rows)).any():
        return
    # A port that is down from the start counts if all its namesakes are up, and these are several.
    alone = np.zeros(len(down), dtype=bool)
    for alike in _namesakes(rows).values():
        alone[alike] = len(alike) >= 3 and down[alike].sum() == 1
    chosen: dict[str, list[int]] = {}
    for at in np.flatnonzero(down & (was | alone)).tolist():
        chosen.setdefault(rows.keys[at][0], []).append(at)
    for node, places in chosen.items():
        state = rows.now("state")[places[0]]
        word = STATE.word(state) if np.isfinite(state) else "gone"
        signal, shown = ", ".join(rows.keys[at][1] for at in places), (Evidence("state", word, "ACTIVE"),)
        severity = FAULT if _used(window) and was[places].any() else NOTE
        yield matched(window, node, window.now, f"port {signal} {word}", shown, severity=severity)


def _port_errors(window: Window) -> Iterable[Match]:
    rows, down = window.port_rows, _down(window.port_rows)[0]
    errors: dict[str, list[Evidence]] = {}
    for counter, limit in LIMITS.items():
        growth = np.diff(rows.minutes(counter, 4 if limit else 10), axis=0)
        # A counter that was reset starts again from 0.
        grown = growth.sum(axis=0, where=growth > 0)
        grown = grown / (60 * window.scale * len(growth)) if limit else grown
        places = np.flatnonzero((grown > limit) & ~down).tolist()
        # Most ports alike are a fabric that is congested, or a switch.
        for at in places if len(places) <= max(1, len(rows.keys) / 2) else ():
            node, name = rows.keys[at]
            shown = evidence(f"{name} {counter}", grown[at], limit, "1/s" if limit else "events")
            errors.setdefault(node, []).extend(shown)
    for node, (worst, *others) in errors.items():
        words = f"port {worst.metric} +{worst.value:g}{'/s' if worst.unit == '1/s' else ''}"
        yield matched(window, node, ago(window, 60), words, (worst, *others), severity=BY_COST)


def _port_slow(window: Window) -> Iterable[Match]:
    rows = window.port_rows
    rate, first = np.where(_down(rows)[0], np.nan, rows.now("rate_gbit_s")), rows.first("rate_gbit_s")
    severity = "" if _used(window) else BY_COST
    for name, places in _namesakes(rows).items():
        known = rate[places]
        finite = known[np.isfinite(known)]
        middle = 0.0 if not finite.size else np.median(finite) if len(places) > 2 else finite.max()
        usual = np.fmax(first[places], middle)
        for at in np.flatnonzero(known <= RATE * usual).tolist():
            words, contrast = f"port {name} at {known[at]:.0f} Gbit/s", f"instead of {usual[at]:.0f}"
            node, shown = rows.keys[places[at]][0], evidence("rate_gbit_s", known[at], usual[at])
            yield matched(window, node, window.now, words, shown, contrast=contrast, severity=severity)
    moved = (rows.minutes("rx_mb_s", 4) + rows.minutes("tx_mb_s", 4)).mean(axis=0)
    for name, places in _namesakes(rows).items():
        low = moved[places] < 0.5 * np.median(moved[places])
        for at in places[low].tolist() if "/" in name and len(places) > 2 else ():
            node = rows.keys[at][0]
            siblings = [other for other, key in enumerate(rows.keys) if key[0] == node and "/" in key[1]]
            middle = float(np.median(moved[siblings]))
            if middle > USED_MB_S and moved[at] < 0.5 * middle:
                words, contrast = f"port {name} carries {moved[at]:,.0f} MB/s", f"its siblings {middle:,.0f}"
                shown = evidence("rx_mb_s + tx_mb_s", moved[at], middle, "MB/s")
                since = ago(window, 240)
                yield matched(window, node, since, words, shown, contrast=contrast, lost=0.0, severity=NOTE)


# fmt: off
RULES = (
    Rule("port_down", "A network port is down", FAULT, LOCAL, ("ports",), "at once",
         "a port that was ACTIVE no longer is, or one that never was while it is on all other nodes",
         "NVSentinel (link-counter-detection.md)",
         "Leave {node} out and tell the site to check port, cable and switch",
         "NCCL uses all ports of a node. Without one, it is slower or ends with an error.",
         "If the job uses one node, or no port carried data, it is a note.",
         "The site switched a port off on purpose.", _port_down, True),
    Rule("port_errors", "A network port has errors", WASTE, LOCAL, ("ports",), "3 min",
         "errors a second above NVSentinel's limits: symbol_error 10, port_rcv_errors 10, port_xmit_discards "
         "100, local_ack_timeout_err 1, link_error_recovery 5 a minute; any link_downed, rnr_nak_retry_err",
         "NVSentinel (link-counter-detection.md, appendix A)",
         "Leave {node} out and tell the site to check the port's cable and optics",
         "Packets with errors are sent again, and all ranks wait for them.",
         "While the job is no slower, it is a note. port_xmit_wait alone is normal in healthy fabrics.",
         "An administrator reset the link on purpose.", _port_errors),
    Rule("port_slow", "A network port is slower than its peers", WASTE, LOCAL, ("ports",),
         "at once; traffic: 4 min",
         "at most 75 % of the rate of the same port on other nodes, or of its own earlier rate; a note: less "
         "than half of the traffic of the node's other ports, and of the same port on other nodes",
         "R2CCL (uneven ports); 75 % is our own threshold",
         "Leave {node} out and tell the site: its port came up with a lower rate",
         "NCCL spreads data evenly over a node's ports, so the slowest port sets the pace.",
         "All nodes are alike. While the nodes exchange nothing over adapters, it is a note.",
         "Ports of the same name have different tasks, as on a node that serves storage.", _port_slow),
)
# fmt: on
