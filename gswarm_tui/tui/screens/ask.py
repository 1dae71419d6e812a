"""Screen that asks the job which rank is behind: the steps with their costs, and the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from textual.app import ComposeResult

from gswarm_tui.common.quantities import plural
from gswarm_tui.control.intents import AskJob, RecorderError
from gswarm_tui.tui.actions import ASK, ENTER
from gswarm_tui.tui.drawing.spans import Span, Spans, heading_rule, wrapped
from gswarm_tui.tui.drawing.text import clean, pad, width, wrap
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.screens.dialogs import ConfirmDialog, ask
from gswarm_tui.tui.screens.findings import FindingScreen
from gswarm_tui.tui.widgets.lines import Canvas

POLL_S = 0.3
"""Time between two looks at a request that is under way."""
_LOOK = {"want": "asked"}
INDENT = 4
COULD_HARM = (
    "NCCL before 2.29.2 has a fault: to ask it by RAS could corrupt a running job.",
    "Ask it only if you would end the job anyway.",
)
_ROLES = {"asking": "accent", "decided": "good", "cannot tell": "warning"}
"""Roles of the states of a step; the others are dim."""


class AskScreen(ViewerScreen):
    """Asks the job itself which rank is behind. Nothing is asked before you start it.

    Steps are asked in their order, each only if the one before can't tell. Below each is what it does to the
    job, and then what it saw. The job is still asked if you leave this screen; A shows it again.
    """

    SCREEN = ASK
    DEFAULT_CSS = "AskScreen > Canvas { height: 1fr; }"

    def __init__(
        self, fetch: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]], state: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self._fetch, self._state, self._waiting = fetch, state, 0

    def compose_body(self) -> ComposeResult:
        """Lines that scroll."""
        yield Canvas()

    def on_mount(self) -> None:
        """Follow a request that is under way."""
        self.set_interval(POLL_S, self._look)

    def on_screen_resume(self) -> None:
        """Show what happened while another screen was in front."""
        self._look()

    def _look(self) -> None:
        """Show the state of the recorder's newest request."""
        if not self._waiting:
            self.run_worker(self._send(_LOOK))

    def _start(self, *steps: str, force: bool = False) -> None:
        """Ask by these steps, without any step by step."""
        self.run_worker(self._send(AskJob(steps, force).message()))

    async def _send(self, message: dict[str, Any]) -> None:
        """Send a request, and show the state in its reply."""
        self._waiting += 1
        try:
            self._state = await self._fetch(message) or self._state
        except RecorderError as error:
            # Another client may be asking the job just now.
            self._state = {**self._state, "running": message is not _LOOK}
            self.viewer.show_notice(str(error), error=True)
        finally:
            self._waiting -= 1
        self.update_view()

    def draw(self) -> None:
        """Draw the answer, the steps, and what they saw in full."""
        state, cells = self._state, self.size.width
        lines = [*self._answer(), heading_rule("steps", cells)]
        for number, step in enumerate(state["steps"], 1):
            lines += self._step(number, step)
        for step in sorted(state["steps"], key=lambda one: one["step"] != state["decided_by"]):
            lines += [heading_rule(clean(step["title"]), cells)] if step["lines"] else []
            lines += [line for text in step["lines"] for line in self._indented(text, "text")]
        self.query_one(Canvas).show(lines)
        ends = [event.at for event in self.fleet.event_log if event.kind == "asked"]
        at = f" at {self.viewer.local(max(ends)):%H:%M:%S}" if ends else ""
        of = f"{plural(state['ranks'], 'rank')} " if state["ranks"] else ""
        words = (
            f"{of}being asked …" if state["running"] else f"{of}asked{at}" if state["token"] else "not asked"
        )
        self.show_title([Span(" ask the job", "title"), Span(f"  {words}", "dim")])

    def _answer(self) -> list[Spans]:
        """Return the answer with a blank line above and below; before it, what the keys do."""
        state, cells = self._state, self.size.width
        if state["running"]:
            lines = wrapped("Asking; esc leaves the screen, and the job is still asked.", cells)
        elif not state["token"]:
            keys = f"{ENTER} asks in this order, each step only if the one before can't tell; 1 to"
            keys = f"{keys} {len(state['steps'])} ask by one step only."
            lines = [*wrapped("Nothing has been asked yet.", cells, "title"), *wrapped(keys, cells)]
        else:
            lines = self._sentence()
            opens = "opens the finding; a asks again" if state["finding_id"] else "asks step by step"
            lines += [(), *wrapped(f"{ENTER} {opens}.", cells, "dim")]
        return [(), *lines, ()]

    def _sentence(self) -> list[Spans]:
        """Return the answer: who is behind, and by which step; where no step can tell, the steps say why."""
        state, by = self._state, ""
        if state["decided_by"]:
            sign, role = ("╳", "error") if state["behind"] else ("●", "good")
            head, _, by = state["sentence"].partition(", by ")
        else:
            sign, role = "?", "warning"
            told = (f"{one['title']}: {one['saw']}" for one in state["steps"] if one["saw"])
            head = state["sentence"].removesuffix(f"; {'; '.join(told)}")
        first, *more = self._indented(head, "title")
        lines = [(Span(f" {sign}  ", role), Span(first[0].text.strip(), "title")), *more]
        return lines + (self._indented(f"by {by}", "text") if by else [])

    def _step(self, number: int, step: Mapping[str, Any]) -> list[Spans]:
        state = "" if step["state"] == "not asked" and not self._state["token"] else step["state"]
        click = f"screen.ask_steps('{number}')"
        longest = max(width(clean(one["title"])) for one in self._state["steps"])
        title = Span(f"  {pad(clean(step['title']), longest)}", "title", click)
        head = (Span(f" {number}", "key", click), title, Span(f"  {state}", _ROLES.get(state, "dim")))
        if state == "decided":  # the answer says what it saw
            return [head]
        return [head, *self._indented(step["saw"] or step["cost"], "text" if step["saw"] else "dim")]

    def _indented(self, text: str, role: str) -> list[Spans]:
        """Return a text below a heading, wrapped; its own indent stays."""
        words = clean(text)
        indent = " " * (INDENT + len(words) - len(words.lstrip()))
        room = max(20, self.size.width - len(indent) - 2)
        return [(Span(f"{indent}{line}", role),) for line in wrap(words, room)]

    def action_move(self, where: str) -> None:
        """Scroll."""
        self.query_one(Canvas).move(where)

    async def action_open(self) -> None:
        """Open the finding of the answer; without one, ask step by step."""
        if self._state["finding_id"] and not self._state["running"]:
            self.viewer.show(FindingScreen(self._state["finding_id"]))
        else:
            self._start()

    def action_ask_steps(self, number: str) -> None:
        """Ask by the step with a number, without one step by step."""
        steps = [one["step"] for one in self._state["steps"]]
        if int(number or 0) <= len(steps):
            self._start(*(steps[int(number) - 1 : int(number)] if number else ()))

    def action_force_step(self) -> None:
        """Ask NCCL RAS whatever NCCL's version, once that is confirmed."""
        dialog = ConfirmDialog("ask NCCL before 2.29.2?", COULD_HARM, "ask all the same")
        ask(self.app, dialog, lambda _: self._start("ras", force=True))
