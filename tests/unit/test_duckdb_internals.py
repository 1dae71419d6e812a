"""The contract with DuckDB: each failure names the internal that a new version changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from gswarm_tui.store import duckdb_internals as internals
from gswarm_tui.store.duckdb_internals import (
    FileProblem,
    file_problem,
    lacks_spill_space,
    query_problem,
)

Config = dict[str, str | bool | int | float | list[str]]


def failure(call: str, path: Path | str, config: Config | None = None) -> duckdb.Error:
    """Return the error with which DuckDB refuses a statement or, if it is empty, to open the file."""
    try:
        with duckdb.connect(str(path), config=config or {}) as connection:
            connection.execute(call)
    except duckdb.Error as error:
        return error
    pytest.fail(f"DuckDB {duckdb.__version__} doesn't refuse {call or path} any more")


def test_duckdb_refuses_files_of_other_programs(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no database, and longer than a header\n" * 500)
    error = failure("", path)
    assert file_problem(error) is FileProblem.NOT_A_DATABASE, f"the text changed: {error}"


@pytest.mark.parametrize(
    ("number", "problem"),
    [
        (28, FileProblem.DISK_FULL),
        (27, FileProblem.FILE_SIZE_LIMIT),
        (30, FileProblem.READ_ONLY_FILE_SYSTEM),
        (13, FileProblem.NOT_WRITABLE),
        (1, FileProblem.NOT_WRITABLE),
        (122, FileProblem.DISK_FULL),
    ],
)
def test_the_system_names_file_errors_as_expected(number: int, problem: FileProblem) -> None:
    """DuckDB's error contains the system's error text; ``test_store_errors`` fills real disks."""
    text = f'IO Error: Cannot open file "/a": {os.strerror(number)}'
    assert file_problem(duckdb.IOException(text)) is problem, text


def test_query_errors_have_a_prefix_and_a_line() -> None:
    problem, _ = query_problem(failure("SELECT 1,\n  nothing", ":memory:"))
    assert problem.startswith('Referenced column "nothing"'), "the prefix of error texts changed"
    assert problem.endswith(' (line 2: "nothing")'), "the text about the query's line changed"


def test_a_read_only_connection_refuses_writes(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    duckdb.connect(str(path)).close()
    with duckdb.connect(str(path), read_only=True) as connection, pytest.raises(duckdb.Error) as caught:
        connection.execute("CREATE TABLE t (i INTEGER)")
    assert "read-only" in query_problem(caught.value)[0]


def test_a_refused_file_is_quoted() -> None:
    error = failure("FROM read_csv('/etc/passwd')", ":memory:", {"enable_external_access": False})
    assert isinstance(error, duckdb.PermissionException), f"the type changed: {error!r}"
    assert query_problem(error)[1] == "/etc/passwd", f"the text changed: {error}"


def test_a_query_that_lacks_space_for_temporary_files_names_their_limit(tmp_path: Path) -> None:
    settings: Config = {"memory_limit": "20MB", "temp_directory": str(tmp_path), "threads": 1}
    with duckdb.connect(config=settings) as connection:
        connection.execute("SET max_temp_directory_size = '1MB'")
        with pytest.raises(duckdb.OutOfMemoryException) as raised:
            connection.execute("FROM range(10_000_000) ORDER BY hash(range)").fetchall()
    assert lacks_spill_space(raised.value), f"the text changed: {raised.value}"


def test_parquet_errors_mention_parquet(tmp_path: Path) -> None:
    path = tmp_path / "broken.parquet"
    path.write_bytes(b"PAR1" + bytes(100))
    error = failure(f"FROM read_parquet('{path}')", ":memory:")
    assert internals.is_about_parquet(error), f"the text changed: {error}"


def test_a_lower_memory_limit_drops_cached_blocks(tmp_path: Path) -> None:
    connection = duckdb.connect(str(tmp_path / "run.duckdb"), config={"memory_limit": "256MB", "threads": 1})
    connection.execute("CREATE TABLE t AS SELECT random() AS x FROM range(2000000)")
    connection.execute("CHECKPOINT")
    connection.execute("SELECT sum(x) FROM t")
    used = "SELECT sum(memory_usage_bytes) FROM duckdb_memory()"
    before = connection.execute(used).fetchall()[0][0]
    internals.release_memory(connection, "256MB")
    after = connection.execute(used).fetchall()[0][0]
    assert after < before / 2, f"DuckDB keeps its cache: {before} and {after} bytes"
    (limit,) = connection.execute("SELECT current_setting('memory_limit')").fetchall()[0]
    assert limit.startswith("244"), limit  # 256 MB in MiB


def test_the_allocator_reads_its_options_from_the_environment() -> None:
    """jemalloc with background threads has one more thread than without."""
    count = (
        "import duckdb, os, sys, time\n"
        "c, began = duckdb.connect(config={'threads': 1}), time.monotonic()\n"
        "c.execute('SELECT max(md5(range::VARCHAR)) FROM range(100000)').fetchall()\n"
        "threads = lambda: len(os.listdir('/proc/self/task'))\n"
        "while threads() < int(sys.argv[1]) and time.monotonic() < began + 10: time.sleep(0.02)\n"
        "print(threads())"
    )

    def threads(environ: dict[str, str], at_least: int) -> int:
        command = [sys.executable, "-c", count, str(at_least)]
        return int(subprocess.run(command, env=environ, capture_output=True, check=True).stdout)

    bare = {key: value for key, value in os.environ.items() if key != "DUCKDB_JE_MALLOC_CONF"}
    tuned = dict(bare)
    internals.share_one_arena(tuned)
    without = threads(bare, 0)
    assert threads(tuned, without + 1) > without, "DuckDB's allocator ignores DUCKDB_JE_MALLOC_CONF"
