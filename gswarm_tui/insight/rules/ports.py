"""Rules about network ports: down, with errors, or slower than their peers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from gswarm_agent.metrics import PORT_COLUMNS, PORT_METRICS
from gswarm_tui.fleet.findings import FAULT, NOTE, WASTE, Evidence
from gswarm_tui.fleet.history import Floats
from gswarm_tui.insight.effect import COSTS, slowdown
from gswarm_tui.insight.rule import LOCAL, Match, Rule
from gswarm_tui.insight.window import Window

STATE = PORT_METRICS[PORT_COLUMNS.index("state")]
ACTIVE = (STATE.words.index("ACTIVE"), STATE.words.index("ACTIVE_DEFER"))
USED_MB_S = 100.0
"""Ports that carry less than this say nothing about the rails."""
LIMITS = {
    "link_downed": 0.0,
    "rnr_nak_retry_err": 0.0,
    "symbol_error": 10.0,
    "port_rcv_errors": 10.0,
    "port_xmit_discards": 100.0,
    "roce_slow_restart": 10.0,
    "local_ack_timeout_err": 1.0,
    "link_error_recovery": 5 / 60,
    "carrier_changes": 2 / 60,
    "rx_errors": 10.0,
    "tx_errors": 10.0,
}
"""Growth a second above which a counter of a port counts (NVSentinel); the first two end connections."""


class _PortState(NamedTuple):
    """A port of an adapter: its newest and first values; one that vanished has no newest."""

    node: str
    name: str
    now: Mapping[str, float | None]
    first: Mapping[str, float | None]

    @property
    def was_active(self) -> bool:
        return self.first.get("state") in ACTIVE

    @property
    def is_down(self) -> bool:
        """Whether it is known not to be active."""
        state = self.now.get("state")
        return (state is not None and state not in ACTIVE) or (not self.now and self.was_active)


def _ports(window: Window) -> list[_PortState]:
    """Return the ports of adapters; on nodes without adapters, their network interfaces."""
    found = []
    for node, first in window.first_ports.items():
        now = window.ports.get(node, {})
        names = {**first, **now}
        chosen = [name for name in names if "/" in name] or names
        found += [_PortState(node, one, now.get(one, {}), first.get(one, now.get(one, {}))) for one in chosen]
    return found


def _by_name(ports: list[_PortState]) -> dict[str, list[_PortState]]:
    named: dict[str, list[_PortState]] = {}
    for port in ports:
        named.setdefault(port.name, []).append(port)
    return named


def _effect(window: Window, since: float) -> tuple[str, float]:
    """Return the severity of a fault that the job may survive, and how many GPUs' work it costs."""
    cost = slowdown(window, since) or 0.0
    return (WASTE, cost * float(window.active.sum())) if cost >= COSTS else (NOTE, 0.0)


def _down(window: Window) -> Iterable[Match]:
    ports = _ports(window)
    down = [port for port in ports if port.is_down]
    if not down:
        return
    named = _by_name(ports)
    traffic = window.host("ib_mb_s", 600)
    used = len(window.nodes) > 1 and (not np.isfinite(traffic).any() or float(np.nanmax(traffic)) > 1)
    for node in dict.fromkeys(port.node for port in down):
        lost = [port for port in down if port.node == node and port.was_active]
        # A port that is down from the start counts if all other nodes have it active, and these are several.
        never = [
            port
            for port in down
            if port.node == node
            and not port.was_active
            and len(named[port.name]) >= 3
            and sum(other.is_down for other in named[port.name]) == 1
        ]
        if chosen := lost or never:
            state = chosen[0].now.get("state")
            word = "gone" if state is None else STATE.word(state)
            yield Match(
                *(node, None, window.now, f"port {', '.join(port.name for port in chosen)} {word}"),
                (Evidence("state", word, "ACTIVE"),),
                lost=_effect(window, window.now)[1],
                severity=FAULT if lost and used else NOTE,
            )


def _errors(window: Window) -> Iterable[Match]:
    keys = list(window.port_minutes.keys)
    found: dict[str, list[tuple[str, str, float]]] = {}
    down = {port[:2] for port in _ports(window) if port.is_down}
    for counter, limit in LIMITS.items():
        # A counter that was reset grows anew from 0.
        growth = np.diff(window.port_minutes.last(counter, 4 if limit else 10), axis=0)
        grown = np.where(growth > 0, growth, 0.0).sum(axis=0)
        rate = grown / (60 * window.scale * (3 if limit else 1))
        many = np.flatnonzero(rate > limit).tolist()
        # Most ports alike are a fabric that is congested, or a switch.
        if len(many) <= max(1, len(keys) / 2):
            for at in many:
                if keys[at] not in down:
                    node, name = keys[at]
                    found.setdefault(node, []).append((name, counter, float(rate[at])))
    for node, errors in found.items():
        since = window.now - 60 * window.scale
        severity, lost = _effect(window, since)
        name, counter, rate = errors[0]
        yield Match(
            *(node, None, since, f"port {name}: {counter} grows by {rate:,.2g}/s"),
            tuple(
                Evidence(f"{name} {counter}", round(rate, 3), LIMITS[counter], "1/s")
                for name, counter, rate in errors
            ),
            lost=lost,
            severity=severity,
        )


