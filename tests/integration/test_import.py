"""Imports: Parquet exports are restored, and files of gswarm-profiler are converted."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gswarm_agent.metrics import GPU_METRICS
from gswarm_tui import cli
from gswarm_tui.exchange.json_stream import JsonStream
from gswarm_tui.fleet.events import Event
from gswarm_tui.store.sql.schema import PROFILE_EVENTS, PROFILES
from tests.integration.exchange_recording import (
    STRANGE,
    profiled_run,
    recording_of_node,
    run,
    session,
    tables,
)
from tests.kineto_standin import write_trace
from tests.unit.store_recording import T0, arrived, introduced, query, record


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")


def command(*words: str) -> None:
    assert cli.main(list(words)) == 0


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export a recording as Parquet, to be copied."""
    folder = tmp_path_factory.mktemp("exported")
    run(folder / "run.duckdb")
    command("export", "--db", str(folder / "run.duckdb"), "-o", str(folder / "run.parquet"))
    return folder / "run.parquet"


def test_parquet_round_trip(exported: Path) -> None:
    run(Path("run.duckdb"))
    shutil.copytree(exported, "run.parquet")
    command("import", "run.parquet", "--db", "back.duckdb")
    assert tables(Path("back.duckdb")) == tables(Path("run.duckdb"))
    (name,) = [path.name.removeprefix("run=") for path in Path("run.parquet/recordings").iterdir()]
    assert query(Path("back.duckdb"), "SELECT uid, options FROM recordings") == [
        (None, json.dumps({"imported_from": "run.parquet", "imported_run": name}))
    ]


def test_a_run_is_imported_once(capsys: pytest.CaptureFixture[str]) -> None:
    run(Path("run.duckdb"))
    command("export", "run.duckdb:recording 1", "-o", "run.parquet")
    command("export", "run.duckdb:train", "-o", "train.parquet")
    command("import", "run.parquet", "--db", "all.duckdb")
    before = tables(Path("all.duckdb"))
    for name, db in (("run.parquet", "all"), ("train.parquet", "all"), ("train.parquet", "run")):
        assert cli.main(["import", name, "--db", f"{db}.duckdb"]) == 1
        assert capsys.readouterr().err == (
            f"gswarm-tui: {name} is in {db}.duckdb already, as recording 1; "
            "import it into another file with --db.\n"
        )
    assert tables(Path("all.duckdb")) == before


