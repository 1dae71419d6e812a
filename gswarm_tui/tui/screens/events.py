"""Events: links, gaps, throttling, sessions, marks; newest last."""

from __future__ import annotations

from datetime import datetime, tzinfo
from itertools import islice

from textual.app import ComposeResult

from gswarm_agent.frame import ERROR, INFO, WARNING
from gswarm_tui.common.quantities import plural
from gswarm_tui.fleet.events import LINK_LOST, UNREACHABLE, EventLogged, json_object
from gswarm_tui.tui.actions import EVENTS, bindings_of
from gswarm_tui.tui.drawing.spans import Line, Span
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.screens.dialogs import FormDialog, FormField, ask
from gswarm_tui.tui.screens.titles import title_line
from gswarm_tui.tui.widgets.lines import Bar
from gswarm_tui.tui.widgets.table import Row, TableColumn, TableView

SEVERITIES = (INFO, WARNING, ERROR)
LEAST = {INFO: "all", WARNING: "warnings and errors", ERROR: "errors"}
GLYPHS = {INFO: ("·", "dim"), WARNING: ("▲", "warning"), ERROR: ("╳", "error")}
EVENT_TABLE = (
    TableColumn("time", 8, left=True, frozen=True),
    TableColumn("", 1, left=True, frozen=True),
    TableColumn("node", 12, left=True),
    TableColumn("gpu", 3),
    TableColumn("event", 15, left=True),
    TableColumn("details", 24, left=True, grows=True),
)


def event_row(event: EventLogged, zone: tzinfo | None) -> Row:
    """Return an event's row: time, sign of its severity, node, GPU, kind, message and remedy."""
    glyph, role = GLYPHS.get(event.severity, GLYPHS[INFO])
    message = clean(event.message)
    if event.kind in (LINK_LOST, UNREACHABLE) and event.detail:
        message += f" · {clean(event.detail)}"
    if event.kind == "mark" and (values := mark_values(event.detail)):
        message += f" · {clean(values)}"
    return (
        Span(f"{datetime.fromtimestamp(event.at, zone):%H:%M:%S}", "dim"),
        Span(glyph, role),
        Span(clean(event.node or "")),
        Span("" if event.gpu is None else f"{event.gpu}"),
        Span(clean(event.kind).replace("_", " "), "dim"),
        Span(message, role if event.severity == ERROR else "text"),
    )


def mark_values(detail: str | None) -> str:
    """Return a mark's values: "loss=1.2 acc=0.9"; empty for anything else."""
    return " ".join(f"{name}={value}" for name, value in json_object(detail).items())


class EventsScreen(ViewerScreen):
    """Table of events. The cursor follows the newest while it is on the last row."""

    SCREEN = EVENTS
    BINDINGS = bindings_of(SCREEN)

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[Row] = []
        self._times: list[float] = []
        self._seen = self._thinned = 0
        self._hidden = 0
        self._least = INFO
        self._text = ""

    def compose(self) -> ComposeResult:
        """Title and table."""
        yield Bar(id="title")
        yield TableView(EVENT_TABLE, empty="no matching events")
        yield from self.compose_footer()

    def draw(self) -> None:
        """Append new events, and follow them if the cursor is on the last row."""
        table = self.query_one(TableView)
        following = table.at_end
        dropped = self._take_new()
        table.show(list(self._rows))
        if following:
            table.move_to(len(self._rows) - 1)
        elif dropped:
            table.cursor = max(0, table.cursor - dropped)
            table.scroll_to(y=table.scroll_offset.y - dropped, animate=False, force=True)
        self.query_one("#title", Bar).show(self._title(following))

    def reset(self) -> None:
        """Read all events again."""
        self._rows, self._times, self._seen, self._hidden = [], [], 0, 0

    def _take_new(self) -> int:
        """Add the new events; return how many rows were dropped for them."""
        fleet = self.fleet
        before = len(self._rows)
        if self._thinned != fleet.thinned_count:
            self.reset()
            self._thinned = fleet.thinned_count
        new = min(fleet.logged_count - self._seen, len(fleet.event_log))
        self._seen = fleet.logged_count
        zone = self.viewer.timezone
        for event in islice(fleet.event_log, len(fleet.event_log) - new, None):
            if self._fits(event):
                self._rows.append(event_row(event, zone))
                self._times.append(event.at)
            else:
                self._hidden += 1
        return max(0, before - len(self._rows))

    def _fits(self, event: EventLogged) -> bool:
        if event.severity in SEVERITIES and SEVERITIES.index(event.severity) < SEVERITIES.index(self._least):
            return False
        words = f"{event.node or ''} {event.kind} {event.message}".casefold()
        return self._text.casefold() in words

    def _title(self, following: bool) -> Line:
        left = [Span(f" {plural(len(self._rows), 'event')}", "title"), Span(f"  {LEAST[self._least]}", "dim")]
        if self._text:
            left.append(Span(f"  with “{clean(self._text)}”", "accent"))
        if self._hidden:
            left.append(Span(f"  {self._hidden} hidden", "dim"))
        left.append(
            Span("  follows the newest", "dim") if following else Span("  G follows the newest", "warning")
        )
        return title_line(left, self.feed, self.size.width)

    def _apply_filter(self) -> None:
        """Apply another filter."""
        self.reset()
        self.update_view()

    def on_table_view_moved(self) -> None:
        """Update the title when the cursor leaves the last row."""
        self.update_view()

    async def on_table_view_chosen(self, event: TableView.Chosen) -> None:
        """Go to the time of an event."""
        if event.row < len(self._times):
            await self.viewer.go_to_time(self._times[event.row])

    def action_severity(self) -> None:
        """Show all, warnings and errors, or errors only."""
        self._least = SEVERITIES[(SEVERITIES.index(self._least) + 1) % len(SEVERITIES)]
        self._apply_filter()

    def action_filter(self) -> None:
        """Ask for a text that events must contain."""
        dialog = FormDialog(
            "filter events", [FormField("text", self._text, "node, kind or words; empty for all")]
        )
        ask(self.app, dialog, self._filter)

    def _filter(self, answer: tuple[str, ...]) -> None:
        self._text = answer[0].strip()
        self._apply_filter()

    def action_back(self) -> None:
        """Clear the filter, else go back."""
        if self._text:
            self._text = ""
            self._apply_filter()
        else:
            super().action_back()