def _slow(window: Window) -> Iterable[Match]:
    named = _by_name([port for port in _ports(window) if not port.is_down])
    slow: dict[str, tuple[str, float, float, str]] = {}
    for name, ports in named.items():
        rates = np.array([port.now.get("rate_gbit_s") or np.nan for port in ports])
        for at, port in enumerate(ports):
            others = np.delete(rates, at)
            before = port.first.get("rate_gbit_s") or np.nan
            usual = np.fmax(before, np.nanmedian(others) if np.isfinite(others).any() else np.nan)
            if rates[at] <= 0.75 * usual:
                slow[port.node] = name, float(rates[at]), float(usual), "Gbit/s"
    slow = _uneven(window) | slow
    for node, (name, value, usual, unit) in slow.items():
        severity, lost = _effect(window, window.now) if unit == "Gbit/s" else (NOTE, 0.0)
        yield Match(
            *(node, None, window.now, f"port {name} at {value:,.0f} {unit}"),
            (Evidence("rate_gbit_s" if unit == "Gbit/s" else "rx_mb_s + tx_mb_s", value, usual, unit),),
            f"its peers at {usual:,.0f}",
            lost=lost,
            severity=severity,
        )


def _uneven(window: Window) -> dict[str, tuple[str, float, float, str]]:
    """Return ports that carry less than half of their siblings, though their namesakes don't."""
    moved: Floats = window.port_minutes.last("rx_mb_s", 4) + window.port_minutes.last("tx_mb_s", 4)
    if len(window.nodes) < 3 or not (moved.mean(axis=0) > USED_MB_S).any():
        return {}
    mean = moved.mean(axis=0)
    keys = window.port_minutes.keys
    share: dict[str, dict[str, float]] = {}
    usual: dict[str, float] = {}
    for node in window.ports:
        here = {name: float(mean[at]) for (of, name), at in keys.items() if of == node and "/" in name}
        usual[node] = float(np.median(list(here.values()))) if len(here) > 2 else 0.0
        for name, value in here.items():
            if usual[node] > USED_MB_S:
                share.setdefault(name, {})[node] = value / usual[node]
    return {
        node: (name, value * usual[node], usual[node], "MB/s")
        for name, shares in share.items()
        for node, value in shares.items()
        if value < 0.5 and len(shares) > 2 and float(np.median(list(shares.values()))) > 0.8
    }


# fmt: off
RULES = (
    Rule(
        "port_down", "A network port is down", FAULT, LOCAL, ("ports",), "at once",
        "a port that was ACTIVE isn't any more, or it never was and those of all other nodes are",
        "NVSentinel (link-counter-detection.md)",
        "Leave {node} out and tell the site: its port, cable or switch needs a look",
        "NCCL moves gradients over all ports of a node. Without one it is slower, or ends with an error.",
        "The job uses one node, or no port carried data: then it is a note.",
        "The site switched a port off on purpose.",
        _down, early=True,
    ),
    Rule(
        "port_errors", "A network port has errors", WASTE, LOCAL, ("ports",), "3 min",
        "errors a second above NVSentinel's limits: symbol_error 10, port_rcv_errors 10, port_xmit_discards "
        "100, local_ack_timeout_err 1, link_error_recovery 5 a minute; any link_downed, rnr_nak_retry_err",
        "NVSentinel (link-counter-detection.md, appendix A)",
        "Leave {node} out and tell the site: cable or optics of the port",
        "Packets with errors are sent again, and all ranks wait for them.",
        "The job is no slower: then it is a note. port_xmit_wait alone is normal in healthy fabrics.",
        "An administrator cleared the counters, or the link was trained again on purpose.",
        _errors,
    ),
    Rule(
        "port_slow", "A network port is slower than its peers", WASTE, LOCAL, ("ports",),
        "at once; traffic: 4 min",
        "a rate of at most 75 % of the same port's on other nodes or of its own before, or less than half of "
        "the traffic of its siblings (a note)",
        "our own threshold; R2CCL for uneven rails",
        "Leave {node} out and tell the site: its port came up with a lower rate",
        "NCCL spreads data evenly over a node's ports: the slowest decides.",
        "All nodes are alike, or the job is no slower: then it is a note.",
        "Ports of the same name have different tasks, as where one node serves storage.",
        _slow,
    ),
)
