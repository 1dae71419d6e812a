"""Output to the terminal: it shows the last frame, and only changed cells are written."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyte.screens import Char
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.geometry import Region
from textual.strip import Strip

from gswarm_tui.common.colours import ANSI, THEME_NAMES, parsed
from gswarm_tui.tui.drawing.ramp import BUCKETS
from gswarm_tui.tui.drawing.themes import luminance, palette
from gswarm_tui.tui.textual_internals.compositor import TerminalCells
from tests.terminal import Screen

WIDE, HIGH, CUT = 12, 3, 5
CONSOLE = Console(color_system="truecolor", force_terminal=True)
STYLES = [
    None,
    Style.parse("#d8dde6 on #0f1217"),
    Style.parse("#8992a1 on #0f1217"),
    Style.parse("bold red on #1b1d33"),
    Style.parse("underline #d8dde6 on #0f1217"),
    Style.parse("reverse"),
]


class VisibleCell(NamedTuple):
    """A cell as it looks."""

    text: str
    bold: bool
    underlined: bool
    reverse: bool
    colour: str
    ground: str


def seen(char: Char) -> VisibleCell:
    """Return the visible parts of a cell: a blank has no bold and no colour."""
    if char.data == " " and not (char.underscore or char.reverse):
        char = char._replace(bold=False, fg="default")
    return VisibleCell(char.data, char.bold, char.underscore, char.reverse, char.fg, char.bg)


class DirtyTerminal:
    """Terminal that shows other text at first."""

    def __init__(self) -> None:
        self._screen = Screen(WIDE, HIGH)
        self._plain = self._screen.pen()
        self.take("".join(f"\x1b[{y + 1};1H{'?' * WIDE}" for y in range(HIGH)))

    def take(self, text: str) -> None:
        self._screen.write(text)
        assert self._screen.pen() == self._plain, "colours are left behind"

    @property
    def lines(self) -> list[list[VisibleCell]]:
        return [[seen(char) for char in self._screen.line(y)] for y in range(HIGH)]


def shown(strips: list[Strip]) -> list[list[VisibleCell]]:
    """Return how these lines look, by Textual's styles."""
    screen = DirtyTerminal()
    for y, strip in enumerate(strips, 1):
        screen.take(f"\x1b[{y};1H{strip.render(CONSOLE)}")
    return screen.lines


@st.composite
def strips(draw: st.DrawFn, width: int) -> Strip:
    segments, left = [], width
    while left:
        text = draw(st.text("ab  ─▄é中", min_size=1, max_size=left))
        while cell_len(text) > left:
            text = text[:-1]
        if not text:
            text = " " * left
        segments.append(Segment(text, draw(st.sampled_from(STYLES))))
        left -= cell_len(text)
    return Strip(segments, width)


frames = st.lists(st.tuples(strips(CUT), strips(WIDE - CUT)), min_size=HIGH, max_size=HIGH)


def layout(frame: list[tuple[Strip, Strip]]) -> LayoutUpdate:
    return LayoutUpdate(list(frame), Region(0, 0, WIDE, HIGH))


def chops(frame: list[tuple[Strip, Strip]], spans: list[tuple[int, int, int]]) -> ChopsUpdate:
    return ChopsUpdate([{0: left, CUT: right} for left, right in frame], spans, [[CUT, WIDE]] * HIGH)


EVERYWHERE = [(y, 0, WIDE) for y in range(HIGH)]


@given(st.lists(frames, min_size=1, max_size=4))
def test_terminal_shows_the_last_of_any_frames(drawn: list[list[tuple[Strip, Strip]]]) -> None:
    terminal, screen = TerminalCells(), DirtyTerminal()
    for number, frame in enumerate(drawn):
        update = chops(frame, EVERYWHERE) if number else layout(frame)
        screen.take(terminal.frame(update, CONSOLE))
        assert screen.lines == shown([Strip.join(pair) for pair in frame])
    assert terminal.frame(chops(drawn[-1], EVERYWHERE), CONSOLE) == ""


def test_changed_number_takes_few_bytes() -> None:
    plain, other = STYLES[1], STYLES[2]
    terminal = TerminalCells()
    frame = [(Strip([Segment("util ", other)]), Strip([Segment("  73 % ", plain)]))] * HIGH
    terminal.frame(layout(frame), CONSOLE)
    frame[1] = (frame[1][0], Strip([Segment("  75 % ", plain)]))
    text = terminal.frame(chops(frame, EVERYWHERE), CONSOLE)
    assert text == "\x1b[2;9H\x1b[38;2;216;221;230;48;2;15;18;23m5\x1b[0m"


def test_frame_of_the_old_size_leaves_nothing_on_a_smaller_terminal() -> None:
    terminal, screen = TerminalCells(), DirtyTerminal()
    wide = Strip([Segment(" " * WIDE + "quit")])
    screen.take(terminal.frame(LayoutUpdate([[wide]] * HIGH, Region(0, 0, WIDE + 4, HIGH)), CONSOLE))
    frame = [(Strip([Segment(" " * CUT)]), Strip([Segment(" " * (WIDE - CUT))]))] * HIGH
    screen.take(terminal.frame(layout(frame), CONSOLE))
    assert screen.lines == shown([Strip.join(pair) for pair in frame])


@pytest.mark.parametrize("theme", sorted({*THEME_NAMES} - {ANSI}))
@pytest.mark.parametrize("kind", ["heat", "ink", "heat_hot", "ink_hot"])
def test_ramp_in_256_colours_is_monotonic_and_readable(theme: str, kind: str) -> None:
    ramp = Strip([Segment("5", palette(theme)[f"{kind}{step}"]) for step in range(BUCKETS)])
    console = Console(color_system="256", force_terminal=True)
    screen = Screen(BUCKETS, 1)
    screen.write(TerminalCells().frame(LayoutUpdate([[ramp]], Region(0, 0, BUCKETS, 1)), console))
    cells = [tuple(luminance(parsed(f"#{part}")) for part in (cell.fg, cell.bg)) for cell in screen.line(0)]
    light = [ground if kind.startswith("heat") else text for text, ground in cells]
    steps = list(dict.fromkeys(light))
    assert light == [step for step in steps for _ in range(2)]
    upwards = steps if light[0] < light[-1] else steps[::-1]
    assert all(more > less for less, more in pairwise(upwards))
    for text, ground in cells:
        contrast = (max(text, ground) + 0.05) / (min(text, ground) + 0.05)
        assert contrast > (4.5 if kind.startswith("heat") else 1.35)
