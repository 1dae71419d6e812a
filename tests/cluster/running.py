"""Running commands and waiting for conditions, with errors that show what went wrong."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.terminal import PATIENCE_S, pause


class ClusterError(Exception):
    """Raised when a test cluster can't be started, used or found; the message has a remedy or the log."""


def wait_until(
    condition: Callable[[], object], what: str, log: Path | None = None, timeout: float = PATIENCE_S
) -> None:
    """Poll until the condition is true. Raises ClusterError with the log's end after `timeout` s."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() > began + timeout:
            raise ClusterError(f"{what} did not happen within {timeout:g} s{tail(log)}")
        pause(began)


def tail(log: Path | None, lines: int = 15) -> str:
    """Return the end of a log for an error message; empty without a log."""
    if log is None:
        return ""
    try:
        text = log.read_text(errors="replace").rstrip()
    except FileNotFoundError:
        return f"; it wrote no log ({log})"
    if not text:
        return f"; its log is empty ({log})"
    return "; the end of its log:\n" + "\n".join(text.splitlines()[-lines:])


def words_of(command: str | Sequence[str]) -> list[str]:
    """Return the argument list of a command; text is a bash command."""
    return ["bash", "-c", command] if isinstance(command, str) else list(command)


def run(
    words: Sequence[str], *, check: bool = True, timeout: float = PATIENCE_S, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command with `text` as input. Raises ClusterError if it fails and `check` is on."""
    done = subprocess.run(words, check=False, timeout=timeout, capture_output=True, text=True, input=text)
    if check and done.returncode != 0:
        said = (done.stderr + done.stdout).strip() or "it printed nothing"
        raise ClusterError(f"{' '.join(words)!r} ended with status {done.returncode}: {said}")
    return done


def start_daemon(words: Sequence[str], what: str, log: Path, pid_file: Path) -> None:
    """Start a daemon that writes `pid_file` when it is ready."""
    with log.open("a") as file:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=PATIENCE_S, check=False
        )
    if done.returncode != 0:
        raise ClusterError(f"the start of {what} failed with status {done.returncode}{tail(log)}")
    wait_until(pid_file.exists, f"the start of {what}", log)


@contextmanager
def first_in_line() -> Iterator[None]:
    """Put what this thread starts before other tests: Slurm, nsys and agents have limits of time."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, usual - 5)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, usual)
