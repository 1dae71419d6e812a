"""Finishes an interrupted recording: fetches the frames on its nodes and closes it if none remain."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import shlex
from collections.abc import Collection
from typing import TextIO

from gswarm_agent.frame import ERROR
from gswarm_agent.wire import SENT_ALL
from gswarm_tui.common.errors import UserError, printable
from gswarm_tui.common.quantities import plural
from gswarm_tui.fleet.events import ABANDONED, KINDS_DURING_RUN, WAITING, EventLogged, Phase, agent_data_lost
from gswarm_tui.launch.agent_status import NodeStatus
from gswarm_tui.launch.base import LaunchError
from gswarm_tui.link.hub import Hub
from gswarm_tui.link.limits import TOO_MUCH
from gswarm_tui.options.arguments import Options
from gswarm_tui.run import build
from gswarm_tui.run.interrupted import InterruptedRun, query_all, short_id
from gswarm_tui.run.plan import Plan
from gswarm_tui.run.saved_options import remove_note
from gswarm_tui.server.tokens import remove_tokens
from gswarm_tui.slurm import hosts
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.recording.recorder import FileWriter

QUIET_S = 30.0
"""The recorder stops waiting for a node that sends nothing new for this many seconds."""
FETCH_S = 3600.0
"""Longest time in which a node may send old frames; a full spool needs 80 kB per second."""
FRESH_INTERVALS = 3
AGENTS_END_S = 15.0
POLL_S = 0.1
MICROSECOND = 1e-6


async def finish(run: InterruptedRun, settings: Options, out: TextIO, *, abandon: bool = False) -> int:
    """Fetch the frames on the nodes, close the recording, print its result and return the exit status.

    It stays open while an unreachable node may hold frames of it, unless ``abandon`` is set. Raises
    UserError.
    """
    known = run.interrupted
    options, plan = run.restore(settings) if known.uid else (settings, Plan(known.nodes))
    answers = await query_all(options, plan, known.uid) if known.uid and not options.demo else {}
    away = {n: f"unreachable: {a.reason}" for n, a in answers.items() if isinstance(a, LaunchError)}
    left = [node for node, answer in answers.items() if isinstance(answer, NodeStatus) and answer.left]
    hub = build.build_hub(options, plan)
    try:
        recorder = build.resume_recording(hub, options, plan, run.path, known.recording_id)
    except StoreError as error:
        raise UserError(f"{error}.") from None
    launcher = build.build_launcher(options, plan, known.uid, only_left=True)
    build.add_links(hub, launcher, options, recorder, only_left=True)
    try:
        await _fetch(hub, left)
        await launcher.close()
        away |= await _still_kept(hub, options, dataclasses.replace(plan, nodes=tuple(left)), known.uid)
    except asyncio.CancelledError:  # Ctrl-C, as a node may send frames for hours
        hub.flush()
        status = recorder.close(None)
        stopped = f"recording {short_id(known)} stays open, with {_fetched(hub)}"
        print(printable(f"{run.path}: stopped; {status.error or stopped}"), file=out)
        raise
    holding = {node: reason for node, reason in away.items() if node in known.answered}
    gone = answers.keys() - away.keys() - set(left)
    _report_lost(hub, recorder, gone & set(known.answered if known.awaited is None else known.awaited))
    for node, reason in holding.items():
        if abandon:
            message = f"the recording was closed without frames that it may hold: {reason}"
            hub.publish(EventLogged(hub.now(), ABANDONED, ERROR, message, node))
        else:
            hub.warn(WAITING, f"it may hold frames that couldn't be fetched: {reason}", node)
    hub.flush()
    newest = [state.last_ts for state in hub.fleet.nodes.values() if state.last_ts is not None]
    newest += [event.at for event in hub.fleet.event_log if event.kind in KINDS_DURING_RUN]
    stays_open = bool(holding) and not abandon
    ended_at = None if stays_open else max([known.last_at, *newest]) + MICROSECOND
    status = await asyncio.to_thread(recorder.close, ended_at)
    if status.error:
        raise UserError(f"{status.error}.")
    if not stays_open:
        remove_note(known.uid)
        remove_tokens(known.uid)
    became = "stays open" if stays_open else "is closed"
    print(printable(f"{run.path}: recording {short_id(known)} {became}; {_fetched(hub)}"), file=out)
    for node, reason in away.items():
        never = "" if node in holding else "; it never answered during the recording"
        print(printable(f"{node}: {reason}{never}"), file=out)
    if stays_open:
        again = f"gswarm-tui recover {short_id(known)} --finish --db {shlex.quote(str(run.path))}"
        nodes = hosts.fold(holding)
        print(printable(f"`{again}` tries again; --abandon closes the recording without {nodes}"), file=out)
    return 1 if stays_open else 0


def _fetched(hub: Hub) -> str:
    frames = sum(state.frames for state in hub.fleet.nodes.values())
    return f"{plural(frames, 'frame')} fetched from its nodes"


async def _fetch(hub: Hub, nodes: Collection[str]) -> None:
    """Record the frames on these nodes, and end their agents."""
    hub.links = {node: hub.links[node] for node in nodes}
    feeding = asyncio.create_task(hub.run(), name="hub")
    await asyncio.gather(*(_until_caught_up(hub, node) for node in nodes))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(AGENTS_END_S):
            await hub.stop_links()
    feeding.cancel()
    await asyncio.wait({feeding})
    hub.flush()


def _report_lost(hub: Hub, recorder: FileWriter, nodes: Collection[str]) -> None:
    """Publish an event for each agent that left no frames and whose end was never reported."""
    resumed = recorder.resumed
    lives, accounted = ((), frozenset[str]()) if resumed is None else (resumed.lives, resumed.accounted)
    for node in sorted(set(nodes) - accounted):
        last = max((life.last_at for life in lives if life.node == node and life.ts_ns), default=None)
        hub.publish(agent_data_lost(node, last, hub.started_at))


async def _still_kept(hub: Hub, options: Options, plan: Plan, uid: str) -> dict[str, str]:
    """Return the nodes that may still hold frames, and why."""
    kept: dict[str, str] = {}
    for node, answer in (await query_all(options, plan, uid)).items() if plan.nodes else ():
        if isinstance(answer, LaunchError):
            kept[node] = f"it may hold more frames: {answer.reason}"
        elif answer.frames or (answer.pid is not None and hub.links[node].may_hold_frames()):
            sampling = "its agent is still sampling"
            kept[node] = f"it still holds {plural(answer.frames, 'frame')}" if answer.frames else sampling
    return kept


async def _until_caught_up(hub: Hub, node: str) -> None:
    """Wait until the node sends fresh frames, has sent all or too much, or sends nothing any more."""
    state = hub.fleet.nodes[node]
    loop = asyncio.get_running_loop()
    frames, since, until = state.frames, loop.time(), loop.time() + FETCH_S
    while loop.time() < min(until, since + QUIET_S):
        age_s = hub.now() - state.last_ts if state.last_ts is not None else math.inf
        if state.phase is Phase.LIVE and age_s < FRESH_INTERVALS * state.interval_s:
            return
        if state.phase is Phase.LOST and state.reason.startswith((SENT_ALL, TOO_MUCH)):
            return
        await asyncio.sleep(POLL_S)
        if state.frames != frames:
            frames, since = state.frames, loop.time()
