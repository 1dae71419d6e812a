"""All ends of a recording: quit, signal, end of the job, kill; and a full disk."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.person import (
    all_ended,
    ask,
    closed_properly,
    event_line,
    every_tick_is_a_frame,
    leave,
    outcome,
    seated,
    start,
    told,
    user_env,
    wait_granted,
    wait_seconds,
)
from tests.cluster.terminal import Terminal

NODES = ("gpu01", "gpu03")
INTERVAL_S = 0.5


@contextmanager
def recording(cluster: Cluster, db: Path, options: str) -> Iterator[Terminal]:
    """Run gswarm-tui in a terminal without a shell, with two sessions."""
    words = ["gswarm-tui", *options.split(), "--interval", f"{INTERVAL_S}", "--db", str(db)]
    with Terminal(words, env=user_env(cluster), size=(140, 40), folder=cluster.home) as terminal:
        terminal.wait_for("nodes 2/2")
        for name in ("session-1", "session-2"):
            terminal.press("s")
            terminal.wait_for("start session")
            terminal.press("Enter")
            terminal.wait_for(re.compile(rf"● {name} \d s"))
        yield terminal


def every_session_ended(db: Path) -> None:
    sessions = ask(db, "SELECT name, ended_at > started_at, status FROM sessions ORDER BY session_id")
    assert sessions == [("session-1", True, "stopped"), ("session-2", True, "stopped")]
    assert ask(
        db, "SELECT count(*) FROM recordings WHERE ended_at >= ALL (SELECT ended_at FROM sessions)"
    ) == [(1,)]


def test_quit_confirms_once_while_sessions_run(cluster: Cluster, tmp_path: Path) -> None:
    db = tmp_path / "quit.duckdb"
    with recording(cluster, db, f"--nodes {' '.join(NODES)}") as terminal:
        terminal.press("q")
        terminal.wait_for("2 sessions running: session-1, session-2")
        terminal.press("n")
        terminal.wait_gone("end and quit")
        # The rules look after the first five seconds.
        wait_seconds(terminal, 7)
        assert "● session-2" in terminal.screen()
        terminal.press("q")
        terminal.wait_for("end and quit")
        terminal.press("y")
        assert terminal.exit_status() == 0
        assert re.search(r"^GPU time +\S", terminal.screen(), re.MULTILINE)
        assert re.search(r"quit.duckdb: [\d,]+ rows in .* MB, 2 sessions", terminal.screen())
    closed_properly(db)
    every_session_ended(db)
    all_ended(cluster, NODES)


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "the terminal is closed"])
def test_signal_ends_the_head_without_confirmation(cluster: Cluster, how: str, tmp_path: Path) -> None:
    db = tmp_path / "signal.duckdb"
    with recording(cluster, db, f"--nodes {' '.join(NODES)}") as terminal:
        if how.startswith("SIG"):
            os.kill(terminal.pid, signal.Signals[how])
            assert terminal.exit_status() == 0
            said = r"\S+/signal.duckdb: [\d,]+ rows in [\d.]+ MB, 2 sessions\n"
            assert re.search(said, terminal.screen().replace("MB,\n", "MB, ")), terminal.screen()
        else:
            terminal.close()
        all_ended(cluster, NODES)
    closed_properly(db)
    every_session_ended(db)


def rows_shown(terminal: Terminal) -> float:
    """Return the committed rows shown in the header; thousands are rounded down."""
    found = re.search(r"([\d.]+)( k)? rows", terminal.screen())
    assert found is not None
    return float(found[1]) * 1000 - 5 if found[2] else float(found[1])


@pytest.mark.parametrize("launcher", ["ssh", "srun"])
def test_killed_head_is_recovered_without_loss(cluster: Cluster, launcher: str, tmp_path: Path) -> None:
    db = tmp_path / "killed.duckdb"
    job = cluster.run(f"salloc -N2 -w {','.join(NODES)} --no-shell").stderr.split()[-1]
    try:
        with recording(cluster, db, f"--job {job} --launcher {launcher}") as terminal:
            wait_seconds(terminal, 3)
            terminal.wait_for(" rows")
            committed = rows_shown(terminal)
            assert terminal.kill(db) == 128 + signal.SIGKILL
        assert ask(db, "SELECT ended_at FROM recordings") == [(None,)]
        assert ask(db, "SELECT name, ended_at, status FROM sessions ORDER BY session_id") == [
            ("session-1", None, "running"),
            ("session-2", None, "running"),
        ]
        tables = *(f"{what}_samples" for what in ("gpu", "host", "process", "port", "mount")), "events"
        assert sum(ask(db, f"SELECT count(*) FROM {table}")[0][0] for table in tables) >= committed > 0
        every_tick_is_a_frame(db, INTERVAL_S)
        with seated(cluster) as terminal:
            status, said = told(terminal, f"recover 1 --finish --db {db}")
        assert status == 0, said
        assert "is closed" in said
        all_ended(cluster, NODES)
    finally:
        cluster.run(["scancel", job])
    closed_properly(db)
    every_tick_is_a_frame(db, INTERVAL_S)
    assert ask(db, "SELECT count(*) FROM links WHERE frames = last_seq AND lost_frames = 0") == [(2,)]
    assert ask(db, "SELECT count(*) FROM session_summary WHERE scope = 'all'") == [(2,)]


def test_head_continues_after_the_job_ended(cluster: Cluster, tmp_path: Path) -> None:
    db = tmp_path / "job.duckdb"
    job = cluster.run(f"salloc -N2 -w {','.join(NODES)} --no-shell").stderr.split()[-1]
    with seated(cluster, (160, 40)) as terminal:
        start(terminal, f"--job {job} --launcher srun --interval {INTERVAL_S} --db {db}")
        terminal.wait_for("nodes 2/2")
        cluster.run(["scancel", job])
        terminal.wait_for(event_line("gpu03", "lost: the agent was ended by SIGTERM"))
        for name in NODES:
            terminal.wait_for(re.compile(rf"^ {name} .* Slurm job {job} has expired", re.MULTILINE))
        status, said = leave(terminal)
    assert status == 0, said
    closed_properly(db)
    all_ended(cluster, NODES)
    assert ask(db, "SELECT count(*) FROM links WHERE frames > 0 AND lost_frames = 0") == [(2,)]


def test_head_closes_the_recording_when_salloc_hangs_up(cluster: Cluster, tmp_path: Path) -> None:
    """At the job's time limit the recording is closed and the terminal is usable again."""
    db = tmp_path / "job.duckdb"
    with seated(cluster) as terminal:
        terminal.type(f"salloc -N2 -w {','.join(NODES)}")
        job = wait_granted(terminal)
        start(terminal, f"--interval {INTERVAL_S} --db {db}")
        terminal.wait_for("nodes 2/2")
        cluster.run(["scancel", job])
        status, said = outcome(terminal)
        assert status == 0, said
        assert re.search(r"job.duckdb: [\d,]+ rows in .* MB", said), said
        assert "GPU util" not in said
        terminal.type("echo $((6 * 7)) is shown")
        terminal.wait_for("42 is shown")
    closed_properly(db)
    all_ended(cluster, NODES)


