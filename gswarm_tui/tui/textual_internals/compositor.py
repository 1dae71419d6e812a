"""What the terminal shows already, so that only cells which look different are written to it.

Textual writes a line anew from the left edge of the widget that changed, each piece of it with both of its
colours. Over SSH that is felt: a second of a quiet screen is some kilobytes. Here a frame becomes the cells
that differ from the frame before, and colours are told where they change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from sys import intern
from typing import NamedTuple

from rich.cells import cell_len
from rich.color import Color, ColorSystem
from rich.console import Console, RenderableType
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.strip import Strip

from gswarm_tui.tui.drawing.themes import eight_bit_steps

_SYSTEMS = {
    "standard": ColorSystem.STANDARD,
    "256": ColorSystem.EIGHT_BIT,
    "truecolor": ColorSystem.TRUECOLOR,
    "windows": ColorSystem.WINDOWS,
}
_ATTRIBUTES = {
    "bold": "1",
    "dim": "2",
    "italic": "3",
    "underline": "4",
    "blink": "5",
    "reverse": "7",
    "strike": "9",
}
_SEEN_ON_BLANKS = set("479")
_BRIDGED = 4
"""So few unchanged cells between two that changed are written, too: going over them takes as many bytes."""

# One cell each: ASCII, Latin, Greek, Cyrillic, dashes, arrows, signs, boxes, blocks, braille.
_SINGLE = re.compile("[ -~¡-¬®-ˬͰ-͵Ͷ-ͽА-я–—…←-↓−≈─-▟■-▬►●-◦✓⠀-⣿]*").fullmatch


class CellStyle(NamedTuple):
    """How a cell is drawn, as parameters of the escape that sets it; None where it can't be seen."""

    attributes: str | None
    colour: str | None
    ground: str


_PLAIN = CellStyle("", "39", "49")


class TerminalLine:
    """One line of the terminal: for each cell its character ("" in a wide one's second cell) and its ink."""

    def __init__(self) -> None:
        self.chars: list[str | None] = []
        self.inks: list[CellStyle | None] = []

    def changed(self, at: int, chars: list[str], inks: list[CellStyle]) -> Iterator[tuple[int, int]]:
        """Put these cells in the place of those from a column on; the stretches that differ, in order."""
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
    """The stretch from a changed cell to another, without half of a wide character."""
    while first and not chars[first]:
        first -= 1
    end = last + 1
    while end < len(chars) and not chars[end]:
        end += 1
    return first, end


class TerminalCells:
    """Remembers what was written; ``forget`` when something else may have drawn on it."""

    def __init__(self) -> None:
        self._lines: dict[int, TerminalLine] = {}

    def forget(self) -> None:
        """Nothing is known of what is on it."""
        self._lines.clear()

    def changes(self, drawn: RenderableType | None) -> RenderableType | None:
        """What Textual drew as what differs; anything but a compositor's update stays as it is."""
        update: object = drawn
        return ChangedCells(self, update) if isinstance(update, CompositorUpdate) else drawn

    def frame(self, update: CompositorUpdate, console: Console) -> str | None:
        """The text that brings an update to the terminal, None for one of an unknown kind."""
        if isinstance(update, LayoutUpdate):
            strips = _all_of(update)
        elif isinstance(update, ChopsUpdate):
            strips = _those_in(update)
        else:
            self.forget()
            return None
        pen = _CellWriter(_SYSTEMS[console.color_system or "truecolor"])
        for y, x, strip in strips:
            chars, inks = pen.cells(strip)
            line = self._lines.setdefault(y, TerminalLine())
            for start, end in line.changed(x, chars, inks):
                pen.write(y, x + start, chars[start:end], inks[start:end])
        return pen.text()


class ChangedCells(CompositorUpdate):
    """An update of which only what differs is written."""

    def __init__(self, terminal: TerminalCells, update: CompositorUpdate) -> None:
        self._terminal, self._update = terminal, update

    def render_segments(self, console: Console) -> str:
        """The text that is written."""
        text = self._terminal.frame(self._update, console)
        return self._update.render_segments(console) if text is None else text

    def __rich__(self) -> str:
        """Textual never prints an update by Rich."""
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
    """Writes cells, and says where and how only as far as that isn't so already."""

    def __init__(self, system: ColorSystem) -> None:
        self._system = system
        self._parts: list[str] = []
        self._at = (-1, -1)
        self._ink = _PLAIN

    def cells(self, strip: Strip) -> tuple[list[str], list[CellStyle]]:
        """A strip's characters and inks, one of each for a cell."""
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
        """Write these cells from a place on."""
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
                told, self._ink = _change(self._ink, ink)
                self._parts.append(told)
            self._parts += chars[start:stop]
            start = stop
        self._at = (y, x + end)

    def text(self) -> str:
        """All that was written, and the terminal's own colours again."""
        if self._parts:
            self._parts.append("\x1b[0m")
        return "".join(self._parts)


@lru_cache(maxsize=1024)
def _split(text: str) -> tuple[str, ...]:
    """The characters of a text, one for each cell: "" after a wide one, marks without width with theirs."""
    if _SINGLE(text):
        return tuple(map(intern, text))  # Python makes a string anew for each character beyond Latin
    cells: list[str] = []
    for char in text:
        width = cell_len(char)
        if width == 0 and cells:
            at = len(cells) - 1 if cells[-1] else len(cells) - 2
            cells[at] += char
        elif width:
            cells += [char, *[""] * (width - 1)]
    return tuple(cells)


@lru_cache(maxsize=4096)
def _cell_styles(style: Style | None, system: ColorSystem) -> tuple[CellStyle, CellStyle]:
    """How a style draws characters, and blanks."""
    if style is None:
        return _PLAIN, CellStyle(None, None, "49")
    attributes = ";".join(code for name, code in _ATTRIBUTES.items() if getattr(style, name))
    colour, ground = (
        default if told is None else ";".join(_possible(told, system).get_ansi_codes(foreground))
        for told, foreground, default in ((style.color, True, "39"), (style.bgcolor, False, "49"))
    )
    ink = CellStyle(attributes, colour, ground)
    return ink, ink if _SEEN_ON_BLANKS & set(attributes) else CellStyle(None, None, ground)


def _possible(colour: Color, system: ColorSystem) -> Color:
    """What stands for a colour where there are fewer: the nearest, but for those of a ramp."""
    steps = eight_bit_steps() if system is ColorSystem.EIGHT_BIT else {}
    step = steps.get(colour.triplet) if colour.triplet is not None else None
    return step or colour.downgrade(system)


@lru_cache(maxsize=4096)
def _change(old: CellStyle, ink: CellStyle) -> tuple[str, CellStyle]:
    """What makes a pen draw with another ink, and how it draws then."""
    attributes = ink.attributes
    if attributes is None:  # a blank: what can't be seen on it stays as it is
        attributes = "" if _SEEN_ON_BLANKS & set(old.attributes or "") else old.attributes
    codes = [] if attributes == old.attributes else ["0", attributes or ""]
    known = _PLAIN if codes else old
    colour = known.colour if ink.colour is None else ink.colour
    codes += [colour or ""] * (colour != known.colour) + [ink.ground] * (ink.ground != known.ground)
    told = ";".join(filter(None, codes))
    return f"\x1b[{told}m" if told else "", CellStyle(attributes, colour, ink.ground)
