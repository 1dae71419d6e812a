"""Exports are readable by other tools."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from gswarm_tui import cli
from gswarm_tui.analysis.periods import find_period
from gswarm_tui.analysis.summary_data import summarize
from gswarm_tui.commands import export
from gswarm_tui.commands.output_files import new_folder
from gswarm_tui.exchange import time_windows as windows_module
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.transfer.dataset_source import DatasetSource
from tests.integration.exchange_recording import STRANGE, run, session, tables
from tests.unit.store_recording import T0, arrived, gpu_row, introduced, query, record

H100 = "NVIDIA H100"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("recording") / "run.duckdb")


@pytest.fixture
def recording(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(original, tmp_path))


def exported(*words: str) -> None:
    assert cli.main(["export", *words]) == 0


def query_export(sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query on exported files."""
    return duckdb.connect().execute(sql).fetchall()


def curves(path: Path, field: str) -> list[list[float]]:
    """Return a field of each GPU over the frames, read as gswarm-profiler's scripts do."""
    frames = json.loads(path.read_text())["frames"]
    gpus = range(len(frames[0]["gpu_id"]))
    return [[float(frame[field][gpu]) for frame in frames] for gpu in gpus]


def test_scripts_for_gswarm_profiler_read_the_json(recording: Path) -> None:
    exported("run.duckdb:all of it", "-o", "x.json")
    data = json.loads(Path("x.json").read_text())
    gpus = [f"n1:0:{H100}", f"n1:1:{H100}", f"{STRANGE}:0:{H100}"]
    assert data["session_name"] == "all of it"
    assert data["start_time"] == "2027-01-15T08:00:00+00:00"
    assert data["end_time"] == "2027-01-15T08:00:21+00:00"
    assert [frame["frame_id"] for frame in data["frames"]] == list(range(1, 21))
    assert all(frame["gpu_id"] == gpus for frame in data["frames"])
    assert data["frames"][0]["time"] == "2027-01-15T08:00:01+00:00"
    assert data["summary_by_device"] == {
        gpus[0]: {"avg_gpu_util": 11, "avg_gpu_memory": pytest.approx(110000 / 81559, abs=1e-4)},
        gpus[1]: {"avg_gpu_util": 100},
        gpus[2]: {"avg_gpu_util": 7},
    }
    assert curves(Path("x.json"), "gpu_util")[0] == list(range(1, 21))
    assert [frame["interval_ms"][0] for frame in data["frames"]] == ["NaN", *[1000] * 19], (
        "the first covers no time"
    )
    assert curves(Path("x.json"), "gpu_memory")[0][9] == pytest.approx(100_000 / 81559, abs=1e-4)
    away = [math.isnan(value) for value in curves(Path("x.json"), "gpu_util")[2]]
    assert away == [6 <= seq <= 10 for seq in range(1, 21)]


def test_bandwidth_is_in_gb_s_and_in_the_right_direction(recording: Path) -> None:
    exported("run.duckdb:all of it", "-o", "x.json")
    assert curves(Path("x.json"), "dram_bandwidth_rx")[0][0] == 2.001
    assert curves(Path("x.json"), "dram_bandwidth_tx")[0][0] == 0.502
    assert curves(Path("x.json"), "dram_bandwidth")[0][0] == 2.503
    assert curves(Path("x.json"), "gpu_bandwidth")[1][0] == 450.0015
    assert math.isnan(curves(Path("x.json"), "dram_bandwidth")[1][0])


