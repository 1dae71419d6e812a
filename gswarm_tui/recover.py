"""Recordings that were interrupted: found, listed with what waits on their nodes, and finished."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TextIO, cast

from gswarm_agent.wire import GAVE_ALL
from gswarm_tui import hosts, parts
from gswarm_tui.arguments import Options
from gswarm_tui.errors import UserError, quote
from gswarm_tui.fleet.events import Phase
from gswarm_tui.hub import Hub
from gswarm_tui.launch.base import Asking, LaunchError, clean
from gswarm_tui.launch.waiting import NodeStatus, ask_status
from gswarm_tui.plan import Plan
from gswarm_tui.remember import recall
from gswarm_tui.store.database import StoreError
from gswarm_tui.store.reader import ReadOnly
from gswarm_tui.store.resume import Interrupted, interrupted

QUIET_S = 30.0
"""A node from which nothing new came for so long is given up when a recording is finished."""
FRESH_INTERVALS = 3
LAST_WORDS_S = 15.0
LOOK_S = 0.1
MICROSECOND = 1e-6


@dataclass(frozen=True)
class Found:
    """An interrupted recording and its file."""

    path: Path
    interrupted: Interrupted

    def recall(self, settings: Options) -> tuple[Options, Plan]:
        """The options and the plan that it was begun with. Raises UserError."""
        options, plan = recall(self.interrupted.options, settings)
        return options, plan


def short_id(one: Interrupted) -> str:
    """What people name it by: the beginning of its uid; its number in the file if it has none."""
    return one.uid[:8] or str(one.recording_id)


def began(one: Interrupted) -> str:
    """When it began, local time."""
    return f"{datetime.fromtimestamp(one.started_at).astimezone():%d %b %Y %H:%M:%S}"


def find(folder: Path, db: Path | None, usual: Path | None = None) -> tuple[list[Found], list[str]]:
    """Interrupted recordings in a file, or in all of a folder and a usual one; why some couldn't be read.

    Raises:
        UserError: the file that was named can't be read.
    """
    found: list[Found] = []
    unreadable: list[str] = []
    here = {path.resolve() for path in folder.glob("*.duckdb")}
    if usual is not None and usual.exists():
        here.add(usual.resolve())
    for path in [db] if db is not None else sorted(here):
        try:
            with ReadOnly(path) as file:
                found += [Found(path, one) for one in interrupted(file)]
        except StoreError as error:
            if db is not None:
                raise UserError(f"{error}.") from None
            unreadable.append(str(error))
    return found, unreadable


def choose(found: Sequence[Found], unreadable: Sequence[str], wanted: str) -> Found:
    """The recording whose uid begins so, or that has this number. Raises UserError."""
    matching = [one for one in found if one.interrupted.uid.startswith(wanted)]
    matching = matching or [one for one in found if str(one.interrupted.recording_id) == wanted]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UserError(
            f"{len(matching)} interrupted recordings begin with {quote(wanted)}; give more of the ID."
        )
    also = f" ({unreadable[0]})" if unreadable else ""
    raise UserError(
        f"no interrupted recording here has the ID {quote(wanted)}; gswarm-tui recover lists them, "
        f"and --db names a file elsewhere{also}."
    )


async def show(found: Sequence[Found], unreadable: Sequence[str], settings: Options, out: TextIO) -> int:
    """Print each recording and what its nodes say; the exit status."""
    for one in found:
        print(_headline(one), file=out)
        for line in await _waiting_lines(one, settings):
            print(f"  {line}", file=out)
    for reason in unreadable:
        print(f"not looked at: {reason}", file=out)
    if found:
        print(
            "go on with one by gswarm-tui recover ID; with --finish it is only completed and closed", file=out
        )
    else:
        print("there is nothing to recover", file=out)
    return 0


def _headline(one: Found) -> str:
    known = one.interrupted
    until = f"{datetime.fromtimestamp(known.last_at).astimezone():%H:%M:%S}"
    nodes = hosts.fold(known.nodes) if known.nodes else "no nodes"
    names = ", ".join(clean(name, 40) for name in known.sessions)
    sessions = f", sessions {names}" if names else ", no sessions"
    return clean(f"{short_id(known)}  {began(known)} to {until}, {nodes}{sessions}, in {one.path}", 400)


async def _waiting_lines(one: Found, settings: Options) -> list[str]:
    try:
        options, plan = one.recall(settings)
    except UserError as error:
        return [str(error)]
    if options.demo is not None or not one.interrupted.uid:
        return ["its nodes keep nothing that isn't recorded"]
    answers = await _ask_all(options, plan, one.interrupted.uid)
    by_words: dict[str, list[str]] = {}
    for node, answer in answers.items():
        by_words.setdefault(_words(answer), []).append(node)
    return [f"{hosts.fold(nodes)}: {words}" for words, nodes in by_words.items()]


def _words(answer: NodeStatus | LaunchError) -> str:
    if isinstance(answer, LaunchError):
        return f"couldn't be asked, {answer.reason}"
    wait = "1 frame waits" if answer.frames == 1 else f"{answer.frames:,} frames wait"
    frames = wait if answer.frames else "nothing waits"
    return frames + (", and its agent still measures" if answer.pid is not None else "")


async def _ask_all(options: Options, plan: Plan, uid: str) -> dict[str, NodeStatus | LaunchError]:
    """What each node keeps of the recording, or why it couldn't be asked."""
    launcher = cast(Asking, parts.make_launcher(options, plan, uid))

    async def ask(node: str) -> NodeStatus | LaunchError:
        try:
            return await ask_status(launcher, node, uid)
        except LaunchError as error:
            return error

    try:
        answers = await asyncio.gather(*(ask(node) for node in plan.nodes))
    finally:
        await launcher.close()
    return dict(zip(plan.nodes, answers, strict=True))


