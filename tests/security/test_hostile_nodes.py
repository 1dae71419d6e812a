"""A real head, a node with an agent, and a node whose sshd runs an attack instead of the agent."""

from __future__ import annotations

import getpass
import io
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from gswarm_tui.cli import main
from gswarm_tui.link.limits import BYTES_PER_S, MESSAGE_BYTES, ROW_BYTES, START_BYTES
from tests.integration import sshd
from tests.integration.heads import eventually, head, nothing_left, rows
from tests.recorders import recorder_of
from tests.terminal import InTerminal
from tests.unit.store_recording import query

REPOSITORY = Path(__file__).parents[2]
ENDED = (0, 1)
"""How a head ends by itself: with the frames of all nodes, or without those of some."""
STOPPED_S = 18.0
"""Longer than the 15 s after which a node without data is lost."""

pytestmark = pytest.mark.skipif(sshd.SSHD is None, reason="no sshd on this machine")


@contextmanager
def home_in(folder: Path) -> Iterator[None]:
    """Set an empty home folder, for the head and for what sshd starts."""
    (folder / "home").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder / "home"))
        patch.delenv("SSH_AUTH_SOCK", raising=False)
        yield


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
REASONS = {
    "backdated": TOO_MUCH,
    "lives": TOO_MUCH,
    "events": TOO_MUCH,
    "replies": TOO_MUCH,
}


@dataclass(frozen=True)
class Suspended:
    """A suspended head with two nodes, its folder of sockets, and the monotonic time since which it is."""

    running: InTerminal
    path: Path
    sockets: Path
    since: float


@pytest.fixture(scope="module")
def suspended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suspended]:
    """Suspend a head that watches two nodes; other tests run meanwhile, and no command asks it."""
    folder = tmp_path_factory.mktemp("suspended")
    with (
        tempfile.TemporaryDirectory(prefix="gswarm-run-") as sockets,
        home_in(folder),
        ExitStack() as started,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("XDG_RUNTIME_DIR", sockets)
        running, path = started.enter_context(watching(folder, {"gpu01": "", "gpu02": ""}))
        eventually(lambda: rows(running) > 50, "rows")
        recorder = recorder_of(path.resolve())
        os.kill(recorder, signal.SIGSTOP)
        patch.undo()
        yield Suspended(running, path, Path(sockets), time.monotonic())
        with suppress(ProcessLookupError):  # unless the test that continues it was left out or failed
            os.kill(recorder, signal.SIGCONT)


@dataclass(frozen=True)
class Attacked:
    """The recording of a head with an honest node and a node for each attack, and what each node may send.

    The busier the machine, the longer the attacks last, and the more a node may send.
    """

    path: Path
    allowed_bytes: float


@pytest.fixture(scope="module")
def attacked(suspended: Suspended, tmp_path_factory: pytest.TempPathFactory) -> Attacked:
    """Attack a head until it has cut off all attackers, and end it."""
    folder, began = tmp_path_factory.mktemp("attacked"), time.monotonic()
    attacks = {"gpu01": "", **{node: node.replace("-", "_") for node in (*REASONS, "when-stopped")}}
    with home_in(folder), watching(folder, attacks) as (running, path):
        for node in REASONS:
            eventually(partial(is_cut_off, path, node), f"the end of the link to {node}")
        before = frames_of(path, "gpu01")
        eventually(lambda: frames_of(path, "gpu01") > before + 10, "frames of the honest node")
        assert running.end() in ENDED
    return Attacked(path, START_BYTES + BYTES_PER_S * (time.monotonic() - began))


def is_cut_off(path: Path, node: str) -> bool:
    """Return whether a running recording says why the link to a node was lost."""
    lost = "SELECT count(*) FROM events JOIN nodes USING (node_id) WHERE kind IN ('link_lost', 'unreachable')"
    return number_in(path, f"{lost} AND node = '{node}' AND contains(message, '{REASONS[node]}')") > 0


@pytest.mark.parametrize("node", REASONS)
def test_attack_is_named_and_cut_off(attacked: Attacked, node: str) -> None:
    lost = query(
        attacked.path,
        "SELECT message FROM events JOIN nodes USING (node_id) "
        f"WHERE kind IN ('link_lost', 'unreachable') AND node = '{node}' ORDER BY ts",
    )
    assert REASONS[node] in str(lost[-1][0]), "then it is tried only a minute later"


def test_attacks_neither_cost_another_node_frames_nor_fill_the_recording(attacked: Attacked) -> None:
    path = attacked.path
    assert no_frame_is_missing(path, "gpu01")
    assert query(path, f"SELECT count(*) * {ROW_BYTES} < {attacked.allowed_bytes} FROM events") == [(True,)]
    assert query(path, f"SELECT count(*) * {ROW_BYTES} < {attacked.allowed_bytes} FROM gpus") == [(True,)]
    assert query(path, "SELECT max(length(message)) <= 500 FROM events") == [(True,)]


@pytest.mark.parametrize("node", [*REASONS, "when-stopped"])
def test_flood_of_frames_is_limited_also_while_the_head_ends(attacked: Attacked, node: str) -> None:
    few = f"SELECT count(*) * {MESSAGE_BYTES} < {attacked.allowed_bytes} FROM host_samples"
    assert query(attacked.path, f"{few} JOIN nodes USING (node_id) WHERE node = '{node}'") == [(True,)]


def test_suspended_head_reports_no_node_as_lost(
    suspended: Suspended, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, path = suspended.running, suspended.path
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(suspended.sockets))
    time.sleep(max(0.0, suspended.since + STOPPED_S - time.monotonic()))  # the fault: nothing to wait for
    os.kill(recorder_of(path.resolve()), signal.SIGCONT)
    eventually(lambda: is_logged(path, "gswarm-tui itself was paused for"), "the standstill")
    shown = rows(running)
    eventually(lambda: rows(running) > shown + 100, "rows after the standstill")
    assert running.end() in ENDED
    kinds = dict(query(path, "SELECT kind, count(*) FROM events GROUP BY kind"))
    assert kinds["standstill"] == 1
    assert not kinds.keys() & {"link_lost", "unreachable", "stale", "unhealthy", "gap"}
    assert no_frame_is_missing(path, "gpu01")
    assert no_frame_is_missing(path, "gpu02")
