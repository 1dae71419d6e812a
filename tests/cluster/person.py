"""A user at the login node: opens a terminal, runs and quits gswarm-tui, queries the recording."""

from __future__ import annotations

import contextlib
import re
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

from tests.cluster.cluster import Cluster
from tests.cluster.login import MARK
from tests.cluster.namespaces import command_line, marked
from tests.cluster.node import ClusterNode
from tests.cluster.running import wait_until
from tests.cluster.terminal import Terminal
from tests.terminal import PATIENCE_S, pause

SHELL = ["bash", "--norc", "--noprofile"]
PROMPT = "login$"
_TERMINAL = "GSWARM_TEST_TERMINAL"
_STATUS = re.compile(r"^status (\d+)", re.MULTILINE)
_GRANTED = re.compile(r"Granted job allocation (\d+)\n(?:.*\n)*?\S.*[#$]$", re.MULTILINE)
_CLOCK = re.compile(r"rec (?:(\d+) s|(\d+):(\d+):(\d+))")
_AGENT = "^[^ ]+ -IS [^ ]+/gswarm_agent/run.py "


def user_env(cluster: Cluster) -> dict[str, str]:
    """Return the user's environment with gswarm-tui on the PATH and a recognisable prompt."""
    env = cluster.env()
    return env | {
        "PATH": f"{Path(sys.executable).parent}:{env['PATH']}",
        "PS1": f"{PROMPT} ",
        "TERM": "xterm-256color",
        "GSWARM_TUI_UNATTENDED": "0",  # no recorder outlives the terminal of a test
    }


@contextmanager
def seated(cluster: Cluster, size: tuple[int, int] = (140, 40)) -> Iterator[Terminal]:
    """Open a terminal with a shell in the user's home folder; at the end, close it with its processes."""
    mark = uuid.uuid4().hex
    env = user_env(cluster) | {_TERMINAL: mark}
    try:
        with Terminal(SHELL, env=env, size=size, folder=cluster.home) as terminal:
            terminal.wait_for(PROMPT)
            yield terminal
    finally:
        wait_until(lambda: not marked(_TERMINAL, mark), "the end of what was hung up")


@contextmanager
def allocated(cluster: Cluster, options: str, size: tuple[int, int] = (140, 40)) -> Iterator[Terminal]:
    """Open a terminal inside an allocation, which ends with the terminal."""
    with seated(cluster, size) as terminal:
        terminal.type(f"salloc {options}")
        wait_granted(terminal)
        terminal.type("clear")
        terminal.wait_gone("Granted")
        yield terminal
        terminal.type("clear; exit")
        terminal.wait_for("Relinquishing job allocation")


def wait_granted(terminal: Terminal) -> str:
    """Wait for the prompt of salloc's shell; return the job's id.

    What is typed before it does can get lost: the shell takes the terminal over then. On a busy machine
    salloc may give it the terminal after the shell was stopped for want of it; nobody else continues it.
    """
    terminal.wait_for("Granted job allocation")
    began = time.monotonic()
    while not (found := _GRANTED.search(terminal.screen())):
        if time.monotonic() > began + PATIENCE_S:
            raise AssertionError(f"salloc's shell shows no prompt; the screen:\n{terminal.screen()}")
        terminal.wake()
        pause(began)
    return found[1]


def start(terminal: Terminal, options: str) -> None:
    """Type a gswarm-tui command, followed by one that prints its exit status."""
    terminal.type(f"clear; gswarm-tui {options}; echo status $?")
    terminal.wait_gone("status")


def fill(terminal: Terminal, text: str, tries: int = 5) -> None:
    """Replace the text of the focused field; check the screen and retry if keys got lost.

    Textual's input loses a key now and then when they come at a machine's pace.
    """
    for _ in range(tries - 1):
        terminal.press("C-u")
        terminal.type(text, enter=False)
        with contextlib.suppress(AssertionError):
            terminal.wait_for(text, timeout=3)
            return
    terminal.press("C-u")
    terminal.type(text, enter=False)
    terminal.wait_for(text)


def told(terminal: Terminal, options: str) -> tuple[int, str]:
    """Run a command to its end; return its exit status and output."""
    start(terminal, options)
    return outcome(terminal)


def leave(terminal: Terminal) -> tuple[int, str]:
    """Quit the app, confirming if it asks; return its exit status and final output."""
    terminal.press("q")
    if "end and quit" in terminal.wait_for(re.compile(f"{_STATUS.pattern}|end and quit", re.MULTILINE)):
        terminal.press("y")
    return outcome(terminal)


