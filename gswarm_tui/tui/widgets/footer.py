"""The last line: the keys that matter in a place."""

from __future__ import annotations

from textual.events import Resize

from gswarm_tui.tui.actions import LIVE, footer_of, key_name
from gswarm_tui.tui.widgets.bar import Bar, Line, Span, measure


def footer_line(place: str, cells: int, mode: str = LIVE) -> Line:
    """The place's keys, as many as fit; help and quit are always among them."""
    entries = [
        [
            Span(a.shown or key_name(a.keys[0]), "key", _click(a.name, everywhere=not a.places)),
            Span(f" {a.label}", "dim", _click(a.name, everywhere=not a.places)),
        ]
        for a in footer_of(place, mode)
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

    def show_mode(self, mode: str) -> None:
        """Show the keys that make sense in a mode."""
        if mode != self._mode:
            self._mode = mode
            self.show(footer_line(self._place, self.size.width, mode))

    def on_resize(self, event: Resize) -> None:
        """Fit the keys into the width."""
        self.show(footer_line(self._place, event.size.width, self._mode))
