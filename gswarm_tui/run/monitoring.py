"""Monitors the nodes of a plan for a screen, or for a recorder without one, until it ends."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gswarm_tui.common.errors import print_notice
from gswarm_tui.common.quantities import plural
from gswarm_tui.options.arguments import Options
from gswarm_tui.run import build
from gswarm_tui.run.plan import Plan
from gswarm_tui.run.supervisor import ENDING
from gswarm_tui.server.tokens import remove_tokens
from gswarm_tui.slurm import hosts
from gswarm_tui.slurm.jobs import Slurm

if TYPE_CHECKING:
    import signal

    from gswarm_tui.fleet.events import RecorderStatus
    from gswarm_tui.link.hub import Hub
    from gswarm_tui.run.http_server import Listener
    from gswarm_tui.run.lifetime import RunResult
    from gswarm_tui.store.recording.recorder import Recorder

NAMES_MOST = 80
"""Longer host lists are printed as a number of nodes."""
STOPPED_BY = "the recording was ended by gswarm-tui recording stop"


async def monitor(
    options: Options,
    plan: Plan,
    hub: Hub,
    recorder: Recorder | None,
    screen: Coroutine[Any, Any, object],
    *,
    painted: asyncio.Event,
    request_quit: Callable[[str], None],
    end_recording: Callable[[], None],
    ending: Collection[signal.Signals] = ENDING,
    leaves_agents: Callable[[], bool] = lambda: False,
    listener: Listener | None = None,
) -> RunResult:
    """Connect to all nodes and answer requests until ``screen`` or one of the signals ``ending`` ends it.

    ``request_quit`` ends the screen; ``end_recording`` is called when a command ends the recording.
    ``leaves_agents`` returns, once the screen has ended, whether another recorder resumes the recording.
    ``listener`` is where an HTTP server answers, None without one.
    """
    from gswarm_tui.run.job_end import follow
    from gswarm_tui.run.lifetime import Lifetime

    _publish_notices(hub, plan, recorder)
    launcher = build.build_launcher(options, plan, "" if recorder is None else recorder.uid)
    build.add_links(hub, launcher, options, recorder)
    _refuse_counters(hub)
    lifetime = Lifetime(
        hub,
        launcher,
        recorder,
        request_quit,
        lasting=build.keeps_agents(options),
        waiting=_print_waiting,
        ending=ending,
        leaves_agents=leaves_agents,
    )
    following = None if plan.job is None else asyncio.create_task(follow(hub, Slurm(), plan.job))
    control = serving = None
    try:
        control = await build.start_control_server(hub, recorder, plan, os.environ, end_recording)
        if listener is not None and recorder is not None and control is not None:
            serving = asyncio.create_task(_serve_http(listener, hub, recorder.uid), name="HTTP server")
        return await lifetime.run(screen, painted)
    finally:
        if following is not None:
            following.cancel()
        if hub.tracing is not None:
            await hub.tracing.close()
        if control is not None:
            await control.close(ended=not leaves_agents())
        if serving is not None:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        if recorder is not None and not leaves_agents():
            remove_tokens(recorder.uid)


async def _serve_http(listener: Listener, hub: Hub, uid: str) -> None:
    """Keep the HTTP server running, and log where it is and when it ends."""
    from gswarm_tui.run.http_server import keep_running

    hub.log("notice", listener.describe(uid))
    await keep_running(listener, uid, partial(hub.warn, "notice"))


def _publish_notices(hub: Hub, plan: Plan, recorder: Recorder | None) -> None:
    if plan.notice:
        hub.log("notice", plan.notice)
    if recorder is not None and (message := _interrupted_message(recorder)):
        print_notice(message)
        hub.warn("interrupted", message)


def _refuse_counters(hub: Hub) -> None:
    """Switch off hardware counters that may not be read, as in a resumed recording whose job has ended."""
    from gswarm_agent.metrics import COUNTERS

    groups = hub.fleet.metrics
    if COUNTERS in groups and hub.counters_refusal:
        hub.set_metrics(tuple(group for group in groups if group != COUNTERS))
        hub.warn("notice", hub.counters_refusal)


def _interrupted_message(recorder: Recorder) -> str:
    from gswarm_tui.run.interrupted import began, short_id

    if not (unended := recorder.interrupted):
        return ""
    newest = unended[-1]
    recover = f"`gswarm-tui recover {short_id(newest)} --db {shlex.quote(str(recorder.path))}` resumes it"
    if len(unended) == 1:
        return f"{recorder.path} has an interrupted recording of {began(newest)}: {recover}"
    return (
        f"{recorder.path} has {len(unended)} interrupted recordings, the last of {began(newest)}: {recover}"
    )


def _print_waiting(nodes: Sequence[str]) -> None:
    names = hosts.fold(nodes)
    where = names if len(names) <= NAMES_MOST else plural(len(nodes), "node")
    print_notice(f"waiting for the last frames of {where} …")


def written_line(status: RecorderStatus, sessions: int) -> str:
    """Return a line about a closed recording: file, rows, size, sessions."""
    named = f", {plural(sessions, 'session')}" if sessions else ""
    return f"{status.path}: {plural(status.rows, 'row')} in {status.file_bytes / 1e6:.1f} MB{named}"


def problems_of(ended: RunResult, log: Path, uid: str) -> list[str]:
    """Return a sentence for each failure of a run."""
    problems = [f"{ended.problem} (log: {log})"] if ended.problem else []
    if (status := ended.status) is not None:
        if status.error:
            problems.append(f"the recording is incomplete: {status.error} (log: {log})")
        if ended.holding:
            problems.append(
                f"{hosts.fold(ended.holding)} may hold frames that couldn't be fetched; "
                f"`gswarm-tui recover {uid[:8]} --finish --db {shlex.quote(status.path)}` tries again"
            )
    return problems
