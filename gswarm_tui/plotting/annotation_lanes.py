"""Lanes above the panels: session sessions as brackets, marks with labels, events by kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from matplotlib.axes import Axes

from gswarm_tui.plotting import style
from gswarm_tui.plotting.annotations import Incident, OverlappingSession, SessionMark, kind_label
from gswarm_tui.plotting.panels import clipped

LANE_IN = 0.135
MAX_SESSION_LANES = 5
MAX_LINES = 60
_MAX_LETTERS = 26
_PLACES = 2000
_LETTER_PT = style.SMALL * 0.56


@dataclass(frozen=True)
class Lane:
    """One lane: its name, and brackets, labels at times, or ticks with their severity."""

    name: str
    brackets: tuple[OverlappingSession, ...] = ()
    labels: tuple[tuple[float, str], ...] = ()
    ticks: tuple[tuple[float, str], ...] = ()


def build_lanes(
    sessions: Sequence[OverlappingSession],
    marks: Sequence[SessionMark],
    incidents: Sequence[Incident],
    seconds: float,
    width_in: float,
) -> list[Lane]:
    """Return the lanes from top to bottom; sessions that overlap get lanes of their own."""
    a_letter = _LETTER_PT / 72 / width_in * max(seconds, 1e-9)
    lanes = _session_lanes(sessions, a_letter, seconds)
    if marks:
        lanes.append(
            Lane("marks", labels=tuple((mark.at, clipped(mark.label, _MAX_LETTERS)) for mark in marks))
        )
    kinds: dict[str, list[tuple[float, str]]] = {}
    for incident in incidents:
        kinds.setdefault(kind_label(incident), []).append((incident.at, incident.severity))
    return lanes + [Lane(word, ticks=tuple(ticks)) for word, ticks in kinds.items()]


def _session_lanes(sessions: Sequence[OverlappingSession], a_letter: float, seconds: float) -> list[Lane]:
    rows: list[list[OverlappingSession]] = []
    ends: list[float] = []
    for session in sessions:
        needed = _label_place(session, a_letter, seconds)[1]
        row = next((at for at, end in enumerate(ends) if end <= session.begin), len(ends))
        if row == len(ends):
            if row == MAX_SESSION_LANES:
                break
            rows.append([])
            ends.append(0.0)
        rows[row].append(session)
        ends[row] = max(session.end, needed) + a_letter
    left_out = len(sessions) - sum(map(len, rows))
    names = ["sessions", *[""] * len(rows)]
    if left_out and rows:
        names[len(rows) - 1] = f"{left_out} more"
    return [Lane(names[at], brackets=tuple(row)) for at, row in enumerate(rows)]


def _label_place(session: OverlappingSession, a_letter: float, seconds: float) -> tuple[float, float]:
    """Return the begin and end of a bracket's label: inside it, else after it, else before the right edge."""
    length = (len(clipped(session.name, _MAX_LETTERS)) + 2) * a_letter
    if length <= session.end - session.begin:
        begin = (session.begin + session.end - length) / 2
    else:
        begin = max(0.0, min(session.end, seconds - length))
    return begin, begin + length


def draw_lanes(axes: Axes, lanes: Sequence[Lane], seconds: float, width_in: float) -> None:
    """Draw the lanes from top to bottom."""
    a_letter = _LETTER_PT / 72 / width_in * max(seconds, 1e-9)
    axes.set_ylim(len(lanes), 0)
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    for at, lane in enumerate(lanes):
        y = at + 0.5
        if lane.name:
            axes.annotate(
                lane.name,
                (0, y),
                xycoords=("axes fraction", "data"),
                xytext=(-4, 0),
                textcoords="offset points",
                ha="right",
                va="center_baseline",
                fontsize=style.SMALL,
                color=style.DIM,
            )
        for session in lane.brackets:
            _bracket(axes, session, y, a_letter, seconds)
        _labels(axes, lane.labels, y, a_letter, seconds)
        for severity in {severity for _, severity in lane.ticks}:
            times = [when for when, of in lane.ticks if of == severity]
            colour = style.SEVERITY.get(severity, style.DIM)
            axes.vlines(_distinct_times(times, seconds), y - 0.36, y + 0.36, color=colour, linewidth=1.0)
        if lane.ticks:
            axes.annotate(
                f"× {len(lane.ticks)}",
                (1, y),
                xycoords=("axes fraction", "data"),
                xytext=(4, 0),
                textcoords="offset points",
                va="center_baseline",
                fontsize=style.SMALL,
                color=style.DIM,
            )


def _bracket(axes: Axes, session: OverlappingSession, y: float, a_letter: float, seconds: float) -> None:
    axes.vlines([session.begin, session.end], y - 0.25, y + 0.25, color=style.DIM, linewidth=0.6)
    begin, end = _label_place(session, a_letter, seconds)
    inside = begin >= session.begin and end <= session.end
    pieces = ((session.begin, begin), (end, session.end)) if inside else ((session.begin, session.end),)
    for piece in pieces:
        axes.hlines(y, *piece, color=style.DIM, linewidth=0.6)
    axes.text(
        (begin + end) / 2 if inside else begin + a_letter,
        y,
        clipped(session.name, _MAX_LETTERS),
        ha="center" if inside else "left",
        va="center_baseline",
        fontsize=style.SMALL,
    )


def _labels(
    axes: Axes, labels: Sequence[tuple[float, str]], y: float, a_letter: float, seconds: float
) -> None:
    """Draw ticks with labels beside them; if ticks are close, only some labels, above short ticks."""
    shown = _fitting_labels(labels, a_letter, seconds)
    close = len(shown) < len(labels)
    times = _distinct_times([at for at, _ in labels], seconds)
    axes.vlines(times, y + (0.32 if close else -0.36), y + 0.5, color=style.INK, linewidth=0.6)
    for at, label in shown:
        x, middle = (at, y - 0.1) if close else (at + a_letter * 0.5, y)
        axes.text(x, middle, label, va="center_baseline", fontsize=style.SMALL)


def _distinct_times(times: Sequence[float], seconds: float) -> list[float]:
    """Drop times that would be drawn at the same place."""
    return list({round(at / max(seconds, 1e-9) * _PLACES): at for at in times}.values())


def _fitting_labels(
    labels: Sequence[tuple[float, str]], a_letter: float, seconds: float
) -> list[tuple[float, str]]:
    """Return the labels that fit beside each session and inside the plot."""
    lanes, free_from = [], 0.0
    every = _label_step(labels, a_letter) if labels else 1
    for at, label in labels[::every]:
        needed = (len(label) + 1) * a_letter
        if at >= free_from and at + needed <= seconds + 4 * a_letter:
            lanes.append((at, label))
            free_from = at + needed
    return lanes


def _label_step(labels: Sequence[tuple[float, str]], a_letter: float) -> int:
    """Return n so that every n-th of close marks gets a label, evenly thinned."""
    spaces = sorted(b[0] - a[0] for a, b in pairwise(labels)) or [1.0]
    usual = max(spaces[len(spaces) // 2], 1e-9)
    longest = max((len(label) + 1) * a_letter for _, label in labels)
    return max(1, -int(-longest // usual))
