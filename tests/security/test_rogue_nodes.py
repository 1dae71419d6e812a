"""Nodes that lie within their limits: the recording stays readable and keeps the head's guarantees."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gswarm_agent.wire import MAGIC
from gswarm_tui.cli import main
from gswarm_tui.fleet.events import EventLogged
from gswarm_tui.launch.agent_status import query_status
from gswarm_tui.launch.base import Launcher, LaunchError
from gswarm_tui.launch.inbox import Inbox
from tests.integration import sshd
from tests.integration.heads import eventually
from tests.recorders import kill_recorder
from tests.security.rogue_node import LIES
from tests.security.test_hostile_nodes import (
    ENDED,
    frames_of,
    home_in,
    is_logged,
    no_frame_is_missing,
    watching,
)
from tests.terminal import PATIENCE_S
from tests.unit.store_recording import T0, introduced, query, record

pytestmark = pytest.mark.skipif(sshd.SSHD is None, reason="no sshd on this machine")

REFUSED = {
    "late_note": "malformed time of a sample",
    "deep_detail": "malformed note detail",
    "high_index": "malformed hello gpu index",
    "changing_links": "its agent sent too much",
    "endless_interval": "malformed hello interval",
    "lost_runs": "it announced more than 64 former runs",
    "loud": "printed over 2 MiB on stderr",
}
FINISH_S = 120.0
BELIEVED = ("brackets", "heads_events", "future", "long_reasons", "unending")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[None]:
    """An empty home folder."""
    with home_in(tmp_path):
        yield


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the closed recording of a head with an honest node and one node for each lie."""
    folder = tmp_path_factory.mktemp("rogue")
    with home_in(folder):
        nodes = {"gpu01": "", **{lie.replace("_", "-"): lie for lie in LIES}}
        with watching(folder, nodes, "tests.security.rogue_node") as (running, path):
            for reason in set(REFUSED.values()):
                eventually(partial(is_logged, path, reason), reason)
            before = frames_of(path, "gpu01")
            eventually(lambda: frames_of(path, "gpu01") > before + 10, "frames of the honest node")
            eventually(
                lambda: all(frames_of(path, lie.replace("_", "-")) > 5 for lie in BELIEVED), "all frames"
            )
            assert running.end() in ENDED
            return path


def events(path: Path, columns: str, where: str) -> list[tuple[object, ...]]:
    return query(path, f"SELECT {columns} FROM events JOIN nodes USING (node_id) WHERE {where}")


