"""Finishing an interrupted recording: what its nodes hold is fetched, and it is closed if that was all."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import shlex
from collections.abc import Collection, Mapping
from typing import TextIO

from gswarm_agent.frame import ERROR, WARNING
from gswarm_agent.wire import SENT_ALL
from gswarm_tui.common.errors import UserError, printable
from gswarm_tui.fleet.events import ABANDONED, KINDS_DURING_RUN, WAITING, EventLogged, Phase, agent_data_lost
from gswarm_tui.hub import Hub
from gswarm_tui.launch.base import LaunchError
from gswarm_tui.launch.waiting import NodeStatus
from gswarm_tui.options.arguments import Options
from gswarm_tui.run import build
from gswarm_tui.run.interrupted import InterruptedRun, ask_all, short_id, words
from gswarm_tui.run.plan import Plan
from gswarm_tui.slurm import hosts
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.recording.recorder import Recorder

QUIET_S = 30.0
"""A node from which nothing new came for so long is given up."""
FRESH_INTERVALS = 3
LAST_WORDS_S = 15.0
LOOK_S = 0.1
MICROSECOND = 1e-6


async def finish(one: InterruptedRun, settings: Options, out: TextIO, *, abandon: bool = False) -> int:
    """Fetch what the nodes hold, close the recording, print a line or more about it; the exit status.

    It stays open while a node that may hold frames of it can't be reached, unless those are to be abandoned.

    Raises:
        UserError: the recording can't be written, or doesn't say how its nodes are reached.
    """
    known = one.interrupted
    options, plan = one.recall(settings) if known.uid else (settings, Plan(known.nodes))
    answers = await ask_all(options, plan, known.uid) if known.uid and not options.demo else {}
    away = {n: f"it couldn't be asked: {a.reason}" for n, a in answers.items() if isinstance(a, LaunchError)}
    left = [node for node, answer in answers.items() if isinstance(answer, NodeStatus) and answer.left]
    hub = build.make_hub(options, plan)
    try:
        recorder = build.go_on(hub, options, plan, one.path, known.recording_id)
    except StoreError as error:
        raise UserError(f"{error}.") from None
    launcher = build.make_launcher(options, plan, known.uid, only_left=True)
    build.add_links(hub, launcher, options, recorder)
    await _fetch(hub, left)
    await launcher.close()
    away |= await _still_kept(hub, options, dataclasses.replace(plan, nodes=tuple(left)), known.uid)
    holding = {node: reason for node, reason in away.items() if node in known.answered}
    gone = answers.keys() - away.keys() - set(left)
    _tell_gone(hub, recorder, gone & set(known.answered if known.awaited is None else known.awaited))
    _tell_holding(hub, holding, abandon)
    hub.flush()
    newest = [state.last_ts for state in hub.fleet.nodes.values() if state.last_ts is not None]
    newest += [one.at for one in hub.fleet.event_log if one.kind in KINDS_DURING_RUN]
    stays_open = bool(holding) and not abandon
    ended_at = None if stays_open else max([known.last_at, *newest]) + MICROSECOND
    status = await asyncio.to_thread(recorder.close, ended_at)
    if status.error:
        raise UserError(f"{status.error}.")
    frames = sum(state.frames for state in hub.fleet.nodes.values())
    came = f"{frames:,} frame{'' if frames == 1 else 's'} came from its nodes"
    became = "stays open" if stays_open else "is closed"
    print(printable(f"{one.path}: recording {short_id(known)} {became}; {came}"), file=out)
    for node, reason in away.items():
        never = "" if node in holding else ", and it never answered while this was recorded"
        print(printable(f"{node}: {reason}{never}"), file=out)
    if stays_open:
        again = f"gswarm-tui recover {short_id(known)} --finish --db {shlex.quote(str(one.path))}"
        nodes = hosts.fold(holding)
        print(printable(f"`{again}` tries again; with --abandon it closes without {nodes}"), file=out)
    return 1 if stays_open else 0


async def _fetch(hub: Hub, nodes: Collection[str]) -> None:
    """Record what these nodes hold, and end their agents."""
    hub.links = {node: hub.links[node] for node in nodes}
    feeding = asyncio.create_task(hub.run(), name="hub")
    await asyncio.gather(*(_until_caught_up(hub, node) for node in nodes))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LAST_WORDS_S):
            await hub.stop_links()
    feeding.cancel()
    await asyncio.wait({feeding})
    hub.flush()


def _tell_gone(hub: Hub, recorder: Recorder, nodes: Collection[str]) -> None:
    """Where nothing is left of an agent that wasn't seen to end."""
    resumed = recorder.resumed
    lives, accounted = ((), frozenset[str]()) if resumed is None else (resumed.lives, resumed.accounted)
    for node in sorted(set(nodes) - accounted):
        last = max((life.last_at for life in lives if life.node == node and life.ts_ns), default=None)
        hub.publish(agent_data_lost(node, last, hub.started_at))


def _tell_holding(hub: Hub, holding: Mapping[str, str], abandon: bool) -> None:
    """Which nodes may hold frames, and whether these are waited for."""
    at = hub.now()
    for node, reason in holding.items():
        if abandon:
            said = f"the recording was closed without what it may hold: {reason}"
            hub.publish(EventLogged(at, ABANDONED, ERROR, said, node))
        else:
            said = f"it may hold frames that couldn't be fetched: {reason}"
            hub.publish(EventLogged(at, WAITING, WARNING, said, node))


async def _still_kept(hub: Hub, options: Options, plan: Plan, uid: str) -> dict[str, str]:
    """The nodes that may not have given all that they have, and why."""
    kept: dict[str, str] = {}
    for node, answer in (await ask_all(options, plan, uid)).items() if plan.nodes else ():
        if isinstance(answer, LaunchError):
            kept[node] = f"whether it has given all isn't known: {answer.reason}"
        elif answer.frames or (answer.pid is not None and hub.links[node].may_hold_frames()):
            kept[node] = f"it didn't give all that it has: {words(answer)}"
    return kept


async def _until_caught_up(hub: Hub, node: str) -> None:
    """Return when the node sends fresh frames, or has given all, or when nothing comes from it any more."""
    state = hub.fleet.nodes[node]
    loop = asyncio.get_running_loop()
    frames, since = state.frames, loop.time()
    while loop.time() - since < QUIET_S:
        age_s = hub.now() - state.last_ts if state.last_ts is not None else math.inf
        if state.phase is Phase.LIVE and age_s < FRESH_INTERVALS * state.interval_s:
            return
        if state.phase is Phase.LOST and state.reason.startswith(SENT_ALL):
            return
        await asyncio.sleep(LOOK_S)
        if state.frames != frames:
            frames, since = state.frames, loop.time()
