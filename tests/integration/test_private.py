"""Privacy of a running head and its agent: no port, no readable file, no secret."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gswarm_agent.folder import tops
from gswarm_tui.printing.formats import atomic_file
from tests.integration.heads import agents_of, eventually, head, nothing_left, rows
from tests.unit.store_recording import arrived, gpu_row, introduced, record

SECRET = "zq7zq7zq7"


@pytest.fixture
def no_umask() -> Iterator[None]:
    """Set a umask that lets everybody read new files."""
    before = os.umask(0)
    yield
    os.umask(before)


def family(pid: int) -> Iterator[int]:
    """Return a process and all its descendants."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        children = ""
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended since
            children = (task / "children").read_text()
        for child in children.split():
            yield from family(int(child))


def words_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def sockets_of(pid: int) -> set[str]:
    """Return the inodes of a process's sockets."""
    names = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
    return {name[8:-1] for name in names if name.startswith("socket:[")}


def with_an_address() -> set[str]:
    """Return the inodes of all sockets on this machine that have a network address."""
    tables = [Path("/proc/net", name) for name in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6")]
    lines = [line for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    return {line.split()[9] for line in lines}


def open_to_others(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.lstat().st_mode & 0o077]


@pytest.mark.usefixtures("no_umask")
def test_head_opens_no_port_and_makes_only_private_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = tmp_path / "gswarm-run.duckdb"
    with nothing_left(path):
        with head("--launcher", "local", "--interval", "0.1", "--db", str(path)) as running:
            eventually(lambda: rows(running) > 10, "frames on disk")
            processes = set(family(running.process.pid))
            (uid,) = {
                words[words.index("--recording") + 1]
                for pid in processes
                if "--recording" in (words := words_of(pid))
            }
            agent = agents_of(uid)[0]["pid"]
            assert isinstance(agent, int)
            sockets = {one for pid in (*processes, agent) for one in sockets_of(pid)}
            assert sockets, "the agent's own socket is seen"
            assert not sockets & with_an_address()
            assert open_to_others(tmp_path) == []
            (top,) = [Path(top) for top in tops() if list(Path(top).glob(f"{uid}@*"))]
            (folder,) = top.glob(f"{uid}@*")
            assert (top.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o700, 0o700)
            assert open_to_others(folder) == []
            assert not any(SECRET in " ".join(words_of(pid)) for pid in (*processes, agent))
            os.kill(agent, signal.SIGKILL)
        for written in (*tmp_path.rglob("*"), *folder.iterdir()):
            assert not written.is_file() or SECRET.encode() not in written.read_bytes()


@pytest.mark.usefixtures("no_umask")
def test_files_written_by_commands_are_private(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    record(path, [introduced(), arrived(1, [gpu_row(), None])])
    path.chmod(0o600)
    for name in ("x.csv", "x.parquet"):
        words = ["sql", "FROM samples", "--db", str(path), "-o", str(tmp_path / name)]
        subprocess.run([sys.executable, "-m", "gswarm_tui", *words], check=True)
    assert len(list(tmp_path.iterdir())) == 3
    assert open_to_others(tmp_path) == []


def test_written_file_follows_no_planted_link(tmp_path: Path) -> None:
    mine, out = tmp_path / "mine", tmp_path / "x.csv"
    mine.write_text("mine")
    out.symlink_to(mine)
    (tmp_path / f".x.csv.{os.getpid()}.part").symlink_to(mine)
    with atomic_file(out) as part:
        part.write_text("new")
    assert (mine.read_text(), out.read_text(), out.is_symlink()) == ("mine", "new", False)
    assert out.stat().st_mode & 0o777 == 0o600


def test_log_is_private_and_has_no_control_characters(tmp_path: Path) -> None:
    code = (
        "import logging, os\n"
        "from gswarm_tui import cli; from gswarm_tui.run import log_file\n"
        "os.umask(0)\n"
        "cli._make_files_private()\n"
        "log_file.begin()\n"
        "logging.getLogger('x').error('a\\x1b[2J\\u202eb', exc_info=ValueError('c\\x1b]0;d\\x07'))\n"
    )
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    log = tmp_path / "gswarm-tui/gswarm-tui.log"
    assert (log.stat().st_mode & 0o777, log.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    lines = log.read_text().splitlines()
    assert r"a\x1b[2J\u202eb" in lines[0]
    assert r"ValueError: c\x1b]0;d\x07" in lines[-1]
    assert all(line.isprintable() for line in lines)


def test_log_that_cannot_be_opened_ends_no_server(tmp_path: Path) -> None:
    code = (
        "import asyncio, logging, resource, socket\n"
        "from gswarm_tui.run import log_file\n"
        "log_file.begin()\n"
        "async def main():\n"
        "    server = await asyncio.start_server(lambda *_: None, '127.0.0.1', 0)\n"
        "    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "    caller = socket.create_connection(server.sockets[0].getsockname())\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))\n"  # it can't be accepted
        "    for _ in range(10):\n"
        "        await asyncio.sleep(0)\n"
        "    print('alive')\n"
        "asyncio.run(main())\n"
    )
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "alive\n", done.stderr
