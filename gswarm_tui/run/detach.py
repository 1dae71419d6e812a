"""Detached recorders: without a terminal and outside the session of the process that starts them.

The process that starts one hands its options over and waits until the recorder answers. It runs as
``python -m gswarm_tui.run.detach``, apart from all that its starter has loaded: it has to stay small.
"""

from __future__ import annotations

import os
import pickle
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from gswarm_tui.common.errors import UserError, print_notice
from gswarm_tui.common.paths import state_folder
from gswarm_tui.common.processes import last_line
from gswarm_tui.options.arguments import Options
from gswarm_tui.run.batch import BatchRun
from gswarm_tui.run.headless import Headless, OpenRecording
from gswarm_tui.run.plan import Plan
from gswarm_tui.slurm.jobs import Slurm

STARTED_WITHIN_S = 60.0


def detach(options: Options, plan: Plan, recording: OpenRecording, environ: Mapping[str, str]) -> str:
    """Start a detached recorder that resumes a recording; return a sentence on it once it records.

    Raises:
        UserError: it ended, or doesn't answer in time.
    """
    short = recording.uid[:8]
    log = state_folder() / f"recorder-{short}.log"
    try:
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with log.open("ab") as lines:
            started = subprocess.Popen(
                [sys.executable, "-P", "-m", "gswarm_tui.run.detach"],
                stdin=subprocess.PIPE,
                stdout=lines,
                stderr=lines,
                start_new_session=True,
            )
    except OSError as error:
        raise UserError(f"no recorder could be started: {error}; {_advice(recording)}.") from None
    if started.stdin is not None:
        with started.stdin as pipe:
            pipe.write(pickle.dumps((options, plan, recording)))
    if not _records(started, recording, environ):
        why = last_line(log.read_text(errors="replace")) or "it doesn't answer"
        raise UserError(f"the detached recorder failed: {why} (log: {log}); {_advice(recording)}.")
    return (
        f"recording continues in process {started.pid}: gswarm-tui attach {short} shows it, "
        f"gswarm-tui recording stop --recording {short} ends it (log: {log})"
    )


def _advice(recording: OpenRecording) -> str:
    return f"gswarm-tui recover {recording.uid[:8]} --db {shlex.quote(str(recording.path))} resumes recording"


def _records(started: subprocess.Popen[bytes], recording: OpenRecording, environ: Mapping[str, str]) -> bool:
    """Wait until the recorder answers; return False if it has ended or doesn't answer."""
    from gswarm_tui.control.client import running_heads

    deadline = time.monotonic() + STARTED_WITHIN_S
    while started.poll() is None and time.monotonic() < deadline:
        if any(head.uid == recording.uid and not head.hangs for head in running_heads(environ)):
            return True
        time.sleep(0.05)
    return False


def main() -> int:
    """Record, as standard input says, until a signal or ``gswarm-tui recording stop``."""
    # From the process that started this one, over a pipe that no other can write to.
    handed_over: tuple[Options, Plan, OpenRecording] = pickle.load(sys.stdin.buffer)  # noqa: S301
    options, plan, recording = handed_over
    os.chdir(Path(recording.path).parent)
    listener = None
    if options.server is not None:
        from gswarm_tui.run.http_server import Listener

        try:
            listener = Listener.open(options.server)
        except UserError as error:
            print_notice(f"recording continues without its HTTP server: {error}")
    headless = Headless(options, plan, [], "", listener)
    why_ending = partial(Slurm().why_ending, plan.job.label) if plan.job else str
    return BatchRun(headless.record, (), 0o077, why_ending, recording=recording).run()


if __name__ == "__main__":
    sys.exit(main())
