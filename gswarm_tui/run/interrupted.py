"""Recordings that were interrupted: found, and listed with what waits on their nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TextIO, cast

from gswarm_tui.common.errors import UserError, printable, quote
from gswarm_tui.launch.base import Asking, LaunchError, clean
from gswarm_tui.launch.waiting import NodeStatus, ask_status
from gswarm_tui.options.arguments import Options
from gswarm_tui.run import build
from gswarm_tui.run.plan import Plan
from gswarm_tui.run.saved_options import recall
from gswarm_tui.slurm import hosts
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.file_source import ReadOnly
from gswarm_tui.store.recording.files import is_own
from gswarm_tui.store.recording.resume import Interrupted, closed, interrupted, is_ours


@dataclass(frozen=True)
class InterruptedRun:
    """An interrupted recording and its file."""

    path: Path
    interrupted: Interrupted

    def recall(self, settings: Options) -> tuple[Options, Plan]:
        """Return the options and the plan in force when it was interrupted. Raises UserError."""
        options, plan = recall(self.interrupted.options, settings)
        interval_ms = self.interrupted.interval_ms or options.interval_ms
        return options._replace(interval_ms=interval_ms), plan


def short_id(one: Interrupted) -> str:
    """What people name it by: the beginning of its uid; its number in the file if it has none."""
    return one.uid[:8] or str(one.recording_id)


def began(one: Interrupted) -> str:
    """When it began, local time."""
    return f"{datetime.fromtimestamp(one.started_at).astimezone():%d %b %Y %H:%M:%S}"


def find(folder: Path, db: Path | None, usual: Path | None = None) -> tuple[list[InterruptedRun], list[str]]:
    """Interrupted recordings in a file, or in all of a folder and a usual one; why some couldn't be read.

    What a recording says of its nodes is done: one that others may have written isn't even read unasked.

    Raises:
        UserError: the file that was named can't be read, or is no recording.
    """
    found: list[InterruptedRun] = []
    unreadable: list[str] = []
    for path in files(folder, db, usual):
        if db is None and not is_own(path):
            unreadable.append(f"others may have written {path}; name it with --db if you trust them")
            continue
        try:
            with ReadOnly(path) as file:
                if db is not None and not is_ours(file):
                    raise UserError(f"{path} isn't a recording of gswarm-tui; name one with --db.")
                found += [InterruptedRun(path, one) for one in interrupted(file)]
        except StoreError as error:
            if db is not None:
                raise UserError(f"{error}.") from None
            unreadable.append(str(error))
    return found, unreadable


def files(folder: Path, db: Path | None, usual: Path | None = None) -> list[Path]:
    """The file that was named, or those of a folder and a usual one."""
    if db is not None:
        return [db]
    here = {path.resolve() for path in folder.glob("*.duckdb")}
    if usual is not None and usual.exists():
        here.add(usual.resolve())
    return sorted(here)


def choose(
    found: Sequence[InterruptedRun], unreadable: Sequence[str], wanted: str, looked_at: Sequence[Path] = ()
) -> InterruptedRun:
    """The recording whose uid begins so, or that has this number; of a closed one it says so.

    Raises UserError.
    """
    matching = [one for one in found if one.interrupted.uid.startswith(wanted)]
    matching = matching or [one for one in found if str(one.interrupted.recording_id) == wanted]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UserError(
            f"{len(matching)} interrupted recordings begin with {quote(wanted)}; give more of the ID."
        )
    for path in filter(is_own, looked_at):
        with contextlib.suppress(StoreError), ReadOnly(path) as file:
            if any(uid.startswith(wanted) for uid in closed(file)):
                raise UserError(f"recording {quote(wanted)} in {path} is closed: it needs no recovery.")
    also = f" ({unreadable[0]})" if unreadable else ""
    raise UserError(
        f"no interrupted recording here has the ID {quote(wanted)}; gswarm-tui recover lists them, "
        f"and --db names a file elsewhere{also}."
    )


async def show(
    found: Sequence[InterruptedRun], unreadable: Sequence[str], settings: Options, out: TextIO
) -> int:
    """Print each interrupted recording and the state of its nodes; return the exit status."""
    for one in found:
        print(printable(_headline(one)), file=out)
        for line in await _waiting_lines(one, settings):
            print(f"  {printable(line)}", file=out)
    for reason in unreadable:
        print(printable(f"not looked at: {reason}"), file=out)
    if found:
        print(
            "go on with one by gswarm-tui recover ID; with --finish it is only completed and closed", file=out
        )
    else:
        print(f"{'apart from that, ' if unreadable else ''}there is nothing to recover", file=out)
    return 0


def _headline(one: InterruptedRun) -> str:
    known = one.interrupted
    until = f"{datetime.fromtimestamp(known.last_at).astimezone():%H:%M:%S}"
    nodes = hosts.fold(known.nodes) if known.nodes else "no nodes"
    names = ", ".join(clean(name, 40) for name in known.sessions)
    sessions = f", sessions {names}" if names else ", no sessions"
    return clean(f"{short_id(known)}  {began(known)} to {until}, {nodes}{sessions}, in {one.path}", 400)


async def _waiting_lines(one: InterruptedRun, settings: Options) -> list[str]:
    try:
        options, plan = one.recall(settings)
    except UserError as error:
        return [str(error)]
    if options.demo is not None or not one.interrupted.uid:
        return ["its nodes keep nothing that isn't recorded"]
    answers = await ask_all(options, plan, one.interrupted.uid)
    by_words: dict[str, list[str]] = {}
    for node, answer in answers.items():
        by_words.setdefault(words(answer), []).append(node)
    return [f"{hosts.fold(nodes)}: {words(answers[nodes[0]], len(nodes))}" for nodes in by_words.values()]


def words(answer: NodeStatus | LaunchError, of_nodes: int = 1) -> str:
    """What a node answered, or each of some, as a clause."""
    if isinstance(answer, LaunchError):
        return f"couldn't be asked, {answer.reason}"
    wait = "1 frame waits" if answer.frames == 1 else f"{answer.frames:,} frames wait"
    frames = wait + (" on each" if of_nodes > 1 else "") if answer.frames else "nothing waits"
    measure = "its agent still measures" if of_nodes == 1 else "their agents still measure"
    return frames + (f", and {measure}" if answer.pid is not None else "")


async def ask_all(options: Options, plan: Plan, uid: str) -> dict[str, NodeStatus | LaunchError]:
    """What each node keeps of the recording, or why it couldn't be asked."""
    launcher = cast(Asking, build.make_launcher(options, plan, uid))

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
