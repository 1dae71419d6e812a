"""Recordings of unknown origin run no command and contact no node until the user agrees."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb
import pytest

from gswarm_tui.cli import main
from gswarm_tui.options.arguments import parse
from gswarm_tui.run import build
from gswarm_tui.run.plan import Plan
from gswarm_tui.run.saved_options import NOTES, save_options
from gswarm_tui.store.recording.recorder import FileWriter
from tests.integration.heads import agents_of, eventually, head, nothing_left, rows
from tests.recorders import kill_recorder
from tests.unit.store_recording import INFO, arrived, gpu_row, introduced, query

UID = "f0e1d2c3-0"
REFUSED = "made elsewhere or changed, and its options can run commands: no node was contacted."


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
    recorder = FileWriter(path, replace(INFO, uid=uid, options=json.dumps(saved)), lambda _status: None)
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
    assert main(["recover", UID, "--finish"]) == 2
    assert capsys.readouterr().err == (
        f"gswarm-tui: {REFUSED} `gswarm-tui sql 'FROM recordings' --json --db {folder}/run.duckdb` shows "
        f"the options; gswarm-tui recover {UID[:8]} --trust uses them.\n"
    )
    assert main(["sql", "FROM recordings", "--json", "--db", "run.duckdb"]) == 0
    assert "ssh_config" in capsys.readouterr().out
    assert not trap.ran
    assert run("recover", UID, "--finish", "--trust", contacts=True)[0] == 1
    assert trap.ran, "the trap works"


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
    assert not trap.ran
    assert main(["recover", UID, "--finish"]) == 2
    told = capsys.readouterr()
    assert "cat secret" not in told.out + told.err, "no other node gets the own setup"
    assert not trap.ran


@pytest.mark.parametrize("lost", [False, True])
def test_own_recording_needs_trust_after_its_state_folder_is_lost(folder: Path, lost: bool) -> None:
    trap = Trap.set(folder / "config")
    leave_own(folder / "run.duckdb", "--ssh-config", str(trap.config))
    if lost:
        shutil.rmtree(NOTES.path)
    assert run("recover", UID, "--finish", contacts=not lost)[0] == (2 if lost else 0)
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
    status, _ = run("recover", UID, "--finish", *words, *["--trust"] * trusted, contacts=trusted)
    assert (status, theirs.ran, own.ran) == (1 if trusted else 2, False, trusted)


@pytest.fixture
def path(folder: Path) -> Iterator[Path]:
    with nothing_left(folder / "run.duckdb"):
        yield folder / "run.duckdb"


def test_recording_of_another_home_folder_is_finished_if_it_is_trusted(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with head("--launcher", "local", "--interval", "0.1", "--db", str(path)) as running:
        eventually(lambda: rows(running) > 5, "frames on disk")
        kill_recorder(path)
    ((uid,),) = query(path, "SELECT uid FROM recordings")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    unended = "SELECT count(*) FROM recordings WHERE ended_at IS NULL"
    for words, status in (((), 2), (("--trust",), 0)):
        assert query(path, unended) == [(1,)]
        assert agents_of(uid)
        assert run("recover", uid, "--finish", *words, contacts=True)[0] == status
    assert query(path, unended) == [(0,)]
    eventually(lambda: agents_of(uid) == [], "the end of all that was left")
