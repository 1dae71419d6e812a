"""Dialogs: fill in a form, confirm, pick from a list, show details."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

from rich.table import Table
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from gswarm_agent.mark import MarkError
from gswarm_agent.metrics import GPU_METRICS, Metric
from gswarm_tui.common.time_input import TimeInputError
from gswarm_tui.fleet.session_texts import SessionNameError
from gswarm_tui.tui.actions import ENTER
from gswarm_tui.tui.drawing.numbers import label, meaning
from gswarm_tui.tui.drawing.spans import Span
from gswarm_tui.tui.drawing.text import clean, width, wrap
from gswarm_tui.tui.drawing.themes import palette
from gswarm_tui.tui.widgets.lines import Bar

Result = TypeVar("Result")
INVALID = (MarkError, SessionNameError, TimeInputError)

LISTED_MOST = 100
"""Options that are listed for what was typed: a fleet has a thousand nodes to open."""
LEAST, FRAME = 84, 8
"""Smallest width of a dialog, and the cells of border, padding and scroll bar."""
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class FormField:
    """Line of a form. ``check`` raises one of ``INVALID`` for a text that can't be taken."""

    label: str
    value: str = ""
    hint: str = ""
    check: Callable[[str], object] = str


class Dialog(ModalScreen[Result], inherit_bindings=False):
    """Dialog in front of a screen; Esc cancels it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+z", "app.suspend_process")]
    DEFAULT_CSS = """
    Dialog { align: center middle; background: $background 60%; }
    Dialog:ansi { background: transparent; }
    Dialog > Vertical {
        max-width: 94%; height: auto; max-height: 90%; padding: 0 1;
        background: $background; border: round $border; border-title-color: $foreground;
    }
    Dialog Input { border: none; height: 1; padding: 0; background: $surface; margin: 0 0 1 0; }
    Dialog Input:focus { border: none; }
    Dialog OptionList, Dialog OptionList:focus {
        border: none; padding: 0; height: auto; max-height: 100%; background: $background;
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    Dialog VerticalScroll { height: auto; max-height: 100%; scrollbar-size-vertical: 1; }
    """

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def box(self, longest: int = 0) -> Vertical:
        """Return the dialog's frame, wide enough for its ``longest`` text in cells."""
        box = Vertical()
        box.styles.width = max(LEAST, longest + FRAME)
        box.border_title = Text(clean(self._title)).markup
        return box

    def finish(self, result: Result | None) -> None:
        """Close with a result; a key pressed twice has no further effect."""
        if self.is_current:
            self.dismiss(result)

    def action_cancel(self) -> None:
        """Cancel."""
        self.finish(None)


def ask(app: App[Any], dialog: Dialog[Result], use: Callable[[Result], object]) -> None:
    """Open a dialog; ``use`` takes its result, unless it is cancelled."""

    def take(result: Result | None) -> None:
        if result is not None:
            use(result)

    app.push_screen(dialog, take)


class FormDialog(Dialog[tuple[str, ...]]):
    """Form; returns one text per field, None when cancelled."""

    DEFAULT_CSS = "FormDialog > Vertical { overflow-y: auto; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "cancel"),
        Binding("tab,down", "app.focus_next"),
        Binding("shift+tab,up", "app.focus_previous"),
    ]

    def __init__(self, title: str, fields: Sequence[FormField]) -> None:
        super().__init__(title)
        self._fields = fields

    def compose(self) -> ComposeResult:
        """Label and input of each field, and a line for errors."""
        with self.box():
            for number, field in enumerate(self._fields):
                hint = [Span(f"  {field.hint}", "dim")] if field.hint else []
                yield Bar([Span(field.label, "text"), *hint])
                yield Input(field.value, id=f"field-{number}", select_on_focus=True)
            keys = [Span(ENTER, "key"), Span(" accept  ", "dim"), Span("esc", "key"), Span(" cancel", "dim")]
            if len(self._fields) > 1:
                keys += [Span("  tab", "key"), Span(" next line", "dim")]
            yield Bar(keys, id="error")

    def on_input_submitted(self) -> None:
        """Accept the form if every field is valid."""
        values = []
        for number, field in enumerate(self._fields):
            line = self.query_one(f"#field-{number}", Input)
            try:
                field.check(line.value)
            except INVALID as wrong:
                error = self.query_one("#error", Bar)
                error.show(*([Span(part, "error")] for part in wrap(clean(str(wrong)), error.size.width)))
                line.focus()
                return
            values.append(line.value)
        self.finish(tuple(values))


