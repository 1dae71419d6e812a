"""App of a recorder's client: shows the fleet, looks back, and turns keys into intents."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Protocol, Unpack

from gswarm_agent.mark import MarkError, Value, checked, values_of
from gswarm_agent.metrics import CORE, METRIC_GROUPS
from gswarm_tui.common.errors import UserError
from gswarm_tui.common.quantities import age, count, duration, elapsed, file_size, plural
from gswarm_tui.common.time_input import INTERVAL_HINT, TIME_FORMS, parse_interval_ms, parse_time
from gswarm_tui.common.trace_input import parse_rank_list, parse_traced, parse_yes
from gswarm_tui.control import intents
from gswarm_tui.fleet.sessions import suggest_name
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.link.hub import Run
from gswarm_tui.playback.player import Player
from gswarm_tui.runs.line import RUNNING, RunLine
from gswarm_tui.tui.actions import LIVE, PAST
from gswarm_tui.tui.drawing.spans import Span
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.screens.base import ViewerOptions
from gswarm_tui.tui.screens.dialogs import Choice, ConfirmDialog, FormDialog, FormField, PickDialog, ask
from gswarm_tui.tui.viewer import Viewer, ellipsis

CONFIRM_AFTER_S = 60.0
"""Quitting a longer recording is confirmed."""
UNDO_S = 10.0
"""Time in which the stop of a session can be undone."""
ENDING_S = 60.0
"""Longest notice that the recorder ends; the screen closes then."""
RETRY_S = 0.2
SCREEN_QUIT = "the screen was quit"
"""Why a recorder ends whose screen was quit; for any other reason the user sees it."""


class RecorderClient(Run, Protocol):
    """Client of a recorder, as the screens need it; ``control/recorder.py`` has the meaning of all."""

    place: str
    read_only: bool
    connected: bool
    ended: bool
    gone: bool
    interruption: str

    @property
    def flushed(self) -> list[Callable[[], None]]:
        """Callbacks for changes of the fleet."""

    async def carry_out(self, intent: intents.Intent) -> dict[str, Any]:
        """Let the recorder carry out an intent; return its result. Raises RecorderError."""

    async def fetch(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a request that has one reply, and return it. Raises RecorderError."""


