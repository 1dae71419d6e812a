"""Findings: the list, with what the rules watch and where the GPU-hours went, and the page of one finding."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import datetime

from textual.app import ComposeResult

from gswarm_tui.common.quantities import age, plural
from gswarm_tui.fleet.findings import Finding, current, in_order
from gswarm_tui.insight.catalogue import BY_KIND, RULES
from gswarm_tui.insight.notes import counted, exclude_line, ledger_text, what
from gswarm_tui.tui.actions import FINDING, FINDINGS
from gswarm_tui.tui.drawing.finding_curves import curve_lines
from gswarm_tui.tui.drawing.finding_lines import (
    SIGNS,
    entry_lines,
    evidence_lines,
    kind_name,
    unmeasured_words,
)
from gswarm_tui.tui.drawing.spans import Span, Spans, heading_rule
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.screens.computed import labelled, wrapped
from gswarm_tui.tui.screens.gpu import GpuScreen
from gswarm_tui.tui.screens.node import NodeScreen
from gswarm_tui.tui.widgets.lines import Canvas

SHOWN = 3
"""Findings that the list shows in full; the rest is counted."""
CURVES_LEAST, CURVES_MOST = 9, 43
"""Lines of the two curves on a finding's page."""
REDRAW_S = 2.0


class FindingsScreen(ViewerScreen):
    """What slows or ends the job: who, since when, by which numbers, at what cost, and what to do.

    Faults come first, then what costs time, then notes. Below are the GPU-hours by cause, what isn't
    measured, and what the rules watch.
    """

    SCREEN = FINDINGS
    DEFAULT_CSS = "FindingsScreen > #list { height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self._chosen = ""
        self._all = False
        self._shown: list[Finding] = []
        self._starts: list[int] = []

    def compose_body(self) -> ComposeResult:
        """The list."""
        yield Canvas(id="list")

    @property
    def _canvas(self) -> Canvas:
        return self.query_one("#list", Canvas)

    @property
    def _cursor(self) -> int:
        """The position of the chosen finding; the first one if that isn't listed."""
        ids = [one.finding_id for one in self._shown]
        return ids.index(self._chosen) if self._chosen in ids else 0

    def draw(self) -> None:
        """Draw the list."""
        cells, zone = self.size.width, self.viewer.timezone
        now = current(self.fleet.findings.values())
        listed = {one.finding_id for one in now}
        others = [one for one in in_order(self.fleet.findings.values()) if one.finding_id not in listed]
        self._shown = [*now, *others] if self._all else now[:SHOWN]
        lines: list[Spans] = [] if now else wrapped("No rule matches now.", cells, "dim")
        self._starts = []
        for at, finding in enumerate(self._shown):
            self._starts.append(len(lines))
            lines += entry_lines(finding, cells, zone, chosen=at == self._cursor)
        rest = [] if self._all else now[SHOWN:]
        more = [f"{counted(rest)} more"] if rest else []
        if others and not self._all:
            more.append(f"ended or dismissed: {counted(others)}")
        lines += labelled([("", f"{'; '.join(more)}; z lists all")], cells) if more else []
        lines += [heading_rule("what was looked at", cells), *labelled(self._watched(), cells)]
        self._canvas.show(lines)
        words = plural(len(now), "finding") if now else "no finding"
        self.show_title([Span(f" {words}", "title"), Span("  that hold now" if len(now) > 1 else "", "dim")])

    def _watched(self) -> list[tuple[str, str]]:
        """Return the ledger, what isn't measured, when the rules last looked, and what they watch."""
        rules = f"{plural(len(RULES), 'rule')}: {', '.join(kind_name(rule.kind) for rule in RULES)}"
        examined = self.fleet.examined
        if examined is None:
            why = "the rules haven't looked at what is shown; gswarm-tui diagnose looks at a recording"
            return [("last look", why), ("watched", rules)]
        at = f"{datetime.fromtimestamp(examined.at, self.viewer.timezone):%H:%M:%S}"
        return [
            ("GPU time", ledger_text(examined.ledger)),
            ("not measured", unmeasured_words(examined.not_measured, len(self.fleet.nodes))),
            ("last look", f"{at}, {age(max(0.0, self.viewer.now() - examined.at))} ago"),
            ("watched", rules),
        ]

    # Actions

    def action_move(self, where: str) -> None:
        """Choose another finding; at the ends of the list, scroll."""
        wanted = self._cursor + {"up": -1, "down": 1}.get(where, 0)
        if where in ("up", "down") and 0 <= wanted < len(self._shown):
            self._chosen = self._shown[wanted].finding_id
            self._canvas.scroll_to(y=max(0, self._starts[wanted] - 1), animate=False)
            self.update_view()
        else:
            self._canvas.move(where)

    def action_expand(self) -> None:
        """List all findings, or only the first ones."""
        self._all = not self._all
        self.update_view()

    async def action_open(self) -> None:
        """Open the page of the chosen finding."""
        if self._shown:
            self.viewer.show(FindingScreen(self._shown[self._cursor].finding_id))

    def action_dismiss_finding(self) -> None:
        """Dismiss the chosen finding, or undo that."""
        if self._shown:
            finding = self._shown[self._cursor]
            self.viewer.dismiss_finding(finding.finding_id, dismissed=not finding.dismissed)


