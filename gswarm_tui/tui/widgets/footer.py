"""Footer: the keys of a screen."""

from __future__ import annotations

from gswarm_tui.tui.actions import LIVE, Action, actions_of, is_typed, key_name
from gswarm_tui.tui.drawing.spans import Line, Span, measure
from gswarm_tui.tui.widgets.lines import Bar


def footer_line(
    screen: str,
    cells: int,
    mode: str = LIVE,
    *,
    typing: bool = False,
    recorded: bool = True,
    read_only: bool = False,
) -> Line:
    """Return as many keys of a screen as fit; help and quit always do.

    While ``typing``, only keys that don't type a character; if nothing is ``recorded``, or the screen is
    ``read_only``, only keys that work.
    """
    entries = [
        [Span(keys, "key", _click(a)), Span(f" {a.label}", "dim", _click(a))]
        for a in sorted(actions_of(screen, mode), key=lambda a: a.footer)
        if a.footer and (recorded or not a.needs_recording) and not (read_only and a.changes)
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


class Footer(Bar):
    """Clickable keys of a screen, on its last line."""

    DEFAULT_CSS = "Footer { dock: bottom; height: 1; }"
