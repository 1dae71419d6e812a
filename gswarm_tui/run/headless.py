"""Recorder without a screen, in a process that ``run/batch.py`` ends, and restarts if it dies."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gswarm_tui.common.errors import UserError, print_notice
from gswarm_tui.common.quantities import plural
from gswarm_tui.options.arguments import Options
from gswarm_tui.run import build, event_loop, log_file
from gswarm_tui.run.monitoring import NAMES_MOST, STOPPED_BY, monitor, problems_of, written_line
from gswarm_tui.run.plan import Plan
from gswarm_tui.slurm import hosts

if TYPE_CHECKING:
    from gswarm_tui.fleet.events import Event
    from gswarm_tui.run.http_server import Listener
    from gswarm_tui.run.interrupted import InterruptedRun
    from gswarm_tui.store.recording.recorder import Recorder

CONNECT_S = 30.0
"""Nodes without data after this long are named in a line."""
NOTICE_EVERY_S = 60.0
"""Errors of one kind are printed this often at most; all are in the recording."""
READERS_END_S, READERS_EVERY_S = 30.0, 0.2
"""Longest wait for commands that read the file to resume, and the time between two attempts."""
COMMITTED_S, COMMITTED_EVERY_S = 5.0, 0.02
"""Longest wait until the event of a restart is on disk, and the time between two looks."""
PARENT_KILLED = "the process that had started the recorder was killed"
STOPPED = 64
"""Bit in the exit status of a recorder that ``gswarm-tui recording stop`` ended."""


@dataclass(frozen=True)
class OpenRecording:
    """Recording that is being written: its uid and its file."""

    uid: str
    path: Path


@dataclass
class Headless:
    """Recorder of a run without a screen: opens or resumes its recording, prints what happens, and closes it.

    ``words`` are the command line. ``name`` is the session to start, empty for none. ``listener`` is where an
    HTTP server answers.
    """

    options: Options
    plan: Plan
    words: Sequence[str]
    name: str
    listener: Listener | None = None
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _stopped: bool = False
    _printed_at: dict[str, float] = field(default_factory=dict)
    _unwritten: str = ""

    def record(
        self,
        resumed: OpenRecording | None,
        why_resumed: str,
        opened: Callable[[OpenRecording], None],
        end: int,
    ) -> int:
        """Record until the pipe ``end`` is closed, and return the exit status. Call it once in a process.

        Args:
            resumed: the recording to resume, of a recorder that died.
            why_resumed: how it died.
            opened: called when the recording and its session have begun and commands can control it.
            end: may hold the reason for the end, which becomes an event.

        The exit status has the bit ``STOPPED`` if a command ended the recording, not the pipe.

        Raises:
            UserError: the recording can't be opened.
        """
        from gswarm_tui.store.duckdb_internals import share_one_arena

        share_one_arena(os.environ)  # before DuckDB is loaded
        self._log = log_file.begin()
        chosen = None if resumed is None else _interrupted(resumed)
        if chosen is not None:
            # Not the options in the file, which others may have replaced meanwhile: they can run commands.
            self.options = chosen.measuring_as_before(self.options)
        self._hub = build.build_hub(self.options, self.plan)
        return event_loop.run(self._record(chosen, why_resumed, opened, end))

    async def _record(
        self,
        chosen: InterruptedRun | None,
        why_resumed: str,
        opened: Callable[[OpenRecording], None],
        end: int,
    ) -> int:
        asyncio.get_running_loop().add_reader(end, self._read_end, end)
        recorder, uid = await self._open(chosen)
        if why_resumed:
            await self._publish_restart(why_resumed, recorder)
        elif self.listener is not None:
            print_notice(self.listener.describe(uid))
        running = {session.name for session in self._hub.fleet.sessions.running}
        if self.name and self.name not in running:
            self._hub.start_session(self.name)
        self._hub.sinks.append(self)
        painted = asyncio.Event()
        painted.set()
        ended = await monitor(
            self.options,
            self.plan,
            self._hub,
            recorder,
            self._wait(lambda: opened(OpenRecording(uid, recorder.path))),
            painted=painted,
            request_quit=lambda _reason: self._ended.set(),
            end_recording=self._stop,
            ending=(),
            listener=self.listener,
        )
        problems = problems_of(ended, self._log, uid)
        if ended.status is not None:
            if not problems:
                from gswarm_tui.run.resume_notes import remove_note

                remove_note(uid)
            print_notice(written_line(ended.status, len(self._hub.fleet.sessions.sessions)))
        for problem in problems:
            print_notice(problem)
        return (1 if problems else 0) | (STOPPED if self._stopped else 0)

    async def _open(self, chosen: InterruptedRun | None) -> tuple[Recorder, str]:
        from gswarm_tui.store.errors import StoreError

        hub, options, plan = self._hub, self.options, self.plan
        try:
            if chosen is not None:
                return await self._resume(chosen), chosen.interrupted.uid
            uid = str(uuid.uuid4())
            recorder = build.start_recording(hub, options, plan, self.words, uid)
        except StoreError as error:
            raise UserError(f"{error}.") from None
        names = hosts.fold(plan.nodes)
        where = plural(len(plan.nodes), "node") + (f" ({names})" if len(names) <= NAMES_MOST else "")
        where += f" of {plan.source}" if plan.source else ""
        session = f", session {self.name}" if self.name else ""
        print_notice(f"recording {where} into {recorder.path}{session}")
        return recorder, uid

    async def _resume(self, chosen: InterruptedRun) -> Recorder:
        """Resume a recording, once no command reads its file any more. Raises StoreError."""
        from gswarm_tui.store.errors import FileInUseError

        number = chosen.interrupted.recording_id
        deadline = time.monotonic() + READERS_END_S
        while True:
            try:
                return build.resume_recording(self._hub, self.options, self.plan, chosen.path, number)
            except FileInUseError:
                if time.monotonic() > deadline or self._ended.is_set():
                    raise
            await asyncio.sleep(READERS_EVERY_S)

    async def _publish_restart(self, why: str, recorder: Recorder) -> None:
        """Record why the recorder was restarted, and wait for the commit: it may be killed again at once."""
        self._hub.warn("recorder_restarted", f"the recorder was restarted: it {why}")
        self._hub.flush()
        deadline = time.monotonic() + COMMITTED_S  # the disk may be full
        while recorder.status().waiting and time.monotonic() < deadline:  # noqa: ASYNC110 - of its thread
            await asyncio.sleep(COMMITTED_EVERY_S)

    def _read_end(self, end: int) -> None:
        """End the recording: its parent sent the reason for it, or was killed."""
        asyncio.get_running_loop().remove_reader(end)
        reason = os.read(end, 4096).decode(errors="replace")
        if not reason:
            print_notice(PARENT_KILLED)
        self._end(reason or PARENT_KILLED)

    def _stop(self) -> None:
        """End the recording for ``gswarm-tui recording stop``."""
        if not self._ended.is_set():
            self._stopped = True
            print_notice(STOPPED_BY)
            self._end(STOPPED_BY)

    def _end(self, reason: str) -> None:
        self._hub.log("recording_ended", reason)
        self._ended.set()

    async def _wait(self, opened: Callable[[], None]) -> None:
        """Wait for the end; print when all nodes send data, or which don't.

        It is called once the control socket listens, so that the command can start a session at once.
        """
        opened()
        self._hub.flushed += (self._print_connected, self._print_unwritten)
        overdue = asyncio.get_running_loop().call_later(CONNECT_S, self._print_silent)
        try:
            await self._ended.wait()
        finally:
            overdue.cancel()

    def _print_connected(self) -> None:
        nodes = self._hub.fleet.nodes.values()
        if all(node.last_arrival is not None for node in nodes):
            gpus = sum(len(node.facts) for node in nodes)
            send = "sends" if len(nodes) == 1 else "send"
            print_notice(f"{plural(len(nodes), 'node')} {send} data, {plural(gpus, 'GPU')}")
            self._print_obstacles()
            self._hub.flushed.remove(self._print_connected)

    def _print_unwritten(self) -> None:
        """Print why the recorder can't write, when that begins."""
        error = self._hub.recorder.error if self._hub.recorder is not None else ""
        if error and not self._unwritten:
            print_notice(error)
        self._unwritten = error

    def _print_silent(self) -> None:
        silent = {node.name: node for node in self._hub.fleet.nodes.values() if node.last_arrival is None}
        if silent:
            first = next(iter(silent.values()))
            reason = f"; {first.name}: {first.reason}" if first.reason else ""
            print_notice(
                f"no data yet from {plural(len(silent), 'node')}: {hosts.fold(tuple(silent))}{reason}"
            )
            self._print_obstacles()

    def _print_obstacles(self) -> None:
        """Print why traces or stacks are unavailable, a line for all nodes with the same reason."""
        nodes_by_reason: dict[tuple[str, str], list[str]] = {}
        for node in self._hub.fleet.nodes.values():
            for what in ("traces", "stacks"):
                if node.hello is not None and (why := node.hello.capabilities.get(what)):
                    nodes_by_reason.setdefault((what, why), []).append(node.name)
        for (what, why), names in nodes_by_reason.items():
            print_notice(f"no {what} on {hosts.fold(names)}: {why}")

    def submit(self, events: Sequence[Event]) -> None:
        """Print errors among the events, each kind at most once in ``NOTICE_EVERY_S``."""
        from gswarm_agent.frame import ERROR
        from gswarm_tui.fleet.events import EventLogged

        for event in events:
            if not isinstance(event, EventLogged) or event.severity != ERROR:
                continue
            if event.at - self._printed_at.get(event.kind, -NOTICE_EVERY_S) >= NOTICE_EVERY_S:
                self._printed_at[event.kind] = event.at
                print_notice(f"{event.node}: {event.message}" if event.node else event.message)


def _interrupted(recording: OpenRecording) -> InterruptedRun:
    from gswarm_tui.run import interrupted

    found, unreadable = interrupted.find(Path(), recording.path)
    return interrupted.choose(found, unreadable, recording.uid)
