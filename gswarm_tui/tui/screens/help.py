"""Help: all keys of a screen, signs and the filter language."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen

from gswarm_tui.tui.actions import FLEET, GROUPS, actions_of
from gswarm_tui.tui.drawing.spans import Line, Span
from gswarm_tui.tui.widgets.lines import Bar

SIGNS: tuple[tuple[str, str], ...] = (
    ("–", "not measured: the GPU or its driver doesn't report it"),
    ("…", "connecting"),
    ("≈", "stale: no data for three intervals; last numbers are faint"),
    ("‼", "unhealthy: connected, but no data for half a minute"),
    ("╳", "lost: reason, what to do, time of the next retry"),
    ("■", "ended: the node's agent was stopped"),
    ("▲", "warning; ╳ is an error"),
    ("98", "faint: filtered out, stale or not in your job"),
)
FILTERS: tuple[tuple[str, str], ...] = (
    ("util<5", "a metric by its short or full name: < <= > >= = !="),
    ("mem>40G", "k, M, G, T after a number; without one the database's unit"),
    ("gpu03 gpu0*", "nodes by a part of their name or a pattern; gpu03:5 a GPU"),
    ("state:lost", "also node: user: command: model:; gpu: rank: with 3 or 0-3"),
    ("mine", "GPUs that your job was granted"),
    ("a b  a|b  !a", "and, or, not; parentheses group"),
)


def help_lines(screen_name: str, mode: str) -> list[Line]:
    """Return a screen's actions by group, then the signs and the filter language."""
    lines: list[Line] = []
    for group in GROUPS:
        actions = [action for action in actions_of(screen_name, mode) if action.group == group]
        if actions:
            lines += [[Span(group, "title")], *(_entry(a.keys_shown, a.help) for a in actions), []]
    lines += [[Span("Signs", "title")], *(_entry(sign, meaning) for sign, meaning in SIGNS), []]
    if screen_name == FLEET:
        lines += [[Span("Filter", "title")], *(_entry(example, meaning) for example, meaning in FILTERS), []]
    return lines[:-1]


def _entry(what: str, meaning: str) -> Line:
    return [Span(f"  {what:<14}", "key"), Span(meaning)]


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

    def __init__(self, screen_name: str, mode: str) -> None:
        super().__init__()
        self._screen_name = screen_name
        self._mode = mode

    def compose(self) -> ComposeResult:
        """Scrollable lines."""
        with VerticalScroll():
            yield Bar(*help_lines(self._screen_name, self._mode))