async def finish(one: Found, settings: Options, out: TextIO) -> int:
    """Fetch what the nodes still hold, close the recording and print a line about it; the exit status."""
    known = one.interrupted
    options, plan = settings, Plan(known.nodes)
    if known.uid:
        options, plan = one.recall(settings)
    answers = await _ask_all(options, plan, known.uid) if known.uid and not options.demo else {}
    missing = {
        n: f"it couldn't be asked: {a.reason}" for n, a in answers.items() if isinstance(a, LaunchError)
    }
    holding = [n for n, a in answers.items() if isinstance(a, NodeStatus) and (a.frames or a.pid is not None)]
    hub = parts.make_hub(options, plan)
    try:
        recorder = parts.go_on(hub, options, plan, one.path, known.recording_id)
    except StoreError as error:
        raise UserError(f"{error}.") from None
    before = recorder.status().rows
    launcher = parts.make_launcher(options, plan, known.uid, only_left=True)
    parts.add_links(hub, launcher, options, recorder)
    hub.links = {node: hub.links[node] for node in holding}
    feeding = asyncio.create_task(hub.run(), name="hub")
    await asyncio.gather(*(_until_caught_up(hub, node) for node in holding))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LAST_WORDS_S):
            await hub.stop_links()
    feeding.cancel()
    await asyncio.wait({feeding})
    hub.flush()
    await launcher.close()
    missing |= await _still_kept(options, dataclasses.replace(plan, nodes=tuple(holding)), known.uid)
    newest = [state.last_ts for state in hub.fleet.nodes.values() if state.last_ts is not None]
    ended_at = max([known.last_at, *newest]) + MICROSECOND
    status = await asyncio.to_thread(recorder.close, ended_at)
    if status.error:
        raise UserError(f"{status.error}.")
    fetched = sum(state.frames for state in hub.fleet.nodes.values())
    print(
        f"{one.path}: recording {short_id(known)} is closed; "
        f"{fetched:,} frames ({status.rows - before:,} rows) came from its nodes",
        file=out,
    )
    for node, reason in missing.items():
        print(f"{node}: {reason}", file=out)
    return 1 if missing else 0


async def _still_kept(options: Options, plan: Plan, uid: str) -> dict[str, str]:
    """The nodes that may not have given all that they have, and why."""
    kept: dict[str, str] = {}
    for node, answer in (await _ask_all(options, plan, uid)).items() if plan.nodes else ():
        if isinstance(answer, LaunchError):
            kept[node] = f"whether it has given all isn't known: {answer.reason}"
        elif answer.frames:
            kept[node] = f"it didn't give all that it has: {_words(answer)}"
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
        if state.phase is Phase.LOST and state.reason.startswith(GAVE_ALL):
            return
        await asyncio.sleep(LOOK_S)
        if state.frames != frames:
            frames, since = state.frames, loop.time()
