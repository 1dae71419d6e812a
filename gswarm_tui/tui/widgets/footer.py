"""Footer: the keys of a screen."""

from __future__ import annotations

from textual.strip import Strip
from textual.widget import Widget

from gswarm_tui.tui.actions import LIVE, Action, footer_of, is_typed, key_name
from gswarm_tui.tui.drawing.spans import Line, Span, drawn, measure


def footer_line(
    screen: str,
    cells: int,
    mode: str = LIVE,
    *,
    typing: bool = False,
    recorded: bool = True,
    read_only: bool = False,
    view: str = "",
) -> Line:
    """Return as many keys of a screen as fit; help and quit always do.

    While ``typing``, only keys that don't type a character; if nothing is ``recorded``, or the screen is
    ``read_only``, only keys that work; of keys for one view, those of ``view``.
    """
    entries = [
        [Span(keys, "key", _click(a)), Span(f" {a.label}", "dim", _click(a))]
        for a in footer_of(screen, mode, recorded=recorded, read_only=read_only, view=view)
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


def _click(action: Action) -> str:
    call = action.name if action.name.endswith(")") else f"{action.name}()"
    return f"screen.{call}" if action.screens else f"app.{call}"


class Footer(Widget):
    """Clickable keys of a screen."""

    DEFAULT_CSS = "Footer { dock: bottom; height: 1; }"

    def __init__(self, screen: str) -> None:
        super().__init__()
        self._screen_name = screen
        self._mode = LIVE
        self._typing, self._recorded, self._read_only = False, True, False
        self._view = ""

    def show_mode(
        self,
        mode: str,
        *,
        typing: bool = False,
        recorded: bool = True,
        read_only: bool = False,
        view: str = "",
    ) -> None:
        """Show the keys of a mode and view, or those that work while typing, unrecorded or read-only."""
        shown = mode, typing, recorded, read_only, view
        if shown != (self._mode, self._typing, self._recorded, self._read_only, self._view):
            self._mode, self._typing, self._recorded, self._read_only, self._view = shown
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """Draw the keys that fit."""
        line = footer_line(
            self._screen_name,
            self.size.width,
            self._mode,
            typing=self._typing,
            recorded=self._recorded,
            read_only=self._read_only,
            view=self._view,
        )
        return drawn(tuple(line), self.size.width, self.app.theme)
