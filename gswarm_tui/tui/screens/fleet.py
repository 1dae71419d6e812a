"""Fleet screen: nodes × GPUs with one metric as colour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from textual.app import ComposeResult
from textual.containers import Vertical

from gswarm_agent.metrics import GPU_METRICS, HEALTH
from gswarm_tui.common.quantities import plural
from gswarm_tui.fleet.event_groups import EventGroup, grouped, latest
from gswarm_tui.fleet.filter import Filter, Matches, next_match
from gswarm_tui.fleet.findings import CONTEXT, Finding, holding
from gswarm_tui.fleet.node import NodeState
from gswarm_tui.fleet.order import Order, sort_nodes
from gswarm_tui.fleet.problems import FleetProblem, problems
from gswarm_tui.fleet.totals import totals
from gswarm_tui.insight.pace import pace_text
from gswarm_tui.tui.actions import FLEET
from gswarm_tui.tui.drawing.bands import BandPlot, metrics_beside, minutes, plan_minutes
from gswarm_tui.tui.drawing.findings import first_line
from gswarm_tui.tui.drawing.fleet_lines import (
    causes_line,
    cursor_lines,
    event_line,
    header_line,
    heads_line,
    legend_line,
    sessions_line,
    totals_line,
)
from gswarm_tui.tui.drawing.heatmap_data import HeatmapData
from gswarm_tui.tui.drawing.layout import ZOOM_NAMES, Zoom
from gswarm_tui.tui.drawing.numbers import host_metrics
from gswarm_tui.tui.drawing.spans import Line, Span, Spans, spread
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.drawing.trends import Trends
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.screens.dialogs import pick_metric
from gswarm_tui.tui.screens.node import NodeScreen
from gswarm_tui.tui.widgets.filter_line import FilterLine
from gswarm_tui.tui.widgets.heatmap import Heatmap
from gswarm_tui.tui.widgets.lines import Bar, Canvas

ARRANGE_EVERY_S = 2.0
EVENTS_LEAST, EVENTS_SHARE, EVENTS_MOST = 2, 5, 20
"""Least lines and share of the lines (one in five) that plots leave to events, and most lines of events."""
PROBLEM_LINES_MOST = 5
"""Lines that a problem under the cursor may take from the events."""
PLOT_REDRAWS, PLOTS_EVERY_S = 30, 5.0
"""Redraws of the plots while their time range passes, and their least interval: each rewrites whole lines."""
TALL = 30


class FleetScreen(ViewerScreen):
    """All nodes and their GPUs now.

    Numbers and colour show one metric; the colour follows the metric's scale, red where more is worse. The
    second line has totals over the GPUs of all live nodes, the next one the first finding, if there is any.
    Below the heatmap are the last minutes, the GPU under the cursor, sessions and the latest events.
    """

    SCREEN = FLEET
    DEFAULT_CSS = """
    FleetScreen #rule-above, FleetScreen #rule-below, FleetScreen #finding { display: none; }
    FleetScreen.asking #running, FleetScreen.asking Footer { display: none; }
    FleetScreen.tall #rule-above, FleetScreen.tall #rule-below { display: block; }
    """

    def __init__(self, job: str, metric: str = GPU_METRICS[0].name) -> None:
        super().__init__()
        self._job = job
        self._first_metric = metric
        self._filter: Filter | None = None
        self._order = Order.GIVEN
        self._shown: list[NodeState] = []
        self._matching = (0, 0)
        self._visited: set[FleetProblem] = set()
        self._arranged_at = 0.0
        self._trends = Trends()
        self._plots_key: tuple[object, ...] = ()
        self._plots: list[Spans] = []
        self._logged = -1
        self._events: list[EventGroup] = []
        self._found: list[Finding] = []
        self._by_cause = False

    def compose_body(self) -> ComposeResult:
        """Totals, legend, heatmap, plots, GPU under the cursor, sessions, events."""
        yield Bar(id="totals")
        yield Bar(id="finding")
        yield Bar(id="rule-above")
        yield Bar(id="legend")
        yield Bar(id="heads")
        with Vertical(id="body"):
            yield Heatmap(self.viewer.now, self._first_metric)
            yield Canvas(id="minutes")
        yield Bar(id="rule-below")
        yield Bar(id="cursor")
        yield Bar(id="running")
        yield Bar(id="events")
        yield FilterLine()

    @property
    def heatmap(self) -> Heatmap:
        """The heatmap."""
        return self.query_one(Heatmap)

    def on_resize(self) -> None:
        """Show rules and events on tall terminals."""
        self.set_class(self.app.size.height >= TALL, "tall")
        rule = [Span("─" * self.app.size.width, "faint")]
        self.query_one("#rule-above", Bar).show(rule)
        self.query_one("#rule-below", Bar).show(rule)

    # Looking

    def reset(self) -> None:
        """Choose the nodes and read the events again."""
        self._logged = -1
        self._arranged_at = 0.0
        self._plots_key = ()

    def draw(self) -> None:
        """Draw the fleet."""
        now = self.viewer.now()
        matches = self._matches(now)
        if now - self._arranged_at >= ARRANGE_EVERY_S:
            self._arrange(now, matches)
        self.heatmap.picture.by_rank = self._order is Order.RANK
        self.heatmap.spare = self._room - self.heatmap.size.height
        self._trends.settle(self._shown, now, self.time_shown)
        self.heatmap.span_s = self._trends.span_s
        hidden = None if matches is None else [~matches[node.name] for node in self._shown]
        if matches is not None:
            self._matching = _counted(self.fleet.nodes.values(), matches)
        if self._by_cause:
            self.heatmap.causes = self.fleet.examined.causes if self.fleet.examined is not None else {}
        # What describes a job all the time, as that it is starting, is in the list only.
        self._found = [one for one in holding(self.fleet.findings.values()) if one.kind not in CONTEXT]
        self.heatmap.show_nodes(self._shown, hidden, self._found)
        self._lines(now)

    @property
    def _room(self) -> int:
        """Lines to share between heatmap, plots, the GPU under the cursor and events."""
        below = self.query_one("#cursor").size.height, self.query_one("#events").size.height
        return self.query_one("#body").size.height + sum(max(0, lines - 1) for lines in below)

    def _minutes(self, now: float, room: int, events: int) -> int:
        """Plot what fits of the fleet's last minutes; return the lines. More ``events`` would use some."""
        picture, trends, at = self.heatmap.picture, self._trends, self.heatmap.at
        chosen = self.fleet.nodes.get(at[0]) if at is not None else None
        plan = plan_minutes(picture.nodes, chosen, picture.metric, room, events)
        every_s = max(PLOTS_EVERY_S, trends.span_s / PLOT_REDRAWS)
        drawn_for = now // every_s, trends.span_s, trends.last, picture.metric
        shown = plan and [(node.name, len(node.facts)) for node in plan.gpu_nodes]
        lines = plan and (plan.gpus, plan.fleet, len(plan.nodes))
        plots_key = *drawn_for, shown, lines, self.size.width
        if plots_key != self._plots_key:
            self._plots_key, self._plots = plots_key, []
            if plan is not None:
                metrics = metrics_beside(picture.metric, self.size.width)
                plot = BandPlot(trends, metrics, now, self.size.width, newest=False)
                self._plots = minutes(plan, plot)
        self.query_one("#minutes", Canvas).show(self._plots)
        return len(self._plots)

    def _matches(self, now: float) -> dict[str, Matches] | None:
        if self._filter is None:
            return None
        return {node.name: self._filter.match(node, now) for node in self.fleet.nodes.values()}

    def _arrange(self, now: float, matches: dict[str, Matches] | None) -> None:
        """Filter and sort the nodes; not at every tick, so rows stay in place."""
        self._arranged_at = now
        nodes = [n for n in self.fleet.nodes.values() if matches is None or matches[n.name].any()]
        means: Sequence[float] = ()
        if self._order in (Order.UP, Order.DOWN):
            picture = HeatmapData(self.heatmap.picture.metric.name)
            picture.update(nodes, now)
            means = picture.means.tolist()
        self._shown = sort_nodes(nodes, self._order, now, means)

    def _lines(self, now: float) -> None:
        width, fleet = self.size.width, self.fleet
        sums = totals(fleet, now, ended=self.viewer.ended)
        header = header_line(self._job, fleet, sums.simulated, self.viewer.recording_state(), width)
        self.query_one("#title", Bar).show(header)
        seen = fleet.examined
        pace = "" if seen is None else pace_text(seen.step_s, seen.step_before_s)
        self.query_one("#totals", Bar).show(totals_line(sums, fleet.interval_s, width, pace))
        bar = self.query_one("#finding", Bar)
        if bar.display != bool(self._found):
            bar.display = bool(self._found)
            self.update_after_layout()
        if self._found:
            bar.show(first_line(self._found, width))
        self._legend()
        self._below(now)

    def _below(self, now: float) -> None:
        """Draw the last minutes, the GPU under the cursor, the sessions and the latest events."""
        width, fleet, tall = self.size.width, self.fleet, self.has_class("tall")
        spare = self._room - self.heatmap.layout_plan.lines
        name, gpu = self.heatmap.at or ("", None)
        most = 1 + max(0, min(PROBLEM_LINES_MOST, spare))
        cursor = cursor_lines(fleet.nodes.get(name), gpu, now, width, most)
        self.query_one("#cursor", Bar).show(*cursor)
        if self._logged != fleet.logged_count:
            self._logged, self._events = fleet.logged_count, grouped(fleet.event_log)
        # Lines of a problem under the cursor are taken from the events, of which one stays.
        wanted = min(len(self._events), max(EVENTS_LEAST, spare // EVENTS_SHARE))
        room = spare - (max(wanted, len(cursor)) if tall else len(cursor) - 1)
        more_events = min(EVENTS_MOST, len(self._events)) - wanted if tall else 0
        spare -= self._minutes(now, room, more_events)
        sessions = sessions_line(fleet, now, width, can_start=self.viewer.can_start_session)
        running, last = self.query_one("#running", Bar), self.query_one("#events", Bar)
        last.display = tall
        if tall:
            running.show(sessions)
            last.show(*self._latest(spare - len(cursor) + 1, now))
        else:
            running.show(spread(sessions, self._latest(1, now)[0], width))

    def _latest(self, room: int, now: float) -> list[Line]:
        """Return the latest events that fit, oldest first; warnings and errors stay longer."""
        shown = latest(self._events, min(EVENTS_MOST, max(1, room)), now)
        return [event_line(group, self.viewer.timezone) for group in shown] or [[]]

    def _legend(self) -> None:
        heatmap = self.heatmap
        state = []
        if self._filter is not None:
            gpus, nodes = self._matching
            found = f"{plural(gpus, 'GPU')} on {nodes:,} of {plural(len(self.fleet.nodes), 'node')}"
            state.append(f"filter {clean(self._filter.text.strip())}: {found}")
        if self._order is not Order.GIVEN:
            state.append(self._order.value)
        if heatmap.zoom_wanted is not None:
            state.append(ZOOM_NAMES[heatmap.zoom_wanted])
        line = legend_line(heatmap.picture, heatmap.layout_plan.zoom, " · ".join(state), self.size.width)
        if self._by_cause and heatmap.causes is not None:
            line = causes_line(heatmap.causes, self.size.width, past=self.viewer.player is not None)
        self.query_one("#legend", Bar).show(line)
        widest = max((node.facts for node in self._shown), key=len, default=())
        indexes = tuple(fact.label for fact in widest)
        heads = heads_line(heatmap.picture, heatmap.layout_plan, indexes, self._trends.span_label)
        self.query_one("#heads", Bar).show(heads)

    def on_heatmap_pointed(self) -> None:
        """Show the GPU under the cursor or the mouse."""
        self._below(self.viewer.now())

    def on_heatmap_replanned(self) -> None:
        """Update the headings for another layout."""
        self._legend()

    def on_heatmap_opened(self) -> None:
        """Open the clicked node."""
        self.action_open()

    # Moving

    def action_move(self, direction: str) -> None:
        """Move the cursor."""
        self.heatmap.move(direction)

    def action_open(self) -> None:
        """Go to the node under the cursor."""
        if self.heatmap.at is not None:
            self.viewer.show(NodeScreen(*self.heatmap.at))

    def action_next_match(self) -> None:
        """Go to the next GPU that matches the filter; without one, to the next finding or lost node."""
        if self._filter is None:
            self._next_trouble()
        elif not self._go_to_match():
            self.viewer.show_notice("nothing matches the filter")

    def _go_to_match(self, *, stay: bool = False) -> bool:
        """Move the cursor to the next match, or ``stay`` on one; return whether there is any."""
        at, now = self.heatmap.at, self.viewer.now()
        if (matches := self._matches(now)) is None:
            return False
        found = next_match(self._shown, matches, at, stay=stay)
        if found is not None and found != at:
            self.heatmap.point_at(*found)
        return found is not None

    def _next_trouble(self) -> None:
        """Go to the first problem that hasn't been visited; when all have, begin again."""
        found = problems(self._shown, self._found, self.viewer.now())
        self._visited &= set(found)
        if self._visited >= set(found):
            self._visited = set()
        if not found:
            self.viewer.show_notice("no finding, and every node and GPU sends data")
            return
        problem = next(one for one in found if one not in self._visited)
        self._visited.add(problem)
        self.heatmap.point_at(problem.node, problem.gpu)

    def action_drop_filter(self) -> None:
        """Show everything."""
        if self._filter is not None:
            self._choose(None)

    # The metric, the order, the size

    def action_metric(self, name: str) -> None:
        """Show a metric."""
        self._by_cause, self.heatmap.causes = False, None
        self.heatmap.picture = HeatmapData(name)
        self._arranged_at = 0.0
        self.update_view()

    def action_colour_causes(self) -> None:
        """Show what the time of each GPU goes into, or the metric again."""
        wanted = not self._by_cause
        picture = self.heatmap.picture
        self.action_metric(GPU_METRICS[0].name if picture.of_host else picture.metric.name)
        self._by_cause = wanted
        self.update_view()

    def action_step_metric(self, step: int) -> None:
        """Show the next or previous metric."""
        shown = self.heatmap.picture.metric
        gpu_metrics = [metric for metric in GPU_METRICS if metric.group != HEALTH or metric is shown]
        metrics = [*gpu_metrics, *host_metrics({*self.fleet.metrics, shown.group})]
        self.action_metric(metrics[(metrics.index(shown) + step) % len(metrics)].name)

    def action_pick_metric(self) -> None:
        """Choose the metric from a list."""
        chosen, host = self.heatmap.picture.metric, host_metrics(self.fleet.metrics)
        pick_metric(self.app, "show which metric?", chosen, self.action_metric, host)

    def action_order(self) -> None:
        """Switch to the next sort order."""
        orders = list(Order)
        self._order = orders[(orders.index(self._order) + 1) % len(orders)]
        self._arranged_at = 0.0
        self.update_view()

    def action_zoom(self) -> None:
        """Switch to the next size of GPUs; after the smallest, to the largest that fits."""
        heatmap, sizes = self.heatmap, (*Zoom, None)
        after = 0 if heatmap.zoom_wanted is None else heatmap.zoom_wanted + 1
        heatmap.zoom_wanted = sizes[after + (sizes[after] is heatmap.layout_plan.zoom)]
        self.update_view()

    # The filter

    def action_filter(self) -> None:
        """Ask for a filter, which applies while it is typed."""
        self.query_one(FilterLine).ask(self._filter.text if self._filter else "")

    def on_filter_line_changed(self, event: FilterLine.Changed) -> None:
        """Apply another filter, and show while it is typed if nothing matches."""
        self._choose(event.filter)
        if event.filter is not None and not self._shown:
            reason = event.filter.unknown_name(self.fleet.nodes)
            self.query_one(FilterLine).show_no_match(reason)

    def _choose(self, chosen: Filter | None) -> None:
        self._filter = chosen
        self._arranged_at = 0.0
        self.update_view()
        self._go_to_match(stay=True)


def _counted(nodes: Iterable[NodeState], matches: Mapping[str, Matches]) -> tuple[int, int]:
    """Return how many GPUs match, and on how many nodes."""
    counts = [(int(matches[node.name].sum()), bool(node.facts)) for node in nodes]
    return sum(count for count, gpus in counts if gpus), sum(count > 0 for count, _ in counts)