@pytest.fixture
def small(cluster: Cluster) -> Iterator[Path]:
    """Mount a small file system on a folder."""
    folder = cluster.home / "small"
    folder.mkdir()
    cluster.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)])
    yield folder
    cluster.run(["umount", str(folder)])
    folder.rmdir()


def test_full_disk_loses_no_frame(cluster: Cluster, small: Path) -> None:
    db, filler = small / "run.duckdb", small / "filler"
    with seated(cluster, (160, 40)) as terminal:
        start(terminal, f"--nodes {' '.join(NODES)} --interval 0.1 --db {db}")
        terminal.wait_for("nodes 2/2")
        cluster.run(f"cat /dev/zero >{filler}", check=False)
        terminal.wait_for(f"╳ {db.name} can't be written because its disk is full; free some space")
        terminal.press("s")
        terminal.wait_for("start session")
        terminal.press("Enter")
        terminal.wait_for(re.compile(r"● session-1 ([3-9]|[1-9]\d) s"))
        filler.unlink()
        terminal.wait_for("● rec")
        wait_seconds(terminal, 1)
        terminal.press("q", "y")
        status, said = outcome(terminal)
    assert status == 0, said
    closed_properly(db)
    every_tick_is_a_frame(db, 0.1)
    assert ask(db, "SELECT sum(lost_frames) FROM links") == [(0,)]
    assert ask(db, "SELECT name, status FROM sessions") == [("session-1", "stopped")]
