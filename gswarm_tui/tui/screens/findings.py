"""Findings: the list, with what the rules watch and where the GPU-hours went, and the page of one finding."""

from __future__ import annotations

from dataclasses import replace

from textual.app import ComposeResult

from gswarm_tui.common.quantities import age, plural
from gswarm_tui.fleet.findings import Finding, holding, in_order
from gswarm_tui.fleet.problems import named_rows
from gswarm_tui.insight.catalogue import BY_KIND, RULES
from gswarm_tui.insight.notes import counted, evidence_text, exclude_line, ledger_text, unmeasured_text, what
from gswarm_tui.insight.pace import pace_text
from gswarm_tui.tui.actions import FINDING, FINDINGS
from gswarm_tui.tui.drawing.findings import (
    SIGNS,
    curve_lines,
    entry_lines,
    kind_name,
)
from gswarm_tui.tui.drawing.spans import Span, Spans, heading_rule, labelled, wrapped
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.screens.gpu import GpuScreen
from gswarm_tui.tui.screens.node import NodeScreen
from gswarm_tui.tui.widgets.lines import Canvas

SHOWN = 3
"""Findings that the list shows in full; the rest is counted."""
CURVES_LEAST, CURVES_MOST = 9, 43
"""Lines of the two curves on a finding's page."""


class FindingKeys(ViewerScreen):
    """Base of the list and the page: a canvas that scrolls, and a finding that keys apply to."""

    DEFAULT_CSS = "FindingKeys > Canvas { height: 1fr; }"

    def compose_body(self) -> ComposeResult:
        """Lines that scroll."""
        yield Canvas()

    @property
    def chosen(self) -> Finding | None:
        """The finding that keys apply to."""
        return None

    def action_move(self, where: str) -> None:
        """Scroll."""
        self.query_one(Canvas).move(where)

    def action_dismiss_finding(self) -> None:
        """Dismiss the finding, or undo that."""
        if (finding := self.chosen) is not None:
            self.viewer.dismiss_finding(finding.finding_id, dismissed=not finding.dismissed)


class FindingsScreen(FindingKeys):
    """What slows or ends the job: who, since when, by which numbers, at what cost, and what to do.

    Faults come first, then what costs time, then notes. Below are the GPU time by cause, what isn't measured,
    and what the rules watch.
    """

    SCREEN = FINDINGS

    def __init__(self) -> None:
        super().__init__()
        self._cursor = 0
        self._all = False
        self._shown: list[Finding] = []
        self._starts: list[int] = []

    @property
    def chosen(self) -> Finding | None:
        """The finding under the cursor."""
        return self._shown[self._cursor] if self._shown else None

    def draw(self) -> None:
        """Draw the list; the cursor stays on its finding."""
        cells, before = self.size.width, self.chosen
        now = holding(self.fleet.findings.values())
        others = [one for one in in_order(self.fleet.findings.values()) if one not in now]
        self._shown = [*now, *others] if self._all else now[:SHOWN]
        ids = [one.finding_id for one in self._shown]
        self._cursor = ids.index(before.finding_id) if before is not None and before.finding_id in ids else 0
        dismissed = any(one.until is None for one in others)
        none = "Only dismissed findings hold now." if dismissed else "No finding holds now."
        lines: list[Spans] = [] if now else wrapped(none, cells, "dim")
        self._starts = []
        for finding in self._shown:
            self._starts.append(len(lines))
            lines += entry_lines(finding, cells, self.viewer.timezone, chosen=finding is self.chosen)
        rest = [] if self._all else now[SHOWN:]
        more = [f"{counted(rest)} more"] if rest else []
        more += [f"ended or dismissed: {counted(others)}"] if others and not self._all else []
        lines += labelled([("", f"{'; '.join(more)}; z lists all")], cells) if more else []
        lines += [heading_rule("what was looked at", cells), *labelled(self._watched(), cells)]
        self.query_one(Canvas).show(lines)
        words = plural(len(now), "finding") if now else "no finding"
        self.show_title([Span(f" {words}", "title"), Span(" now", "dim")])

    def _watched(self) -> list[tuple[str, str]]:
        """Return the ledger, what isn't measured, when the rules last looked, and what they watch."""
        watched = "watched", ", ".join(kind_name(rule.kind) for rule in RULES)
        examined = self.fleet.examined
        if examined is None:
            return [("last look", "none at what is shown; gswarm-tui diagnose looks at a recording")]
        at = f"{self.viewer.local(examined.at):%H:%M:%S}"
        pace = pace_text(examined.step_s, examined.step_before_s)
        missing = unmeasured_text(examined.not_measured, len(self.fleet.nodes), kind_name)
        return [
            ("GPU time", ledger_text(examined.ledger)),
            *([("steps", pace)] if pace else []),
            ("not measured", clean(missing) or "nothing that the rules need"),
            ("last look", f"{at}, {age(max(0.0, self.viewer.now() - examined.at))} ago"),
            watched,
        ]

    def action_move(self, where: str) -> None:
        """Choose another finding; at the ends of the list, scroll."""
        wanted = self._cursor + {"up": -1, "down": 1}.get(where, len(self._shown))
        if not 0 <= wanted < len(self._shown):
            super().action_move(where)
            return
        self._cursor = wanted
        self.query_one(Canvas).scroll_to(y=max(0, self._starts[wanted] - 1), animate=False)
        self.update_view()

    def action_expand(self) -> None:
        """List all findings, or only the first ones."""
        self._all = not self._all
        self.update_view()

    async def action_open(self) -> None:
        """Open the page of the chosen finding."""
        if (finding := self.chosen) is not None:
            self.viewer.show(FindingScreen(finding.finding_id))


