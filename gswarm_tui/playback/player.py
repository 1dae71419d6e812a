"""Player of a recording: the playhead, the fleet at its position, and reading ahead in a thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from gswarm_tui.common.errors import UserError
from gswarm_tui.fleet.events import Event, FrameArrived, SessionStopped
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.playback.timeline import ReplayTimeline

if TYPE_CHECKING:
    from gswarm_tui.playback.recorded_source import RecordedSource

SPEEDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
TICK_S = 0.1
SLOW_TICK_S = 0.25
"""Tick at real-time speed or slower."""
AHEAD_S = 2.0
"""Read-ahead: seconds of playing, and at least as many seconds of the recording."""
APPLY_S = 0.05
"""Longest time that events are applied before the screen is drawn again."""
NEAR_S, NEAR_FRAMES = 30.0, 5000
"""Longest jump forward, in seconds and frames, that applies events; longer ones rebuild the fleet."""
BATCH_FRAMES = 128
"""Frames that are applied at once."""
TIMELINE_EVERY_S = 5.0


class Playhead:
    """Position between ``start`` and ``end`` (Unix seconds) that moves with a clock while it plays.

    ``clock`` returns seconds of any epoch. ``end`` may grow with the recording.
    """

    def __init__(self, start: float, end: float, at: float, clock: Callable[[], float]) -> None:
        self.start = start
        self.end = max(start, end)
        self.speed = 1.0
        self.paused = True
        self._clock = clock
        self._at = self.clamp(at)
        self._since = clock()

    def clamp(self, at: float) -> float:
        """Return the time, limited to the range from start to end."""
        return min(max(at, self.start), self.end)

    @property
    def at(self) -> float:
        """The position now."""
        if self.paused:
            return self._at
        return self.clamp(self._at + (self._clock() - self._since) * self.speed)

    @property
    def ended(self) -> bool:
        """Whether the position is the end."""
        return self.at >= self.end

    def move_to(self, at: float) -> None:
        """Move to a time and keep playing or pausing."""
        self._at = self.clamp(at)
        self._since = self._clock()

    def play(self) -> None:
        """Play, from the start if the end was reached."""
        if self.paused:
            self.move_to(self.start if self.ended else self._at)
            self.paused = False

    def pause(self) -> None:
        """Stop at the current position."""
        self._at, self.paused = self.at, True

    def change_speed(self, by: int) -> None:
        """Change to a speed ``by`` steps further in ``SPEEDS``."""
        position = self.at
        place = min(max(SPEEDS.index(self.speed) + by, 0), len(SPEEDS) - 1)
        self.speed = SPEEDS[place]
        self.move_to(position)


class Player:
    """Player of a source: the fleet as it was at the playhead.

    ``flushed`` callbacks run after each tick, as a hub's do. ``clock`` is the playhead's. A jump replaces
    ``fleet``. ``caught_up`` is set when playing reaches the present of a growing recording. ``problem`` is
    the message of the last error of the source, until the next action. ``in_thread`` runs blocking calls.
    """

    def __init__(
        self,
        source: RecordedSource,
        playhead: Playhead,
        clock: Callable[[], float],
        in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self.source = source
        self.playhead = playhead
        self.fleet = Fleet([], derive_events=False)
        self.timeline = ReplayTimeline()
        self.problem = ""
        self.caught_up = False
        self.flushed: list[Callable[[], None]] = []
        self._clock = clock
        self._in_thread = in_thread
        self._shown = playhead.at
        self._read = playhead.at
        self._unapplied: deque[Event] = deque()
        self._target: float | None = playhead.at
        self._reading: asyncio.Future[list[Event]] | None = None
        self._reading_to = playhead.at
        self._wake = asyncio.Event()
        self._timeline_read_at: float | None = None
        self._rebuild = False

    def now(self) -> float:
        """Return the time of the recording that ``fleet`` shows."""
        return self._shown

    @property
    def end(self) -> float:
        """The end of the recording so far."""
        if self.source.running:
            self.playhead.end = max(self.playhead.end, self.source.end())
        return self.playhead.end

    @property
    def wanted(self) -> float:
        """The target of the current jump; without a jump, the position."""
        return self._shown if self._target is None else self._target

    # Controls

    def seek(self, at: float) -> None:
        """Jump to a time."""
        self.problem = ""
        self.playhead.move_to(at)
        self._target = self.playhead.clamp(at)
        self._wake.set()

    def skip(self, seconds: float) -> None:
        """Jump forward or back by some seconds."""
        self.seek(self.wanted + seconds)

    def step(self, by: int) -> None:
        """Pause and step by intervals."""
        self.playhead.pause()
        self.skip(by * self.source.interval_s)

    def toggle(self) -> None:
        """Play or pause; at the end, play from the start or switch to live."""
        self.problem = ""
        if not self.playhead.paused:
            self.playhead.pause()
            self.playhead.move_to(self._shown)
        elif self.playhead.ended and self.source.running:
            self.caught_up = True
        elif self.playhead.ended:
            self.seek(self.playhead.start)
            self.playhead.play()
        else:
            self.playhead.play()
        self._wake.set()

    def reload_timeline(self) -> None:
        """Reload the timeline, because sessions or marks changed."""
        self._timeline_read_at = None
        self._wake.set()

    def reload(self) -> None:
        """Read the shown fleet and the timeline again, because the recording has another session."""
        self._rebuild = True
        self._target = self.wanted
        self.reload_timeline()

    # Playing

    async def run(self) -> None:
        """Play until cancelled."""
        while True:
            await self.advance()
            self._notify()
            with contextlib.suppress(TimeoutError):
                # Not wait_for: in Python 3.11 it may ignore a cancellation (python/cpython#86296).
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()
            self._wake.clear()

    def _notify(self) -> None:
        for callback in list(self.flushed):
            callback()

    def _pause(self) -> float:
        if self.playhead.paused:
            return TIMELINE_EVERY_S
        return SLOW_TICK_S if self.playhead.speed <= 1 else TICK_S

    async def advance(self) -> None:
        """Advance the fleet to the playhead, or as far as events were read."""
        try:
            if self._target is not None:
                await self._jump()
            await self._refresh_timeline()
            await self._play()
        except UserError as error:
            self.problem, self._target, self._reading = str(error), None, None
            self.playhead.pause()
            self.playhead.move_to(self._shown)

    async def _jump(self) -> None:
        """Jump to the latest target, and then to targets set meanwhile."""
        while (at := self._target) is not None:
            await self._drop_reading()
            # Applying the events up to a time is faster than rebuilding the fleet if it is near.
            ahead_s, nodes = at - self._shown, len(self.fleet.nodes)
            few = ahead_s / self.source.interval_s * nodes <= max(NEAR_FRAMES, nodes)
            if nodes and 0 <= ahead_s <= NEAR_S and few and not self._rebuild:
                self._unapplied.extend(await self._in_thread(self.source.events, self._shown, at))
                while self._unapplied:
                    self._apply_next(at)
                    await asyncio.sleep(0)
                self._shown = self._read = at
            else:
                self._rebuild = False
                self.fleet = await self._in_thread(self.source.fleet, at)
                self._shown = self._read = at
                self._notify()
            if self._target == at:
                self._target = None
        self.playhead.move_to(self._shown)

    async def _drop_reading(self) -> None:
        self._unapplied.clear()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None

    async def _refresh_timeline(self) -> None:
        now = self._clock()
        if self._timeline_read_at is None or (
            now - self._timeline_read_at >= TIMELINE_EVERY_S and self.source.running
        ):
            self._timeline_read_at = now
            self.timeline = await self._in_thread(self.source.timeline)

    async def _play(self) -> None:
        if self.playhead.paused:
            return
        if self._reading is not None and self._reading.done():
            self._unapplied.extend(self._reading.result())
            self._reading, self._read = None, self._reading_to
        wanted = self.playhead.at
        self._apply(min(wanted, self._read))
        if self._shown < wanted:  # reading or applying can't keep up: slow down, skip no frame
            self.playhead.move_to(self._shown)
        length = max(AHEAD_S * self.playhead.speed, AHEAD_S, 2 * self.source.interval_s)
        if self._reading is None and self._read < self.end and self._read - self._shown < length:
            self._reading_to = min(self._read + length, self.playhead.end)
            call = self._in_thread(self.source.events, self._read, self._reading_to)
            self._reading = asyncio.ensure_future(call)
            self._reading.add_done_callback(lambda _done: self._wake.set())
        if self._shown >= self.end:
            self.playhead.pause()
            self.caught_up = self.source.running

    def _apply(self, until: float) -> None:
        """Apply events up to a time, for at most ``APPLY_S``."""
        begun = self._clock()
        while self._unapplied and self._unapplied[0].at <= until:
            at = self._apply_next(until)
            if self._clock() - begun > APPLY_S and self._unapplied:
                self._shown = max(self._shown, at)
                return
        self._shown = max(self._shown, until)

    def _apply_next(self, until: float) -> float:
        """Apply the next event, or the next frames up to a time at once, and return its time."""
        frames: list[FrameArrived] = []
        while self._unapplied and self._unapplied[0].at <= until and len(frames) < BATCH_FRAMES:
            event = self._unapplied[0]
            if not isinstance(event, FrameArrived):
                break
            frames.append(event)
            self._unapplied.popleft()
        if frames:
            self.fleet.apply_frames(frames)
            return frames[-1].at
        event = self._unapplied.popleft()
        # A session that was started while looking back is in the fleet with another id until it is reloaded.
        unknown = isinstance(event, SessionStopped) and event.session_id not in self.fleet.sessions.sessions
        if not unknown:
            self.fleet.apply(event)
        return event.at
