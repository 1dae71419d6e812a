"""``gswarm-tui replay``: files and sessions that can be played, and errors for others."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC
from pathlib import Path
from subprocess import PIPE, Popen

import duckdb
import pytest

from gswarm_tui.analysis import periods
from gswarm_tui.cli import main
from gswarm_tui.commands.recording_choice import SessionReference, parse_words
from gswarm_tui.commands.replay import open_player, run
from gswarm_tui.common.errors import UserError
from gswarm_tui.fleet.events import Event, SessionStarted, SessionStopped
from gswarm_tui.fleet.node import Standing
from gswarm_tui.playback.recorded_source import RecordedSource
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.recording.past_session import add_session
from tests.unit.store_recording import T0, arrived, gpu_row, introduced, record

ROW = gpu_row(util_pct=50)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record 100 s with a session of 20 s, and with another in which nothing was measured."""
    path = tmp_path_factory.mktemp("recording") / "run.duckdb"
    events: list[Event] = [introduced(), *(arrived(seq, [ROW, ROW]) for seq in range(1, 91))]
    sessions: list[Event] = [
        SessionStarted("a", T0 + 30, "train", T0 + 30),
        SessionStopped("a", T0 + 50, T0 + 50),
        SessionStarted("b", T0 + 95, "nothing", T0 + 95),
        SessionStopped("b", T0 + 97, T0 + 97),
    ]
    record(path, [*events, *sessions])
    return path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(original, tmp_path))


@pytest.fixture
def source(path: Path) -> Iterator[FileSource]:
    with closing(FileSource(path)) as source:
        yield source


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], SessionReference(None, "")),
        (["train"], SessionReference(None, "train")),
        (["run.duckdb"], SessionReference(Path("run.duckdb"), "")),
        (["run.duckdb", "train"], SessionReference(Path("run.duckdb"), "train")),
        (["run.duckdb:train"], SessionReference(Path("run.duckdb"), "train")),
    ],
)
def test_file_and_session_are_parsed_in_any_form(words: list[str], wanted: SessionReference) -> None:
    assert parse_words(words, None) == wanted


def test_whole_recording_plays_from_its_start(source: FileSource) -> None:
    player, title, number = open_player(source, "")
    assert (player.playhead.start, player.playhead.end) == (T0, T0 + 100)
    assert not player.playhead.paused
    assert (title, number) == ("job 4711 · n1", 1)


@pytest.mark.parametrize("name", ["train", "1"])
def test_session_plays_from_its_start_with_a_margin(source: FileSource, name: str) -> None:
    player, *_ = open_player(source, name)
    assert player.playhead.at == pytest.approx(T0 + 30, abs=1)
    assert (player.playhead.start, player.playhead.end) == (T0 + 25, T0 + 55)


@pytest.mark.parametrize("session", ["", "train"])
def test_exported_session_plays_as_an_excerpt_with_live_nodes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(path), "train", "-o", "train.parquet"]) == 0
    assert main(["import", "train.parquet"]) == 0
    with closing(FileSource(Path("train.duckdb"))) as source:
        player, *_ = open_player(source, session)
        assert (player.playhead.start, player.playhead.end) == (T0 + 31, T0 + 50)
        replayed = RecordedSource(source, 1)
        fleet = replayed.fleet(T0 + 20)
        for event in replayed.events(T0 + 20, T0 + 35):
            fleet.apply(event)
        assert fleet.nodes["n1"].standing(T0 + 35) is Standing.LIVE


def test_session_is_added_through_a_link(path: Path) -> None:
    link = path.parent / "newest.duckdb"
    link.symlink_to(path)
    with closing(FileSource(link)) as source:
        add_session(source, 1, "part", T0 + 10, T0 + 20)
        assert open_player(source, "part")
    assert link.is_symlink()


def test_session_without_samples_is_refused(source: FileSource) -> None:
    with pytest.raises(UserError, match=r"nothing in .*run\.duckdb has no samples"):
        open_player(source, "nothing")


def test_unknown_session_is_refused(source: FileSource) -> None:
    with pytest.raises(UserError, match='no session "trian"; perhaps you meant train'):
        open_player(source, "trian")


def test_replay_needs_a_terminal(path: Path) -> None:
    with pytest.raises(UserError, match="terminal"):
        run([str(path)], {})


def test_session_is_added_to_the_open_file(source: FileSource) -> None:
    add_session(source, 1, "the quick part", T0 + 10.5, T0 + 20.25)
    found = {one.name: one for one in periods.load_sessions(source)}
    assert set(found) == {"train", "nothing", "the quick part"}
    added = found["the quick part"]
    assert added.started_at.replace(tzinfo=UTC).timestamp() == T0 + 10.5
    assert added.until.replace(tzinfo=UTC).timestamp() == T0 + 20.25
    assert added.session_id == 3
    with closing(FileSource(source.path)) as again:
        assert len(periods.load_sessions(again)) == 3
    source.close()
    with duckdb.connect(str(source.path), read_only=True) as plain:
        undescribed = "FROM duckdb_views() WHERE NOT internal AND comment IS NULL"
        assert plain.execute(undescribed).fetchall() == []


def test_session_is_not_added_while_another_program_has_the_file(source: FileSource, path: Path) -> None:
    hold = (
        "import duckdb, sys; held = duckdb.connect(sys.argv[1], read_only=True); print(flush=True); input()"
    )
    with Popen([sys.executable, "-c", hold, str(path)], stdin=PIPE, stdout=PIPE, text=True) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(StoreError, match="is in use by"):
            add_session(source, 1, "late", T0 + 10, T0 + 20)
        holder.communicate("\n")
    assert len(periods.load_sessions(source)) == 2, "the file is open for reading again"
