"""``gswarm-tui profile``: run a command under a profiler on nodes of a job, and import its reports."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gswarm_tui.commands.recording_choice import SUFFIX
from gswarm_tui.common.errors import UserError, print_notice, printable
from gswarm_tui.control.client import Head, running_heads
from gswarm_tui.control.intents import IntentError, LogEvent, RecorderError, StartSession, StopSession
from gswarm_tui.fleet.session_texts import MAX_NAME, MAX_NOTE
from gswarm_tui.options.profile_options import ProfileOptions, parse_profile
from gswarm_tui.printing.progress import Progress
from gswarm_tui.profiling.importing import import_report
from gswarm_tui.profiling.login_node import profile_there, read_arguments, serve_profile
from gswarm_tui.profiling.profile_run import ProfileResult, command_line, node_and_rank, run_profile
from gswarm_tui.profiling.shims import run_shim, write_shims
from gswarm_tui.profiling.slurm_commands import until_signal
from gswarm_tui.slurm.hosts import fold
from gswarm_tui.slurm.jobs import Job
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.recording.files import is_database

GIVEN_BACK, CONTINUES = "stopped; the nodes are given back.", "stopped; job {} continues."
COSTS = {
    "nsys": "its processes may run a few percent slower while it captures",
    "ncu": "it runs each kernel several times, so the run's times don't count",
}
"""What a profiler costs its command."""


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Profile a command and return its exit status. Raises UserError."""
    options = parse_profile(args, environ)
    if (token := options.relay) is not None:
        options = parse_profile(read_arguments(), environ)
        served = serve_profile(options, token, _Sessions(options, environ).running)
        return until_signal(served, GIVEN_BACK if options.job is None else CONTINUES.format(options.job))
    if options.shim is not None and options.shims is not None:
        words, setup = [options.shim, *options.command], options.run.setup or ""
        shim = run_shim(words, options.shims, options.salloc, setup)
        return until_signal(shim, GIVEN_BACK)
    if options.shims is not None:
        for path in write_shims(options.shims):
            print(path)
        return 0
    if options.imports and options.db is not None and options.db.exists() and not is_database(options.db):
        raise UserError(f"--db: {printable(str(options.db))} isn't a recording; name another file.")
    if not (options.allocates or options.run.jump or options.job):
        options = options._replace(job=environ.get("SLURM_JOB_ID") or None)
    sessions = _Sessions(options, environ)
    profiled = (profile_there if options.run.jump else run_profile)(options, sessions.running)
    result = until_signal(profiled, GIVEN_BACK if options.job is None else CONTINUES.format(options.job))
    if options.imports:
        db = options.db or sessions.recording or options.output / f"profile-job{result.job}{SUFFIX}"
        _import(result, db, options, environ)
    return result.status


def _import(result: ProfileResult, db: Path, options: ProfileOptions, environ: Mapping[str, str]) -> None:
    """Import the reports; one that can't be is left as a file, with a notice."""
    if options.run.setup and shutil.which(options.tool, path=environ.get("PATH")) is None:
        environ = _environ_after(options.run.setup, environ)
    notices: dict[str, None] = {}
    for path in result.reports:
        node, rank = node_and_rank(path.name)
        try:
            with Progress(f"importing {path.name}") as progress:
                done = import_report(path, db, environ, node=node, rank=rank, report=progress.report)
        except (UserError, StoreError) as error:
            print_notice(f"{str(error).rstrip('.')}. The report stays: {path}")
        except BaseException:
            print_notice(f"stopped; to import the report: gswarm-tui import {shlex.quote(str(path))}")
            raise
        else:
            which = f"profile {done.profile_id}, {done.rows:,} events"
            print_notice(f"{db}: {which} of {node}, rank {rank}")
            notices |= dict.fromkeys(done.notices)
    for notice in notices:
        print_notice(notice)


def _environ_after(setup: str, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment of a login shell here after the setup, which may load the tool's module."""
    done = subprocess.run(
        ["bash", "-l", "-c", 'eval "$GSWARM_SETUP" >/dev/null 2>&1; unset GSWARM_SETUP; env -0'],
        env={**environ, "GSWARM_SETUP": setup},  # no argument: every user sees those
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
    )
    return dict(pair.split("=", 1) for pair in done.stdout.split("\0") if "=" in pair) or environ


@dataclass(frozen=True)
class _Sessions:
    """The session of this run in each running recording of its nodes."""

    options: ProfileOptions
    environ: Mapping[str, str]
    _sessions: list[tuple[Head, str]] = field(default_factory=list, init=False)

    @property
    def recording(self) -> Path | None:
        """The first recording that has it, None if no recorder watches the nodes."""
        return self._sessions[0][0].path if self._sessions else None

    @contextlib.contextmanager
    def running(self, job: Job) -> Iterator[None]:
        """Start it, with an event that says what runs and what it costs; stop it at the end of the block."""
        tool, command = self.options.tool, self.options.command
        name = f"{tool}-{Path(command[0]).name}-job{job.label}"[:MAX_NAME]
        message = f"{tool} profiles {command_line(command)} on {fold(job.nodes)}: {COSTS[tool]}"
        for head in running_heads(self.environ):
            if head.path is None or not (head.of_job(job.label) or set(head.nodes) & set(job.nodes)):
                continue
            try:
                session = head.carry_out(StartSession(name, note=message[:MAX_NOTE]))
                head.carry_out(LogEvent("profile", message[:MAX_NOTE]))
            except (RecorderError, IntentError) as error:
                print_notice(f"no session in {head.path}: {error}.")
            else:
                self._sessions.append((head, session["name"]))
                print_notice(f"started the session {name} in {head.path}")
        try:
            yield
        finally:
            for head, name in self._sessions:
                with contextlib.suppress(RecorderError, IntentError):
                    head.carry_out(StopSession(name))
