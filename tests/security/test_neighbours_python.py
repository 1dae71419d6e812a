"""A neighbour's program in the place of the head's Python never runs as the user."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gswarm_tui.launch.bootstrap import Bootstrap
from gswarm_tui.launch.bundle import own_bundle
from tests.integration.test_launch_bootstrap import failing, link_tools, speaks, stand_in

ME = pwd.getpwnam("daemon").pw_uid  # its group has its name and no members
NEIGHBOUR = 65534
RUN = own_bundle().files["gswarm_agent/run.sh"].decode()


def environment(prefix: Path, says: str, owner: int = ME) -> Path:
    """Make a stand-in for a Python; return its path."""
    python = stand_in(prefix / "bin/python3.11", f"echo {says}")
    for path in (prefix, *prefix.rglob("*")):
        os.chown(path, owner, owner)
    return python


class Node:
    """A node with a /tmp of its own, a Python that the user's PATH leads to, and a neighbour.

    ``folder`` belongs to the user and lies directly in /tmp.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "mine"
        self.path = folder / "path"
        self.run_sh = folder / "run.sh"
        self.run_sh.write_text(RUN)
        self.folder.mkdir()
        os.chown(self.folder, ME, ME)
        stand_in(self.path / "python3", "echo next")
        folder.chmod(0o755)

    def start(self, python: Path, *others: str) -> str:
        """Run the agent's start as the user, with the head's Python and other ways; return its output."""
        done = subprocess.run(
            ["sh", self.run_sh, ":".join((f"?{python}", *others)), "stream"],
            env={"PATH": f"{self.path}:{os.environ['PATH']}"},
            user=ME,
            group=ME,
            extra_groups=[],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        return done.stdout

    def neighbour(self, command: str) -> None:
        """Run a shell command as the neighbour."""
        script = ["sh", "-ec", command]
        subprocess.run(script, user=NEIGHBOUR, group=NEIGHBOUR, extra_groups=[], cwd="/", check=True)


@pytest.fixture
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Node(Path(folder))


def scratch(node: Node, mode: int) -> Path:
    """Make node-local scratch, which belongs to root and lets everybody write."""
    folder = node.path.parent / "scratch"
    folder.mkdir()
    folder.chmod(mode)
    return folder


@pytest.mark.root("be somebody else")
def test_python_of_mine_below_tmp_is_used(node: Node) -> None:
    own = environment(node.folder / "env", "own")
    assert node.start(own, "python3") == "own\n"
    venv = node.folder / "venv/bin/python"
    venv.parent.mkdir(parents=True)
    (node.folder / "venv/pyvenv.cfg").touch()
    venv.symlink_to(own)
    assert node.start(venv, "python3") == "own\n"


@pytest.mark.root("be somebody else")
@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_python_that_a_neighbour_put_into_shared_scratch_is_not_run(node: Node, mode: int) -> None:
    prefix = scratch(node, mode) / "env"
    environment(node.path.parent / "planted", "evil", NEIGHBOUR)
    node.neighbour(f"cp -r {node.path.parent}/planted {prefix}")
    assert node.start(prefix / "bin/python3.11", "python3") == "next\n"
    assert node.start(prefix / "bin/python3.11") == f"GSWARM-FAIL python {open_part(prefix, mode)}\n"


def open_part(prefix: Path, mode: int) -> Path:
    """Return the first folder that the neighbour can change."""
    return prefix if mode & 0o1000 else prefix.parent


@pytest.mark.root("be somebody else")
def test_python_of_mine_in_a_folder_where_others_can_replace_it_is_not_run(node: Node) -> None:
    own = environment(scratch(node, 0o777) / "env", "own")
    assert node.start(own, "python3") == "next\n"


@pytest.mark.root("be somebody else")
def test_link_to_a_neighbours_python_is_not_followed(node: Node) -> None:
    shared = scratch(node, 0o1777)
    environment(node.path.parent / "planted", "evil", NEIGHBOUR)
    node.neighbour(f"ln -s {node.path.parent}/planted {shared}/env")
    assert node.start(shared / "env/bin/python3.11", "python3") == "next\n"


PARTS = ["", "bin", "bin/python3.11"]


@pytest.mark.root("be somebody else")
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("trouble", ["owner", "others", "group"])
def test_python_with_a_part_that_others_can_change_is_not_used(node: Node, part: str, trouble: str) -> None:
    own = environment(node.folder / "env", "own")
    victim = node.folder / "env" / part
    if trouble == "owner":
        os.chown(victim, NEIGHBOUR, ME)
    elif trouble == "others":
        victim.chmod(0o757)
    else:
        os.chown(victim, ME, NEIGHBOUR)
        victim.chmod(0o775)
    assert node.start(own, "python3") == "next\n"
    assert node.start(own) == f"GSWARM-FAIL python {victim}\n"


def make_writable_for_group(prefix: Path, group: int) -> None:
    """Give a group the right to write to a folder and all that is in it."""
    for path in (prefix, *prefix.rglob("*")):
        os.chown(path, -1, group)
        path.chmod(path.stat().st_mode | 0o020)


@pytest.mark.root("be somebody else")
def test_python_writable_by_a_group_with_the_users_name_is_used(node: Node) -> None:
    own = environment(node.folder / "env", "own")
    make_writable_for_group(node.folder, ME)
    assert node.start(own, "python3") == "own\n"


@pytest.fixture
def planted(node: Node, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a neighbour's program where the head's Python would be; return the file that it makes."""
    python = environment(scratch(node, 0o777) / "env", f"GSWARM-OLD evil; touch {node.folder}/ran", NEIGHBOUR)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("HOME", str(node.folder.parent))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return node.folder / "ran"


@pytest.mark.root("give folders away")
async def test_agent_starts_with_the_next_python(planted: Path) -> None:
    await speaks("sh", Bootstrap())
    assert not planted.exists()


@pytest.mark.root("give folders away")
async def test_node_without_another_python_is_reported_with_the_open_folder(
    node: Node, planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = str(shutil.which("sh"))
    tools = node.path.parent / "tools"
    link_tools(tools)
    monkeypatch.setenv("PATH", str(tools))
    error = await failing(shell, Bootstrap())
    assert not planted.exists()
    assert error.reason == (
        "it has no working python3; the recorder's own Python isn't used there: others can change "
        f"{node.path.parent}/scratch"
    )
    assert "--agent-python" in error.remedy
