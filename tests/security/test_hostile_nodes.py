"""A real head, a node with an agent, and a node whose sshd runs an attack instead of the agent."""

from __future__ import annotations

import getpass
import io
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from gswarm_tui.cli import main
from tests.integration import sshd
from tests.integration.heads import eventually, head, nothing_left, rows
from tests.terminal import InTerminal
from tests.unit.store_recording import query

REPOSITORY = Path(__file__).parents[2]
ENDED = (0, 1)
"""How a head ends by itself: with the frames of all nodes, or without those of some."""
STOPPED_S = 18.0
"""Longer than the 15 s after which a node without data is lost."""

pytestmark = pytest.mark.skipif(sshd.SSHD is None, reason="no sshd on this machine")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, for the head and for what sshd starts."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return home


@contextmanager
def cluster(folder: Path, attacks: dict[str, str], program: str) -> Iterator[Path]:
    """Run an sshd for each node, which runs the node's attack if it has one; yield a client configuration."""
    lines, known = list[str](), folder / "known_hosts"
    with ExitStack() as servers:
        for node, attack in attacks.items():
            command = f"cd {REPOSITORY} && exec {sys.executable} -m {program} {attack}"
            (folder / node).mkdir()
            forced = {"ForceCommand": command} if attack else {}
            server = servers.enter_context(sshd.running(folder / node, 0, **forced))
            server.trust()
            with known.open("a") as file:
                file.write(server.known_hosts.read_text())
            lines += [f"Host {node}", f"  Port {server.port}", f"  IdentityFile {server.user_key}"]
        lines += ["Host *", "  HostName 127.0.0.1", f"  User {getpass.getuser()}", "  IdentityAgent none"]
        config = folder / "ssh_config"
        config.write_text("\n".join([*lines, f"  UserKnownHostsFile {known}"]) + "\n")
        yield config


@contextmanager
def watching(
    folder: Path, attacks: dict[str, str], program: str = "tests.security.hostile_node", *more: str
) -> Iterator[tuple[InTerminal, Path]]:
    """Run a head on these nodes at five frames a second; yield its terminal and its recording."""
    path = folder / "run.duckdb"
    with cluster(folder, attacks, program) as config, nothing_left(path):
        words = ["--nodes", ",".join(attacks), "--ssh-config", str(config), "--interval", "0.2"]
        with head(*words, *more, "--db", str(path)) as running:
            running.wait_for(" rows")
            yield running, path


def number_in(path: Path, sql: str) -> int:
    """Return what `gswarm-tui sql` reports on a running recording; 0 while the head starts."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        status = main(["sql", sql, "--db", str(path), "--format", "csv"])
    return int(out.getvalue().splitlines()[1]) if status == 0 else 0


def frames_of(path: Path, node: str) -> int:
    """Return how many frames of a node are in a running recording."""
    frames = "SELECT coalesce(sum(frames), 0) FROM links JOIN nodes USING (node_id)"
    return number_in(path, f"{frames} WHERE node = '{node}'")


def is_logged(path: Path, text: str) -> bool:
    """Return whether an event of a running recording contains a text."""
    return number_in(path, f"SELECT count(*) FROM events WHERE contains(message, '{text}')") > 0


def no_frame_is_missing(path: Path, node: str) -> bool:
    """Return whether a node's frames are on disk, all of them."""
    links = "links JOIN nodes USING (node_id)"
    return query(path, f"SELECT sum(frames) > 10, sum(lost_frames) FROM {links} WHERE node = '{node}'") == [
        (True, 0)
    ]


TOO_MUCH = "its agent sent too much"


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        ("backdated", TOO_MUCH),
        ("lives", "its agent announced too many agent runs"),
        ("events", TOO_MUCH),
        ("replies", TOO_MUCH),
        ("empty_chunks", "a packed chunk is empty"),
    ],
)
def test_attack_is_named_and_cut_off(tmp_path: Path, home: Path, attack: str, reason: str) -> None:
    with watching(tmp_path, {"gpu01": "", "gpu66": attack}) as (running, path):
        eventually(lambda: is_logged(path, reason), "the reason")
        before = frames_of(path, "gpu01")
        eventually(lambda: frames_of(path, "gpu01") > before + 10, "frames of the other node")
        assert running.end() in ENDED
        assert no_frame_is_missing(path, "gpu01")
        ((lost,),) = query(
            path,
            "SELECT count(*) FROM events JOIN nodes USING (node_id) "
            f"WHERE kind IN ('link_lost', 'unreachable') AND node = 'gpu66' AND message LIKE '%{reason}%'",
        )
        assert lost == 1
        # About 5,000 of 4 kB use up the allowance and the reserve at once; 1,400 per second come after them.
        assert query(path, "SELECT count(*) < 20000 FROM events") == [(True,)]
        assert query(path, "SELECT count(*) < 20000 FROM host_samples") == [(True,)]
        assert query(path, "SELECT count(*) < 70 * 256 FROM gpus") == [(True,)]
        assert query(path, "SELECT max(length(message)) <= 500 FROM events") == [(True,)]


def test_flood_while_the_head_ends_does_not_delay_the_end(tmp_path: Path, home: Path) -> None:
    with watching(tmp_path, {"gpu01": "", "gpu66": "when_stopped"}) as (running, path):
        eventually(lambda: rows(running) > 50, "rows")
        assert running.end() in ENDED
        assert no_frame_is_missing(path, "gpu01")
        assert query(path, "SELECT count(*) < 20000 FROM host_samples") == [(True,)]


def test_suspended_head_reports_no_node_as_lost(tmp_path: Path, home: Path) -> None:
    with watching(tmp_path, {"gpu01": "", "gpu02": ""}) as (running, path):
        eventually(lambda: rows(running) > 50, "rows")
        os.killpg(running.process.pid, signal.SIGSTOP)
        time.sleep(STOPPED_S)  # the fault itself: nothing can be waited for meanwhile
        os.killpg(running.process.pid, signal.SIGCONT)
        eventually(lambda: is_logged(path, "gswarm-tui itself was paused for"), "the standstill")
        shown = rows(running)
        eventually(lambda: rows(running) > shown + 100, "rows after the standstill")
        assert running.end() in ENDED
        kinds = dict(query(path, "SELECT kind, count(*) FROM events GROUP BY kind"))
        assert kinds["standstill"] == 1
        assert not kinds.keys() & {"link_lost", "unreachable", "stale", "unhealthy", "gap"}
        assert no_frame_is_missing(path, "gpu01")
        assert no_frame_is_missing(path, "gpu02")
