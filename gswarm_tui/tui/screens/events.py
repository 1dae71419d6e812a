"""Events: links, gaps, findings, sessions, marks; newest last."""

from __future__ import annotations

from datetime import datetime, tzinfo

from textual.app import ComposeResult

from gswarm_agent.frame import ERROR, INFO, WARNING, gpu_label
from gswarm_tui.common.quantities import plural
from gswarm_tui.fleet.event_groups import EventGroup, grouped
from gswarm_tui.fleet.events import LINK_LOST, UNREACHABLE, EventLogged
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.tui.actions import EVENTS
from gswarm_tui.tui.drawing.spans import Span
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.screens.dialogs import FormDialog, FormField, ask
from gswarm_tui.tui.widgets.table import Row, TableColumn, TableView

LEAST = {INFO: "all", WARNING: "warnings and errors", ERROR: "errors"}
SEVERITIES = tuple(LEAST)
GLYPHS = {INFO: ("·", "dim"), WARNING: ("▲", "warning"), ERROR: ("╳", "error")}
EVENT_TABLE = (
    TableColumn("time", 8, left=True, frozen=True),
    TableColumn("", 1, left=True, frozen=True),
    TableColumn("event", 16, left=True),
    TableColumn("node", 12, left=True),
    TableColumn("gpu", 3),
    TableColumn("rank", 4),
    TableColumn("details", 24, left=True, grows=True),
)


def event_row(group: EventGroup, zone: tzinfo | None, fleet: Fleet) -> Row:
    """Return a group's row: time, sign of its severity, kind, node, GPU, its rank now, message and remedy."""
    event, node = group.first, fleet.nodes.get(group.node or "")
    ranks = {} if node is None else {node.facts[row].index: rank for row, rank in node.ranks.items()}
    glyph, role = GLYPHS.get(event.severity, GLYPHS[INFO])
    message = clean(group.message)
    if event.kind in (LINK_LOST, UNREACHABLE) and event.detail:
        message += f" · {clean(event.detail)}"
    return (
        Span(f"{datetime.fromtimestamp(group.at, zone):%H:%M:%S}", "dim"),
        Span(glyph, role),
        Span(clean(event.kind).replace("_", " "), "dim"),
        Span(clean(group.node or "")),
        Span("" if group.gpu is None else gpu_label(group.gpu)),
        Span("" if group.gpu is None else f"{ranks.get(group.gpu, '')}", "dim"),
        Span(message, role if event.severity == ERROR else "text"),
    )


class EventsScreen(ViewerScreen):
    """Events of nodes, GPUs, links and sessions, and marks, newest last.

    The list follows the newest event while the cursor is on it.
    """

    SCREEN = EVENTS

    def __init__(self) -> None:
        super().__init__()
        self._least = INFO
        self._text = ""
        self._grouped = True
        self._logged = -1
        self._hidden = 0
        self._shown: list[EventGroup] = []
        self._rows: list[Row] = []

    def compose_body(self) -> ComposeResult:
        """The table."""
        yield TableView(EVENT_TABLE, empty="no matching events")

    def draw(self) -> None:
        """Add new events, and follow them if the cursor is on the last row; else it stays on its event."""
        table = self.query_one(TableView)
        following = table.at_end
        under = self._shown[table.cursor].first if table.cursor < len(self._shown) else None
        if self._logged != self.fleet.logged_count:
            self._logged = self.fleet.logged_count
            log = list(self.fleet.event_log)
            fitting = list(filter(self._fits, log))
            self._hidden = len(log) - len(fitting)
            self._shown = grouped(fitting, together=self._grouped)
            self._rows = [event_row(group, self.viewer.timezone, self.fleet) for group in self._shown]
        table.show(self._rows)
        if following:
            table.move_to(len(self._shown) - 1)
        elif under is not None:
            having = (n for n, group in enumerate(self._shown) if any(one is under for one in group.events))
            table.move_to(next(having, 0))
        self.show_title(self._title(following))

    def reset(self) -> None:
        """Read all events again."""
        self._logged = -1

    def _fits(self, event: EventLogged) -> bool:
        shown = event.severity not in SEVERITIES[: SEVERITIES.index(self._least)]
        words = f"{event.node or ''} {event.kind} {event.message}".casefold()
        return shown and self._text.casefold() in words

    def _title(self, following: bool) -> list[Span]:
        events = sum(len(group.events) for group in self._shown)
        left = [Span(f" {plural(events, 'event')}", "title"), Span(f"  {LEAST[self._least]}", "dim")]
        if events > len(self._shown):
            left.append(Span(f"  in {plural(len(self._shown), 'line')}", "dim"))
        if self._text:
            left.append(Span(f"  with “{clean(self._text)}”", "accent"))
        if self._hidden:
            left.append(Span(f"  {self._hidden:,} hidden", "dim"))
        follows = ("  follows the newest", "dim") if following else ("  G follows the newest", "warning")
        return [*left, Span(*follows)]

    def _apply_filter(self, text: str | None = None) -> None:
        """Apply another filter, with a text if one is given."""
        self._text = self._text if text is None else text.strip()
        self.reset()
        self.update_view()

    def on_table_view_moved(self) -> None:
        """Update the title when the cursor leaves the last row."""
        self.update_view()

    async def on_table_view_chosen(self, event: TableView.Chosen) -> None:
        """Go to the time of an event."""
        await self.viewer.go_to_time(self._shown[event.table.cursor].at)

    def action_severity(self) -> None:
        """Show all, warnings and errors, or errors only."""
        self._least = SEVERITIES[(SEVERITIES.index(self._least) + 1) % len(SEVERITIES)]
        self._apply_filter()

    def action_group(self) -> None:
        """List each event in a row of its own, or those of one kind and minute in one."""
        self._grouped = not self._grouped
        self._apply_filter()

    def action_filter(self) -> None:
        """Ask for a text that events must contain."""
        field = FormField("text", self._text, "node, kind or words; empty for all")
        ask(self.app, FormDialog("filter events", [field]), lambda answer: self._apply_filter(answer[0]))

    def action_back(self) -> None:
        """Clear the filter, else go back."""
        if self._text:
            self._apply_filter("")
        else:
            super().action_back()