@pytest.fixture(scope="module")
def another_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record the same node a day earlier, and import a trace of rank 7."""
    folder = tmp_path_factory.mktemp("another")
    path = recording_of_node(folder / "run.duckdb")
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE recordings SET uid = 'another', started_at = started_at - INTERVAL 1 DAY")
    command("import", str(write_trace(folder / "other.json", 7)), "--db", str(path))
    return path


def test_profiles_round_trip(another_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind = "parquet"
    with duckdb.connect(str(profiled_run(Path("run.duckdb")))) as connection:
        for table in (PROFILES, *PROFILE_EVENTS):  # the import between them failed
            connection.execute(f"UPDATE {table.name} SET profile_id = 5 WHERE profile_id = 2")
    original = tables(Path("run.duckdb"))
    assert original["profile_kernel_events"]
    assert original["trace_op_events"]
    capsys.readouterr()
    command("export", "run.duckdb:recording 1", "-o", f"all.{kind}")
    assert ", 2 profiles, " in capsys.readouterr().out
    imported = Path(shutil.copy(another_run, "back.duckdb"))
    command("import", f"all.{kind}", "--db", "back.duckdb")
    assert f", 2 profiles from all.{kind}\n" in capsys.readouterr().out
    for name in ("profile_kernel_events", "profile_memory_events", "profile_api_events"):
        assert tables(imported)[name] == original[name]
    profiles = "SELECT p.* EXCLUDE (profile_id, recording_id, node_id), n.node AS at FROM profiles p "
    joined = f"{profiles} LEFT JOIN nodes n USING (node_id) WHERE rank <> 7 ORDER BY file"
    assert query(imported, joined) == query(Path("run.duckdb"), joined)
    before = tables(imported)
    assert cli.main(["import", f"all.{kind}", "--db", "back.duckdb"]) == 1
    assert tables(imported) == before


def test_a_profilers_file_is_imported_once(capsys: pytest.CaptureFixture[str]) -> None:
    frames = [{"time": f"2026-01-31T12:00:0{i}", "gpu_id": ["n:0:x"], "gpu_util": ["0.5"]} for i in range(3)]
    Path("old.json").write_text(json.dumps({"frames": frames}))
    command("import", "old.json")
    assert cli.main(["import", "old.json", "--db", "old.duckdb"]) == 1
    assert "old.json is in old.duckdb already, as recording 1" in capsys.readouterr().err


def test_import_adds_to_an_existing_file() -> None:
    run(Path("run.duckdb"))
    before = tables(Path("run.duckdb"))
    shutil.copy("run.duckdb", "other.duckdb")
    with duckdb.connect("other.duckdb") as connection:
        connection.execute("UPDATE recordings SET uid = 'another run'")
    command("export", "--db", "other.duckdb", "-o", "run.parquet")
    command("import", "run.parquet", "--db", "run.duckdb")
    after = tables(Path("run.duckdb"))
    for name, rows in before.items():
        if name not in {"sessions", "events", "host_samples"}:  # compared below: they join by start
            assert sorted(rows * 2, key=repr) == after[name]
    per_recording = "SELECT recording_id, count(*) FROM samples GROUP BY ALL ORDER BY ALL"
    assert query(Path("run.duckdb"), per_recording) == [(1, 55), (2, 55)]
    summaries = "SELECT session, scope, node, gpu_index, util_mean_pct, coverage FROM session_summary "
    first, second = (
        query(Path("run.duckdb"), f"{summaries} WHERE recording_id = {number} ORDER BY ALL")
        for number in (1, 2)
    )
    assert first == second
    assert first


@st.composite
def events(draw: st.DrawFn) -> list[Event]:
    """Generate a recording of one or two nodes with any values that the wire allows."""
    made: list[Event] = []
    for node in draw(st.sampled_from([("n1",), ("n1", "n2")])):
        made.append(introduced(node, boot_id=draw(st.sampled_from(["a", "b"]))))
        for seq in draw(st.sets(st.integers(1, 30), min_size=1, max_size=16).map(sorted)):
            ts = T0 + seq + draw(st.sampled_from([0, 0.001, 0.25]))
            made.append(arrived(seq, [draw(_ROWS), draw(st.none() | _ROWS)], node, ts=ts, host=None))
    names = st.text("abcö' \"=%/,", min_size=1, max_size=12)
    for name in draw(st.lists(names, min_size=1, max_size=3, unique=True)):
        made += session(name, 0, 40, draw(st.text("abc, \"'", max_size=9)))
    return made


def _value(sql: str, top: float | None) -> st.SearchStrategy[float | None]:
    if sql == "FLOAT":
        return st.none() | st.floats(0, top or 1e6, width=32)
    return st.none() | st.integers(0, int(top or 255))


_ROWS = st.tuples(*(_value(metric.sql, metric.top) for metric in GPU_METRICS)).filter(
    lambda row: any(value is not None for value in row)
)


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recorded=events())
def test_any_recording_round_trips(recorded: list[Event]) -> None:
    for path in Path().iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    record(Path("run.duckdb"), recorded)
    command("export", "--format", "parquet")
    command("import", "run.parquet", "--db", "back.duckdb")
    assert tables(Path("back.duckdb")) == tables(Path("run.duckdb"))


def test_a_dataset_is_bounded_in_memory() -> None:
    run(Path("run.duckdb"))
    command("export", "--format", "parquet")
    # In a process of its own: in this one, DuckDB has memory from other tests.
    words = ("import", "run.parquet", "--db", "back.duckdb", "--max-memory-mib", "64")
    done = subprocess.run(
        [sys.executable, "-m", "gswarm_tui", *words], check=False, capture_output=True, text=True
    )
    assert done.stderr.endswith(
        "run.parquet needs more than 64 MiB of memory to be read; "
        "allow more with gswarm-tui import --max-memory-mib.\n"
    )
    assert not Path("back.duckdb").exists()


def test_json_export_is_refused_by_the_import(capsys: pytest.CaptureFixture[str]) -> None:
    run(Path("run.duckdb"))
    command("export", "run.duckdb:train", "-o", "a.json")
    assert cli.main(["import", "a.json"]) == 1
    assert capsys.readouterr().err == (
        "gswarm-tui: a.json: JSON exports of gswarm-tui can't be imported; export Parquet instead.\n"
    )


def written(**changes: Any) -> dict[str, Any]:
    """Write a file as the program gswarm-profiler does."""
    gpus = ["node7:0:NVIDIA A100-SXM4-80GB", "node7:1:NVIDIA A100-SXM4-80GB"]
    made = {
        "summary_by_device": {gpu: {"avg_gpu_util": "0.50"} for gpu in gpus},
        "request_time_info": [],
        "frames": [
            {
                "frame_id": i + 1,
                "time": f"2026-01-31T12:00:0{i}.250000",
                "gpu_id": gpus,
                "gpu_util": ["0.45", f"0.{i}0"],
                "gpu_memory": ["0.50", "0.00"],
                "dram_util": ["31.00"],
                "dram_bandwidth": ["3000.0", "0.0"],
                "dram_bandwidth_rx": ["1000.00", "0.00"],
                "dram_bandwidth_tx": ["2000.00", "0.00"],
                "gpu_bandwidth": [{"id1": gpus[0], "id2": gpus[1], "utilization": "600.00"}],
            }
            for i in range(3)
        ],
    }
    return made | changes


_SAMPLES = (
    "SELECT epoch_us(ts), node, gpu_index, gpu_name, interval_ms, util_pct, mem_used_mib, "
    "pcie_rx_mb_s, pcie_tx_mb_s, nvlink_rx_mb_s, power_w FROM samples ORDER BY ts, gpu_index"
)


def test_units_of_gswarm_profiler_are_corrected(capsys: pytest.CaptureFixture[str]) -> None:
    Path("old.json").write_text(json.dumps(written(), indent=2))
    command("import", "old.json")
    name, sent, received = "NVIDIA A100-SXM4-80GB", pytest.approx(1.02), pytest.approx(2.05)
    assert query(Path("old.duckdb"), _SAMPLES)[:3] == [
        (1769860800250000, "node7", 0, name, None, 45, None, received, sent, None, None),
        (1769860800250000, "node7", 1, name, None, 0, None, 0, 0, None, None),
        (1769860801250000, "node7", 0, name, 1000, 45, None, received, sent, None, None),
    ]
    assert "gpu_memory was skipped" in capsys.readouterr().out
    assert query(Path("old.duckdb"), "SELECT name, epoch(ended_at - started_at) FROM sessions") == [
        ("old", 3)
    ]
    assert query(Path("old.duckdb"), "SELECT coverage > 0.6, frames FROM session_coverage") == [(True, 2)]
    options = "options ->> 'imported_from'"
    assert query(Path("old.duckdb"), f"SELECT command, simulated, {options} FROM recordings, nodes") == [
        ("gswarm-profiler", None, "old.json")
    ]


def test_frames_in_a_nested_array_are_read() -> None:
    Path("old.json").write_text(json.dumps(written(frames=[written()["frames"]])))
    command("import", "old.json")
    assert query(Path("old.duckdb"), "SELECT count(*) FROM samples") == [(6,)]


def frame(**changes: Any) -> str:
    """Return the JSON of one frame with changed fields."""
    return json.dumps({"frames": [written()["frames"][0] | changes]}, indent=1)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "x.json: the file ends too early"),
        ("[1, 2]", "x.json: it isn't a JSON object"),
        ("\x7fELF", "x.json: not JSON: invalid char in json text"),
        ('{"a": 1', "x.json: the file ends too early"),
        (json.dumps(written(), indent=2)[:-300], "the file ends too early"),
        ('{"frames": [{"time": 1,}]}', "x.json: not JSON: invalid object key"),
        ('{\n"a": nope}', "x.json: not JSON: invalid string in json text"),
        ('\ufeff{\n"a": 1,\n "b" 2}', "x.json: not JSON: object key and value must be separated by a colon"),
        ('{"a": ' + "[" * 200_000, "x.json: it is nested too deeply"),
        ('{"a": ' + "9" * 9000 + "}", "x.json: not JSON: integer overflow"),
        ('{"a": 1} {', "x.json: more text follows the end"),
        (
            '{"something": "else"}',
            "x.json: no frame has values of GPUs: this isn't a file of gswarm-profiler",
        ),
        ('{"frames": []}', "no frame has values of GPUs"),
        ('{"frames": {"a": 1}}', "gpu_id should be an array of strings"),
        ('{"frames": [1]}', "a frame should be an object"),
        (frame(gpu_id=3), "gpu_id should be an array of strings"),
        (frame(gpu_id=["n:0:X", "n:0:X"]), "gpu_id lists a GPU twice"),
        (frame(gpu_id=["a", "b"]), '"a" isn\'t hostname:index:name'),
        (frame(gpu_util=["0.1"]), "gpu_util should be an array with a number for each gpu_id"),
        (frame(gpu_util="0.1"), "x.json, frame 1: gpu_util should be an array with a number for each gpu_id"),
        (frame(gpu_util=["0.1", "\x1b[2Jhigh"]), "gpu_util should be an array with a number for each gpu_id"),
        (frame(gpu_util=["0.1", [1]]), "gpu_util should be an array with a number for each gpu_id"),
        (frame(gpu_util=["0.1", "-0.1"]), "gpu_util: -0.1 is out of range"),
        (
            frame(gpu_util=["0.1", "1.5"]),
            "gpu_util: 1.5 is out of range; gswarm-profiler writes shares from 0 to 1",
        ),
        (frame(dram_bandwidth_rx=[1e12, 1]), "dram_bandwidth_rx: 1e+12 is out of range"),
        (frame(time="yesterday"), '"yesterday" isn\'t a time such as 2026-01-31T12:00:00'),
        (frame(time=None), '"None" isn\'t a time'),
        (frame(time="0001-01-01T00:00:00"), '"0001-01-01T00:00:00" is'),
        (
            '{"session_name": 3, ' + frame()[1:],
            "a name should be a string of at most 1000 characters",
        ),
    ],
)
def test_malformed_json_prints_one_sentence_and_leaves_no_file(
    capsys: pytest.CaptureFixture[str], content: str, sentence: str
) -> None:
    Path("x.json").write_text(content)
    assert cli.main(["import", "x.json"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("gswarm-tui: x.json")
    assert sentence in error
    assert error.count("\n") == 1
    assert error.isprintable() or error[:-1].isprintable()
    assert [path.name for path in Path().iterdir()] == ["x.json"]


def test_failed_import_keeps_the_existing_file() -> None:
    run(Path("run.duckdb"))
    before = tables(Path("run.duckdb"))
    made = written()
    made["frames"][2]["gpu_util"] = "?"
    Path("x.json").write_text(json.dumps(made))
    assert cli.main(["import", "x.json", "--db", "run.duckdb"]) == 1
    assert tables(Path("run.duckdb")) == before


def test_imported_text_is_printable() -> None:
    evil = written()
    evil["session_name"] = "a\x1b]0;owned\x07b"
    for one in evil["frames"]:
        one["gpu_id"] = ["no\nde\u202e:0:X\x1b[2J", "node:1:\ud800"]
    Path("x.json").write_text(json.dumps(evil))
    command("import", "x.json")
    found = query(
        Path("x.duckdb"), "SELECT s.name, n.node, g.name FROM sessions s, nodes n JOIN gpus g USING (node_id)"
    )
    assert all(text.isprintable() for row in found for text in row)
    assert ("a ]0;owned b", "no de ", "X [2J") in found


@pytest.mark.parametrize("line_length", [1, 2, 3, 7, 1000])
def test_json_stream_reads_members_and_elements_across_lines(line_length: int) -> None:
    text = '{"a": 1, "frames": [{"b": [1, 2, []]}, [[3.25], "x\\ny"]], "c": {"d": null, "e": {}}}'
    tokens = text.replace('"x\\ny"', "0").split(" ") if line_length < len(text) else [text]
    lines = "\n".join(" ".join(tokens[at : at + line_length]) for at in range(0, len(tokens), line_length))
    stream = JsonStream(BufferedReader(BytesIO(lines.encode())))
    assert list(stream.members("frames")) == [
        ("a", 1),
        ("frames", {"b": [1, 2, []]}),
        ("frames", 3.25),
        ("frames", "x\ny" if len(tokens) == 1 else 0),
        ("c", {"d": None, "e": {}}),
    ]


def spoil(sql: str, table: str) -> None:
    """Replace a file of the export ``run.parquet`` by the rows of a query."""
    (file,) = map(str, Path(f"run.parquet/{table}").rglob("*.parquet"))
    duckdb.sql(f"COPY ({sql.format(file=repr(file))}) TO 'spoilt.parquet'")
    Path("spoilt.parquet").replace(file)


@pytest.mark.parametrize(
    ("sql", "table", "sentence"),
    [
        ("FROM {file} WHERE gpu_index = 0", "gpus", "rows belong to something that isn't in the export"),
        (
            "SELECT * REPLACE (7 AS node_id) FROM {file}",
            "gpus",
            "/gpus: 4 of 4 rows belong to something that isn't",
        ),
        (
            "SELECT * REPLACE (1 AS node_id) FROM {file}",
            "nodes",
            "has a node_id that is empty or occurs twice",
        ),
        ("SELECT * EXCLUDE gpu_id FROM {file}", "gpus", "has no column gpu_id"),
        ("SELECT * REPLACE ('x' AS gpu_id) FROM {file}", "gpus", "Could not convert"),
        (
            "SELECT * REPLACE (99 AS schema_version) FROM {file}",
            "recordings",
            "was made by a newer gswarm-tui",
        ),
        ("SELECT 1 AS recording_id", "recordings", "its recordings have no schema_version"),
        ("SELECT * REPLACE (TIMESTAMP 'infinity' AS ts) FROM {file}", "events", "ts"),
    ],
)
def test_damaged_export_prints_one_sentence_and_leaves_no_file(
    exported: Path, capsys: pytest.CaptureFixture[str], sql: str, table: str, sentence: str
) -> None:
    shutil.copytree(exported, "run.parquet")
    spoil(sql, table)
    assert cli.main(["import", "run.parquet", "--db", "back.duckdb"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("gswarm-tui: run.parquet")
    assert sentence in error
    assert error.count("\n") == 1
    assert not Path("back.duckdb").exists()


def test_other_file_types_print_one_sentence(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(Path("run.duckdb"))
    shutil.copytree(exported, "run.parquet")
    part = next(Path("run.parquet/gpu_samples").rglob("*.parquet"))
    part.write_bytes(part.read_bytes()[:100])
    Path("empty").mkdir()
    Path("bytes.json").write_bytes(b'{"a": "\xff\xfe"}')
    for words, status, sentence in (
        (["run.parquet", "--db", "b.duckdb"], 1, "run.parquet can't be imported"),
        (["empty"], 1, "empty is not an export of gswarm-tui: it has no recordings/run=…"),
        (["bytes.json"], 1, "bytes.json: it isn't text in UTF-8"),
        (["nothing.json"], 2, "there is no file or folder nothing.json"),
        (["run.duckdb"], 2, "run.duckdb is a recording already; other commands read it with --db"),
        (["bytes.json", "--gpu-memory-mib", "much"], 2, "isn't a number from 1 to"),
    ):
        capsys.readouterr()
        assert cli.main(["import", *words]) == status
        error = capsys.readouterr().err
        assert sentence in error
        assert error.count("\n") == 1
    assert not list(Path().glob("b*.duckdb"))
    assert STRANGE in {row[0] for row in query(Path("run.duckdb"), "SELECT node FROM nodes")}
