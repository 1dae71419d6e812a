"""Which signals of the rules aren't measured, and where: they are listed, never counted as fine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gswarm_tui.insight.rule import Rule
from gswarm_tui.insight.signals import GPU_SIGNALS, HOST_SIGNALS, NEWEST
from gswarm_tui.insight.window import Window

_GPU = {signal.name for signal in GPU_SIGNALS}
_HOST = {signal.name for signal in HOST_SIGNALS}


def not_measured(window: Window, rules: Sequence[Rule]) -> dict[str, list[str]]:
    """Return the signals that rules need and that some nodes lack, with these nodes."""
    missing: dict[str, list[str]] = {}
    for signal in dict.fromkeys(signal for rule in rules for signal in rule.signals):
        if nodes := _without(window, signal):
            missing[signal] = nodes
    return missing


def _without(window: Window, signal: str) -> list[str]:
    if signal in _GPU or signal in NEWEST:
        values = window.gpu(signal, 60.0) if signal in _GPU else window.value(signal)[np.newaxis]
        nodes = len(window.nodes)
        known = np.bincount(window.node_at[np.isfinite(values).any(axis=0)], minlength=nodes) > 0
        without = ~known & (np.bincount(window.node_at, minlength=nodes) > 0)
        return [window.nodes[at] for at in np.flatnonzero(without).tolist()]
    if signal in _HOST:
        lacking = ~np.isfinite(window.host(signal, 60.0)).any(axis=0)
        return [window.nodes[at] for at in np.flatnonzero(lacking).tolist()]
    if signal == "processes":
        return [name for name in window.nodes if window.processes.get(name) is None]
    listed = {"ports": window.ports, "mounts": window.mounts}.get(signal)
    return [] if listed is None else [name for name in window.nodes if name not in listed]