class FindingScreen(FindingKeys):
    """One finding: its numbers and those of the peers, the rule behind it, and what to do.

    The curves show the finding's signal for whom it names and, on the same scale, the median of its peers:
    the job's GPUs in the same slot of other nodes, or all if there are fewer than four nodes.
    """

    SCREEN = FINDING

    def __init__(self, finding_id: str) -> None:
        super().__init__()
        self._finding_id = finding_id

    @property
    def chosen(self) -> Finding | None:
        """The finding, None where it doesn't exist at the time shown."""
        return self.fleet.findings.get(self._finding_id)

    def draw(self) -> None:
        """Draw the page."""
        if (finding := self.chosen) is None:
            self.show_title([Span(" finding", "title")])
            words = wrapped("This finding doesn't exist at the time shown.", self.size.width, "warning")
            self.query_one(Canvas).show(words)
            return
        rule = BY_KIND.get(finding.kind)
        sign, role = SIGNS[finding.severity]
        state = "dismissed" if finding.dismissed else "" if finding.until is None else "ended"
        title = rule.title if rule else kind_name(finding.kind)
        who = Span(clean(finding.subject), "title")
        self.show_title([Span(f" {sign} ", role), who, Span(f"  {title}"), Span(f"  {state}", "dim")])
        self.query_one(Canvas).show(self._lines(finding))

    def _lines(self, finding: Finding) -> list[Spans]:
        cells = self.size.width
        numbers = [evidence_text([replace(one, metric=kind_name(one.metric))]) for one in finding.evidence]
        head = wrapped(what(finding), cells)
        rest = labelled([("" if at else "evidence", words) for at, words in enumerate(numbers)], cells)
        rest += [heading_rule("the rule", cells), *labelled(self._rule(finding), cells)]
        room = self.lines - 3 - len(head) - len(rest)
        height = min(CURVES_MOST, max(CURVES_LEAST, room)) | 1
        now, last = self.viewer.now(), self.time_shown
        curves = curve_lines(finding, self.fleet, now, last, cells=cells - 1, room=height)
        return [*head, *curves, *rest]

    def _rule(self, finding: Finding) -> list[tuple[str, str]]:
        """Return what to do, and the rule: threshold, source, and when it is silent or wrong."""
        lines = [("do", finding.advice), ("job script", exclude_line([finding]))]
        if (rule := BY_KIND.get(finding.kind)) is not None:
            lines += [("why", rule.why), ("threshold", f"{rule.threshold}; window {rule.window}")]
            lines += [("source", finding.source), ("silent if", rule.silent_if)]
            lines.append(("wrong when", rule.wrong_when))
        found = {one.kind for one in self.fleet.findings.values()}
        # A rule whose signals aren't measured hasn't found nothing: it hasn't looked.
        examined = self.fleet.examined
        looked = [one for one in RULES if examined and examined.not_measured.keys().isdisjoint(one.signals)]
        others = ", ".join(kind_name(rule.kind) for rule in looked if rule.kind not in found)
        return [line for line in (*lines, ("found nothing", others)) if line[1]]

    async def action_open(self) -> None:
        """Go to its GPU or node; of one that has ended, and in a recording, to its start, too."""
        if (finding := self.chosen) is None:
            return
        if self.viewer.player is not None or finding.until is not None:
            await self.viewer.go_to_time(finding.since)
        node = self.fleet.nodes.get(finding.node or next(iter(finding.nodes), ""))
        if node is None:
            self.viewer.show_notice("this finding names no node")
        elif finding.gpu is not None and (rows := named_rows(finding, node)):
            self.viewer.show(GpuScreen(node.name, rows[0]))
        else:
            self.viewer.show(NodeScreen(node.name))
