"""Writes only changed cells to the terminal: compares each update of Textual's compositor with the last ones.

Why, and what it depends on: docs/decisions/006-textual-compositor.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from sys import intern
from typing import NamedTuple

from rich.cells import cell_len
from rich.color import Color, ColorSystem
from rich.console import COLOR_SYSTEMS, Console, RenderableType
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.geometry import Region
from textual.strip import Strip

from gswarm_tui.tui.drawing.themes import eight_bit_steps

# fmt: off
_ATTRIBUTES = {
    "bold": "1", "dim": "2", "italic": "3", "underline": "4", "blink": "5", "reverse": "7", "strike": "9",
}
# fmt: on
_SEEN_ON_BLANKS = set("479")
_BRIDGED = 4
"""Unchanged cells between changed ones that are written too: skipping them takes as many bytes."""


class CellStyle(NamedTuple):
    """Style of a cell as parameters of its escape sequence; None where it can't be seen."""

    attributes: str | None
    colour: str | None
    ground: str


_PLAIN = CellStyle("", "39", "49")


class TerminalLine:
    """A line of the terminal: character ("" in a wide one's second cell) and style of each cell."""

    def __init__(self) -> None:
        self.chars: list[str | None] = []
        self.inks: list[CellStyle | None] = []

    def changed(self, at: int, chars: list[str], inks: list[CellStyle]) -> Iterator[tuple[int, int]]:
        """Replace the cells from a column on; yields the ranges that differ, in order."""
        end = at + len(chars)
        missing = end - len(self.chars)
        if missing > 0:
            self.chars += [None] * missing
            self.inks += [None] * missing
        old_chars, old_inks = self.chars[at:end], self.inks[at:end]
        self.chars[at:end], self.inks[at:end] = chars, inks
        if old_chars == chars and old_inks == inks:
            return
        start = last = -1
        for here, (old, new, old_ink, ink) in enumerate(zip(old_chars, chars, old_inks, inks, strict=True)):
            if old == new and old_ink == ink:
                continue
            if start < 0:
                start = here
            elif here - last > _BRIDGED:
                yield _whole(chars, start, last)
                start = here
            last = here
        yield _whole(chars, start, last)


def _whole(chars: list[str], first: int, last: int) -> tuple[int, int]:
    """Return the range between two changed cells, widened to whole characters."""
    while first and not chars[first]:
        first -= 1
    end = last + 1
    while end < len(chars) and not chars[end]:
        end += 1
    return first, end


class TerminalCells:
    """Cells that were written to the terminal; ``forget`` them when others may have drawn on it."""

    def __init__(self) -> None:
        self._lines: dict[int, TerminalLine] = {}
        self._region: Region | None = None

    def forget(self) -> None:
        """Write every cell again."""
        self._lines.clear()

    def changes(self, drawn: RenderableType | None) -> RenderableType | None:
        """Return an update that writes only changed cells; anything else is returned unchanged."""
        update: object = drawn
        if isinstance(update, (LayoutUpdate, ChopsUpdate)):
            return ChangedCells(self, update)
        if isinstance(update, CompositorUpdate):
            self.forget()
        return drawn

    def frame(self, update: LayoutUpdate | ChopsUpdate, console: Console) -> str:
        """Return the text to write for an update; all of it if the screen has another size now.

        Cells of the old size that were written to a smaller terminal landed on its last column or line.
        """
        if isinstance(update, LayoutUpdate) and update.region != self._region:
            self.forget()
            self._region = update.region
        strips = _all_of(update) if isinstance(update, LayoutUpdate) else _those_in(update)
        pen = _CellWriter(COLOR_SYSTEMS[console.color_system or "truecolor"])
        for y, x, strip in strips:
            chars, inks = pen.cells(strip)
            line = self._lines.setdefault(y, TerminalLine())
            for start, end in line.changed(x, chars, inks):
                pen.write(y, x + start, chars[start:end], inks[start:end])
        return pen.text()


class ChangedCells(CompositorUpdate):
    """Update that writes only changed cells."""

    def __init__(self, terminal: TerminalCells, update: LayoutUpdate | ChopsUpdate) -> None:
        self._terminal, self._update = terminal, update

    def render_segments(self, console: Console) -> str:
        """Return the text to write."""
        return self._terminal.frame(self._update, console)

    def __rich__(self) -> str:
        """Return nothing: Textual never prints an update with Rich."""
        return ""


def _all_of(update: LayoutUpdate) -> Iterator[tuple[int, int, Strip]]:
    for y, strips in enumerate(update.strips, update.region.y):
        x = update.region.x
        for strip in strips:
            yield y, x, strip
            x += strip.cell_length