def test_unmeasured_fields_are_omitted(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    record(path, [introduced(), arrived(1, [gpu_row(util_pct=5), None])])
    exported(str(path), "-o", str(tmp_path / "x.json"))
    frame = json.loads((tmp_path / "x.json").read_text())["frames"][0]
    assert set(frame) == {
        "frame_id",
        "time",
        "gpu_id",
        "gpu_util",
        "gpu_memory",
        "dram_bandwidth",
        "interval_ms",
    }
    assert frame["gpu_memory"] == frame["dram_bandwidth"] == ["NaN"]  # gswarm-profiler's analyze needs them


def test_every_sample_is_in_a_frame_at_any_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows_module, "SAMPLES_AT_ONCE", 6)
    path = tmp_path / "run.duckdb"
    times = [1, 2, 3, 3.25, 3.5, 3.75, 4.001, 4.999, 7, 9.4]
    frames = [arrived(i, [gpu_row(util_pct=i), None], ts=1_800_000_000 + t) for i, t in enumerate(times, 1)]
    record(path, [introduced(), *frames])
    exported(str(path), "-o", str(tmp_path / "x.json"))
    assert curves(tmp_path / "x.json", "gpu_util") == [list(range(1, 11))]


def test_csv_is_one_tidy_table(recording: Path) -> None:
    exported("train", "-o", "x.csv")
    rows = list(csv.DictReader(Path("x.csv").read_text().splitlines()))
    assert len(rows) == query(recording, "SELECT count(*) FROM session_samples WHERE session = 'train'")[0][0]
    first = rows[1]
    assert (first["session"], first["node"], first["gpu_index"]) == ("train", "n1", "0")
    assert first["ts"] == "2027-01-15T08:00:06.000000Z"
    assert (first["util_pct"], first["pcie_rx_mb_s"], first["power_w"]) == ("6", "2001.0", "")
    assert {row["node"] for row in rows} == {"n1", STRANGE}


@pytest.mark.parametrize(
    ("table", "count", "wanted"),
    [
        ("host", 35, {"node": "n1", "cpu_pct": "12.5", "late_ms": "0.5"}),
        ("process", 20, {"pid": "42", "command": 'train "x", y', "rank": "3", "gpu_index": "1"}),
        ("events", 1, {"node": "n1", "gpu_index": "1", "message": "XID 79", "detail": "off the bus"}),
        ("findings", 1, {"ts": "2027-01-15T08:00:10.000000Z", "severity": "waste", "gpu_hours": "0.25"}),
    ],
)
def test_csv_exports_other_tables(
    recording: Path, capsys: pytest.CaptureFixture[str], table: str, count: int, wanted: dict[str, str]
) -> None:
    exported("--format", "csv", "--table", table, "-o", "-")
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert len([row for row in rows if row.get("kind", "xid") in ("xid", "thermal")]) == count
    assert any(wanted.items() <= row.items() for row in rows)


