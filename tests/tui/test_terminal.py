"""What is written to the terminal: after any frames it shows the last one, and nothing is written twice."""

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
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.geometry import Region
from textual.strip import Strip

from gswarm_tui.common.colours import DARK, LIGHT, parsed
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


class Cell(NamedTuple):
    """A cell as an eye sees it."""

    text: str
    bold: bool
    underlined: bool
    reverse: bool
    colour: str
    ground: str


def seen(char: Char) -> Cell:
    """Of a blank, bold and the colour can't be seen."""
    if char.data == " " and not (char.underscore or char.reverse):
        char = char._replace(bold=False, fg="default")
    return Cell(char.data, char.bold, char.underscore, char.reverse, char.fg, char.bg)


class Scene:
    """A terminal in which something else was drawn before."""

    def __init__(self) -> None:
        self._screen = Screen(WIDE, HIGH)
        self._plain = self._screen.pen()
        self.take("".join(f"\x1b[{y + 1};1H{'?' * WIDE}" for y in range(HIGH)))

    def take(self, text: str) -> None:
        self._screen.write(text)
        assert self._screen.pen() == self._plain, "colours are left behind"

    @property
    def lines(self) -> list[list[Cell]]:
        return [[seen(char) for char in self._screen.line(y)] for y in range(HIGH)]


def shown(strips: list[Strip]) -> list[list[Cell]]:
    """What a screen with these lines looks like, by Textual's own account of their styles."""
    scene = Scene()
    for y, strip in enumerate(strips, 1):
        scene.take(f"\x1b[{y};1H{strip.render(CONSOLE)}")
    return scene.lines


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


def layout(frame: list[tuple[Strip, Strip]]) -> CompositorUpdate:
    return LayoutUpdate(list(frame), Region(0, 0, WIDE, HIGH))


def chops(frame: list[tuple[Strip, Strip]], spans: list[tuple[int, int, int]]) -> CompositorUpdate:
    return ChopsUpdate([{0: left, CUT: right} for left, right in frame], spans, [[CUT, WIDE]] * HIGH)


EVERYWHERE = [(y, 0, WIDE) for y in range(HIGH)]


@given(st.lists(frames, min_size=1, max_size=4))
def test_after_any_frames_the_terminal_shows_the_last(drawn: list[list[tuple[Strip, Strip]]]) -> None:
    terminal, scene = TerminalCells(), Scene()
    for number, frame in enumerate(drawn):
        update = chops(frame, EVERYWHERE) if number else layout(frame)
        scene.take(terminal.frame(update, CONSOLE) or "")
        assert scene.lines == shown([Strip.join(pair) for pair in frame])
    assert terminal.frame(chops(drawn[-1], EVERYWHERE), CONSOLE) == ""


@given(frames, frames)
def test_only_the_part_that_textual_drew_is_looked_at(
    before: list[tuple[Strip, Strip]], after: list[tuple[Strip, Strip]]
) -> None:
    terminal, scene = TerminalCells(), Scene()
    scene.take(terminal.frame(layout(before), CONSOLE) or "")
    scene.take(terminal.frame(chops(after, [(1, CUT + 1, WIDE)]), CONSOLE) or "")
    want = [Strip.join(pair) for pair in before]
    want[1] = Strip.join([before[1][0], after[1][1]])
    assert scene.lines == shown(want)


def test_a_number_that_changes_takes_a_few_bytes() -> None:
    plain, other = STYLES[1], STYLES[2]
    terminal = TerminalCells()
    frame = [(Strip([Segment("util ", other)]), Strip([Segment("  73 % ", plain)]))] * HIGH
    terminal.frame(layout(frame), CONSOLE)
    frame[1] = (frame[1][0], Strip([Segment("  75 % ", plain)]))
    text = terminal.frame(chops(frame, EVERYWHERE), CONSOLE)
    assert text == "\x1b[2;9H\x1b[38;2;216;221;230;48;2;15;18;23m5\x1b[0m"


def test_what_was_forgotten_is_written_again() -> None:
    terminal, scene = TerminalCells(), Scene()
    frame = [(Strip([Segment("gpu01", None)]), Strip([Segment("  98   ", STYLES[3])]))] * HIGH
    terminal.frame(layout(frame), CONSOLE)
    terminal.forget()
    scene.take(terminal.frame(chops(frame, EVERYWHERE), CONSOLE) or "")
    assert scene.lines == shown([Strip.join(pair) for pair in frame])


@pytest.mark.parametrize("theme", [DARK, LIGHT])
@pytest.mark.parametrize("kind", ["heat", "ink"])
def test_in_256_colours_a_ramp_goes_one_way_in_steps_that_can_be_told_apart_and_read(
    theme: str, kind: str
) -> None:
    ramp = Strip([Segment("5", palette(theme).role(f"{kind}{step}")) for step in range(BUCKETS)])
    console = Console(color_system="256", force_terminal=True)
    screen = Screen(BUCKETS, 1)
    screen.write(TerminalCells().frame(LayoutUpdate([[ramp]], Region(0, 0, BUCKETS, 1)), console) or "")
    cells = [tuple(luminance(parsed(f"#{part}")) for part in (cell.fg, cell.bg)) for cell in screen.line(0)]
    light = [ground if kind == "heat" else text for text, ground in cells]
    steps = list(dict.fromkeys(light))
    assert light == [step for step in steps for _ in range(2)]
    upwards = steps if theme == DARK else steps[::-1]
    assert all(more > less for less, more in pairwise(upwards))
    for text, ground in cells:
        contrast = (max(text, ground) + 0.05) / (min(text, ground) + 0.05)
        assert contrast > (4.5 if kind == "heat" else 1.5)
