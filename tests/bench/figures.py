"""Measured figures with goals and comparable figures of other programs, and their table."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class BenchOptions:
    """Options of a bench: ``smoke`` only shows that it works, with little load and for a short time."""

    smoke: bool
    seed: int
    folder: Path

    def seconds(self, full: float) -> float:
        """Seconds to measure; fewer in a smoke run."""
        return min(1.0, full) if self.smoke else full

    def count(self, full: int, smoke: int) -> int:
        """Number of items to measure with; fewer in a smoke run."""
        return smoke if self.smoke else full


@dataclass(frozen=True)
class Figure:
    """One number: at most (or ``at_least``) its goal, and a peer's number from the same run.

    ``limit`` is what the peer or the physical limit beside it is called.
    """

    what: str
    measured: float
    unit: str
    goal: float | None = None
    at_least: bool = False
    limit: str = ""
    beside: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without one."""
        if self.goal is None:
            return None
        return self.measured >= self.goal if self.at_least else self.measured <= self.goal

    def cells(self) -> tuple[str, str, str, str, str]:
        """Return the cells of the figure's row, without the name of the other program."""
        goal = "" if self.goal is None else f"{'≥' if self.at_least else '≤'} {number(self.goal)}"
        met = {None: "", True: "met", False: "MISSED"}[self.met]
        beside = ""
        if self.beside is not None:
            ratio = f" ({self.measured / self.beside:.2f} ×)" if self.beside else ""
            beside = f"{number(self.beside)}{ratio}"
        return self.what, f"{number(self.measured)} {self.unit}", goal, met, beside


Bench = Callable[[BenchOptions], Iterator[Figure]]


def number(value: float) -> str:
    """Format a number with three significant digits, whole numbers in full."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


_WIDEST = 44
"""Maximum width of a figure's name in the table, so that rows fit 120 columns; the rest is below it."""


def markdown(figures: Iterable[Figure]) -> str:
    """Return the table of all figures; the other programs are named below it, by number."""
    rows: list[Sequence[str]] = []
    limits: dict[str, int] = {}
    for figure in figures:
        what, *cells, beside = figure.cells()
        if beside:
            beside += f" [{limits.setdefault(figure.limit, len(limits) + 1)}]"
        first, *more = textwrap.wrap(what, _WIDEST, subsequent_indent="  ", break_on_hyphens=False)
        rows.append((first, *cells, beside))
        rows += [(part, "", "", "", "") for part in more]
    shown = table(("figure", "measured", "goal", "", "beside it"), rows)
    return "\n".join([shown, "", *(f"[{index}] {limit}" for limit, index in limits.items())]).rstrip()


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns."""
    lines = [head, *rows]
    widths = [max(len(row[column]) for row in lines) for column in range(len(head))]
    texts = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in lines
    ]
    texts.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(texts)
