"""Builds the parts of a run from its options: hub, recorder, launcher, links, player, control server.

Imports wait until a part is needed.
"""

from __future__ import annotations

import getpass
import itertools
import json
import os
import shlex
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gswarm_agent import __version__
from gswarm_agent.metrics import DEFAULT_GROUPS
from gswarm_agent.redact import HIDDEN, redact
from gswarm_tui.common.paths import working_folder
from gswarm_tui.common.processes import run_command
from gswarm_tui.options.arguments import Options
from gswarm_tui.run.plan import Plan
from gswarm_tui.run.saved_options import NOTES, save_options, write_note

if TYPE_CHECKING:
    from gswarm_tui.asking.asking import Asking, Step
    from gswarm_tui.fleet.events import RecorderStatus
    from gswarm_tui.launch.base import Launcher
    from gswarm_tui.link.hub import Hub, Run
    from gswarm_tui.playback.player import Player
    from gswarm_tui.run.announcements import Announcements
    from gswarm_tui.store.querying.arrays import ArraySource
    from gswarm_tui.store.recording.database import RecordingInfo
    from gswarm_tui.store.recording.recorder import FileWriter

COMMIT_S = 2.0
"""Least time between two commits of frames; an intent triggers one at once."""
ON_DISK_S = COMMIT_S + 1.0
"""Older frames are on disk unless writing fails; looking back ends this long before now."""

_HIDDEN_FLAGS = ("--setup", "--on-finding")


def build_hub(options: Options, plan: Plan) -> Hub:
    """Build a hub for the plan's nodes, on the recorder's own clock."""
    from gswarm_tui.fleet.state import Fleet
    from gswarm_tui.link.clock import steady_wall_clock
    from gswarm_tui.link.hub import Hub

    fleet = Fleet(plan.nodes, options.interval_ms, plan.allocation, metrics=options.metrics)
    hub = Hub(fleet, clock=steady_wall_clock())
    hub.counters_refusal = "" if options.demo else plan.counters_refusal
    return hub


def start_recording(hub: Hub, options: Options, plan: Plan, words: Sequence[str], uid: str) -> FileWriter:
    """Open a recorder for a new recording. Raises StoreError, UserError."""
    from gswarm_tui.fleet.events import metrics_changed
    from gswarm_tui.store.errors import FileInUseError
    from gswarm_tui.store.recording.database import RecordingInfo
    from gswarm_tui.store.recording.files import default_paths, is_own

    job, saved = plan.job, save_options(options, plan)
    info = RecordingInfo(
        started_at=hub.started_at,
        host=socket.gethostname(),
        user_name=user_name(),
        command=_command(words),
        interval_ms=options.interval_ms,
        tool_version=__version__,
        slurm_job_id=job.label if job else None,
        slurm_cluster=job.cluster if job else None,
        uid=uid,
        options=saved,
    )
    label = job.label if job else None
    paths = default_paths(Path() if options.db else working_folder(), datetime.now().astimezone(), label)
    # Runs of one minute get a file each, those of a job share one. In a shared folder others may own it.
    names = (path for path in paths if is_own(path) and (job is not None or not path.exists()))
    path = options.db or next(names)
    while True:
        try:
            recorder = _open(hub, options, plan, path, info)
            break
        except FileInUseError:
            if options.db is not None:
                raise
            path = next(names)
    if options.metrics != DEFAULT_GROUPS:
        hub.publish(metrics_changed(hub.started_at, DEFAULT_GROUPS, options.metrics))
    if keeps_agents(options):
        try:
            write_note(uid, json.loads(saved), options.setup or "")
        except OSError as error:
            what = "will need --trust" + ("" if options.setup is None else " and --setup again")
            hub.warn("notice", f"gswarm-tui recover {what}: {NOTES.path}: {error.strerror}")
    return recorder


def _command(words: Sequence[str]) -> str:
    """Return the command line without secrets and programs of the user."""
    shown, before = ["gswarm-tui"], ""
    for word in words:
        flag, is_set, _ = word.partition("=")
        is_hidden = is_set and flag in _HIDDEN_FLAGS
        shown.append(HIDDEN if before in _HIDDEN_FLAGS else f"{flag}={HIDDEN}" if is_hidden else word)
        before = word
    return shlex.join(redact(shown))


