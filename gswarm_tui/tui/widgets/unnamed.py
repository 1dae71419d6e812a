"""The smallest sizes of a GPU, a character or half of one, drawn a line at once: there are thousands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from rich.style import Style

from gswarm_tui.fleet.node import Standing
from gswarm_tui.tui.picture import FRESH, Picture
from gswarm_tui.tui.ramp import BLOCK_OF, BUCKETS
from gswarm_tui.tui.standing import ROLES, SIGNS
from gswarm_tui.tui.themes import Palette

Glyphs = npt.NDArray[np.str_]
Inks = npt.NDArray[np.int16]
Cell = tuple[int, int | None] | None

CURSOR_MARK = "+"
_STEPS = BUCKETS + 1
_BLOCK_GLYPHS = np.array([*BLOCK_OF, *BLOCK_OF, " "])


def blocks(
    picture: Picture, rows: Sequence[int], cursor: Cell, colours: Palette
) -> Iterator[tuple[str, Style]]:
    """One block character a GPU, as high as its value, and a blank after each node; all of these have GPUs.

    ``cursor`` is a row and a cell of it, None for all of them.
    """
    stale = np.array([picture.standings[row] is Standing.STALE for row in rows])
    quiet = picture.dim[rows] | stale[:, np.newaxis]
    codes = picture.steps[rows] % _STEPS + np.where(quiet, _STEPS, 0)
    codes = np.where(picture.present[rows], codes, 2 * _STEPS).astype(np.int16)
    styles, inks = _block_inks(colours)
    glyphs = np.full((len(rows), codes.shape[1] + 1), " ")
    drawn = np.empty(glyphs.shape, dtype=np.int16)
    glyphs[:, :-1], drawn[:, :-1] = _BLOCK_GLYPHS[codes], inks[codes]
    drawn[:, -1] = drawn[:, -2]  # it has the same ground, and so is no stretch of its own
    if cursor is not None and cursor[0] in rows:
        at = rows.index(cursor[0]), slice(-1) if cursor[1] is None else cursor[1]
        glyphs[at], drawn[at] = CURSOR_MARK, len(styles) - 1
    return _stretches(glyphs, drawn, styles)


def halves(
    picture: Picture, upper: Sequence[int], lower: Sequence[int], cursor: Cell, colours: Palette
) -> Iterator[tuple[str, Style]]:
    """Half a character a GPU by colour alone, two rows of nodes; after each pair a sign if one isn't well."""
    above, below = np.full((2, len(upper), picture.cells), -1, dtype=np.int16)
    above[:], below[: len(lower)] = _steps(picture, upper), _steps(picture, lower)
    pairs, styles = _pairs(colours)
    codes = (above + 1) * _STEPS + below + 1
    glyphs = np.full((len(upper), picture.cells + 1), " ")
    drawn = np.full(glyphs.shape, len(styles) - 1, dtype=np.int16)
    glyphs[:, :-1], drawn[:, :-1] = pairs[codes], codes
    styles = list(styles)
    for at, high in enumerate(upper):
        rows = [high, *lower[at : at + 1]]
        trouble = next((row for row in rows if picture.standings[row] not in FRESH), None)
        if trouble is not None:
            standing = picture.standings[trouble]
            glyphs[at, -1], drawn[at, -1] = SIGNS[standing], len(styles)
            styles.append(colours.role(ROLES[standing]))
        elif cursor is not None and cursor[0] in rows:
            glyphs[at, -1] = "▕"
        if cursor is not None and cursor[0] in rows:
            cells = range(picture.cells) if cursor[1] is None else (cursor[1],)
            for cell in cells:
                other = int((below if cursor[0] == high else above)[at, cell])
                glyphs[at, cell], drawn[at, cell] = "▀" if cursor[0] == high else "▄", len(styles)
                styles.append(_half_cursor(colours, other))
    return _stretches(glyphs, drawn, styles)


def _steps(picture: Picture, rows: Sequence[int]) -> npt.NDArray[np.int16]:
    """Buckets, -1 for what isn't measured, isn't there or isn't fresh, and for what a filter leaves out."""
    live = np.array([picture.standings[row] is Standing.LIVE for row in rows], dtype=bool)
    known = live[:, np.newaxis] & ~picture.dim[rows] & picture.present[rows]
    return np.where(known, picture.steps[rows], -1).astype(np.int16)


def _half_cursor(colours: Palette, other: int) -> Style:
    """The cursor's colour in its half of a character, the bucket of the neighbour in the other."""
    ground = colours.role("text") if other < 0 else colours.cells[other]
    return Style.from_color(colours.cursor.bgcolor, ground.bgcolor)


def _stretches(glyphs: Glyphs, drawn: Inks, styles: Sequence[Style]) -> Iterator[tuple[str, Style]]:
    """A line as stretches of one style."""
    text, inks = "".join(glyphs.ravel().tolist()), drawn.ravel()
    edges = np.flatnonzero(inks[1:] != inks[:-1]) + 1
    for start, end in pairwise((0, *edges.tolist(), len(text))):
        yield text[start:end], styles[inks[start]]


@lru_cache
def _block_inks(colours: Palette) -> tuple[list[Style], Inks]:
    """Styles of blocks, of quiet blocks, of nothing and of the cursor; equal ones have one number."""
    styles = [*colours.inks, *colours.dim_cells, colours.role("text"), colours.cursor]
    return styles, np.array([styles.index(style) for style in styles[:-1]], dtype=np.int16)


@lru_cache
def _pairs(colours: Palette) -> tuple[Glyphs, list[Style]]:
    """Characters that show two buckets, -1 the background, and their styles; the last is a blank's."""
    ground = colours.role("text").bgcolor
    ramp = [ground, *(style.bgcolor for style in colours.cells[:-1])]
    glyphs, styles = [], []
    for above in range(_STEPS):
        for below in range(_STEPS):
            if not above and not below:
                glyphs.append("·")
                styles.append(colours.role("faint"))
            else:
                glyphs.append("▀" if above else "▄")
                shown = (ramp[above], ramp[below]) if above else (ramp[below], ground)
                styles.append(Style.from_color(*shown))
    return np.array(glyphs), [*styles, colours.role("text")]
