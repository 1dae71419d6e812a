"""``gswarm-tui sql``: queries on the command line, from files and from pipes."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from gswarm_tui.cli import main
from gswarm_tui.fleet.events import SessionStarted
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.querying.many_files import MOST_FILES, ManyFiles
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.store.sql.schema import TABLES
from gswarm_tui.store.sql.views import VIEW_NAMES
from tests.bench.processes import cpu_s
from tests.integration import exchange_recording
from tests.terminal import pause
from tests.unit.store_recording import T0, arrived, gpu_row, introduced, record

ROOT = Path(__file__).parents[2]
COUNT = "SELECT count(*) AS n FROM samples"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record three samples of two GPUs."""
    path = tmp_path_factory.mktemp("recording") / "run.duckdb"
    frames = [arrived(seq, [gpu_row(util_pct=seq), gpu_row(pstate=0)]) for seq in (1, 2, 3)]
    record(path, [introduced(gpus=2), SessionStarted("s", T0, "train", T0), *frames])
    return path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(original, tmp_path))


def test_a_query_is_answered(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", COUNT, "--db", str(path)]) == 0
    assert capsys.readouterr() == ("n\n─\n6\n", "")


def test_each_statement_is_answered(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", "SELECT 1 AS a; SELECT 'x;' AS b;", "--db", str(path), "--format", "csv"]) == 0
    assert capsys.readouterr().out == "a\n1\n\nb\nx;\n"


def test_the_newest_recording_of_the_folder_is_queried(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    assert main(["sql", "SELECT name FROM sessions", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"name": "train"}]


def test_a_file_and_standard_input_are_read(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = path.with_name("questions.sql")
    questions.write_text(f"-- how many?\n{COUNT};\n")
    for words in (["-f", str(questions)], ["-"], []):
        monkeypatch.setattr("sys.stdin", io.StringIO(COUNT))
        assert main(["sql", *words, "--db", str(path)]) == 0
        assert capsys.readouterr().out == "n\n─\n6\n"


def test_a_parquet_file_is_written(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = path.with_name("samples.parquet")
    assert main(["sql", "FROM samples ORDER BY ts, gpu_index", "--db", str(path), "-o", str(out)]) == 0
    assert capsys.readouterr() == ("", "")
    read = duckdb.read_parquet(str(out)).filter("gpu_index = 0").order("ts").project("util_pct")
    assert read.fetchall() == [(1,), (2,), (3,)]
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT key::VARCHAR, value::VARCHAR FROM parquet_kv_metadata('{out}')")
        meanings = dict(found.fetchall())
    assert meanings["mem_used_mib"].startswith("Device memory in use [MiB]")
    assert set(meanings) == set(duckdb.read_parquet(str(out)).columns)


RECENT = "SELECT count(*) AS n FROM samples WHERE ts BETWEEN now() - INTERVAL 5 MINUTE AND now()"
RECORDING = """
import sys, time
from pathlib import Path
from gswarm_tui.store.recording.recorder import FileWriter
from tests.unit.store_recording import INFO, arrived, gpu_row, introduced

recorder = FileWriter(Path(sys.argv[1]), INFO, lambda _status: None, commit_every_s=0.0)
recorder.open()
now = time.time()
frames = [arrived(number, [gpu_row(util_pct=1)], ts=now - 60 * number) for number in range(1, 10)]
recorder.submit([introduced(gpus=1), *frames])
while recorder.status().rows < 18:
    time.sleep(0.01)
print(recorder.queries().query(sys.argv[2]).rows()[0][0])
recorder.close(now)
"""


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York", "UTC"])
def test_now_compares_with_times_of_samples_in_every_zone(tmp_path: Path, zone: str) -> None:
    path = tmp_path / "run.duckdb"

    def output(*words: str) -> str:
        env = {**os.environ, "TZ": zone}
        return subprocess.run(
            [sys.executable, *words], cwd=ROOT, env=env, check=True, capture_output=True, text=True
        ).stdout

    assert output("-c", RECORDING, str(path), RECENT) == "4\n"
    assert output("-m", "gswarm_tui", "sql", RECENT, "--db", str(path), "--format", "csv") == "n\n4\n"


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_times_in_files_have_a_zone(path: Path, suffix: str) -> None:
    out = path.with_name(f"times.{suffix}")
    query = "SELECT ts FROM samples WHERE gpu_index = 0 ORDER BY ts LIMIT 1"
    assert main(["sql", query, "--db", str(path), "-o", str(out)]) == 0
    with duckdb.connect() as connection:
        read = connection.execute(f"SELECT ts::TIMESTAMPTZ, typeof(ts) FROM '{out}'").fetchall()
    assert [row[0].timestamp() for row in read] == [T0 + 1]
    assert suffix == "json" or read[0][1] == "TIMESTAMP WITH TIME ZONE"


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["FROM sesions"], 1, 'Did you mean "sessions"? (line 1: "FROM sesions").\n'),
        (["DROP TABLE sessions"], 1, "can be used here, not DROP.\n"),
        (
            ["SELECT 1; SELECT nothing"],
            1,
            'Referenced column "nothing" was not found because the FROM clause is',
        ),
        ([""], 2, "the query is empty.\n"),
        (["SELECT 1", "-f", "x.sql"], 2, "sql takes a query or a file, not both.\n"),
        (["-f", "/nowhere.sql"], 2, "/nowhere.sql can't be read: No such file or directory.\n"),
        (["-f", sys.executable], 2, "isn't text in UTF-8.\n"),
        (["SELECT '\udcff'"], 2, "the query isn't text in UTF-8.\n"),
        (["SELECT 1; SELECT 2", "-o", "x.csv"], 2, "-o writes one result, but there are 2 statements.\n"),
        (["SELECT 1", "FROM x"], 2, 'unexpected argument "FROM x" after gswarm-tui sql'),
        (["SELECT 1", "--fromat", "csv"], 2, "perhaps you meant --format.\n"),
    ],
)
def test_an_error_is_one_sentence(
    path: Path, capsys: pytest.CaptureFixture[str], words: list[str], status: int, message: str
) -> None:
    assert main(["sql", *words, "--db", str(path)]) == status
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("gswarm-tui: ")
    assert error.count("\n") == 1


def test_ctrl_c_ends_a_query_at_once(path: Path) -> None:
    query = "SELECT 1; SELECT count(*) FROM range(1000000000000)"
    process = subprocess.Popen(
        [sys.executable, "-m", "gswarm_tui", "sql", query, "--db", str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        for _ in range(4):  # the first answer, and the line between the two
            process.stdout.readline()
        used_s, began = cpu_s(process.pid), time.monotonic()
        while cpu_s(process.pid) < used_s + 0.2:  # the query computes
            pause(began)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert error == b""


def test_many_recordings_are_queried_as_one(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("more").mkdir()
    for name in ("more/run.duckdb", "more/two's.duckdb"):
        shutil.copy(path, name)
    Path("more/torn.duckdb").write_bytes(b"torn")

    def answer(query: str, *files: str) -> list[dict[str, object]]:
        words = [word for file in files for word in ("--db", file)]
        assert main(["sql", query, *words, "--json"]) == 0
        rows: list[dict[str, object]] = json.loads(capsys.readouterr().out)
        return rows

    by_run = "SELECT run, count(*) AS n, min(gpu_id) AS gpu FROM samples GROUP BY run ORDER BY gpu"
    assert answer(by_run, "run.duckdb", "more/*.duckdb") == [
        {"run": "run.duckdb", "n": 6, "gpu": 1},
        {"run": "more/run.duckdb", "n": 6, "gpu": 3},
        {"run": "two's", "n": 6, "gpu": 5},
    ]
    assert answer(by_run, "more/two*.duckdb") == [{"run": "two's", "n": 6, "gpu": 1}]
    Path("link.duckdb").symlink_to("run.duckdb")
    (once,) = answer(by_run, "run.duckdb", "link.duckdb")
    assert once["n"] == 6
    assert main(["sql", COUNT, "--db", "run.duckdb", "--db", "more/torn.duckdb"]) == 1
    assert "more/torn.duckdb is not a DuckDB file" in capsys.readouterr().err


def test_recordings_in_use_and_too_many_are_named(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(path, "busy.duckdb")
    script = "import duckdb; held = duckdb.connect('busy.duckdb'); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        assert main(["sql", "FROM sessions SELECT run", "--db", "*.duckdb", "--format", "csv"]) == 0
        printed = capsys.readouterr()
        writer.communicate("\n")
    assert printed.out == "run\nrun\n"
    assert "skipped: busy.duckdb is still recorded or in use, so query it alone.\n" in printed.err
    for number in range(MOST_FILES):
        Path(f"{number}.duckdb").touch()
    assert main(["sql", COUNT, "--db", "*.duckdb"]) == 2
    assert "252 recordings match, but sql reads at most 250 at once" in capsys.readouterr().err


def test_each_table_and_view_of_many_recordings_has_the_rows_of_each(tmp_path: Path) -> None:
    files = {"one": exchange_recording.run(tmp_path / "1.duckdb")}
    files["two"] = exchange_recording.profiled_run(tmp_path / "2.duckdb")
    errors: list[object] = []
    many = ManyFiles(files, lambda *error: errors.append(error), lambda _share: None)

    def rows(source: QuerySource, name: str) -> list[str]:
        found = source.query(f"FROM {name}").dicts()
        return sorted(
            str({key: row[key] for key in row if not key.endswith("_id") and key != "run"}) for row in found
        )

    with closing(many), closing(FileSource(files["one"])) as one, closing(FileSource(files["two"])) as two:
        for name in (*VIEW_NAMES, *(table.name for table in TABLES)):
            assert rows(many, name) == sorted(rows(one, name) + rows(two, name)), name
        runs = many.query(
            "SELECT DISTINCT run, node FROM session_summary WHERE scope = 'node' ORDER BY ALL"
        ).rows()
        assert runs == [("one", "n1"), ("one", exchange_recording.STRANGE)]
        assert many.query("SELECT DISTINCT run FROM profile_kernels").rows() == [("two",)]
    assert errors == []
