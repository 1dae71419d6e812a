"""The last line: the keys that matter in a place."""

from __future__ import annotations

from textual.events import Resize

from gswarm_tui.tui.actions import LIVE, Action, footer_of, is_typed, key_name
from gswarm_tui.tui.drawing.spans import Line, Span, measure
from gswarm_tui.tui.widgets.lines import Bar


def footer_line(place: str, cells: int, mode: str = LIVE, *, typing: bool = False) -> Line:
    """The place's keys, as many as fit; help and quit are always among them.

    While a text is ``typing`` only those that aren't part of it.
    """
    entries = [
        [
            Span(keys, "key", _click(a.name, everywhere=not a.screens)),
            Span(f" {a.label}", "dim", _click(a.name, everywhere=not a.screens)),
        ]
        for a in footer_of(place, mode)
        if (keys := _keys(a, typing=typing))
    ]
    always = entries[-2:]
    room = cells - sum(measure(entry) + 2 for entry in always) - 1
    line = [Span(" ")]
    for entry in entries[:-2]:
        if measure(entry) + 2 > room:
            continue
        room -= measure(entry) + 2
        line += [*entry, Span("  ")]
    for entry in always:
        line += [*entry, Span("  ")]
    return line[:-1]


def _keys(action: Action, *, typing: bool) -> str:
    if not typing:
        return action.shown or key_name(action.keys[0])
    return next((key_name(key) for key in action.keys if not is_typed(key)), "")


def _click(name: str, *, everywhere: bool) -> str:
    call = name if name.endswith(")") else f"{name}()"
    return f"app.{call}" if everywhere else f"screen.{call}"


class Footer(Bar):
    """The keys of a place, clickable."""

    DEFAULT_CSS = "Footer { dock: bottom; height: 1; }"

    def __init__(self, place: str) -> None:
        super().__init__()
        self._place = place
        self._mode = LIVE
        self._typing = False

    def show_mode(self, mode: str, *, typing: bool = False) -> None:
        """Show the keys that make sense in a mode, and while a text is typed."""
        if (mode, typing) != (self._mode, self._typing):
            self._mode, self._typing = mode, typing
            self._fit(self.size.width)

    def on_resize(self, event: Resize) -> None:
        """Fit the keys into the width."""
        self._fit(event.size.width)

    def _fit(self, cells: int) -> None:
        self.show(footer_line(self._place, cells, self._mode, typing=self._typing))