def test_parquet_export_is_one_dataset(recording: Path) -> None:
    exported("--format", "parquet")
    files = "run.parquet/gpu_samples/**/*.parquet"
    (run,) = [path.name.removeprefix("run=") for path in Path("run.parquet/gpu_samples").iterdir()]
    assert re.fullmatch("20270115-080000-[0-9a-f]{8}", run)
    found = query_export(f"""
        SELECT node, run, count(*), sum(util_pct), max(mem_used_pct), typeof(any_value(ts))
        FROM read_parquet('{files}', hive_partitioning = true) GROUP BY ALL ORDER BY count(*)
    """)
    kind = "TIMESTAMP WITH TIME ZONE"
    assert found == [(STRANGE, run, 15, 105, None, kind), ("n1", run, 40, 2210, 2.5, kind)]
    joined = query_export(f"""
        SELECT count(*) FROM read_parquet('{files}') s JOIN 'run.parquet/gpus/*/*.parquet' USING (gpu_id)
        JOIN 'run.parquet/nodes/*/*.parquet' n USING (node_id) WHERE n.recording_id = 1
    """)
    assert joined == [(55,)]
    meanings = dict(query_export(f"SELECT key::VARCHAR, value::VARCHAR FROM parquet_kv_metadata('{files}')"))
    assert meanings["power_w"].startswith("Power drawn by the board [W]")
    names = [
        row[0] for row in query_export(f"DESCRIBE FROM read_parquet('{files}', hive_partitioning = false)")
    ]
    assert set(names) == set(meanings)
    for table, column, meaning in (
        ("events", "kind", "One lower-case word"),
        ("sessions", "name", "Name"),
        ("process_samples", "cpu_pct", "CPU time of the process; 100 is one core [%]"),
        ("port_samples", "state", "State of the port: 1 DOWN, 2 INIT, 3 ARMED, 4 ACTIVE"),
    ):
        found = query_export(
            f"SELECT DISTINCT value::VARCHAR FROM parquet_kv_metadata('run.parquet/{table}/**/*.parquet') "
            f"WHERE key::VARCHAR = '{column}'"
        )
        assert [row[0].startswith(meaning) for row in found] == [True]
    assert {path.name for path in Path("run.parquet").iterdir()} == {
        "gpu_samples", "host_samples", "process_samples", "recordings", "nodes", "gpus", "sessions", "events",
        "findings", "links", "gpu_links", "port_samples", "mount_samples", "gpu_minutes",
    }  # fmt: skip


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record a node with two GPUs, of which Slurm gave the job one."""
    path = tmp_path_factory.mktemp("shared") / "run.duckdb"
    event = introduced(gpus=2)
    gpus = tuple(replace(gpu, minor=gpu.index) for gpu in event.hello.gpus)
    frame = arrived(1, [gpu_row(util_pct=5)] * 2)
    introduction = replace(event, hello=replace(event.hello, gpus=gpus))
    record(path, [introduction, frame], allocation={"n1": frozenset({1})})
    return path


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_gpus_of_others_are_exported_only_on_request(
    shared_node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(shared_node, "run.duckdb")
    read = {
        "parquet": "SELECT gpu_index, allocated FROM 'run.parquet/gpu_samples/*/*/*.parquet' ORDER BY 1",
        "csv": "SELECT gpu_index, allocated FROM 'run.csv' ORDER BY 1",
        "json": "SELECT split_part(unnest(frames[1].gpu_id), ':', 2)::INTEGER FROM 'run.json' ORDER BY 1",
    }[kind]
    for words, expected in (((), [1]), (("--all-gpus",), [0, 1])):
        exported("--format", kind, "--force", *words)
        assert [row[0] for row in query_export(read)] == expected


def test_session_export_contains_only_the_session(recording: Path) -> None:
    exported("train", "--format", "parquet")

    def column(sql: str) -> list[Any]:
        return [row[0] for row in query_export(sql)]

    assert column("SELECT name FROM 'train.parquet/sessions/*/*.parquet'") == ["train"]
    assert column("SELECT count(*) FROM 'train.parquet/gpu_samples/**/*.parquet'") == [26], (
        "the last one covers the session's last 0.996 s"
    )
    assert column("SELECT message FROM 'train.parquet/events/*/*.parquet' WHERE kind = 'xid'") == ["XID 79"]
    private = column("SELECT column_name FROM (DESCRIBE FROM 'train.parquet/recordings/*/*.parquet')")
    assert not {"uid", "options"} & set(private)


def test_several_recordings_export_to_parquet_but_not_to_json(recording: Path) -> None:
    record(recording, [introduced("n3"), arrived(1, [gpu_row(util_pct=3), gpu_row()], "n3")])
    record(recording, [])
    exported("--format", "parquet")
    assert len(list(Path("run.parquet/gpu_samples").glob("run=*"))) == 2
    exported("recording 2", "--format", "json")
    assert curves(Path("recording-2.json"), "gpu_util")[0] == [3]
    assert cli.main(["export", "--format", "json"]) == 2


def test_runs_are_appended_once_and_wholly(
    recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("more").mkdir()
    record(Path("more/other.duckdb"), [introduced("n3"), arrived(1, [gpu_row(util_pct=3)] * 2, "n3")])
    with duckdb.connect("more/other.duckdb") as connection:
        connection.execute("UPDATE recordings SET uid = 'other'")
    exported("--append", "all.parquet", "run.duckdb")

    def files() -> set[Path]:
        return {path for path in Path().rglob("*.parquet") if path.is_file()}

    before, rename, renamed = files(), Path.rename, []

    def interrupted(path: Path, target: Path) -> Path:
        renamed.append(path)
        if len(renamed) == 4:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", interrupted)
        assert cli.main(["export", "--append", "all.parquet", "more/other.duckdb"]) == 130
    assert files() == before
    # A process that was killed leaves tables without the one that says which runs are complete.
    shutil.copytree(Path("all.parquet/nodes"), left := Path("left.parquet/nodes"))
    exported("--append", "left.parquet", "run.duckdb")
    assert len(list(left.iterdir())) == 1
    exported("--append", "all.parquet", "*.duckdb", "more/*.duckdb")
    printed = capsys.readouterr()
    (run_name,) = (path.name.removeprefix("run=") for path in left.iterdir())
    assert f"skipped: all.parquet has the run {run_name} already.\n" in printed.err
    assert "all.parquet: more/other.duckdb added, 2 GPU samples\n" in printed.out
    samples = "read_parquet('all.parquet/gpu_samples/**/*.parquet')"
    read = f"SELECT node, count(*) FROM {samples} GROUP BY node ORDER BY ALL"
    assert query_export(read) == [("n1", 40), ("n3", 2), (STRANGE, 15)]
    exported("--append", "all.parquet", "*.duckdb", "more/*.duckdb")
    assert capsys.readouterr().err.count("skipped: all.parquet has the run") == 2
    for words, sentence in (
        (["more", "more/other.duckdb"], "more isn't a dataset that gswarm-tui exported"),
        (["nowhere/x", "run.duckdb"], "no folder nowhere; create it, or name another one with --append."),
        (["all.parquet", "more/other.duckdb"], "already; nothing was added"),
        (["all.parquet", "run.duckdb", "--force"], "--append adds to a dataset; remove -o, --format"),
    ):
        assert cli.main(["export", "--append", *words]) in (1, 2)
        assert sentence in capsys.readouterr().err


def test_runs_are_written_beside_the_dataset_that_a_link_names(tmp_path: Path) -> None:
    """Files on another disk can't be renamed to it."""
    dataset, link = tmp_path / "disk" / "all.parquet", tmp_path / "all.parquet"
    dataset.mkdir(parents=True)
    link.symlink_to(dataset)
    with new_folder(link, force=False, append=True) as part:
        assert part.parents[1] == dataset.parent