class FindingScreen(ViewerScreen):
    """One finding: its numbers and those of the peers, the rule behind it, and what to do.

    The curves show the finding's signal for whom it names and, on the same scale, the median of its peers:
    the job's GPUs in the same slot of other nodes, or all if there are fewer than four nodes.
    """

    SCREEN = FINDING
    DEFAULT_CSS = "FindingScreen > #page { height: 1fr; }"

    def __init__(self, finding_id: str) -> None:
        super().__init__()
        self._finding_id = finding_id
        self._drawn: Hashable = ()

    def compose_body(self) -> ComposeResult:
        """The page."""
        yield Canvas(id="page")

    @property
    def _finding(self) -> Finding | None:
        return self.fleet.findings.get(self._finding_id)

    def reset(self) -> None:
        """Draw the page of another fleet."""
        self._drawn = ()

    def draw(self) -> None:
        """Draw the page; its curves every two seconds."""
        canvas, finding = self.query_one("#page", Canvas), self._finding
        if finding is None:
            self.show_title([Span(" finding", "title")])
            canvas.show(wrapped("This finding doesn't exist at the time shown.", self.size.width, "warning"))
            return
        rule = BY_KIND.get(finding.kind)
        sign, role = SIGNS[finding.severity]
        state = "dismissed" if finding.dismissed else "" if finding.until is None else "ended"
        self.show_title(
            [
                Span(f" {sign} ", role),
                Span(clean(finding.subject), "title"),
                Span(f"  {rule.title if rule else kind_name(finding.kind)}", "text"),
                Span(f"  {state}", "dim"),
            ]
        )
        drawn = finding, self.viewer.now() // REDRAW_S, self.size
        if drawn != self._drawn:
            self._drawn = drawn
            canvas.show(self._lines(finding))

    def _lines(self, finding: Finding) -> list[Spans]:
        cells = self.size.width
        head = wrapped(what(finding), cells)
        rest = [*evidence_lines(finding.evidence, cells), heading_rule("the rule", cells)]
        rest += labelled(self._rule(finding), cells)
        room = self.lines - 3 - len(head) - len(rest)
        height = min(CURVES_MOST, max(CURVES_LEAST, room)) | 1
        curves = curve_lines(
            finding, self.fleet, self.viewer.now(), self.time_shown, cells=cells - 1, room=height
        )
        return [*head, *curves, *rest]

    def _rule(self, finding: Finding) -> list[tuple[str, str]]:
        """Return what to do, and the rule: threshold, source, and when it is silent or wrong."""
        lines = [("do", finding.advice)]
        lines += [("job script", line)] if (line := exclude_line([finding])) else []
        if (rule := BY_KIND.get(finding.kind)) is not None:
            lines += [
                ("why", rule.why),
                ("threshold", f"{rule.threshold}; window {rule.window}"),
                ("source", finding.source),
                ("silent if", rule.silent_if),
                ("wrong when", rule.wrong_when),
            ]
        found = {one.kind for one in self.fleet.findings.values()}
        others = ", ".join(kind_name(rule.kind) for rule in RULES if rule.kind not in found)
        return [*lines, ("found nothing", others)] if others else lines

    # Actions

    def action_move(self, where: str) -> None:
        """Scroll."""
        self.query_one("#page", Canvas).move(where)

    async def action_open(self) -> None:
        """Go to its GPU or node; in a recording to its start, too."""
        finding = self._finding
        if finding is None:
            return
        if self.viewer.player is not None:
            await self.viewer.go_to_time(finding.since)
        node = self.fleet.nodes.get(finding.node or next(iter(finding.nodes), ""))
        if node is None:
            self.viewer.show_notice("this finding names no node")
            return
        row = next((row for row, fact in enumerate(node.facts) if fact.index == finding.gpu), None)
        self.viewer.show(NodeScreen(node.name) if row is None else GpuScreen(node.name, row))

    def action_dismiss_finding(self) -> None:
        """Dismiss the finding, or undo that."""
        if (finding := self._finding) is not None:
            self.viewer.dismiss_finding(finding.finding_id, dismissed=not finding.dismissed)
