"""``gswarm-tui mark``: each recording gets the mark once, and errors are reported."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gswarm_agent import folder
from gswarm_agent.frame import Frame
from gswarm_tui.commands import mark
from gswarm_tui.common.errors import UserError
from gswarm_tui.control import registry
from tests.integration.agent_node import Node
from tests.integration.test_control import RunningHead
from tests.integration.test_marks import hear_marks
from tests.unit.store_recording import query

UID = "0f1e2d3c-0000-4000-8000-000000000001"


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """Return an environment without other heads and agents."""
    monkeypatch.setattr(registry, "SHARED", str(tmp_path / "shared"))
    monkeypatch.setattr(folder, "PARENTS", (str(tmp_path / "var"),))
    for name in ("run", "var"):
        (tmp_path / name).mkdir(mode=0o700)
    return {"XDG_RUNTIME_DIR": str(tmp_path / "run"), "HOME": str(tmp_path), "RANK": "2"}


@pytest.fixture
def watched(node: Node, environ: Mapping[str, str]) -> Node:
    """Return this machine as a node whose agents are in the usual folder."""
    node.folder = Path(folder.tops()[0])
    return node


@asynccontextmanager
async def head(path: Path, environ: Mapping[str, str], uid: str) -> AsyncIterator[RunningHead]:
    running = RunningHead(path, environ, uid)
    await running.control.start()
    try:
        yield running
    finally:
        running.hub.flush()
        await running.close()


async def run(environ: Mapping[str, str], *words: str) -> int:
    return await asyncio.to_thread(mark.run, words, environ)


def marks(path: Path) -> list[tuple[object, ...]]:
    return query(path, "SELECT mark, \"values\" ->> 'loss', \"values\" ->> 'rank' FROM marks")


async def test_mark_on_a_node_goes_to_its_agent(
    watched: Node, environ: Mapping[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    agent = watched.attach()
    agent.hear(Frame)
    assert await run(environ, "--value", "loss=1.2", "--", "-x") == 0
    (note,) = hear_marks(agent, 1)
    assert (note.message, note.detail) == ("-x", '{"loss": 1.2, "rank": 2}')
    assert capsys.readouterr().out == "marked in 1 recording\n"


async def test_mark_beside_a_head_goes_to_the_head(
    environ: Mapping[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tmp_path / "one.duckdb", tmp_path / "two.duckdb"
    elsewhere = {name: value for name, value in environ.items() if name != "XDG_RUNTIME_DIR"}
    async with head(one, environ, UID), head(two, elsewhere, "other"):
        assert await run(environ, "both", "--value", "loss=0.1") == 0
        assert await run(environ, "first", "--db", str(one)) == 0
        assert await run(environ, "second", "--recording", "oth") == 0
    assert capsys.readouterr().out == "marked in 2 recordings\n" + 2 * "marked in 1 recording\n"
    assert marks(one) == [("both", "0.1", "2"), ("first", None, "2")]
    assert marks(two) == [("both", "0.1", "2"), ("second", None, "2")]


async def test_agent_and_head_of_one_recording_get_one_mark(
    watched: Node, environ: Mapping[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "one.duckdb"
    agent = watched.attach(options=("--recording", UID))
    agent.hear(Frame)
    async with head(path, environ, UID):
        assert await run(environ, "once") == 0
        assert await run(environ, "again", "--db", str(path)) == 0
    assert [note.message for note in hear_marks(agent, 2)] == ["once", "again"]
    assert marks(path) == []
    assert capsys.readouterr().out == 2 * "marked in 1 recording\n"


async def test_mark_without_a_recording_is_an_error(environ: Mapping[str, str], tmp_path: Path) -> None:
    place = "run this on a monitored node, or on the machine that runs gswarm-tui"
    with pytest.raises(UserError, match=f"^no recording of yours monitors {socket.gethostname()}; {place}.$"):
        await run(environ, "x")
    with pytest.raises(UserError, match=f'^recording "abc" doesn\'t monitor {socket.gethostname()}; '):
        await run(environ, "x", "--recording", "abc")
    path = tmp_path / "run.duckdb"
    path.touch()
    with pytest.raises(UserError, match="no gswarm-tui on this machine records into"):
        await run(environ, "x", "--db", str(path))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("",), "a mark needs a name."),
        (("x", "--value", "loss"), "'loss' isn't of the form KEY=VALUE."),
        (("x" * 201,), "a mark's name can have 200 characters; this one has 201."),
        ((), "the following arguments are required: NAME."),
    ],
)
async def test_invalid_mark_is_not_sent(
    watched: Node, environ: Mapping[str, str], words: tuple[str, ...], said: str
) -> None:
    agent = watched.attach()
    agent.hear(Frame)
    with pytest.raises(UserError) as caught:
        await run(environ, *words)
    assert str(caught.value) == said
    assert await run(environ, "good") == 0
    assert [note.message for note in hear_marks(agent, 1)] == ["good"]


def test_mark_loads_no_heavy_modules() -> None:
    script = (
        "import sys, gswarm_tui.cli, gswarm_tui.commands.mark\n"
        "print(sorted({'duckdb', 'numpy', 'textual', 'asyncssh', 'hashlib'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
