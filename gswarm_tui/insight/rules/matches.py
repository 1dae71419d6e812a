"""Building of matches: their evidence, whom they name, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gswarm_tui.fleet.findings import NOTE, WASTE, Evidence
from gswarm_tui.fleet.history import Floats
from gswarm_tui.insight.effect import COSTS, costs, leads, slowdown
from gswarm_tui.insight.rule import Match
from gswarm_tui.insight.window import Mask, Window

UNITS = {
    "_pct": "%", "_mb_s": "MB/s", "_gbit_s": "Gbit/s", "_mib": "MiB", "_mhz": "MHz",
    "_w": "W", "_c": "°C", "_ms": "ms", "_s": "s",
}  # fmt: skip
"""Units by the ending of a metric's name; the first that fits counts."""
BY_COST = "by cost"
"""Severity of matches that are waste if they cost anything, and else a note."""
Who = int | str | tuple[str, ...]
"""A GPU by its column, a node by its name, or the nodes that a match is about without naming one."""
ALL: tuple[str, ...] = ()
"""All nodes on which the job has processes."""


def evidence(metric: str, value: float, peers: float = math.nan, unit: str = "") -> tuple[Evidence, ...]:
    """Return a number and that of the peers with the metric's unit; nothing if it isn't measured."""
    unit = unit or next((unit for ending, unit in UNITS.items() if metric.endswith(ending)), "")
    if not math.isfinite(value):
        return ()
    others = _rounded(peers) if math.isfinite(peers) else None
    return (Evidence(metric, _rounded(value), others, unit),)


def _rounded(value: float) -> float:
    return round(value) if abs(value) >= 10 or value == round(value) else float(f"{value:.2g}")


def ago(window: Window, seconds: float) -> float:
    """Return the Unix time of so many seconds ago; the window's scale shortens them."""
    return window.now - seconds * window.scale


def pressure(window: Window, resource: str, seconds: float) -> Floats:
    """Return for how much of the time tasks of each node, or of the job there, waited for a resource."""
    parts = (window.mean(f"{of}psi_{resource}_pct", seconds) for of in ("", "job_"))
    share: Floats = np.fmax(*parts)
    return share


def nodes_of(window: Window, of: Mask) -> tuple[str, ...]:
    """Return the nodes of some GPUs."""
    return tuple(window.nodes[at] for at in np.unique(window.node_at[of]).tolist())


def by_node(window: Window, of_gpus: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return for each GPU the sum over all GPUs of its node."""
    return np.bincount(window.node_at, of_gpus, len(window.nodes))[window.node_at]


def matched(
    window: Window,
    who: Who,
    since: float,
    signal: str,
    shown: Iterable[Evidence] = (),
    *details: str,
    contrast: str = "",
    lost: float | None = None,
    severity: str = "",
    lasts: bool = True,
) -> Match:
    """Return a match about a GPU, a node or several nodes; see ``Match`` for the texts.

    Without ``lost``, it costs what the job has lost since then, or what the GPU's peers lose by waiting.
    """
    column = who if isinstance(who, int) else None
    node = who if isinstance(who, str) else None if column is None else window.gpus[column].node
    nodes = (who or nodes_of(window, window.active)) if isinstance(who, tuple) else ()
    if lost is None:
        lost = costs(window, since, column) * float(window.active.sum())
    if severity == BY_COST:
        severity = WASTE if lost else NOTE
    return Match(node, column, since, signal, tuple(shown), contrast, details, lost, nodes, severity, lasts)


def grouped(window: Window, hit: Mask, by: str = "") -> list[tuple[Who, npt.NDArray[np.intp]]]:
    """Return whom to name for the GPUs of a mask, each with its columns.

    That is all nodes with a hit if they are most of the job's, a node if all of its GPUs are hit, else each
    GPU. By "node" it is never a GPU, by "gpu" always one, and by "most" a node if most of its GPUs are hit.
    """
    columns = np.flatnonzero(hit)
    nodes = np.unique(window.node_at[columns]).tolist()
    if by == "most":
        wide = len(nodes) > 1 and 2 * len(columns) > window.settled.sum()
    else:
        wide = by != "gpu" and len(nodes) > max(1, len(window.nodes) / 2)
    if wide:
        return [(tuple(window.nodes[at] for at in nodes), columns)]
    size = np.bincount(window.node_at, minlength=len(window.nodes))
    groups = list[tuple[Who, npt.NDArray[np.intp]]]()
    for at in nodes:
        here = columns[window.node_at[columns] == at]
        full = 2 * len(here) > size[at] if by == "most" else len(here) == size[at]
        if by == "node" or (by != "gpu" and full and len(here) > 1):
            groups.append((window.nodes[at], here))
        else:
            groups += [(int(column), np.array([column])) for column in here]
    return groups


def found(
    window: Window,
    hit: Mask,
    since: Floats | float,
    texts: tuple[str, str],
    values: Mapping[str, npt.NDArray[Any]],
    *,
    by: str = "",
    lost: Floats | float | None = None,
    severity: str = "",
) -> Iterator[Match]:
    """Return matches for the GPUs of a mask, in groups as ``grouped`` makes them.

    ``since`` is when it began for each GPU, or how many seconds it has held. ``texts`` are signal and
    contrast, which may name the means of ``values``, the evidence by GPU. ``lost`` is what each GPU costs.
    If it is None, it is what the others lose by waiting, and the match is a note if that can't be seen,
    unless it has a ``severity``.
    """
    for who, here in grouped(window, hit, by):
        means = {name: float(np.nan_to_num(of_gpus[here]).mean()) for name, of_gpus in values.items()}
        begun = ago(window, since) if isinstance(since, float) else float(since[here].max())
        if lost is None:
            cost = loss(window, here, begun, alone=not isinstance(who, tuple))
        else:
            cost = float(np.broadcast_to(lost, hit.shape)[here].sum())
        shown = [one for name, mean in means.items() for one in evidence(name, mean)]
        signal, contrast = (text.format(**means) for text in texts)
        level = severity or (BY_COST if lost is None else "")
        yield matched(window, who, begun, signal, shown, contrast=contrast, lost=cost, severity=level)


def loss(window: Window, columns: npt.NDArray[np.intp], since: float, *, alone: bool) -> float:
    """Return how many GPUs' worth of work is lost because of some GPUs, 0 where that can't be seen."""
    share = slowdown(window, since) or 0.0
    if alone:
        # The slow one computes while its peers wait, or idles for lack of input while they spin.
        util = window.mean("util_pct", 60)
        idles = 1 - util[columns] / np.maximum(1, window.peers(util)[columns])
        ahead = leads(window, 60)[1][columns]
        share = max(share, *(float(np.nan_to_num(one).mean()) for one in (idles, ahead)))
    return share * int(window.active.sum()) if share >= COSTS else 0.0
