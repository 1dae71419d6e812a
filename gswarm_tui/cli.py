"""The command: parts are chosen and put together here, and only here.

Imports wait until their part is needed, so that ``--help`` and errors come at once.
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gswarm_agent import __version__
from gswarm_tui import hosts
from gswarm_tui.arguments import Options, parse
from gswarm_tui.errors import UserError, nearest, quote
from gswarm_tui.plan import Plan, require_terminal, resolve_nodes
from gswarm_tui.slurm import Slurm

if TYPE_CHECKING:
    from gswarm_tui.hub import Hub
    from gswarm_tui.launch.base import Launcher
    from gswarm_tui.lifetime import Ended
    from gswarm_tui.store.recorder import Recorder
    from gswarm_tui.tui.app import GswarmApp


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (None: the process's own); the exit status.

    2 stands for a wrong command line, 1 for a recording that could not be begun or completed.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        options = parse(words, os.environ)
        plan = resolve_nodes(options, os.environ, Slurm())
        require_terminal(sys.stdin, sys.stdout)
        log = _log_to_file(os.environ)
        return asyncio.run(_watch(options, plan, words, log))
    except UserError as error:
        print(f"gswarm-tui: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


async def _watch(options: Options, plan: Plan, words: Sequence[str], log: Path) -> int:
    from gswarm_agent.frame import INFO
    from gswarm_tui.fleet.events import Happened
    from gswarm_tui.fleet.state import Fleet
    from gswarm_tui.hub import Hub
    from gswarm_tui.lifetime import Lifetime
    from gswarm_tui.store.database import StoreError

    theme = _theme(options, os.environ)
    hub = Hub(Fleet(plan.nodes, options.interval_ms / 1000, plan.allocation))
    launcher = _launcher(options, plan)
    _add_links(hub, launcher, options)
    app = _app(options, plan, hub, theme)
    try:
        recorder = _recorder(options, plan, words, hub) if options.record else None
    except StoreError as error:
        print(f"gswarm-tui: {error}", file=sys.stderr)
        return 1
    if plan.notice:
        hub.publish(Happened(hub.now(), "notice", INFO, plan.notice))
    ended = await Lifetime(hub, launcher, recorder, app.request_quit).run(app.run_async())
    return _say_goodbye(hub, ended, app.return_code or 0, log)


def _recorder(options: Options, plan: Plan, words: Sequence[str], hub: Hub) -> Recorder:
    """An open recorder that the hub feeds. Raises StoreError, UserError."""
    from gswarm_tui.fleet.events import RecorderStatus
    from gswarm_tui.store.database import FileInUseError, RecordingInfo
    from gswarm_tui.store.files import default_paths
    from gswarm_tui.store.recorder import Recorder

    job = plan.job
    named = default_paths(_folder(), datetime.now().astimezone(), job.label if job else None)
    info = RecordingInfo(
        started_at=hub.started_at,
        host=socket.gethostname(),
        user_name=_user_name(),
        command=shlex.join(["gswarm-tui", *words]),
        interval_ms=options.interval_ms,
        tool_version=__version__,
        slurm_job_id=job.label if job else None,
        slurm_cluster=job.cluster if job else None,
    )
    loop = asyncio.get_running_loop()

    def told(status: RecorderStatus) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(hub.recorded, status)

    for path in [options.db] if options.db else named:
        recorder = Recorder(path, info, told, allocation=plan.allocation)
        try:
            recorder.open()
            break
        except FileInUseError:
            if options.db:
                raise
    hub.recorder = recorder.status()
    hub.sinks.append(recorder)
    return recorder


def _folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UserError("the current folder was deleted; go to another first.") from None


def _user_name() -> str:
    """Who records; a user without a name, as in some containers, by number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _launcher(options: Options, plan: Plan) -> Launcher:
    if options.demo is not None:
        from gswarm_tui.launch.simulated import SimulatedLauncher

        return SimulatedLauncher(options.demo.nodes, options.demo.gpus)
    if options.launcher == "local":
        from gswarm_tui.launch.local import LocalLauncher

        return LocalLauncher()
    from gswarm_tui.launch.bootstrap import Bootstrap

    bootstrap = Bootstrap(options.setup or "", options.agent_python or "")
    if options.launcher == "srun" and plan.job is not None:
        from gswarm_tui.launch.srun import SrunLauncher

        return SrunLauncher(plan.job.job_id, bootstrap)
    from gswarm_tui.launch.ssh import SshLauncher, SshSettings

    config = str(options.ssh_config) if options.ssh_config else ""
    return SshLauncher(SshSettings(options.user or "", config, options.jump or ""), bootstrap)


def _add_links(hub: Hub, launcher: Launcher, options: Options) -> None:
    from gswarm_tui.link import Link

    for node in hub.fleet.nodes:
        hub.links[node] = Link(node, launcher, options.interval_ms, hub.publish)


def _theme(options: Options, environ: Mapping[str, str]) -> str:
    """The theme asked for, else the one that suits the terminal. Raises UserError."""
    from gswarm_tui.tui.themes import THEME_NAMES, theme_for

    if options.theme is None:
        return theme_for(environ)
    if options.theme not in THEME_NAMES:
        hint = nearest(options.theme, THEME_NAMES) or f"; it is one of {', '.join(THEME_NAMES)}"
        raise UserError(f"--theme: {quote(options.theme)} isn't a theme{hint}.")
    return options.theme


def _app(options: Options, plan: Plan, hub: Hub, theme: str) -> GswarmApp:
    from gswarm_tui.tui.app import GswarmApp

    nodes = hosts.fold(plan.nodes)
    title = f"job {plan.job.label} · {nodes}" if plan.job else nodes
    return GswarmApp(hub, title=title, theme=theme, metric=options.metric)


def _say_goodbye(hub: Hub, ended: Ended, return_code: int, log: Path) -> int:
    """Tell in a line or two where the recording is and what went wrong; the exit status."""
    problems = [ended.problem] if ended.problem else []
    if return_code and not problems:  # Textual has shown where, when it left the terminal
        problems.append("the screen failed; what is shown above belongs in a bug report")
    if (status := ended.status) is not None:
        sessions = len(hub.fleet.sessions.sessions)
        named = f", {sessions} session{'s' if sessions > 1 else ''}" if sessions else ""
        print(f"{status.path}: {status.rows:,} rows in {status.file_bytes / 1e6:.1f} MB{named}")
        if status.error:
            problems.append(f"the recording isn't complete: {status.error}")
    for problem in problems:
        print(f"gswarm-tui: {problem} (log: {log})", file=sys.stderr)
    return 1 if problems else 0


def _log_to_file(environ: Mapping[str, str]) -> Path:
    """Let what nobody foresaw be found later, since the screen has no room for it; where it goes."""
    state = Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    path = state / "gswarm-tui" / "gswarm-tui.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handler: logging.Handler = logging.FileHandler(path, delay=True)
    except OSError:
        handler = logging.NullHandler()
    logging.basicConfig(level=logging.WARNING, handlers=[handler], format="%(asctime)s %(name)s %(message)s")
    return path
