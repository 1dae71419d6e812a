"""All keys and signs."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen

from gswarm_tui.tui.actions import GROUPS, actions_of, key_name
from gswarm_tui.tui.widgets.bar import Bar, Line, Span


def help_lines(place: str) -> list[Line]:
    """What can be done in a place, by group."""
    lines: list[Line] = []
    for group in GROUPS:
        lines.append([Span(group, "title")])
        for action in actions_of(place):
            if action.group == group:
                keys = " ".join(key_name(k) for k in action.keys)
                lines.append([Span(f"  {keys:<14}", "key"), Span(action.help)])
        lines.append([])
    return lines


class HelpScreen(ModalScreen[None], inherit_bindings=False):
    """All keys of a place, and what the signs mean."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,f1,enter,ctrl+c", "app.pop_screen")
    ]
    DEFAULT_CSS = """
    HelpScreen { align: center middle; background: $background 60%; }
    HelpScreen > VerticalScroll { width: 84; max-width: 100%; height: auto; max-height: 100%; padding: 0 1;
        background: $background; border: round $border; }
    """

    def __init__(self, place: str) -> None:
        super().__init__()
        self._place = place

    def compose(self) -> ComposeResult:
        """The lines, scrolling where they don't fit."""
        with VerticalScroll():
            yield Bar(*help_lines(self._place))