def _those_in(update: ChopsUpdate) -> Iterator[tuple[int, int, Strip]]:
    for y, start, stop in update.spans:
        for end, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
            if strip is not None and x <= stop and end > start:
                yield y, x, strip


class _CellWriter:
    """Writes cells, with cursor movements and styles only where they change."""

    def __init__(self, system: ColorSystem) -> None:
        self._system = system
        self._parts: list[str] = []
        self._at = (-1, -1)
        self._ink = _PLAIN

    def cells(self, strip: Strip) -> tuple[list[str], list[CellStyle]]:
        """Return the characters and styles of a strip, one of each per cell."""
        chars: list[str] = []
        inks: list[CellStyle] = []
        for text, style, control in strip:
            if control:
                continue
            split = _split(text)
            ink, blank = _cell_styles(style, self._system)
            chars += split
            if " " in text and blank is not ink:
                inks += [blank if char == " " else ink for char in split]
            else:
                inks += [ink] * len(split)
        return chars, inks

    def write(self, y: int, x: int, chars: Sequence[str], inks: Sequence[CellStyle]) -> None:
        """Write cells from a position."""
        line, column = self._at
        if line == y and x > column:
            self._parts.append(f"\x1b[{x - column}C")
        elif (line, column) != (y, x):
            self._parts.append(f"\x1b[{y + 1};{x + 1}H")
        start, end = 0, len(chars)
        while start < end:
            ink, stop = inks[start], start + 1
            while stop < end and inks[stop] is ink:
                stop += 1
            if ink is not self._ink:
                sequence, self._ink = _change(self._ink, ink)
                self._parts.append(sequence)
            self._parts += chars[start:stop]
            start = stop
        self._at = (y, x + end)

    def text(self) -> str:
        """Return the text, ended by a reset of the style."""
        if self._parts:
            self._parts.append("\x1b[0m")
        return "".join(self._parts)


@lru_cache(maxsize=1024)
def _split(text: str) -> tuple[str, ...]:
    """Return the characters of a text per cell: "" after a wide one, combining marks with theirs."""
    cells: list[str] = []
    for char in text:
        width = cell_len(char)
        if width == 0 and cells:
            at = len(cells) - 1 if cells[-1] else len(cells) - 2
            cells[at] += char
        elif width:
            # Python keeps single strings only for Latin characters.
            cells += [intern(char), *[""] * (width - 1)]
    return tuple(cells)


@lru_cache(maxsize=4096)
def _cell_styles(style: Style | None, system: ColorSystem) -> tuple[CellStyle, CellStyle]:
    """Return the cell style of a style for characters, and for blanks."""
    if style is None:
        return _PLAIN, CellStyle(None, None, "49")
    attributes = ";".join(code for name, code in _ATTRIBUTES.items() if getattr(style, name))
    colour, ground = (
        default if given is None else ";".join(_available(given, system).get_ansi_codes(foreground))
        for given, foreground, default in ((style.color, True, "39"), (style.bgcolor, False, "49"))
    )
    ink = CellStyle(attributes, colour, ground)
    return ink, ink if _SEEN_ON_BLANKS & set(attributes) else CellStyle(None, None, ground)


def _available(colour: Color, system: ColorSystem) -> Color:
    """Return the terminal's nearest colour; the ramps have their own replacements.

    For the dark backgrounds of themes, Rich would choose saturated ones of the 256 colours.
    """
    if system is not ColorSystem.EIGHT_BIT or colour.triplet is None:
        return colour.downgrade(system)
    if (step := eight_bit_steps().get(colour.name)) is not None:
        return step
    wanted = colour.triplet

    def distance(number: int) -> int:
        known = Color.from_ansi(number).get_truecolor()
        return sum((a - b) ** 2 for a, b in zip(known, wanted, strict=True))

    # The first 16 of the 256 colours differ between terminals.
    return Color.from_ansi(min(range(16, 256), key=distance))


@lru_cache(maxsize=4096)
def _change(old: CellStyle, ink: CellStyle) -> tuple[str, CellStyle]:
    """Return the escape sequence from one style to another, and the style after it."""
    attributes = ink.attributes
    if attributes is None:  # a blank: what can't be seen on it stays as it is
        attributes = "" if _SEEN_ON_BLANKS & set(old.attributes or "") else old.attributes
    codes = [] if attributes == old.attributes else ["0", attributes or ""]
    known = _PLAIN if codes else old
    colour = known.colour if ink.colour is None else ink.colour
    codes += [colour or ""] * (colour != known.colour) + [ink.ground] * (ink.ground != known.ground)
    sequence = ";".join(filter(None, codes))
    return f"\x1b[{sequence}m" if sequence else "", CellStyle(attributes, colour, ink.ground)
