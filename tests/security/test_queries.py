"""Queries that would exhaust a running recording's memory, write files or kill its process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.cli import main
from gswarm_tui.store.querying.cursor_pool import THREAD_SLACK
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.querying.memory import LEAST_BYTES, MOST_BYTES, query_memory
from gswarm_tui.store.querying.results import QueryError
from gswarm_tui.store.recording.database import MEMORY
from gswarm_tui.tui.screens.sql import result_table
from tests.unit.store_recording import query, record

ROOT = Path(__file__).parents[2]
MIB = 1024**2
QUERY_MEMORY = 256 * MIB
HUNGRY = ["SELECT len(list(i)) FROM range(300000000) t(i)", "SELECT len(repeat('x', 3000000000))"]
ASKS = """
import os, sys, time
from pathlib import Path
from gswarm_tui.store.duckdb_internals import share_one_arena
share_one_arena(os.environ)  # as a head does
from gswarm_tui.store.querying.results import QueryError
from gswarm_tui.store.recording.recorder import Recorder
from tests.unit.store_recording import INFO, T0, arrived, gpu_row, introduced

def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))

path, most, sql = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
recorder = Recorder(path, INFO, lambda status: None, query_memory=most)
recorder.open()
recorder.submit([introduced(gpus=1), arrived(1, [gpu_row(util_pct=1)])])
queries = recorder.queries()
queries.query("SELECT count(*) FROM samples").rows()
before = memory("VmRSS")
try:
    queries.query(sql).rows()
except QueryError as error:
    print(error)
print(memory("VmHWM") - before)
deadline = time.monotonic() + 30
while memory("VmRSS") > before + 32 * 1024**2 and time.monotonic() < deadline:
    time.sleep(0.05)
print(memory("VmRSS") - before)
recorder.submit([arrived(2, [gpu_row(util_pct=2)])])
print(recorder.close(T0 + 99).error or "no error")
"""


@pytest.fixture
def source(tmp_path: Path) -> Iterator[FileSource]:
    path = tmp_path / "run.duckdb"
    record(path, [])
    source = FileSource(path)
    yield source
    source.close()


@pytest.mark.parametrize("sql", HUNGRY)
def test_hungry_query_is_bounded_and_its_memory_is_given_back(tmp_path: Path, sql: str) -> None:
    path = tmp_path / "run.duckdb"
    words = [sys.executable, "-c", ASKS, str(path), str(QUERY_MEMORY), sql]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    refused, most, left, error = done.stdout.splitlines()
    assert "more memory than it may use" in refused
    assert int(most) < MEMORY + QUERY_MEMORY + THREAD_SLACK
    assert int(left) <= 32 * MIB
    assert error == "no error"
    assert query(path, "SELECT list(util_pct ORDER BY ts) FROM gpu_samples") == [([1, 2],)]


def written(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(
    ("available_mib", "groups", "expected"),
    [
        (64 * 1024, {}, MOST_BYTES),
        (2 * 1024, {}, 512 * MIB),
        (100, {}, LEAST_BYTES),
        (64 * 1024, {"job": (3 * 1024 * MIB, 1024 * MIB, 0)}, 512 * MIB),
        (64 * 1024, {"job": (3 * 1024 * MIB, 2048 * MIB, 1024 * MIB)}, 512 * MIB),
        (64 * 1024, {"job": (3 * 1024 * MIB, 1024 * MIB, 0), "job/step": ("max", 5, 0)}, 512 * MIB),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_queries_get_a_quarter_of_the_memory_free_in_machine_and_control_groups(
    tmp_path: Path,
    available_mib: int,
    groups: dict[str, tuple[int | str, int, int]],
    expected: int,
    version: int,
) -> None:
    written(tmp_path / "proc/meminfo", f"MemTotal: 9 kB\nMemAvailable:   {available_mib * 1024} kB\n")
    line = "0::/job/step" if version == 2 else "3:cpu,memory:/job/step"
    written(tmp_path / "proc/self/cgroup", f"1:name=systemd:/\n{line}\n")
    mounted = tmp_path / ("sys/fs/cgroup" if version == 2 else "sys/fs/cgroup/memory")
    limit, used = (
        ("memory.max", "memory.current")
        if version == 2
        else (
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
        )
    )
    for group, (bound, current, cached) in groups.items():
        written(mounted / group / limit, f"{bound}\n")
        written(mounted / group / used, f"{current}\n")
        written(mounted / group / "memory.stat", f"anon 7\ninactive_file {cached}\n")
    assert query_memory(tmp_path) == expected


@pytest.mark.parametrize(
    ("sql", "way"),
    [
        ("COPY samples TO 'samples.csv'", "`gswarm-tui sql … -o FILE`"),
        ("EXPORT DATABASE 'folder'", "`gswarm-tui export`"),
        ("FROM read_csv('/etc/passwd')", "`gswarm-tui sql … -o FILE`"),
        ("FROM 'other.csv'", "`gswarm-tui sql … -o FILE`"),
        ("ATTACH 'other.duckdb'", "--db"),
    ],
)
def test_refused_query_names_the_command_that_works(source: FileSource, sql: str, way: str) -> None:
    with pytest.raises(QueryError) as caught:
        source.query(sql)
    assert way in str(caught.value)


@pytest.mark.parametrize(
    "sql",
    ["SELECT to_days(2000000000)", "SELECT (repeat('[', 400) || repeat(']', 400))::JSON::VARIANT"],
    ids=["out of range", "nested"],
)
def test_value_that_python_cannot_hold_is_refused_with_a_sentence(
    source: FileSource, sql: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(QueryError, match="cast it to VARCHAR"):
        result_table(RecordingQueries(source).query(sql))
    for form in ("table", "csv", "markdown"):
        assert main(["sql", sql, "--db", str(tmp_path / "run.duckdb"), "--format", form]) == 1
        assert capsys.readouterr().err.endswith("cast it to VARCHAR.\n")


def test_nested_subqueries_run_or_are_refused_with_a_sentence(source: FileSource) -> None:
    def nested(depth: int) -> str:
        return "SELECT * FROM (" * depth + "SELECT 1" + ")" * depth

    assert source.query(nested(100)).rows() == [(1,)]
    with pytest.raises(QueryError, match=r"^the query is nested too deeply; name parts of it in WITH$"):
        source.query(nested(2_000))
