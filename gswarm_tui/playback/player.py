"""Plays a recording: turns the playhead's position into a fleet, reading ahead in another thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

from gswarm_tui.fleet.events import Event, EventLogged, FrameArrived, SessionStarted
from gswarm_tui.fleet.history import NodeHistory
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.playback.playhead import Playhead
from gswarm_tui.playback.timeline import ReplayTimeline

TICK_S = 0.1
SLOW_TICK_S = 0.25
"""The same where a second takes a second or longer."""
AHEAD_S = 2.0
"""How much is read at once: what plays in this time, at least so many seconds of the recording."""
APPLY_S = 0.05
"""How long events are taken in at a stretch before the screen has its turn."""
NEAR_S, NEAR_FRAMES = 30.0, 5000
"""As far forward as this, one goes through the events in between; further, the fleet is built anew."""
AT_ONCE = 128
"""So many frames are taken in at once: that costs much less than one by one."""
TRACK_EVERY_S = 5.0

T = TypeVar("T")


class ReplaySource(Protocol):
    """A recording to play; ``running`` says that it grows. Times are Unix seconds; reading takes a while."""

    interval_s: float
    running: bool

    def end(self) -> float:
        """How far it can be read now."""

    def events(self, since: float, until: float) -> list[Event]:
        """What happened after a time, up to and with another, in order."""

    def fleet(self, at: float) -> Fleet:
        """The fleet as it was at a time, a new one; of its history at least what is shown first."""

    def rings(self, at: float) -> Mapping[str, NodeHistory]:
        """All of the history that its nodes had then, by name, where ``fleet`` gives less."""

    def track(self) -> ReplayTimeline:
        """What there is along it."""


class InThread(Protocol):
    """Calls something that takes a while, and answers when it is done."""

    def __call__(self, call: Callable[..., T], *values: object) -> Awaitable[T]:
        """Do it elsewhere."""


async def in_thread(call: Callable[..., T], *values: object) -> T:
    """Do it in a thread of its own."""
    return await asyncio.to_thread(call, *values)


class Player:
    """A tape, a playhead, and the fleet as it was where the playhead is.

    ``flushed`` are called after each tick, as a hub's are. ``clock`` is the playhead's. ``fleet`` is another
    one after a jump. ``caught_up`` tells that playing reached the present of a recording that grows. Of the
    ``failures`` that reading may raise, ``problem`` tells the last until one goes on.
    """

    def __init__(
        self,
        tape: ReplaySource,
        playhead: Playhead,
        clock: Callable[[], float],
        in_thread: InThread = in_thread,
        failures: tuple[type[Exception], ...] = (),
    ) -> None:
        self.tape = tape
        self.playhead = playhead
        self.fleet = Fleet([], derive_events=False)
        self.track = ReplayTimeline()
        self.problem = ""
        self.caught_up = False
        self.flushed: list[Callable[[], None]] = []
        self._clock = clock
        self._in_thread = in_thread
        self._failures = failures
        self._shown = playhead.at
        self._read = playhead.at
        self._waiting: deque[Event] = deque()
        self._wanted: float | None = playhead.at
        self._reading: asyncio.Future[list[Event]] | None = None
        self._reading_to = playhead.at
        self._woken, self._opened = asyncio.Event(), asyncio.Event()
        self._track_at: float | None = None

    def now(self) -> float:
        """The time of the recording that ``fleet`` shows."""
        return self._shown

    @property
    def end(self) -> float:
        """How far one can go by now."""
        if self.tape.running:
            self.playhead.end = max(self.playhead.end, self.tape.end())
        return self.playhead.end

    @property
    def wanted(self) -> float:
        """Where the jump under way leads; without one, where it is."""
        return self._shown if self._wanted is None else self._wanted

    async def ready(self) -> None:
        """Wait for the first fleet, or for what stands in its way."""
        await self._opened.wait()

    # What people do

    def seek(self, at: float) -> None:
        """Go to a time."""
        self.problem = ""
        self.playhead.go(at)
        self._wanted = self.playhead.within(at)
        self._woken.set()

    def skip(self, seconds: float) -> None:
        """Go so far forward or back."""
        self.seek(self.wanted + seconds)

    def step(self, by: int) -> None:
        """Stay at the next interval, or the one before."""
        self.playhead.pause()
        self.skip(by * self.tape.interval_s)

    def toggle(self) -> None:
        """Play if it is paused, else pause; at the end, from the start, or on with what is live."""
        self.problem = ""
        if not self.playhead.paused:
            self.playhead.pause()
            self.playhead.go(self._shown)
        elif self.playhead.ended and self.tape.running:
            self.caught_up = True
        elif self.playhead.ended:
            self.seek(self.playhead.start)
            self.playhead.play()
        else:
            self.playhead.play()
        self._woken.set()

    def look_along(self) -> None:
        """What there is along the tape has changed: look at it anew."""
        self._track_at = None
        self._woken.set()

    def session_started(self, event: SessionStarted) -> None:
        """One was started in hindsight: what is read from now on tells of it, what was read doesn't."""
        self._take_late(event, event.started_at)

    def marked(self, event: EventLogged) -> None:
        """A moment was marked in hindsight, which is told as a session is."""
        self._take_late(event, event.at)

    def _take_late(self, event: Event, at: float) -> None:
        if at <= self._shown:
            self.fleet.apply(event)
        self.look_along()

    # Playing

    async def run(self) -> None:
        """Play until cancelled."""
        while True:
            await self.advance()
            self._tell()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), self._pause())
            self._woken.clear()

    def _tell(self) -> None:
        self._opened.set()
        for callback in list(self.flushed):
            callback()

    def _pause(self) -> float:
        if self.playhead.paused:
            return TRACK_EVERY_S
        return SLOW_TICK_S if self.playhead.speed <= 1 else TICK_S

    async def advance(self) -> None:
        """Bring the fleet to where the playhead is, or as far as was read."""
        try:
            if self._wanted is not None:
                await self._jump()
            await self._look_along()
            await self._play()
        except self._failures as error:
            self.problem, self._wanted, self._reading = str(error), None, None
            self.playhead.pause()
            self.playhead.go(self._shown)

    async def _jump(self) -> None:
        """Go where is wanted last; wishes that came while it was built are answered by the next."""
        while (at := self._wanted) is not None:
            await self._drop_reading()
            if self._is_near(at):
                self._waiting.extend(await self._in_thread(self.tape.events, self._shown, at))
                while self._waiting:
                    self._take_next(at)
                    await asyncio.sleep(0)
                self._shown = self._read = at
            else:
                self.fleet = await self._in_thread(self.tape.fleet, at)
                self._shown = self._read = at
                self._tell()
                await self._complete(at)
            if self._wanted == at:
                self._wanted = None
        self.playhead.go(self._shown)

    def _is_near(self, at: float) -> bool:
        """Whether going through the events up to a time is the shorter way."""
        ahead_s, nodes = at - self._shown, len(self.fleet.nodes)
        frames = ahead_s / self.tape.interval_s * nodes
        return nodes > 0 and 0 <= ahead_s <= NEAR_S and frames <= max(NEAR_FRAMES, nodes)

    async def _complete(self, at: float) -> None:
        """The fleet is seen already: give it the rest of its history, unless one wants to go on."""
        if self._wanted != at:
            return
        rings = await self._in_thread(self.tape.rings, at)
        for name, ring in rings.items():
            self.fleet.nodes[name].take(ring)

    async def _drop_reading(self) -> None:
        self._waiting.clear()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None

    async def _look_along(self) -> None:
        now = self._clock()
        if self._track_at is None or (now - self._track_at >= TRACK_EVERY_S and self.tape.running):
            self._track_at = now
            self.track = await self._in_thread(self.tape.track)

    async def _play(self) -> None:
        if self.playhead.paused:
            return
        if self._reading is not None and self._reading.done():
            self._waiting.extend(self._reading.result())
            self._reading, self._read = None, self._reading_to
        wanted = self.playhead.at
        self._apply(min(wanted, self._read))
        if self._shown < wanted:  # reading or taking in can't keep up: no frame is passed over for that
            self.playhead.go(self._shown)
        length = max(AHEAD_S * self.playhead.speed, AHEAD_S, 2 * self.tape.interval_s)
        if self._reading is None and self._read < self.end and self._read - self._shown < length:
            self._reading_to = min(self._read + length, self.playhead.end)
            call = self._in_thread(self.tape.events, self._read, self._reading_to)
            self._reading = asyncio.ensure_future(call)
            self._reading.add_done_callback(lambda _done: self._woken.set())
        if self._shown >= self.end:
            self.playhead.pause()
            self.caught_up = self.tape.running

    def _apply(self, until: float) -> None:
        """Take in what happened up to a time, as far as the screen can wait."""
        begun = self._clock()
        while self._waiting and self._waiting[0].at <= until:
            at = self._take_next(until)
            if self._clock() - begun > APPLY_S and self._waiting:
                self._shown = max(self._shown, at)
                return
        self._shown = max(self._shown, until)

    def _take_next(self, until: float) -> float:
        """Take in what happened next, or the next frames up to a time at once; when that was."""
        frames: list[FrameArrived] = []
        while self._waiting and self._waiting[0].at <= until and len(frames) < AT_ONCE:
            event = self._waiting[0]
            if not isinstance(event, FrameArrived):
                break
            frames.append(event)
            self._waiting.popleft()
        if frames:
            self.fleet.take(frames)
            return frames[-1].at
        event = self._waiting.popleft()
        self.fleet.apply(event)
        return event.at