def user_name() -> str:
    """Return the user's name, or number where it has no name, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def resume_recording(hub: Hub, options: Options, plan: Plan, path: Path, recording_id: int) -> FileWriter:
    """Open a recorder for an interrupted recording and restore the hub's state. Raises StoreError."""
    from gswarm_tui.fleet.events import FindingChanged

    recorder = _open(hub, options, plan, path, recording_id)
    if (resumed := recorder.resumed) is not None:
        hub.started_at = resumed.started_at
        for session in resumed.sessions:
            hub.fleet.sessions.restore(session)
        hub.fleet.restore_energy(resumed.energy_j, resumed.gpus)
        hub.fleet.findings |= {finding.finding_id: finding for finding in resumed.findings}
        for finding in resumed.findings:
            if finding.until is None:
                hub.publish(FindingChanged(resumed.last_at, replace(finding, until=resumed.last_at)))
        hub.fleet.restore_sequences((life.node, life.life, life.seq, life.ts_ns) for life in resumed.lives)
        for life in resumed.lives if keeps_agents(options) else ():
            if life.ts_ns and life.node not in resumed.accounted:
                hub.fleet.note_interrupted_run(life.node, life.life, life.last_at)
    return recorder


def keeps_agents(options: Options) -> bool:
    """Return whether agents outlive their links and keep frames that aren't on disk yet."""
    return options.record and options.demo is None


def _open(hub: Hub, options: Options, plan: Plan, path: Path, what: RecordingInfo | int) -> FileWriter:
    import asyncio

    from gswarm_tui.store.recording.recorder import FileWriter

    loop = asyncio.get_running_loop()

    def publish_status(status: RecorderStatus) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(hub.recorded, status)

    recorder = FileWriter(
        path,
        what,
        publish_status,
        allocation=plan.allocation,
        commit_every_s=COMMIT_S,
        query_memory=options.query_memory,
    )
    recorder.open()
    hub.recorder, hub.next_session = recorder.status(), recorder.next_session
    hub.sinks.append(recorder)
    return recorder


def watch_findings(hub: Hub, recorder: FileWriter | None) -> Iterator[int]:
    """Let the rules look at the fleet after each flush; what they find is published as events.

    Returns what yields the numbers of new findings.
    """
    from gswarm_tui.insight.live import LiveWatch
    from gswarm_tui.insight.watch import time_scale

    numbers = itertools.count(1 if recorder is None else recorder.next_finding)
    watch = LiveWatch(hub.fleet, hub.publish, user=user_name(), scale=time_scale(os.environ), numbers=numbers)
    hub.sinks.append(watch)
    hub.flushed.append(lambda: watch.observe(hub.now()))
    return numbers


