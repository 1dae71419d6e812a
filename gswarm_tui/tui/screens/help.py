"""Help: what a screen shows, its keys, its signs and the filter language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen

from gswarm_tui.tui.actions import FLEET, GROUPS, actions_of
from gswarm_tui.tui.drawing.spans import Line, Span
from gswarm_tui.tui.drawing.text import wrap
from gswarm_tui.tui.screens.help_texts import ABOUT, COLUMNS, WORDS, Entries, signs_of
from gswarm_tui.tui.widgets.lines import Bar

WIDTH, WORD_WIDTH, FRAME = 75, 18, 5
"""Cells of a line on a terminal of 80 columns, of its first column, and of the frame with its scroll bar."""
LEAST_WIDTH, LEAST_MEANING, INDENT = 8, 10, 4
"""Cells of the narrowest line, and of a meaning beside its word; below its word it is indented."""
COMPLETE_FROM = 120
"""Cells of a terminal from which the fleet screen has all its columns and figures."""
HIDDEN = (
    "Hidden (terminal has only {} columns): {}some figures of the top lines, and some keys of the last line. "
    "All keys work."
)
FILTERS: Entries = (
    ("util<5", "a metric by its short or full name: < <= > >= = !="),
    ("mem<500MiB", "number with unit; without one, the unit that screens show"),
    ("gpu03 gpu0*", "nodes by a part of their name or a pattern; gpu03:5 a GPU"),
    ("state:lost", "nodes; also live, stale, unhealthy, unreachable, connecting, ended"),
    ("state:throttled", "GPUs whose clocks are held down: by heat, power cap or power brake"),
    ("user:ada", "also node: command: model:; gpu: rank: with 3 or 0-3"),
    ("mine", "GPUs that your job was granted"),
    ("a b  a|b  !a", "and, or, not; parentheses group"),
)


def help_lines(
    screen_name: str, mode: str, cells: int = COMPLETE_FROM, hidden: Sequence[str] = ()
) -> list[Line]:
    """Return what a screen shows, its actions by group, its signs and the filter language.

    On a terminal of fewer ``cells`` than the screens need, a note says that some of it is hidden. It names
    the ``hidden`` columns.
    """
    about = ABOUT[screen_name]
    if cells < COMPLETE_FROM:
        columns = f"the columns {', '.join(hidden)}; " if hidden else ""
        about += f" {HIDDEN.format(cells, columns)}"
    elif hidden:
        about += f" Hidden for lack of room: {', '.join(hidden)}."
    room = max(LEAST_WIDTH, min(WIDTH, cells - FRAME))
    lines: list[Line] = [[Span(line)] for line in wrap(about, room)]
    sections: list[tuple[str, Entries]] = [("On this screen", WORDS[screen_name])]
    for group in GROUPS:
        actions = [action for action in actions_of(screen_name, mode) if action.group == group]
        sections.append((group, [(action.keys_shown, action.help) for action in actions]))
    sections.append(("Signs", signs_of(screen_name, mode)))
    sections.append(("Columns", COLUMNS.get(screen_name, ())))
    if screen_name == FLEET:
        sections.append(("Filter", FILTERS))
    for title, entries in sections:
        if entries:
            lines += [[], [Span(title, "title")]]
            lines += [line for what, meaning in entries for line in _entry(what, meaning, room)]
    return lines


def _entry(what: str, meaning: str, room: int) -> list[Line]:
    if room < WORD_WIDTH + LEAST_MEANING:
        below: list[Line] = [[Span(" " * INDENT + line)] for line in wrap(meaning, room - INDENT)]
        return [[Span(f"  {what}", "key")], *below]
    first, *more = wrap(meaning, room - WORD_WIDTH)
    indented: list[Line] = [[Span(" " * WORD_WIDTH + line)] for line in more]
    return [[Span(f"  {what:<{WORD_WIDTH - 2}}", "key"), Span(first)], *indented]


class HelpScreen(ModalScreen[None], inherit_bindings=False):
    """Help for a screen and mode."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,f1,enter,ctrl+c", "app.pop_screen")
    ]
    DEFAULT_CSS = """
    HelpScreen { align: center middle; background: $background 60%; }
    HelpScreen > VerticalScroll { width: 84; max-width: 100%; height: auto; max-height: 100%; padding: 0 1;
        background: $background; border: round $border; scrollbar-size-vertical: 1; }
    """

    def __init__(self, screen_name: str, mode: str, hidden: Sequence[str]) -> None:
        super().__init__()
        self._hidden = hidden
        self._screen_name = screen_name
        self._mode = mode

    def compose(self) -> ComposeResult:
        """Scrollable lines in a frame that names the keys for it."""
        box = VerticalScroll()
        box.border_title = f"help: {self._screen_name}"
        box.border_subtitle = "esc close  ↓ PgDn scroll"
        with box:
            yield Bar(*help_lines(self._screen_name, self._mode, self.app.size.width, self._hidden))
