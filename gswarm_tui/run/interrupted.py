"""Interrupted recordings: finding and listing them, and the frames that wait on their nodes."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TextIO

from gswarm_agent.metrics import DEFAULT_GROUPS
from gswarm_tui.common.errors import UserError, printable, quote
from gswarm_tui.control.client import running_heads
from gswarm_tui.launch.agent_status import NodeStatus, query_status
from gswarm_tui.launch.base import LaunchError, clean
from gswarm_tui.options.arguments import Options
from gswarm_tui.run import build
from gswarm_tui.run.plan import Plan
from gswarm_tui.run.saved_options import read_note, restore_options
from gswarm_tui.slurm import hosts
from gswarm_tui.store.errors import NotARecordingError, StoreError
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.recording.resume import Interrupted, interrupted


@dataclass(frozen=True)
class InterruptedRun:
    """Interrupted recording and its file.

    The options in the file lead to commands on this machine and on nodes, so they are obeyed only if this
    user's state folder knows them, or ``--trust`` was given (``trusted``). ``given`` names the options that
    the command line gives instead.
    """

    path: Path
    interrupted: Interrupted
    trusted: bool = False
    given: frozenset[str] = frozenset()

    def restore(self, settings: Options) -> tuple[Options, Plan]:
        """Return the options and the plan in force at the interruption. Raises UserError if untrusted."""
        recording = self.interrupted
        setup = read_note(recording.uid, recording.options)
        # Options from the file lead to commands here and on nodes; a demo contacts no nodes.
        is_obeyed = recording.uid and recording.options and recording.options.get("demo") is None
        if is_obeyed and setup is None and not self.trusted:
            show = f"gswarm-tui sql 'FROM recordings' --json --db {shlex.quote(str(self.path))}"
            raise UserError(
                "made elsewhere or changed, and its options can run commands: no node was contacted. "
                f"`{show}` shows the options; gswarm-tui recover {short_id(recording)} --trust uses them"
            )
        options, plan = restore_options(recording.options, settings, setup)
        if not recording.uid:
            raise UserError("this recording has no valid ID, so its nodes can't be reached.")
        options = options._replace(**{name: getattr(settings, name) for name in self.given})
        return self.measuring_as_before(options), plan

    def measuring_as_before(self, options: Options) -> Options:
        """Return the options with the interval and the metric groups in force when it was interrupted."""
        recording = self.interrupted
        return options._replace(
            interval_ms=recording.interval_ms or options.interval_ms,
            metrics=recording.metrics or DEFAULT_GROUPS,
        )


def short_id(recording: Interrupted) -> str:
    """Return the start of the recording's uid, or its number in the file if it has none."""
    return recording.uid[:8] or str(recording.recording_id)


def began(recording: Interrupted) -> str:
    """Return when the recording started, in local time."""
    return f"{datetime.fromtimestamp(recording.started_at).astimezone():%d %b %Y %H:%M:%S}"


def find(folder: Path, db: Path | None, usual: Path | None = None) -> tuple[list[InterruptedRun], list[str]]:
    """Find interrupted recordings in a file, or in a folder and the usual file; and why some were skipped.

    Raises StoreError for a named file that can't be read or is no recording.
    """
    found: list[InterruptedRun] = []
    unreadable: list[str] = []
    # realpath raises no error for a loop of links.
    paths = {Path(os.path.realpath(path)) for path in folder.glob("*.duckdb")} if db is None else {db}
    if db is None and usual is not None and usual.exists():
        paths.add(usual.resolve())
    for path in sorted(paths):
        try:
            with closing(FileSource(path, for_people=False)) as file:
                found += [InterruptedRun(path, recording) for recording in interrupted(file)]
        except StoreError as error:
            if recorder := next((one for one in running_heads(os.environ) if one.records(path)), None):
                unreadable.append(f"{path} is being recorded; gswarm-tui attach {recorder.uid[:8]} shows it")
            elif db is not None:
                raise
            elif not isinstance(error, NotARecordingError):
                unreadable.append(str(error))
    return found, unreadable


def choose(found: Sequence[InterruptedRun], unreadable: Sequence[str], wanted: str) -> InterruptedRun:
    """Return the recording whose uid starts with ``wanted``, or that has this number. Raises UserError."""
    matching = [run for run in found if run.interrupted.uid.startswith(wanted)]
    matching = matching or [run for run in found if str(run.interrupted.recording_id) == wanted]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UserError(f"{len(matching)} interrupted recordings match {quote(wanted)}; type more of the ID.")
    also = f" ({unreadable[0]})" if unreadable else ""
    raise UserError(
        f"no interrupted recording here has the ID {quote(wanted)}, and a closed one needs no recovery; "
        f"gswarm-tui recover lists them, --db names a file elsewhere{also}."
    )


def show(found: Sequence[InterruptedRun], unreadable: Sequence[str], out: TextIO, where: Path) -> int:
    """Print each interrupted recording ``where`` it was searched; contact nobody; return the exit status."""
    for run in found:
        known = run.interrupted
        until = f"{datetime.fromtimestamp(known.last_at).astimezone():%H:%M:%S}"
        nodes = hosts.fold(known.nodes) if known.nodes else "no nodes"
        names = ", ".join(clean(name, 40) for name in known.sessions)
        sessions = f"sessions {names}" if names else "no sessions"
        line = f"{short_id(known)}  {began(known)} to {until}, {nodes}, {sessions}, in {run.path}"
        print(printable(clean(line, 400)), file=out)
    for reason in unreadable:
        print(printable(f"skipped: {reason}"), file=out)
    if found:
        print("gswarm-tui recover ID resumes one; with --finish it is completed and closed", file=out)
    else:
        otherwise = "otherwise " if unreadable else ""
        print(printable(f"{otherwise}nothing to recover in {where}; --db names another file"), file=out)
    return 0


async def query_all(options: Options, plan: Plan, uid: str) -> dict[str, NodeStatus | LaunchError]:
    """Return the status of the recording on each node, or why it is unreachable."""
    launcher = build.build_launcher(options, plan, uid)

    async def query(node: str) -> NodeStatus | LaunchError:
        try:
            return await query_status(launcher, node, uid)
        except LaunchError as error:
            return error

    try:
        answers = await asyncio.gather(*(query(node) for node in plan.nodes))
    finally:
        await launcher.close()
    return dict(zip(plan.nodes, answers, strict=True))