def build_asking(
    hub: Hub, recorder: FileWriter | None, numbers: Iterator[int], uid: str, job_id: str, *, py_spy: str
) -> Asking | None:
    """Build what asks the job, None for simulated nodes or without a recording.

    ``py_spy`` is its path on the nodes, empty for the recorder's own.
    """
    tracing = hub.tracing
    if recorder is None or tracing is None:
        return None
    from gswarm_agent.trace import socket_folder
    from gswarm_tui.asking.asking import Asking

    def steps() -> tuple[Step, ...]:
        from gswarm_tui.asking.ladder import build_steps

        return build_steps(tracing, query, py_spy)

    def query(sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(recorder.queries()) as source:
            return list(source.query(sql, *values).rows())

    # Processes that record started know the recording's folder.
    job = {"KINETO_IPC_SOCKET_DIR": socket_folder(uid), "SLURM_JOB_ID": job_id}
    return Asking(hub, steps, numbers, job)


def announce_findings(
    hub: Hub, options: Options, plan: Plan, recorder: FileWriter | None
) -> Announcements | None:
    """Send findings as the options say; return what does it, None without such an option."""
    if options.on_finding is None:
        return None
    import asyncio

    from gswarm_tui.run.announcements import Announcements

    loop = asyncio.get_running_loop()

    def warn(message: str) -> None:
        with suppress(RuntimeError):  # the recording has ended
            loop.call_soon_threadsafe(hub.warn, "notice", message)

    about = {
        "recording": None if recorder is None else str(recorder.path.absolute()),
        "job": plan.job.label if plan.job else None,
        "host": socket.gethostname(),
        "simulated": options.demo is not None,
    }
    announcements = Announcements(options.on_finding, about, warn)
    hub.sinks.append(announcements)
    return announcements


def build_launcher(options: Options, plan: Plan, recording: str, *, only_left: bool = False) -> Launcher:
    """Build the launcher of a recording's agents, by its uid; without one, agents end with their links.

    With ``only_left`` no agent samples: each sends only the frames that earlier agents left.
    """
    if options.demo is not None:
        from gswarm_tui.launch.simulated import SimulatedLauncher

        return SimulatedLauncher(options.demo.nodes, options.demo.gpus)
    from gswarm_tui.launch.bootstrap import Bootstrap, Serving

    serving = Serving(recording, options.linger_s, options.spool_mib, only_left, options.arm)
    if options.launcher == "local":
        from gswarm_tui.launch.local import LocalLauncher

        return LocalLauncher(serving)
    bootstrap = Bootstrap(options.setup or "", options.agent_python or "", serving)
    if options.launcher == "srun" and plan.job is not None:
        from gswarm_tui.launch.srun import SrunLauncher

        gpus = plan.allocation if plan.job.gpus_in_total else None
        return SrunLauncher(plan.job.job_id, bootstrap, gpus, plan.job.het_groups)
    from gswarm_tui.launch.ssh import SshLauncher, SshSettings

    config = str(options.ssh_config) if options.ssh_config else ""
    return SshLauncher(SshSettings(options.user or "", config, options.jump or ""), bootstrap)


def add_links(
    hub: Hub, launcher: Launcher, options: Options, recorder: FileWriter | None, *, only_left: bool = False
) -> None:
    """Add a link for each node of the fleet, with the frames that are on disk already."""
    from gswarm_tui.link.link import Clocks, Link

    resumed = None if recorder is None else recorder.resumed
    for node in hub.fleet.nodes:
        hub.links[node] = Link(
            node,
            launcher,
            options.interval_ms,
            hub.publish,
            metrics=options.metrics,
            of_nodes=len(hub.fleet.nodes),
            spool_mib=options.spool_mib,
            clocks=Clocks(wall=hub.now),
        )
    if recorder is not None and options.demo is None and not only_left:
        from gswarm_tui.link.tracing import Tracing

        path = recorder.path.absolute()
        folder = path.with_name(f"{path.stem}-traces")
        hub.tracing = Tracing(hub.links, folder, hub.publish, partial(_import_trace, path), hub.now)
    if resumed is not None:
        for life in resumed.lives:
            if life.node in hub.links:
                last = None if life.at is None else (life.ts_ns, life.at)
                hub.links[life.node].resume(life.life, life.seq, life.offset_s, life.round_trip_s, last)


async def _import_trace(db: Path, file: Path, node: str) -> str:
    """Import a trace into a recording through its recorder; return why it failed, empty if it didn't."""
    try:
        return (await run_command("import", str(file), "--db", str(db), f"--node={node}")).rstrip(".")
    except OSError as error:
        return f"the import failed: {error.strerror}"


def build_player(live: Run, source: ArraySource, recording_id: int) -> Player:
    """Build a player of a running recording, at its newest frame on disk. Raises StoreError."""
    from gswarm_tui.playback.player import Player, Playhead
    from gswarm_tui.playback.recorded_source import RecordedSource

    def until() -> float:
        return live.now() - max(ON_DISK_S, 1.5 * live.fleet.interval_s)

    replay = RecordedSource(source, recording_id, until, lambda: live.fleet)
    playhead = Playhead(live.started_at, until(), until(), time.monotonic)
    return Player(replay, playhead, time.monotonic)


def choose_theme(options: Options, environ: Mapping[str, str]) -> str:
    """Return the chosen theme, or the one that suits the terminal."""
    from gswarm_tui.tui.drawing.themes import theme_for

    return options.theme or theme_for(environ)