def outcome(terminal: Terminal) -> tuple[int, str]:
    """Wait for the command's end; return its exit status and output without the terminal's line breaks."""
    terminal.wait_for(_STATUS)
    written = "\n".join(map(str.rstrip, terminal.lines()))
    found = _STATUS.search(written)
    assert found is not None
    return int(found[1]), written[: found.start()].replace("\n", "")


def wait_seconds(terminal: Terminal, seconds: float) -> None:
    """Wait until the header shows at least this recorded time."""

    def shown() -> int:
        clock = _CLOCK.search(terminal.screen())
        if clock is None:
            return 0
        seconds, *parts = clock.groups()
        hours, minutes, rest = map(int, parts if seconds is None else (0, 0, seconds))
        return hours * 3600 + minutes * 60 + rest

    until = shown() + seconds
    wait_until(lambda: shown() >= until, "the recording to continue", timeout=seconds + PATIENCE_S)


def event_line(node: str, message: str, gpu: int | None = None) -> re.Pattern[str]:
    """Match an event on the screen, alone or in a line for several nodes or GPUs."""
    if gpu is None:
        return re.compile(rf"\b{node} {message}|{message}: .*\b{node}\b")
    several = rf"\b{node}:{gpu}\b|\d+ GPUs"
    return re.compile(
        rf"\b{node}:{gpu} {message}|\b{node} {message}: GPUs .*\b{gpu}\b|{message}: .*({several})"
    )


def ask(db: Path, sql: str) -> list[tuple[Any, ...]]:
    """Query a recording with a plain DuckDB."""
    with duckdb.connect(str(db), read_only=True) as connection:
        return connection.execute(sql).fetchall()


def agents(node: ClusterNode) -> list[int]:
    """Return the pids of all agent processes on a node, attach processes included."""
    return [int(pid) for pid in node.run(["pgrep", "-f", _AGENT], check=False).stdout.split()]


def measuring(node: ClusterNode) -> list[int]:
    """Return the pids of the sampling agents on a node."""
    lasting = node.run(["pgrep", "-P", "1", "-f", _AGENT], check=False).stdout.split()
    if lasting or not (found := agents(node)):
        return [int(pid) for pid in lasting]
    # The process that reads the GPUs is a child of the agent.
    readers = node.run(["pgrep", "-P", ",".join(map(str, found))], check=False).stdout.split()
    return [pid for pid in found if str(pid) not in readers]


def all_ended(cluster: Cluster, nodes: Sequence[str]) -> None:
    """Wait until no gswarm-tui process runs, at the login node and on the nodes."""

    def running() -> list[str]:
        words = [command_line(process) for process in marked(MARK, str(cluster.root))]
        here = [line for line in words if "gswarm-tui" in line and not line.startswith("tmux ")]
        return here + [f"{name}: {pid}" for name in nodes for pid in agents(cluster[name])]

    wait_until(lambda: not running(), "the end of all that gswarm-tui started")


def closed_properly(db: Path) -> None:
    """Assert that the recordings and sessions have ended and no write-ahead log is left."""
    assert not db.with_name(db.name + ".wal").exists()
    assert ask(db, "SELECT count(*) FROM recordings WHERE ended_at IS NULL") == [(0,)]
    assert ask(db, "SELECT count(*) FROM sessions WHERE ended_at IS NULL OR status = 'running'") == [(0,)]


def every_tick_is_a_frame(db: Path, interval_s: float, nodes: str = "true") -> None:
    """Assert that each node has one frame for each tick, except those it reported as missed.

    A first frame is read at once, and the last when the recording ends; all others are due on the interval's
    grid. One that was less than 5 ms late is kept at the time when it was due.
    """
    told = ask(
        db,
        "SELECT node, count(*) FILTER (seq <= 2), coalesce(sum(1 + missed) FILTER (seq > 2), 0), "
        "epoch(max(due) - min(due) FILTER (seq >= 2)) FROM (SELECT node, seq, missed, "
        "ts - to_microseconds((if(late_ms < 5, 0, late_ms) * 1000)::BIGINT) AS due "
        f"FROM host_samples JOIN nodes USING (node_id) WHERE {nodes} "
        "QUALIFY ts < max(ts) OVER (PARTITION BY node)) GROUP BY node",
    )
    assert told
    for node, first, later, span in told:
        assert first == 2, node
        assert later == round(span / interval_s), node