def test_every_command_still_reads_the_recording(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sessions", "--db", str(recording)]) == 0
    assert main(["sql", "SELECT count(*) FROM events", "--db", str(recording)]) == 0
    assert main(["recover", "--db", str(recording)]) == 0
    assert "isn't a valid recording" not in "".join(capsys.readouterr())
    assert no_frame_is_missing(recording, "gpu01")


@pytest.mark.parametrize("lie", REFUSED)
def test_message_that_no_agent_sends_ends_the_link_with_the_reason(recording: Path, lie: str) -> None:
    node = lie.replace("_", "-")
    lost = events(recording, "message", f"kind IN ('link_lost', 'unreachable') AND node = '{node}'")
    assert any(REFUSED[lie] in str(message) for (message,) in lost)


def test_node_cant_fill_the_tables_of_agent_runs_and_links(recording: Path) -> None:
    ((refusals,),) = events(
        recording, "count(*)", "kind IN ('link_lost', 'unreachable') AND node = 'lost-runs'"
    )
    most = len(LIES) + 1 + 64 * (int(str(refusals)) + 1)  # a run of each node, and 64 at each attempt
    assert query(recording, "SELECT count(*) FROM links")[0][0] <= most
    assert query(recording, "SELECT count(*) < 150_000 FROM gpu_links") == [(True,)]


def test_node_cant_report_an_event_of_the_head(recording: Path) -> None:
    kinds = events(recording, "DISTINCT kind", "message = 'of the head'")
    assert kinds == [("notice",)]


def test_no_sample_and_no_event_lies_far_in_the_future(recording: Path) -> None:
    latest = "now()::TIMESTAMP + INTERVAL 1 MINUTE"
    assert query(recording, f"SELECT max(ts) < {latest} FROM host_samples") == [(True,)]
    assert query(recording, "SELECT max(ts) < now()::TIMESTAMP FROM events") == [(True,)]


def test_brackets_in_a_marks_text_dont_make_a_recording_unreadable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A value such as a printed matrix has a bracket for each row."""
    path = tmp_path / "run.duckdb"
    detail = json.dumps({"matrix": "[" + "[1, 2], " * 400, "quote": '"['})
    mark = EventLogged(T0, "mark", "info", "m", "n1", detail=detail)
    record(path, [introduced(), mark])
    assert main(["sql", "FROM marks", "--db", str(path)]) == 0
    assert "1, 2" in capsys.readouterr().out


def test_fetching_from_a_node_that_never_ends_can_be_stopped(tmp_path: Path, home: None) -> None:
    with watching(tmp_path, {"unending": "unending"}, "tests.security.rogue_node") as (_, path):
        eventually(lambda: is_logged(path, "connected"), "the connection")
        eventually(lambda: frames_of(path, "unending") > 5, "frames")
        kill_recorder(path)
        ((uid, before),) = query(path, "SELECT uid, count(*) FROM recordings, host_samples GROUP BY uid")
        command = [sys.executable, "-m", "gswarm_tui", "recover", uid, "--finish", "--db", str(path)]
        sizes = set[int]()

        def many_commits() -> bool:
            sizes.add(sum(file.stat().st_size for file in tmp_path.glob(f"{path.name}*")))
            return len(sizes) > 4

        fetching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            eventually(many_commits, "frames of the past on disk")
            fetching.send_signal(signal.SIGINT)
            out, err = fetching.communicate(timeout=PATIENCE_S)
        finally:
            fetching.kill()
        assert (fetching.returncode, err) == (130, "")
        assert f"recording {uid[:8]} stays open, with " in out
        assert query(path, "SELECT count(*) FROM host_samples")[0][0] > before
        assert query(path, "SELECT ended_at FROM recordings") == [(None,)]


def test_recording_of_a_node_that_sends_more_than_it_can_keep_is_closed_on_request(
    tmp_path: Path, home: None
) -> None:
    few = "--spool-mib", "1"
    nodes = {"overflowing": "overflowing"}
    with watching(tmp_path, nodes, "tests.security.rogue_node", *few) as (_, path):
        eventually(lambda: is_logged(path, "connected"), "the connection")
        eventually(lambda: frames_of(path, "overflowing") > 5, "frames")
        kill_recorder(path)
        ((uid,),) = query(path, "SELECT uid FROM recordings")
        command = [sys.executable, "-m", "gswarm_tui", "recover", uid, "--finish", "--db", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FINISH_S)
        assert (done.returncode, done.stderr) == (1, ""), done.stdout
        assert "overflowing: it still holds " in done.stdout
        done = subprocess.run(
            [*command, "--abandon"], capture_output=True, text=True, check=False, timeout=FINISH_S
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        assert f"recording {uid[:8]} is closed; " in done.stdout
        assert query(path, "SELECT count(*) BETWEEN 1000 AND 50000 FROM host_samples") == [(True,)]
        assert events(path, "kind, severity", "kind = 'abandoned'") == [("abandoned", "error")]


class Replying(Inbox):
    """Channel to a node that has sent a reply."""

    def __init__(self, reply: str) -> None:
        super().__init__()
        self.received(MAGIC + reply.encode())
        self.ended()

    def write(self, data: bytes) -> None:
        """Ignore the bytes."""
        return

    async def explain_end(self) -> str:
        return "it ended"

    async def close(self) -> None:
        """Do nothing: the channel has no connection."""


class Answering(Launcher):
    """Launcher whose nodes all send the same reply."""

    def __init__(self, reply: str) -> None:
        self._reply = reply

    async def open(self, node: str, *arguments: str) -> Replying:
        return Replying(self._reply)


async def test_status_with_a_number_too_long_to_print_is_refused() -> None:
    life = f'{{"frames": {"9" * 4300}}}'
    launcher = Answering(f'[{{"node": "gpu66", "pid": null, "lives": [{life}, {life}]}}]')
    with pytest.raises(LaunchError, match="can't be understood"):
        await query_status(launcher, "gpu66", "uid")