class ConfirmDialog(Dialog[bool]):
    """Question to confirm with y alone, so that no key pressed by habit confirms; None when cancelled."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,n", "cancel"), Binding("y", "agree")]

    def __init__(self, title: str, lines: Sequence[str], agree: str) -> None:
        super().__init__(title)
        self._lines = lines
        self._agree = agree

    def compose(self) -> ComposeResult:
        """Sentences and keys."""
        with self.box():
            yield Bar(*([Span(clean(line))] for line in self._lines), [])
            yes, no = "screen.agree()", "screen.cancel()"
            keys = [Span("y", "key", yes), Span(f" {self._agree}   ", "text", yes)]
            yield Bar([*keys, Span(f"{ENTER} esc", "key", no), Span(" stay", "dim", no)])

    def action_agree(self) -> None:
        """Confirm."""
        self.finish(True)


class Choice(NamedTuple):
    """Line of a list: what picking it returns, its label, and a description, which is wrapped.

    Its ``words`` find it, too. It is ``listed`` before a letter is typed.
    """

    value: Any
    label: str
    help: str = ""
    words: str = ""
    listed: bool = True


def match_score(typed: str, choice: Choice) -> float:
    """Return how well a choice fits, 0 for not at all; the search is never fuzzy.

    Each typed word must begin a word of the choice, or be a part of its label. A whole word counts more than
    the beginning of one, an early word a little more, and a word of the label twice as much.
    """
    scores = []
    for part in typed.lower().split():
        found = [0.2 * (len(part) > 1 and part in choice.label.lower())]
        for text, weight in ((choice.label, 1.0), (choice.words, 0.5)):
            for at, word in enumerate(_WORD.findall(text.lower())):
                if word.startswith(part):
                    found.append(weight * ((1.0 if word == part else 0.8) - min(at, 10) / 100))
        scores.append(max(found))
    return sum(scores) / len(scores) if scores and all(scores) else 0.0


class PickDialog(Dialog[Any]):
    """List to pick from, which is filtered as one types; returns the value, None when cancelled."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "cancel"),
        *(Binding(key, f"move('cursor_{key}')") for key in ("up", "down")),
        *(Binding(f"page{way}", f"move('page_{way}')") for way in ("up", "down")),
        Binding("home", "move('first')", priority=True),
        Binding("end", "move('last')", priority=True),
    ]
    DEFAULT_CSS = "PickDialog Input { margin: 0; }"

    def __init__(self, title: str, choices: Sequence[Choice], chosen: object = None) -> None:
        super().__init__(title)
        self._choices = [c._replace(label=clean(c.label), help=clean(c.help)) for c in choices]
        self._shown: list[Choice] = []
        self._chosen = chosen
        self._labels = max((width(choice.label) for choice in self._choices), default=0)

    def compose(self) -> ComposeResult:
        """Input and list."""
        longest = max((width(choice.help) + 2 for choice in self._choices if choice.help), default=0)
        with self.box(self._labels + longest):
            yield Input(placeholder="type to filter")
            choices = OptionList()
            choices.can_focus = False
            yield choices

    def on_mount(self) -> None:
        """List all options."""
        self._list("")

    def on_resize(self) -> None:
        """Leave room for the input above the list and for the frame."""
        self.query_one(OptionList).styles.max_height = max(1, self.size.height * 9 // 10 - 3)

    def _list(self, typed: str) -> None:
        """List the choices that match, and highlight one."""
        scored = [(match_score(typed, choice), choice) for choice in self._choices]
        found = [choice for score, choice in sorted(scored, key=lambda pair: -pair[0]) if score]
        self._shown = found[:LISTED_MOST] if typed.strip() else [c for c in self._choices if c.listed]
        options = self.query_one(OptionList)
        options.clear_options()
        for choice in self._shown:
            grid = Table.grid(padding=(0, 2, 0, 0))
            grid.add_column(width=self._labels, no_wrap=True)
            grid.add_column()
            grid.add_row(Text(choice.label), Text(choice.help))
            options.add_option(Option(grid))
        more = len(found[LISTED_MOST:])
        if more or not self._shown:
            words = f"and {more:,} more; type more letters" if more else "no match"
            options.add_option(Option(Text(words), disabled=True))
        chosen = (at for at, one in enumerate(self._shown) if one.value == self._chosen and not typed)
        options.highlighted = next(chosen, 0) if self._shown else None

    def on_input_changed(self, event: Input.Changed) -> None:
        """List what matches."""
        self._list(event.value)

    def on_input_submitted(self) -> None:
        """Return the highlighted option."""
        self.query_one(OptionList).action_select()

    def action_move(self, where: str) -> None:
        """Move in the list, by the name of its action."""
        getattr(self.query_one(OptionList), f"action_{where}")()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Return the picked choice."""
        self.finish(self._shown[event.option_index].value)


def pick_metric(
    app: App[Any], title: str, chosen: Metric, use: Callable[[str], None], host: Sequence[Metric] = ()
) -> None:
    """Ask for a metric of GPUs, or of the ``host``; ``use`` takes its name."""
    choices = [Choice(m.name, label(m), meaning(m), f"{m.name} {m.meaning}") for m in GPU_METRICS]
    choices += [Choice(m.name, f"node {m.label}", m.meaning, f"{m.name} {m.meaning}") for m in host]
    ask(app, PickDialog(title, choices, chosen.name), use)


class DetailsDialog(Dialog[None]):
    """Names and texts in full, one below the other."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q,ctrl+c", "cancel")]

    def __init__(self, title: str, entries: Sequence[tuple[str, str]]) -> None:
        super().__init__(title)
        self._entries = entries

    def compose(self) -> ComposeResult:
        """Scrollable grid of names and texts."""
        grid = Table.grid(padding=(0, 2))
        entries = [(clean(name), clean(text)) for name, text in self._entries]
        for name, text in entries:
            grid.add_row(Text(name, palette(self.app.theme)["dim"]), Text(text))
        longest = [max(map(width, column)) for column in zip(*entries, strict=True)]
        with self.box(sum(longest) + 2), VerticalScroll():
            yield Static(grid)