def test_exported_sums_by_minute_are_those_of_whole_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = run(tmp_path / "run.duckdb", seconds=200)
    exported("all of it", "-o", "session.parquet")
    minutes = "SELECT DISTINCT minute::VARCHAR FROM 'session.parquet/gpu_minutes/**/*.parquet' ORDER BY 1"
    assert [row[0][11:16] for row in query_export(minutes)] == ["08:01", "08:02"]
    (run_folder,) = Path("session.parquet/recordings").iterdir()
    with closing(FileSource(path)) as file, closing(DatasetSource(run_folder)) as dataset:
        summary = summarize(file, find_period(file, "all of it"))
        assert summarize(dataset, find_period(dataset, "all of it")).gpus == summary.gpus


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record a sample in session "train", none in "empty"."""
    path = tmp_path_factory.mktemp("short") / "run.duckdb"
    frames = [arrived(1, [gpu_row(util_pct=5), None])]
    record(path, [introduced(), *frames, *session("train", 0, 9), *session("empty", 50, 60)])
    return path


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            [],
            "no format; use --format json, csv, parquet, wandb or mlflow, or -o with a name",
        ),
        (
            ["-o", "s.xlsx"],
            '".xlsx" isn\'t a known suffix; name a .json, .csv, .parquet, .wandb or .mlflow file, or use',
        ),
        (["trian", "-o", "x.json"], 'has no session "trian"; perhaps you meant train.'),
        (["-o", "nowhere/x.json"], "no folder nowhere; create it, or name another one with -o."),
        (["-o", "x.json", "--table", "host"], "--table applies only to CSV; remove it for json."),
        (["-o", "-", "--format", "parquet"], "Parquet is written to a folder, not to standard output"),
        (
            ["-o", "taken.json", "--format", "parquet"],
            "taken.json is a file, but this format is a folder",
        ),
        (
            ["-o", "mine", "--format", "parquet"],
            "mine may hold more than an export; name another folder with -o",
        ),
        (
            ["-o", "mine", "--format", "parquet", "--force"],
            "mine may hold more than an export",
        ),
        (["", "-o", "x.csv"], "the name of the session is empty; give a name, or leave it out."),
        (["run.duckdb:train", "--db", "run.duckdb", "-o", "x.csv"], "remove --db"),
    ],
)
def test_export_mistake_prints_one_sentence_and_changes_nothing(
    short: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(short, "run.duckdb")
    Path("taken.json").write_text("before")
    Path("mine").mkdir()
    Path("mine/thesis.tex").write_text("before")
    assert cli.main(["export", *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "run.duckdb", "taken.json"]
    assert Path("taken.json").read_text() == Path("mine/thesis.tex").read_text() == "before"


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
def test_failed_export_keeps_the_existing_file(
    recording: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    if kind == "parquet":
        exported("--format", kind)
    else:
        Path(f"run.{kind}").write_text("before")
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*")}
    capsys.readouterr()

    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    # The folder for queries gets its name by a rename as well, and would stay.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("queries")))
    monkeypatch.setattr(Path, "replace", no_room)
    monkeypatch.setattr(Path, "rename", no_room)
    assert cli.main(["export", "--format", kind, "--force"]) == 1
    assert f"run.{kind} can't be written: No space left on device.\n" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in Path().rglob("*")} == before


def test_export_of_an_interrupted_recording_says_that_it_has_no_end(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with duckdb.connect(str(recording)) as connection:
        connection.execute("UPDATE recordings SET ended_at = NULL")
    exported("recording 1", "--db", str(recording), "-o", "run.json")
    assert "recording 1 has no end; exported as far as recorded.\n" in capsys.readouterr().err


def test_running_recording_is_exported_up_to_now(
    recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A closed file marked as running takes the place of a recorder: both are queried in the same way."""

    def open_running(*_arguments: object) -> FileSource:
        source = FileSource(recording)
        source.running = True
        return source

    connection = duckdb.connect(str(recording))
    connection.execute("UPDATE recordings SET ended_at = NULL")
    connection.execute("UPDATE sessions SET ended_at = NULL, status = 'running' WHERE session_id = 1")
    connection.close()
    monkeypatch.setattr(export, "open_source", open_running)
    exported("recording 1", "-o", "run.parquet")
    assert "recording 1 is still running; exported as far as recorded." in capsys.readouterr().err
    assert cli.main(["import", "run.parquet", "--db", "back.duckdb"]) == 0
    left, back = tables(recording), tables(Path("back.duckdb"))
    over = {"recordings", "sessions"}
    assert {name: rows for name, rows in back.items() if name not in over} == {
        name: rows for name, rows in left.items() if name not in over
    }
    (session,) = query(
        Path("back.duckdb"), "SELECT status, epoch(ended_at) FROM sessions ORDER BY session_id LIMIT 1"
    )
    assert session == ("ended", pytest.approx(T0 + 20.004001, abs=2e-6))
    ended = query(Path("back.duckdb"), "SELECT epoch(ended_at) FROM recordings")
    assert ended == [(pytest.approx(T0 + 20.004001, abs=2e-6),)]


def test_sigterm_ends_an_append_and_leaves_nothing(tmp_path: Path) -> None:
    code = """if True:
        import os, signal, sys
        from pathlib import Path
        from gswarm_tui.commands.output_files import new_folder
        with new_folder(Path(sys.argv[1]), force=False, append=True):
            os.kill(os.getpid(), signal.SIGTERM)
    """
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "all.parquet")], check=False)
    assert done.returncode == 143
    assert not list(tmp_path.iterdir())
