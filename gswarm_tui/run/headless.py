"""The recorder, in a process that ``run/batch.py`` ends, and restarts if it dies.

It has no screen: screens, commands and servers are its clients.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import shlex
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gswarm_tui.common.errors import UserError, print_notice, printable
from gswarm_tui.common.quantities import duration, plural
from gswarm_tui.options.arguments import Options
from gswarm_tui.run import build, log_file
from gswarm_tui.run.plan import Plan
from gswarm_tui.slurm import hosts

if TYPE_CHECKING:
    from gswarm_tui.control.registry import Listening
    from gswarm_tui.control.server import ControlServer
    from gswarm_tui.fleet.events import Event
    from gswarm_tui.run.interrupted import InterruptedRun
    from gswarm_tui.run.lifetime import RunResult
    from gswarm_tui.store.recording.recorder import FileWriter

CONNECT_S = 30.0
"""Nodes without data after this long are named in a line."""
NOTICE_EVERY_S = 60.0
"""Errors of one kind are printed this often at most; all are in the recording."""
READERS_END_S, READERS_EVERY_S = 30.0, 0.2
"""Longest wait for other programs that read the file to resume, and the time between two attempts."""
RECONNECTED_S = 15.0
"""Screens of a recorder that died have attached to the restarted one by then."""
NAMES_MOST = 80
"""Longer host lists are printed as a number of nodes."""
PARENT_KILLED = "the process that had started the recorder was killed"
NOTE_BYTES = 16_384
"""Room for what the rules found, in memory that is shared with the parent process."""
STOPPED = 64
"""Bit in the exit status of a recorder that an intent ended, or that ended because nobody needs it."""


@dataclass(frozen=True)
class OpenRecording:
    """Recording that is being written: its uid and its file, None without a recording."""

    uid: str
    path: Path | None


class RecorderStart(NamedTuple):
    """Arguments that the parent process passes to a recorder.

    ``resumed`` is the recording to resume, and ``why_resumed`` how its former recorder died, if it did.
    ``opened`` is called when clients can connect. The pipe ``end`` is closed to end the recorder, and may
    hold the reason. ``first`` is the connection of the client that started it.
    """

    resumed: OpenRecording | None
    why_resumed: str
    opened: Callable[[OpenRecording], None]
    end: int
    listening: Listening
    first: socket.socket | None


@dataclass
class Headless:
    """Recorder of a run: opens or resumes its recording, serves its clients, and closes it.

    ``words`` are the command line. ``name`` is the session to start, empty for none. A recorder
    ``for_screen`` ends some time after its last screen (``unattended_s``); with a job it waits for the job's
    end instead, unless ``runs_command``. The memory ``detached`` is shared with the parent, so that a
    restarted recorder knows that its user has left it for good.
    """

    options: Options
    plan: Plan
    words: Sequence[str]
    name: str = ""
    for_screen: bool = False
    runs_command: bool = False
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    detached: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 1))
    _note: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, NOTE_BYTES))
    _control: ControlServer | None = None
    _job_ended: bool = False
    _leaving: asyncio.TimerHandle | None = None
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _stopped: bool = False
    _printed_at: dict[str, float] = field(default_factory=dict)
    _unwritten: str = ""
    _why: str = ""

    def __post_init__(self) -> None:
        """Check that the HTTP server can start, if there is to be one. Raises UserError."""
        ends_with_screen = self.options.demo is not None or not self.options.record
        unattended_s = 0 if ends_with_screen else self.options.unattended_s
        self.unattended_s = unattended_s if self.for_screen else None
        if self.options.server is not None:
            from gswarm_tui.run.http_server import check_server

            check_server(self.options.server)

    def record(self, start: RecorderStart) -> int:
        """Record until something ends it, and return the exit status. Call it once in a process.

        The exit status has the bit ``STOPPED`` if the parent's pipe didn't end it. Raises UserError.
        """
        from gswarm_tui.run.lifetime import return_freed_arrays
        from gswarm_tui.store.duckdb_internals import share_one_arena

        share_one_arena(os.environ)  # before DuckDB is loaded
        return_freed_arrays()
        self._log = log_file.begin()
        chosen = None
        if start.resumed is not None:
            self.uid = start.resumed.uid
            if start.resumed.path is not None:
                from gswarm_tui.run import interrupted

                chosen = interrupted.choose(*interrupted.find(Path(), start.resumed.path), start.resumed.uid)
                # Not the options in the file: others may have replaced them, and they can run commands.
                self.options = chosen.measuring_as_before(self.options)
        self._hub = build.build_hub(self.options, self.plan)
        return asyncio.run(self._record(chosen, start))

    async def _record(self, chosen: InterruptedRun | None, start: RecorderStart) -> int:
        from gswarm_tui.control.execution import Executor
        from gswarm_tui.control.intents import StartSession
        from gswarm_tui.control.server import ControlServer
        from gswarm_tui.run.job_end import follow
        from gswarm_tui.run.lifetime import Lifetime, try_with_catalogue
        from gswarm_tui.slurm.jobs import Slurm

        asyncio.get_running_loop().add_reader(start.end, self._read_end, start.end)
        hub, options, plan = self._hub, self.options, self.plan
        recorder = await self._open(chosen) if options.record else None
        if start.why_resumed:
            hub.warn("recorder_restarted", f"the recorder {start.why_resumed}")
            hub.flush()
            if recorder is not None:
                await asyncio.wrap_future(recorder.commit())  # it may be killed again at once
        if self.name and self.name not in {session.name for session in hub.fleet.sessions.running}:
            Executor(hub, recorded=True).carry_out(StartSession(self.name))
        hub.sinks.append(self)
        numbers = build.watch_findings(hub, recorder)
        announcements = build.announce_findings(hub, options, plan, recorder)
        self._publish_notices(recorder)
        launcher = build.build_launcher(options, plan, "" if recorder is None else self.uid)
        build.add_links(hub, launcher, options, recorder)
        self._refuse_counters()
        asking = build.build_asking(
            hub, recorder, numbers, self.uid, plan.job_id, py_spy=options.py_spy or ""
        )
        self._control = ControlServer(
            hub,
            recorder,
            start.listening,
            os.environ,
            uid=self.uid,
            end=self._stop,
            detach=lambda: self.detached.__setitem__(0, 1),
            attended=self._check_attended,
            label=plan.label,
            job_id=plan.job_id,
            asking=asking,
        )
        opened = partial(start.opened, OpenRecording(self.uid, None if recorder is None else recorder.path))
        lifetime = Lifetime(hub, launcher, recorder, build.keeps_agents(options), numbers)
        tasks = []
        report: dict[str, Any] | None = None
        try:
            await self._control.start(start.first)
            if plan.job is not None:
                tasks.append(asyncio.create_task(follow(hub, Slurm(), plan.job, self._end_with_job)))
            if start.first is None:
                self._check_attended(RECONNECTED_S)
            report = self._report(recorder, await lifetime.run(self._wait(opened)))
        finally:
            if asking is not None:
                await asking.close()
            if hub.tracing is not None:
                await hub.tracing.close()
            await self._control.close(report)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if announcements is not None:
                await asyncio.to_thread(announcements.close)
            if recorder is not None:
                from gswarm_tui.server.tokens import remove_tokens

                remove_tokens(self.uid)
                what = f"{recorder.path} could not be added to the catalogue of runs"
                await try_with_catalogue(what, partial(_add_to_catalogue, recorder.path))
        return int(report["status"]) | (STOPPED if self._stopped else 0)

    async def _open(self, chosen: InterruptedRun | None) -> FileWriter:
        from gswarm_tui.store.errors import StoreError

        hub, options, plan = self._hub, self.options, self.plan
        try:
            if chosen is not None:
                return await self._resume(chosen)
            recorder = build.start_recording(hub, options, plan, self.words, self.uid)
        except StoreError as error:
            raise UserError(f"{error}.") from None
        names = hosts.fold(plan.nodes)
        where = plural(len(plan.nodes), "node") + (f" ({names})" if len(names) <= NAMES_MOST else "")
        where += f" of {plan.source}" if plan.source else ""
        session = f", session {self.name}" if self.name else ""
        print_notice(f"recording {where} into {recorder.path}{session}")
        return recorder

    async def _resume(self, chosen: InterruptedRun) -> FileWriter:
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

    def _publish_notices(self, recorder: FileWriter | None) -> None:
        hub = self._hub
        if self.plan.notice:
            hub.log("notice", self.plan.notice)
        if recorder is not None and (unended := recorder.interrupted):
            from gswarm_tui.run.interrupted import began, short_id

            recover = f"gswarm-tui recover {short_id(unended[-1])} --db {shlex.quote(str(recorder.path))}"
            count = plural(len(unended), "interrupted recording")
            message = f"{count}, the last of {began(unended[-1])}: `{recover}` resumes it"
            print_notice(message)
            hub.warn("interrupted", message)

    def _refuse_counters(self) -> None:
        """Switch off counters that may not be read, as in a resumed recording whose job has ended."""
        from gswarm_agent.metrics import COUNTERS

        hub = self._hub
        if COUNTERS in hub.fleet.metrics and hub.counters_refusal:
            hub.set_metrics(tuple(group for group in hub.fleet.metrics if group != COUNTERS))
            hub.warn("notice", hub.counters_refusal)

    # The end

    def _end_with_job(self) -> None:
        self._job_ended = True
        self._check_attended()

    def _check_attended(self, least_s: float = 0.0) -> None:
        """End the recorder if nobody needs it, or later if no screen attaches until then."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        if self._control is None or self._control.screens or self.runs_command or self._ended.is_set():
            return
        limit, why = self.unattended_s, f"no screen was attached for {duration(self.unattended_s or 0)}"
        if self._job_ended and self.plan.job is not None:
            limit, why = 0, f"job {self.plan.job_id} ended, and no screen is attached"
        elif limit is not None and (self.detached[0] or (limit and self.plan.job is not None)):
            limit = None
        elif limit == 0:
            why = "the last screen was closed"
        if limit is not None:
            later = max(limit, least_s)
            self._leaving = asyncio.get_running_loop().call_later(later, self._stop, why)

    def _read_end(self, end: int) -> None:
        """End the recording: its parent sent the reason for it, or was killed."""
        asyncio.get_running_loop().remove_reader(end)
        reason = os.read(end, 4096).decode(errors="replace")
        if not reason:
            print_notice(PARENT_KILLED)
        self._end(reason or PARENT_KILLED)

    def _stop(self, why: str) -> None:
        """End the recorder, at an intent or because nobody needs it."""
        if not self._ended.is_set():
            self._stopped = True
            print_notice(why)
            self._end(why)

    def _end(self, reason: str) -> None:
        self._why = reason
        self._hub.log("recording_ended", reason)
        self._ended.set()

    def _report(self, recorder: FileWriter | None, ended: RunResult) -> dict[str, Any]:
        """Print how the recording ended, and return it for clients: why, note, lines, problems, status."""
        problems = [f"{ended.problem} (log: {self._log})"] if ended.problem else []
        if ended.status is not None and ended.status.error:
            problems.append(f"the recording is incomplete: {ended.status.error} (log: {self._log})")
        if ended.status is not None and ended.holding:
            problems.append(
                f"{hosts.fold(ended.holding)} may hold frames that couldn't be fetched; `gswarm-tui recover "
                f"{self.uid[:8]} --finish --db {shlex.quote(ended.status.path)}` tries again"
            )
        report: dict[str, Any] = {"lines": [], "problems": problems, "next": "", "why": self._why}
        report["status"] = 1 if report["problems"] else 0
        if recorder is not None and ended.status is not None:
            note = self._write_note(recorder.path)
            if not ended.holding and not ended.status.error:
                from gswarm_tui.run.saved_options import remove_note

                remove_note(self.uid)
            if self._control is not None and self._control.screens and not report["problems"]:
                report["note"] = note
                report["next"] = next_commands(recorder.path)
            from gswarm_tui.store.recording.files import has_log

            sessions, status = len(self._hub.fleet.sessions.sessions), ended.status
            named = f", {plural(sessions, 'session')}" if sessions else ""
            written = f"{plural(status.rows, 'row')} in {status.file_bytes / 1e6:.1f} MB{named}"
            report["lines"].append(printable(f"{status.path}: {written}"))
            if recorder.queried and has_log(recorder.path):
                report["problems"].append(
                    f"a query could not be cancelled, so the newest samples are in {recorder.path}.wal; "
                    "keep it beside the file"
                )
            print_notice(report["lines"][-1])
        for problem in report["problems"]:
            print_notice(problem)
        return report

    def _write_note(self, path: Path) -> list[tuple[str, str]]:
        """Note for the parent process what the rules found, and return it as labels and texts."""
        from gswarm_tui.fleet.findings import in_order
        from gswarm_tui.insight.notes import closing_note
        from gswarm_tui.insight.pace import pace_text

        fleet = self._hub.fleet
        if fleet.examined is None:
            return []
        command = f"gswarm-tui diagnose --db={shlex.quote(str(path))}"
        found, examined = in_order(fleet.findings.values()), fleet.examined
        pace = pace_text(examined.step_s, examined.step_before_s)
        note = closing_note(found, examined.ledger, command, pace)
        written = json.dumps([[printable(part) for part in line] for line in note]).encode()
        if len(written) <= NOTE_BYTES:
            self._note[:] = written.ljust(NOTE_BYTES, b"\0")
        return note

    def read_note(self) -> list[list[str]]:
        """Return in the parent process what the rules found, as labels and texts."""
        lines: list[list[str]] = json.loads(bytes(self._note).rstrip(b"\0") or b"[]")
        return lines

    # What it prints

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
            gpus = sum(fact.parent_index is None for node in nodes for fact in node.facts)
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
        """Print why traces are unavailable, a line for all nodes with the same reason."""
        nodes_by_reason: dict[str, list[str]] = {}
        for node in self._hub.fleet.nodes.values():
            if node.hello is not None and (why := node.hello.capabilities.get("traces")):
                nodes_by_reason.setdefault(why, []).append(node.name)
        for why, names in nodes_by_reason.items():
            print_notice(f"no traces on {hosts.fold(names)}: {why}")

    def submit(self, events: Sequence[Event]) -> None:
        """Print errors among the events, each kind at most once in ``NOTICE_EVERY_S``."""
        from gswarm_agent.frame import ERROR, gpu_label
        from gswarm_tui.fleet.events import EventLogged

        for event in events:
            if not isinstance(event, EventLogged) or event.severity != ERROR:
                continue
            if event.at - self._printed_at.get(event.kind, -NOTICE_EVERY_S) >= NOTICE_EVERY_S:
                self._printed_at[event.kind] = event.at
                where = event.node if event.gpu is None else f"{event.node}:{gpu_label(event.gpu)}"
                print_notice(f"{where}: {event.message}" if where else event.message)


def _add_to_catalogue(path: Path) -> None:
    """Add an ended recording to the catalogue of this user's runs. Raises StoreError, OSError and others."""
    from contextlib import closing

    from gswarm_tui.runs import catalogue
    from gswarm_tui.runs.reading import TABLES, read_lines
    from gswarm_tui.store.querying.file_source import FileSource

    with closing(FileSource(path, for_people=False, tables=TABLES)) as source:
        catalogue.add(read_lines(source))


def next_commands(path: Path) -> str:
    """Return the line that names the next commands: one to copy, with its file quoted for a shell."""
    with suppress(ValueError, OSError):
        path = path.relative_to(Path.cwd())
    return f"next: gswarm-tui summary --db={printable(shlex.quote(str(path)))}   (or replay, report)"