class GswarmApp(Viewer):
    """App of a recorder's client.

    ``starts_it``: quitting ends the recorder. The first screen is painted before the recorder has sent
    anything. ``past`` returns a player of what is recorded so far, in any thread; it raises an error where
    that can't be read. None is for a run that isn't recorded. ``why_not_detached`` is a clause if the
    recorder can't go on without this screen.
    """

    def __init__(
        self,
        run: RecorderClient,
        *,
        starts_it: bool = True,
        past: Callable[[], Player] | None = None,
        why_not_detached: str = "",
        **options: Unpack[ViewerOptions],
    ) -> None:
        super().__init__(LIVE, **options)
        self.live = run
        self.read_only = run.read_only
        self.starts_it = starts_it
        self._past = past
        self._why_not_detached = why_not_detached
        self._ending = self._reading = False
        self._stopped: list[tuple[str, float]] = []
        self._sessions_version = 0

    @property
    def fleet(self) -> Fleet:
        """The fleet, which is another one after a reconnect."""
        return self.live.fleet if self.player is None else self.player.fleet

    @property
    def ended(self) -> bool:
        """Whether the recording has ended."""
        return self.live.ended

    def now(self) -> float:
        """Return the time that is shown."""
        return self.live.now() if self.player is None else self.player.now()

    def shows_run(self, run: RunLine) -> bool:
        """Return whether a run is the recording on the screen."""
        recorder = self.live.recorder
        return (
            recorder is not None and run.state == RUNNING and run.path == str(Path(recorder.path).absolute())
        )

    def recording_state(self) -> list[Span]:
        """Return the recorder's state, and how far back the player is."""
        if self._reading:
            return [Span(" PAST ", "chip"), Span(" reading the recording …")]
        state = self._recorder_state()
        if (player := self.player) is None:
            return state
        if player.problem:
            return [Span("╳ ", "error"), Span(clean(player.problem), "error")]
        if self.live.recorder is not None and not self.live.recorder.error and not self.live.interruption:
            state = [Span("● ", "error"), Span("recording continues"), *state[2:]]
        ago = Span(f" {elapsed(self.live.now() - player.wanted)} ago", "title")
        moment = Span(f" · {self.local(player.wanted):%H:%M:%S}{ellipsis(player)}")
        return [Span(" PAST ", "chip"), ago, moment, Span(" · "), *state]

    def _recorder_state(self) -> list[Span]:
        """Return "● rec 00:12:31 · 1.2 M rows · 14 MB", or why nothing is recorded or known."""
        run = self.live
        if run.interruption and not run.ended:
            return [Span("╳ ", "error"), Span(clean(run.interruption), "error")]
        if not run.connected:
            return [Span("○ starting …", "dim")]
        if (recorder := run.recorder) is None:
            return [Span("○ not recording", "dim")]
        if recorder.error:  # only the file name, so that the remedy fits
            words = recorder.error.replace(recorder.path, PurePath(recorder.path).name)
            return [Span("╳ ", "error"), Span(clean(words), "error")]
        rows = "row" if recorder.rows == 1 else "rows"
        words = f" · {count(recorder.rows)} {rows} · {file_size(recorder.file_bytes)}"
        since = f"rec {elapsed(run.now() - run.started_at)}"
        if run.ended:
            return [Span("○ "), Span(run.interruption), Span(f" · {since}{words}", "dim")]
        if not self.starts_it:
            place = f" to {clean(run.place)}" if run.place else ""
            since = f"attached{place}{', read-only' * run.read_only} · {since}"
        return [Span("● ", "error"), Span(since), Span(words, "dim")]

    def on_mount(self) -> None:
        """Follow the recorder."""
        self.live.flushed.append(self._flushed)
        self.app_resume_signal.subscribe(self, lambda _: self._flushed())

    async def on_unmount(self) -> None:
        """Stop following the recorder."""
        if self._flushed in self.live.flushed:
            self.live.flushed.remove(self._flushed)

    def _flushed(self) -> None:
        """Update the screen after a tick of the run."""
        if self.live.ended and self.starts_it:
            if self._ending or not self.terminal_lent:
                self.exit("quit")
            return
        if self.player is not None and self.player.caught_up:
            self.action_return_to_now()
        if self.player is not None and self.live.fleet.sessions.version != self._sessions_version:
            self._sessions_version = self.live.fleet.sessions.version
            self.player.reload_timeline()
        self.request_update()

    async def carry_out(self, intent: Callable[[], intents.Intent]) -> bool:
        """Let the recorder carry out an intent; a notice says why it can't. Return whether it did."""
        try:
            await self.live.carry_out(intent())
        except (intents.IntentError, intents.RecorderError) as error:
            self.show_notice(f"nothing was changed: {error}", error=True)
            return False
        if self.player is not None:
            self.player.reload()
        self.update_view()
        return True

    def change(self, notice: str, intent: Callable[[], intents.Intent]) -> None:
        """Send an intent, and show the notice once it is carried out."""

        async def send() -> None:
            if await self.carry_out(intent) and notice:
                self.show_notice(notice)

        self.run_worker(send())

    async def action_play(self) -> None:
        """Look back; while looking back, play or pause."""
        if self.mode == PAST:
            await super().action_play()
        else:
            await self._look_back()

    async def go_to_time(self, at: float) -> None:
        """Show the fleet at a time of the recording."""
        if self.mode == PAST or await self._look_back():
            await super().go_to_time(at)

    def parse_time(self, text: str) -> float:
        """Return the time of the recording that a text means; its end is now. Raises TimeInputError."""
        start, end = self.live.started_at, self.live.now()
        return parse_time(text, start=start, end=end, timezone=self.timezone)

    async def _look_back(self) -> bool:
        """Show the newest recorded time while links, hub and recorder continue; whether that was possible."""
        if self._past is None:
            self.show_notice("nothing is recorded, so there is no past to show", error=True)
            return False
        self._reading = True
        self.update_view()
        try:
            player = await asyncio.to_thread(self._past)
            await player.advance()
        except UserError as error:
            self.show_notice(str(error), error=True)
            return False
        finally:
            self._reading = False
        self.begin_playing(player)
        self.mode = PAST
        self.update_view()
        return True

    def action_return_to_now(self) -> None:
        """Show the live fleet again."""
        self.end_playing()
        self.mode = LIVE
        self.update_view()

    def action_sample_every(self) -> None:
        """Ask for another sampling interval."""
        field = FormField("interval", f"{self.live.fleet.interval_s:g}", INTERVAL_HINT, parse_interval_ms)
        ask(self, FormDialog("sampling interval of all nodes", [field]), self._sample_every)

    def _sample_every(self, answer: tuple[str, ...]) -> None:
        interval_ms = parse_interval_ms(answer[0])
        if interval_ms == self.live.fleet.interval_ms:
            self.show_notice("the interval stays the same")
            return
        self.change(f"sampling every {interval_ms / 1000:g} s", lambda: intents.ChangeInterval(interval_ms))

    def action_switch_metrics(self) -> None:
        """Ask which group of metrics to switch on or off."""
        on = self.live.fleet.metrics
        choices = [
            Choice(name, f"{'on ' if name in on else 'off'} {name}", text, text)
            for name, text in METRIC_GROUPS.items()
            if name != CORE
        ]
        ask(self, PickDialog("switch a metric group of all nodes", choices), self._switch_metrics)

    def _switch_metrics(self, switched: str) -> None:
        on = {*self.live.fleet.metrics} ^ {switched}
        groups = tuple(name for name in METRIC_GROUPS if name in on)
        self.change(f"measuring {', '.join(groups)}", lambda: intents.ChangeMetrics(groups))

    def action_trace(self) -> None:
        """Ask what to trace; the dialog says what it costs."""
        if self._refuse_unrecorded("no trace requested"):
            return
        fields = [
            FormField("trace for", "0.5", "seconds; starts in 10 s", parse_traced),
            FormField("ranks", "", "such as 0-7,16; empty: all", parse_rank_list),
            FormField("Python stacks", "no", "yes: slows the ranks far more", parse_yes),
        ]
        title = "trace PyTorch: ranks slow down, and pause while they write files"
        ask(self, FormDialog(title, fields), self._trace)

    def _trace(self, answers: tuple[str, ...]) -> None:
        ranks, stacks = parse_rank_list(answers[1]), parse_yes(answers[2])
        trace = partial(intents.StartTrace, parse_traced(answers[0]), ranks, stacks)
        self.change("trace requested; the events show its progress", trace)

    def show_asking(self) -> None:
        """Show how the job is asked which rank is behind; nothing is asked yet."""
        if not self._refuse_unrecorded("the job isn't asked"):
            self.run_worker(self._show_asking())

    async def _show_asking(self) -> None:
        from gswarm_tui.tui.screens.ask import AskScreen

        try:
            state = await self.live.fetch({"want": "asked"})
        except intents.RecorderError as error:
            self.show_notice(str(error), error=True)
            return
        if state:
            self.show(AskScreen(self.live.fetch, state))
        else:
            self.show_notice("simulated nodes have no processes to ask", error=True)

    @property
    def recorded(self) -> bool:
        """Whether the fleet is recorded."""
        return self.live.recorder is not None and not self.live.ended

    def _refuse_unrecorded(self, what: str) -> bool:
        """Show why nothing can be noted in a recording; return whether that is so."""
        if not self.recorded:
            why = self.live.interruption or "nothing is recorded; start gswarm-tui without --no-record"
            self.show_notice(f"{what}: {why}", error=True)
        return not self.recorded

    def action_start_session(self) -> None:
        """Ask for a session's name and start time, and start it."""
        if self._refuse_unrecorded("no session started"):
            return
        name = FormField("name", self._next_name(), check=self.live.fleet.sessions.check_name)
        ask(self, FormDialog("start session", [name, self._time_field("started")]), self._start_session)

    def _next_name(self) -> str:
        """Return a name that no session has."""
        return suggest_name(session.name for session in self.live.fleet.sessions.sessions.values())

    def _time_field(self, label: str) -> FormField:
        """Return a field with "now", or the time that is shown while looking back."""
        shown = "now" if self.mode == LIVE else f"{self.local(self.now()):%Y-%m-%d %H:%M:%S}"
        return FormField(label, shown, TIME_FORMS, self.parse_time)

    def _start_session(self, answer: tuple[str, ...]) -> None:
        name, at = answer[0].strip(), self.parse_time(answer[1])
        name = name or self._next_name()
        ago = self.live.now() - at
        notice = f"started {name}, backdated {age(ago)}" if ago >= 1 else f"started {name}"
        self.change(notice, lambda: intents.StartSession(name, at))

    def change_session(self, session_id: str, *, name: str | None = None, note: str | None = None) -> None:
        """Rename a session or replace its note."""
        self.change("", lambda: intents.ChangeSession(int(session_id), name, note))

    def dismiss_finding(self, finding_id: str, *, dismissed: bool) -> None:
        """Dismiss a finding in this recording, or undo that."""
        notice = "dismissed; z lists it, d undoes it" if dismissed else ""
        self.change(notice, lambda: intents.DismissFinding(finding_id, dismissed))

    def action_stop_session(self) -> None:
        """Stop the screen's session, the only running one, or the one that the user picks."""
        running = self.live.fleet.sessions.running
        chosen = self.front.chosen_session()
        if chosen is not None and not chosen.running:
            self.show_notice(f"{chosen.name} has already ended")
        elif chosen is not None:
            self._stop_session(chosen.session_id)
        elif not running:
            self.show_notice("no session is running; s starts one")
        elif len(running) == 1:
            self._stop_session(running[0].session_id)
        else:
            now = self.live.now()
            choices = [Choice(s.session_id, f"{elapsed(s.seconds(now))}  {s.name}") for s in running]
            ask(self, PickDialog("stop which session?", choices), self._stop_session)

    def _stop_session(self, session_id: str) -> None:
        session, now = self.live.fleet.sessions.sessions[session_id], self.live.now()
        if not session.running:
            return

        async def stop() -> None:
            if await self.carry_out(lambda: intents.StopSession(int(session_id))):
                self._stopped.append((session_id, self.live.now()))
                what = f"{session.name} after {duration(session.seconds(now))}"
                self.show_notice(f"stopped {what}; u undoes it", seconds=UNDO_S)

        self.run_worker(stop())

    def action_undo_stop(self) -> None:
        """Continue the session that was stopped last, if that was less than ``UNDO_S`` ago."""
        sessions = self.live.fleet.sessions.sessions
        while self._stopped:
            session_id, at = self._stopped.pop()
            if self.live.now() - at <= UNDO_S and not sessions[session_id].running:
                self.change(f"{sessions[session_id].name} continues", partial(intents.UndoStop, session_id))
                return
        self.show_notice(f"no session was stopped in the last {UNDO_S:g} s")

    def action_mark(self) -> None:
        """Ask for a mark's name, values and time, and set it."""
        if self._refuse_unrecorded("no mark set"):
            return
        fields = [
            FormField("name", "", 'for example "epoch 3"', lambda text: checked(text, {})),
            FormField("values", "", "loss=1.2 acc=0.9, or none", _values),
            self._time_field("at"),
        ]
        ask(self, FormDialog("mark a moment", fields), self._mark)

    def _mark(self, answer: tuple[str, ...]) -> None:
        name, values = answer[0], _values(answer[1])
        at = None if answer[2].strip() == "now" else self.parse_time(answer[2])
        self.change(f"marked {name}", lambda: intents.SetMark(name, values, at))

    async def action_quit(self) -> None:
        """Close the screen; if that ends the recorder, confirm it while sessions run or after a minute."""
        running = self.live.fleet.sessions.running
        recorded_s = 0.0 if self.live.recorder is None else self.live.now() - self.live.started_at
        if not self.starts_it or self._ending or (not running and recorded_s <= CONFIRM_AFTER_S):
            self.request_quit("quit")
            return
        lines = [f"Recording for {elapsed(recorded_s)}. Quitting closes the recording."]
        if running:
            names = ", ".join(s.name for s in running[:5]) + (" …" if len(running) > 5 else "")
            ends = f"Quitting ends {'it' if len(running) == 1 else 'them'} and closes the recording."
            lines = [f"{plural(len(running), 'session')} running: {names}", ends]
        ask(self, ConfirmDialog("quit?", lines, "end and quit"), lambda _: self.request_quit("quit"))

    def request_quit(self, reason: str) -> None:
        """End the recorder if this screen started it, and close the screen; a second time, don't wait."""
        if self._ending or not self.starts_it or self.live.ended:
            self.exit(reason)
            return
        self._ending = True
        self.run_worker(self._end_recorder(reason))

    async def _end_recorder(self, reason: str) -> None:
        """End the recorder; the screen closes when the recorder has reported its end."""
        self.show_notice("fetching the last frames …", seconds=ENDING_S)
        for _ in range(round(ENDING_S / RETRY_S)):
            try:
                await self.live.carry_out(intents.StopRecording(SCREEN_QUIT))
            except intents.RecorderError:
                if self.live.gone:
                    break
                # The recorder hasn't started yet, or its parent restarts it just now.
                await asyncio.sleep(RETRY_S)
            else:
                return
        self.exit(reason)

    def action_detach(self) -> None:
        """Close the screen and leave the recorder running."""
        if not self.starts_it:
            self.show_notice("q closes this screen; recording continues")
        elif why := self._why_not_detached:
            self.show_notice(f"can't detach: {why}", error=True)
        else:
            self.run_worker(self._leave_recorder())

    async def _leave_recorder(self) -> None:
        if await self.carry_out(intents.Detach):
            self.exit("detached")


def _values(text: str) -> dict[str, Value]:
    """Parse ``loss=1.2 note="two words"``. Raises MarkError."""
    try:
        values = values_of(shlex.split(text), {})
    except ValueError:
        raise MarkError("a quotation mark is missing") from None
    checked("mark", values)
    return values
