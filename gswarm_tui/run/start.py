"""Starts a recorder in a session of its own, with a connection of its first client."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from gswarm_tui.common.errors import UserError
from gswarm_tui.common.paths import state_folder
from gswarm_tui.run.batch import BatchRun
from gswarm_tui.run.headless import Headless, OpenRecording


def recorder_log(uid: str) -> Path:
    """Return the file that a recorder prints to."""
    return state_folder() / f"recorder-{uid[:8]}.log"


def start_recorder(headless: Headless, recording: OpenRecording | None = None) -> socket.socket:
    """Fork a recorder and its parent, and return the connection to it; ``recording`` is one to resume.

    Fork before threads and big libraries are there: both processes keep what this one has loaded.
    """
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        return ours
    status = 1
    try:
        ours.close()
        os.setsid()
        _leave_terminal(recording.uid if recording is not None else headless.uid)
        status = BatchRun(headless, recording=recording, first=theirs).run()
    finally:
        os._exit(status)


def _leave_terminal(uid: str) -> None:
    """Print to a log from now on, which belongs to this user alone."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    try:
        log = recorder_log(uid)
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lines = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except (OSError, UserError):
        lines = nowhere
    os.dup2(nowhere, 0)
    os.dup2(lines, 1)
    os.dup2(lines, 2)
