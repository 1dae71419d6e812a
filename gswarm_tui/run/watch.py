"""A run of the app, from its first link to its last words: parts are put together here."""

from __future__ import annotations

import asyncio
import gc
import os
import shlex
import signal
import sys
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gswarm_tui.common.errors import print_notice, printable
from gswarm_tui.common.quantities import plural
from gswarm_tui.options.arguments import Options
from gswarm_tui.run import build, event_loop, log_file
from gswarm_tui.run.plan import Plan, require_terminal
from gswarm_tui.slurm import hosts
from gswarm_tui.slurm.jobs import Slurm

if TYPE_CHECKING:
    from gswarm_tui.analysis.queries import RecordingQueries
    from gswarm_tui.hub import Hub
    from gswarm_tui.run.interrupted import InterruptedRun
    from gswarm_tui.run.lifetime import Ended
    from gswarm_tui.store.recording.recorder import Recorder
    from gswarm_tui.tui.app import GswarmApp


NAMES_MOST = 80
"""Characters of a host list that a passing word may have; where it is longer, nodes are counted."""


def run_app(options: Options, plan: Plan, words: Sequence[str], chosen: InterruptedRun | None = None) -> int:
    """Run the app in an event loop of its own; the exit status. Raises UserError without a terminal."""
    require_terminal(sys.stdin, sys.stdout)
    gc.disable()  # imports make a hundred thousand objects and no garbage; the lifetime enables it again
    try:
        return event_loop.run(watch(options, plan, words, log_file.begin(), chosen))
    finally:
        gc.enable()


async def watch(
    options: Options, plan: Plan, words: Sequence[str], log: Path, chosen: InterruptedRun | None = None
) -> int:
    """Run the app until it is left; ``chosen`` is the recording to go on with."""
    from gswarm_tui.store.errors import StoreError

    heard = _give_up_at_signals()
    theme = build.choose_theme(options, os.environ)
    hub = build.make_hub(options, plan)
    uid = str(uuid.uuid4()) if chosen is None else chosen.interrupted.uid
    recorder: Recorder | None = None
    try:
        if chosen is not None:
            recorder = build.go_on(hub, options, plan, chosen.path, chosen.interrupted.recording_id)
        elif options.record:
            recorder = build.begin(hub, options, plan, words, uid)
    except StoreError as error:
        print_notice(str(error))
        return 1
    try:
        app = _app(options, plan, hub, theme, recorder)
        ended = await _live(options, plan, hub, app, recorder)
    except (asyncio.CancelledError, KeyboardInterrupt):
        # Before there is a screen, which would take them.
        if recorder is not None:
            recorder.close(hub.now() if chosen is None else None)
        if not heard:
            raise
        return 128 + heard[0]
    return _say_goodbye(hub, ended, app.return_code or 0, log, uid)


def _give_up_at_signals() -> list[signal.Signals]:
    """Cancel this task at signals that end a program, until others handle them; those that came."""
    heard: list[signal.Signals] = []
    loop, watching = asyncio.get_running_loop(), asyncio.current_task()

    def give_up(number: signal.Signals) -> None:
        heard.append(number)
        if watching is not None:
            watching.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, give_up, number)
    return heard


async def _live(options: Options, plan: Plan, hub: Hub, app: GswarmApp, recorder: Recorder | None) -> Ended:
    from gswarm_tui.run.lifetime import Lifetime

    _give_notice(hub, plan, recorder)
    launcher = build.make_launcher(options, plan, "" if recorder is None else recorder.uid)
    build.add_links(hub, launcher, options, recorder)
    lifetime = Lifetime(
        hub, launcher, recorder, app.request_quit, lasting=build.lasting(options), waiting=_tell_waiting
    )
    following = asyncio.create_task(_follow_job(hub, plan))
    control = None
    try:
        control = await build.listen(hub, recorder, os.environ)
        return await lifetime.run(app.run_async(), app.painted)
    finally:
        following.cancel()
        if control is not None:
            await control.close()


async def _follow_job(hub: Hub, plan: Plan) -> None:
    """Let agents know when the job of their nodes ends."""
    if plan.job is not None:
        from gswarm_tui.run.job_end import follow

        await follow(hub, Slurm(), plan.job)


def _give_notice(hub: Hub, plan: Plan, recorder: Recorder | None) -> None:
    """Tell what couldn't be found out, and what there is to recover in the file."""
    from gswarm_agent.frame import INFO, WARNING
    from gswarm_tui.fleet.events import EventLogged

    if plan.notice:
        hub.publish(EventLogged(hub.now(), "notice", INFO, plan.notice))
    if recorder is not None and (words := _interrupted_words(recorder)):
        print_notice(words)
        hub.publish(EventLogged(hub.now(), "interrupted", WARNING, words))


def _interrupted_words(recorder: Recorder) -> str:
    from gswarm_tui.run.interrupted import began, short_id

    if not (unended := recorder.interrupted):
        return ""
    one = unended[-1]
    recover = f"`gswarm-tui recover {short_id(one)} --db {shlex.quote(str(recorder.path))}` goes on with it"
    if len(unended) == 1:
        return f"{recorder.path} has a recording that was interrupted, of {began(one)}: {recover}"
    return f"{recorder.path} has {len(unended)} interrupted recordings, the last of {began(one)}: {recover}"


def _tell_waiting(nodes: Sequence[str]) -> None:
    names = hosts.fold(nodes)
    who = names if len(names) <= NAMES_MOST else plural(len(nodes), "node")
    print_notice(f"waiting for the last frames of {who} …")


def _app(options: Options, plan: Plan, hub: Hub, theme: str, recorder: Recorder | None) -> GswarmApp:
    from gswarm_tui.common.query_history import QueryHistory, history_path
    from gswarm_tui.tui.app import GswarmApp

    nodes = hosts.fold(plan.nodes)
    title = f"job {plan.job.label} · {nodes}" if plan.job else nodes
    past = None if recorder is None else partial(build.look_back, hub, recorder)
    open_queries = None if recorder is None else partial(_queries, recorder)
    history = QueryHistory(history_path())
    return GswarmApp(
        hub,
        title=title,
        theme=theme,
        metric=options.metric,
        past=past,
        open_queries=open_queries,
        history=history,
    )


def _queries(recorder: Recorder) -> RecordingQueries:
    from gswarm_tui.analysis.queries import RecordingQueries

    return RecordingQueries(recorder.queries())


def _say_goodbye(hub: Hub, ended: Ended, return_code: int, log: Path, uid: str) -> int:
    """Tell in a line or two where the recording is and what went wrong; the exit status."""
    problems = [f"{ended.problem} (log: {log})"] if ended.problem else []
    if return_code and not problems:  # Textual has shown where, when it left the terminal
        problems.append("the screen failed; what is shown above belongs in a bug report")
    if (status := ended.status) is not None:
        sessions = len(hub.fleet.sessions.sessions)
        named = f", {sessions} session{'s' if sessions > 1 else ''}" if sessions else ""
        print(
            f"{printable(str(status.path))}: {status.rows:,} rows in {status.file_bytes / 1e6:.1f} MB{named}"
        )
        if not status.closed and not status.error:
            print_notice("all of it is saved; its file is still being put in order, which ctrl+c ends")
        if status.error:
            problems.append(f"the recording isn't complete: {status.error} (log: {log})")
        if ended.holding:
            problems.append(
                f"{hosts.fold(ended.holding)} may hold frames that couldn't be fetched; "
                f"`gswarm-tui recover {uid[:8]} --finish --db {shlex.quote(status.path)}` tries again"
            )
    for problem in problems:
        print_notice(problem)
    return 1 if problems else 0
