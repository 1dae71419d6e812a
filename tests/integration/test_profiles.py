"""Import of reports of Nsight Systems and Nsight Compute: the tools' own statistics, beside the samples.

The real tools make and read reports without a GPU; CUDA tables come from a real export of an A100, and
where its version has none, from a stand-in.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path

import duckdb
import pytest

from gswarm_tui.cli import main
from gswarm_tui.common.processes import own_command
from gswarm_tui.profiling.node_scripts import CONVERT
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.recording.files import file_bytes, wal_path
from tests.cluster.running import wait_until
from tests.integration.exchange_recording import recording_of_node
from tests.nsys_standin import CAPTURE, NODE, PID, SECRET, START_NS, UUIDS, write_standin
from tests.unit.store_recording import query

A100 = Path(__file__).parents[3] / "shared" / "data" / "nsys"
NCU_REPORTS = Path("/usr/share/doc/nsight-compute/examples/uncoalescedGlobalAccesses")
TIMES = "time_pct total_ns calls avg_ns median_ns min_ns max_ns stddev_ns"
SIZES = "total_mb calls avg_mb median_mb min_mb max_mb stddev_mb"
PROGRAM = """
import ctypes, time
nvtx = ctypes.CDLL("libnvToolsExt.so.1")
for step in range(20):
    nvtx.nvtxRangePushA(b"step %d" % (step % 3))
    nvtx.nvtxRangePushA(b"/home/ada/train.py(12): forward")
    time.sleep(0.001)
    nvtx.nvtxRangePop()
    nvtx.nvtxRangePop()
"""


def tool(name: str) -> str:
    """Return the path of a real tool."""
    if (found := shutil.which(name)) is None:
        pytest.fail(
            f"{name} is missing: apt-get install nsight-systems nsight-compute libnvtoolsext1 (non-free)"
        )
    return found


def import_report(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[str, str]:
    """Run ``gswarm-tui import`` and return what it printed."""
    assert main(["import", *map(str, words)]) == 0
    printed = capsys.readouterr()
    return printed.out, printed.err


def refusal(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """Run ``gswarm-tui import``, which fails, and return the sentence."""
    assert main(["import", *map(str, words)]) != 0
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    return line


def nsys_stats(report: Path, name: str) -> list[list[str]]:
    """Return the rows that ``nsys stats`` prints."""
    command = [tool("nsys"), "stats", "-r", name, "-f", "csv", "--output", "-", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return list(csv.reader(done.stdout[done.stdout.index("Time (%)") :].strip().splitlines()))[1:]


def formatted(row: tuple[object, ...], digits: int) -> list[str]:
    """Return a row as ``nsys stats`` writes it."""
    return [f"{cell:.{digits}f}" if isinstance(cell, float) else str(cell) for cell in row]


@pytest.fixture(scope="session")
def a100_export() -> Path:
    """Return the real export, which lies beside the project's folder where the project is checked."""
    if not A100.is_dir():
        pytest.skip(f"there is no {A100}")
    return A100 / "saxpy-mpi-a100-2022.sqlite"


@pytest.fixture(scope="module")
def a100(a100_export: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recording of the real export alone."""
    path = tmp_path_factory.mktemp("a100") / "a100.duckdb"
    assert main(["import", str(a100_export), "--db", str(path)]) == 0
    return path


@pytest.mark.parametrize(
    ("printed", "columns", "view", "digits"),
    [
        ("cudaapisum", f"{TIMES} name", "profile_api_sum", 1),
        ("gpukernsum", f"{TIMES} grid block name", "profile_kernel_launch_sum", 1),
        ("gpumemtimesum", f"{TIMES} name", "profile_memory_time_sum", 1),
        ("gpumemsizesum", f"{SIZES} name", "profile_memory_size_sum", 3),
    ],
)
def test_statistics_of_a_real_gpu_equal_those_of_nsys_in_each_cell(
    a100: Path, printed: str, columns: str, view: str, digits: int
) -> None:
    with (A100 / f"saxpy-{printed}.csv").open() as file:
        expected = list(csv.reader(file))[1:]
    rows = query(a100, f"SELECT {columns.replace(' ', ', ')} FROM {view}")
    assert [formatted(row, digits) for row in rows] == expected


def test_a_recording_of_a_report_alone_has_its_node_gpus_and_time(a100: Path) -> None:
    assert query(a100, "SELECT node FROM nodes") == [("nid001608",)]
    assert query(a100, "SELECT name, uuid FROM gpus") == [
        ("NVIDIA A100-SXM4-40GB", "GPU-74e128b2-90b6-b409-07c8-33bee5ff6f88")
    ]
    kernels = query(
        a100, "SELECT ts, node, rank, gpu_index, name, short_name, duration_ns FROM profile_kernels"
    )
    assert len(kernels) == 5
    at, *kernel = kernels[0]
    # 1687813257637297504 ns, the report's start, and 924922186 ns, the kernel's in the report
    assert at.isoformat() == "2023-06-26T21:00:58.562219"
    assert kernel == [
        "nid001608",
        0,
        0,
        "saxpy(double *, double *, double *, double, int)",
        "saxpy",
        17_704_808,
    ]
    busy = query(a100, "SELECT kernels, round(kernel_s, 6), no_kernel_pct FROM profile_gpus")
    assert busy == [(5, 0.088573, 97.4)]


def test_kernels_of_two_streams_at_once_count_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = "CUPTI_ACTIVITY_KIND_KERNEL"
    sql = [
        f"CREATE TABLE again AS SELECT * FROM {kernels}",
        "UPDATE again SET streamId = 8",
        f"INSERT INTO {kernels} SELECT * FROM again",
        "DROP TABLE again",
    ]
    db = tmp_path / "run.duckdb"
    import_report(capsys, write_standin(tmp_path / "standin.sqlite", sql=sql), "--db", db)
    assert query(db, "SELECT no_kernel_pct FROM profile_gpus") == [(50.0,)]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a real report of a program with NVTX ranges, run with a secret in its environment."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "program.py").write_text(PROGRAM)
    name, _, value = SECRET.partition("=")
    command = [tool("nsys"), "profile", "-t", "nvtx,osrt", "--sample=none", "--cpuctxsw=none", "-o"]
    subprocess.run(
        [*command, str(folder / "run"), sys.executable, str(folder / "program.py")],
        env=os.environ | {name: value, "SLURM_PROCID": "5", "MY_DATA": "/scratch/ada/private"},
        check=True,
        capture_output=True,
    )
    subprocess.run(["bash", "-c", f"{CONVERT} convert {folder}/run /dev/null"], check=False)
    return folder / "run.nsys-rep"


@pytest.fixture(scope="module")
def imported(report: Path) -> tuple[Path, str, str]:
    """Import the real report; return the new recording and what was printed on both outputs."""
    db = report.parent / "run.duckdb"
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        assert main(["import", str(report), "--db", str(db)]) == 0
    return db, out.getvalue(), err.getvalue()


def test_ranges_of_a_real_report_equal_those_of_nsys_in_each_cell(
    report: Path, imported: tuple[Path, str, str]
) -> None:
    db, out, _ = imported
    assert out.startswith(f"{db}: profile 1, ")
    assert ", rank 5 from " in out
    columns = f"{TIMES} style name".replace(" ", ", ")
    rows = [formatted(row, 1) for row in query(db, f"SELECT {columns} FROM profile_range_sum")]
    expected = nsys_stats(report, "nvtxsum")
    assert len(expected) == 4
    assert rows == [[cell.replace("/home/ada/", "") for cell in row] for row in expected]
    calls = query(db, "SELECT DISTINCT layer FROM profile_api")
    assert calls == [("OS runtime",)]


def test_neither_environment_nor_paths_of_a_real_report_enter_the_recording(
    report: Path, imported: tuple[Path, str, str]
) -> None:
    secret = SECRET.partition("=")[2]
    assert secret.encode() in report.read_bytes()
    db, out, err = imported
    texts = [out.replace(str(db), "").replace(str(report), ""), err, *all_texts(db)]
    forbidden = ("hf_", "MY_DATA", "/scratch", "/home", "/tmp", str(report.parent), "PATH=")
    assert [text for text in texts for word in forbidden if word in text] == []


def all_texts(path: Path) -> Iterator[str]:
    """Return every text of a recording file."""
    with duckdb.connect(str(path), read_only=True) as connection:
        columns = connection.execute(
            "SELECT table_name, column_name FROM duckdb_columns() WHERE data_type = 'VARCHAR' "
            "AND NOT internal AND table_name IN (SELECT table_name FROM duckdb_tables())"
        ).fetchall()
        for table, column in columns:
            rows = connection.execute(f"SELECT DISTINCT {column} FROM {table}").fetchall()
            yield from (text for (text,) in rows if text)


def test_statistics_are_rounded_as_nsys_rounds_them_and_have_kinds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start +"
    sql = [f"{kernels} 1", f"{kernels} 4 WHERE rowid <= 2"]  # a mean of 1.15, just below that as a double
    db = tmp_path / "run.duckdb"
    sql.append("UPDATE StringIds SET value = 'vllm::cross_device_reduce_1stage<float>' WHERE id = 1")
    import_report(capsys, write_standin(tmp_path / "standin.sqlite", kernels=40, sql=sql), "--db", db)
    kinds = [(1.2, "communication"), (1.2, "compute")]
    assert query(db, "SELECT avg_ns, kind FROM profile_kernel_sum ORDER BY kind") == kinds
    assert query(db, "SELECT kind, count(*) FROM profile_kernels GROUP BY ALL ORDER BY ALL") == [
        ("communication", 20),
        ("compute", 20),
    ]


def test_a_profile_stands_beside_the_samples_of_its_node_and_gpu_on_their_clock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = recording_of_node(tmp_path / "run.duckdb", offset_s=2.5)
    report = write_standin(tmp_path / "standin.sqlite")
    _, err = import_report(capsys, report, "--db", db)
    assert "doesn't have the node" not in err
    ((since, node_id, first, gpu_id),) = query(
        db, "SELECT epoch_ns(p.started_at), node_id, epoch_ns(min(k.ts)), min(gpu_id) "
            "FROM profiles p JOIN profile_kernels k USING (profile_id, node_id) GROUP BY ALL"
    )  # fmt: skip
    assert (since, first) == (START_NS + CAPTURE[0] - 2_500_000_000,) * 2
    assert query(db, f"SELECT node FROM nodes WHERE node_id = {node_id}") == [("login-alias",)]
    assert query(db, f"SELECT uuid FROM gpus WHERE gpu_id = {gpu_id}") == [(f"GPU-{UUIDS[1]}",)]
    assert query(db, "SELECT count(*) FROM recordings") == [(1,)]


def test_a_report_of_an_unknown_node_is_imported_and_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = recording_of_node(tmp_path / "run.duckdb")
    anonymous = "DELETE FROM TARGET_INFO_GPU"
    report = write_standin(tmp_path / "standin.sqlite", sql=[anonymous])
    _, err = import_report(capsys, report, "--db", db)
    assert f"the recording doesn't have the node {NODE}" in err
    assert query(db, "SELECT node, node_id FROM profiles") == [(NODE, None)]
    later = "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + 1"
    other = write_standin(tmp_path / "other.sqlite", sql=[anonymous, later])
    out, err = import_report(capsys, other, "--db", db, "--node", "login-alias", "--rank", "7")
    assert "doesn't have the node" not in err
    assert ", rank 7 from " in out


def test_the_same_report_twice_is_refused_also_in_its_other_form(
    report: Path, imported: tuple[Path, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, exported = Path(shutil.copy(imported[0], tmp_path)), tmp_path / "other name.sqlite"
    rows = query(db, "SELECT count(*) FROM profile_api_events")
    command = [tool("nsys"), "export", "--type", "sqlite", "--output", str(exported), str(report)]
    subprocess.run(command, check=True, capture_output=True)
    assert refusal(capsys, exported, "--db", db) == (
        f"gswarm-tui: other name.sqlite is in {db} already, as profile 1; name another file with --db."
    )
    assert query(db, "SELECT count(*) FROM profile_api_events") == rows


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        (["DROP TABLE META_DATA_EXPORT"], "has no tables of an export of Nsight Systems."),
        (
            ["UPDATE META_DATA_EXPORT SET value = '4.0.1' WHERE name LIKE '%SCHEMA%'"],
            "has the export schema 4.0.1; ",
        ),
        (["DELETE FROM TARGET_INFO_SESSION_START_TIME"], "has no start in UTC"),
        (
            ["UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 1 WHERE rowid > 2"],
            "KERNEL has 4 records without valid times, numbers or names, more than half of them",
        ),
        (["ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY DROP COLUMN bytes"], "lacks the column bytes"),
        (["CREATE TABLE x (a, b AS (zeroblob(1000000000)))"], "its table x has computed columns"),
        (["CREATE VIRTUAL TABLE x USING fts5(a)"], "its table x has computed columns"),
        (["UPDATE StringIds SET value = zeroblob(17 * 1024 * 1024)"], "is damaged or cut short (string or"),
        (
            [
                'CREATE TABLE NVTX_EVENTS (start, "end", eventType, text)',
                "INSERT INTO NVTX_EVENTS VALUES (1, '0), 59 --', 59, 'a range')",
            ],
            "NVTX_EVENTS has 1 records without valid times",
        ),
    ],
)
def test_a_report_that_no_nsys_writes_is_refused_and_nothing_of_it_stays(
    a100: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], sql: list[str], why: str
) -> None:
    report = write_standin(tmp_path / "standin.sqlite", sql=sql)
    db = Path(shutil.copy(a100, tmp_path / "run.duckdb"))
    before = sorted(all_texts(db))
    line = refusal(capsys, report, "--db", db)
    assert line.startswith(f"gswarm-tui: {report} ")
    assert why in line
    assert sorted(all_texts(db)) == before
    assert query(db, "SELECT count(*) FROM profile_kernel_events") == [(5,)]


def test_bad_records_are_left_out_and_counted_and_the_others_are_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = (
        "end = start - 1",
        "demangledName = 77",
        "deviceId = 'first'",
        "start = -5",
        "deviceId = 99999999999",
    )
    sql = [
        f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET {what} WHERE rowid = {at}" for at, what in enumerate(bad, 3)
    ]
    db, report = tmp_path / "run.duckdb", write_standin(tmp_path / "r.sqlite", kernels=20, sql=sql)
    sentence = "5 records of CUPTI_ACTIVITY_KIND_KERNEL left out: no valid times, numbers or names."
    assert f"gswarm-tui: {sentence}\n" in import_report(capsys, report, "--db", db)[1]
    assert query(db, "SELECT kernels, captured_s, no_kernel_pct FROM profile_gpus") == [(15, 10.0, 62.5)]
    assert sentence in query(db, "SELECT messages FROM profiles")[0][0]


def test_graphs_count_as_busy_and_a_gpu_with_unknown_work_has_no_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --cuda-graph-trace=node, nsys writes one event for each launch of a graph."""
    columns = '(start, "end", deviceId, streamId, globalPid, correlationId, graphId)'
    graph = f"VALUES ({CAPTURE[0]}, {CAPTURE[0] + 9 * 10**9}, 0, 7, {PID << 24}, 1, 3)"
    shares = []
    for table, kernels in (("GRAPH_TRACE", 0), ("WARP_TRACE", 6)):
        events, empty = f"CUPTI_ACTIVITY_KIND_{table}", "CUPTI_ACTIVITY_KIND_EMPTY"
        sql = [
            *(f"CREATE TABLE {name} {columns}" for name in (events, empty)),
            f"INSERT INTO {events} {graph}",
        ]
        db, report = tmp_path / f"{table}.duckdb", tmp_path / f"{table}.sqlite"
        _, errors = import_report(capsys, write_standin(report, kernels=kernels, sql=sql), "--db", db)
        shares += query(db, "SELECT min(name), any_value(no_kernel_pct) FROM profile_gpus, profile_kernels")
    assert shares == [("[CUDA graph 3]", 10.0), ("relu(float*)", None)]
    assert f"this version of gswarm-tui doesn't know the table {events}: its GPU work is missing" in errors
    assert main(["summary", "--db", str(db)]) == 0
    assert "no kernel running for – of the capture" in capsys.readouterr().out


def test_an_import_is_bounded_in_memory_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, frames, db = (tmp_path / name for name in ("bomb.json.gz", "bomb.json", "run.duckdb"))
    trace.write_bytes(gzip.compress(b'{"traceEvents": [{"args": [' + b"{}," * 10**7 + b"{}]}]}", 1))
    frames.write_bytes(b'{"frames": [{"gpu_id": [' + b"{}," * 10**7 + b"{}]}]}")
    for bomb in (trace, frames):
        assert refusal(capsys, bomb, "--db", db, "--max-memory-mib", "256") == (
            f"gswarm-tui: {bomb} needs more than 256 MiB of memory to be read; "
            "allow more with gswarm-tui import --max-memory-mib."
        )
    assert not db.exists()


def test_ctrl_c_ends_an_endless_import_and_leaves_nothing(tmp_path: Path) -> None:
    numbers = "(WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r LIMIT 100000) SELECT i FROM r)"
    sql = [
        "CREATE TABLE NVTX_EVENTS (start, end, eventType, text, textId)",
        f"INSERT INTO NVTX_EVENTS SELECT 1, 1, 59, NULL, 9 FROM {numbers}",
        f"INSERT INTO StringIds SELECT 9, NULL FROM {numbers}",
    ]
    endless, db = write_standin(tmp_path / "endless.sqlite", sql=sql), tmp_path / "run.duckdb"
    # The signal goes to a process of its own: callbacks of the tests' garbage collector would swallow it.
    with subprocess.Popen(own_command("import", str(endless), f"--db={db}")) as importing:
        wait_until(lambda: file_bytes(wal_path(db)) > 5e6, "an import of many rows")
        importing.send_signal(signal.SIGINT)
        assert importing.wait(60) == 130
    assert not db.exists()


def test_sigterm_ends_an_import_and_leaves_nothing_in_a_recording(a100: Path, tmp_path: Path) -> None:
    trace, db = tmp_path / "rank0.json", Path(shutil.copy(a100, tmp_path / "run.duckdb"))
    op = b'{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1.0, "dur": 1.0}'
    trace.write_bytes(b'{"traceEvents": [' + b",".join([op] * 50_000) + b"]}")
    # The program gets the signal when it has written half of the trace.
    code = """if True:
        import os, signal, sys
        from pathlib import Path
        from gswarm_tui.profiling.importing import import_report
        def report(share):
            if share > 0.5:
                os.kill(os.getpid(), signal.SIGTERM)
        import_report(Path(sys.argv[1]), Path(sys.argv[2]), os.environ, report=report)
    """
    done = subprocess.run([sys.executable, "-c", code, str(trace), str(db)], check=False)
    assert done.returncode == 143
    assert not Path(f"{db}.wal").exists()
    assert query(db, "SELECT count(*) FROM trace_op_events") == [(0,)]


def test_a_cut_or_foreign_file_is_refused_in_one_sentence(
    report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = write_standin(tmp_path / "standin.sqlite", kernels=2000).read_bytes()
    files = {
        "cut.sqlite": (
            whole[: len(whole) // 2],
            "is damaged or cut short (database disk image",
        ),
        "damaged.sqlite": (
            whole.replace(b"TABLE StringIds", b"TABL\xf6 StringIds"),
            "is damaged or cut short (",
        ),
        "text.sqlite": (b"hello", "is damaged or cut short (file is not a database). Copy or export"),
        "cut.nsys-rep": (report.read_bytes()[:100_000], "can't be read by nsys "),
        "text.nsys-rep": (b"hello", "can't be read by nsys "),
        "newer.nsys-rep": (
            b"NVIDIA Tegra Profiler Report 1.\n" + b"2099@5@1@121-7",
            "can't be read by nsys ",
        ),
        "target.qdstrm": (b"", "isn't a report yet: the nsys that wrote it had no importer."),
        "text.ncu-rep": (b"hello", "can't be read by ncu "),
    }
    for name, (content, why) in files.items():
        file = tmp_path / name
        file.write_bytes(content)
        line = refusal(capsys, file, "--db", tmp_path / "new.duckdb")
        assert line.startswith(f"gswarm-tui: {file} {why}"), line
    for name in ("folder.sqlite", "folder.nsys-rep", "folder.ncu-rep"):
        (tmp_path / name).mkdir()
        assert "is not an export of gswarm-tui" in refusal(
            capsys, tmp_path / name, "--db", tmp_path / "new.duckdb"
        )
    assert not (tmp_path / "new.duckdb").exists()


def test_an_import_that_is_ended_ends_nsys_and_leaves_no_export(tmp_path: Path) -> None:
    tools, temporary, pipe = tmp_path / "tools", tmp_path / "tmp", tmp_path / "pipe"
    tools.mkdir()
    temporary.mkdir()
    os.mkfifo(pipe)
    nsys = tools / "nsys"
    nsys.write_text(
        f"""#!/bin/sh
        eval "out=\\$$(($# - 1))"; echo secret >"$out"; exec 5>'{pipe}'; echo ready >&5; exec sleep 60
        """
    )
    nsys.chmod(0o700)
    (tmp_path / "rank.nsys-rep").write_bytes(b"")
    process = subprocess.Popen(
        [sys.executable, "-m", "gswarm_tui", "import", "rank.nsys-rep"],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "TMPDIR": str(temporary)},
    )
    with pipe.open() as lives:
        assert lives.readline() == "ready\n"
        (folder,) = temporary.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143
        assert lives.read() == ""  # nsys has ended
    assert list(temporary.iterdir()) == []


def test_terminated_profile_gives_its_nodes_back_and_exits_with_143(tmp_path: Path) -> None:
    salloc = tmp_path / "salloc"
    script = "echo $$ >$0.pid; echo salloc: Pending job allocation 7; exec sleep 60"
    salloc.write_text(f"#!/bin/sh\n{script}\n")
    salloc.chmod(0o700)
    profile = subprocess.Popen(
        [sys.executable, "-m", "gswarm_tui", "profile", "--nodes=1", "--", "true"],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert profile.stderr is not None
    with profile.stderr as said:
        assert "job 7 waits for nodes" in said.readline()
        profile.send_signal(signal.SIGTERM)
        assert "given back" in said.read()
    assert profile.wait() == 143
    assert not Path("/proc", (tmp_path / "salloc.pid").read_text().strip()).exists()


def test_a_report_needs_the_tool_on_path(
    report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    line = refusal(capsys, report, "--db", tmp_path / "new.duckdb")
    assert "needs nsys to be read, and PATH has none. Load its module, or import the file" in line


@pytest.mark.parametrize("name", ["nsys", "ncu"])
@pytest.mark.parametrize(
    ("program", "why"),
    [
        (b"\x7fELF of another processor", "can't be started: Exec format error."),
        (b"#!/bin/sh\nkill -SEGV $$\n", "doesn't work: {} --version prints no version."),
    ],
)
def test_a_tool_that_does_not_run_here_is_named(
    name: str,
    program: bytes,
    why: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken, file = tmp_path / name, tmp_path / f"one.{name}-rep"
    broken.write_bytes(program)
    broken.chmod(0o700)
    file.write_bytes(b"2022.4.2.1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    line = refusal(capsys, file, "--db", tmp_path / "new.duckdb")
    assert line == f"gswarm-tui: {broken} {why.format(broken)} Load another module."


def test_metrics_of_kernels_are_those_of_the_raw_page_of_ncu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool("ncu")
    reports = sorted(NCU_REPORTS.glob("*.ncu-rep"))
    assert len(reports) == 2
    db = tmp_path / "kernels.duckdb"
    for report in reports:
        import_report(capsys, report, "--db", db)
        command = ["ncu", "--import", str(report), "--csv", "--page", "raw"]
        page = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        names, units, *kernels = csv.reader(io.StringIO(page))
        for launch, kernel in enumerate(kernels):
            rows = query(
                db,
                "SELECT metric, coalesce(unit, ''), kernel, number, text FROM profile_metrics "
                f"WHERE profile = '{report.name}' AND launch = {launch}",
            )
            expected = list(zip(names, units, kernel, strict=True))[names.index("Stream") + 1 :]
            assert [(name, unit) for name, unit, *_ in rows] == [(name, unit) for name, unit, _ in expected]
            assert {name for _, _, name, *_ in rows} == {kernel[names.index("Kernel Name")]}
            assert [
                number if text is None else text for *_, number, text in rows if number is not None or text
            ] == [
                float(value) if value.replace(".", "").replace("-", "").isdigit() else value
                for *_, value in expected
                if value
            ]
    times = query(db, "SELECT tool, node, started_at::VARCHAR FROM profiles")
    assert times == [("ncu", "unknown", "2022-05-10 20:02:12"), ("ncu", "unknown", "2022-05-10 20:00:32")]
    _, err = import_report(capsys, reports[0], "--db", recording_of_node(tmp_path / "run.duckdb"))
    assert err.splitlines()[-1] == (
        f"gswarm-tui: the recording doesn't have the node of {reports[0]}, so no samples belong to the "
        "profile; name it with --node."
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--rank", "x"], '--rank: "x" isn\'t a number from 0 to 2,147,483,647.'),
        (["--gpu-memory-mib", "0"], '--gpu-memory-mib: "0" isn\'t a number from 1 to 2,147,483,647.'),
    ],
)
def test_an_option_of_import_that_makes_no_sense_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], why: str
) -> None:
    file = tmp_path / ("frames.json" if "mib" in words[0] else "standin.sqlite")
    file.touch()
    assert refusal(capsys, file, "--db", tmp_path / "new.duckdb", *words) == f"gswarm-tui: {why}"
    assert not (tmp_path / "new.duckdb").exists()


def test_profile_refuses_a_file_that_is_no_recording_before_it_asks_for_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("no recording")
    assert main(["profile", "--db", str(file), "--", "true"]) == 2
    assert capsys.readouterr().err == (f"gswarm-tui: --db: {file} isn't a recording; name another file.\n")


def test_a_recording_with_profiles_is_read_like_any_other(
    a100: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(FileSource(a100, for_people=True)) as source:
        assert source.query("SELECT count(*) FROM profile_kernels").rows() == [(5,)]
    assert main(["sessions", "--db", str(a100)]) == 0
    assert "saxpy-mpi-a100-2022" in capsys.readouterr().out


def test_summary_and_report_have_the_longest_kernels_and_the_time_without_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, page = recording_of_node(tmp_path / "run.duckdb"), tmp_path / "run.html"
    import_report(capsys, write_standin(tmp_path / "standin.sqlite", kernels=40), "--db", db)
    line = "1 profile, 40 kernels on 1 GPU, no kernel running for 50 % of the capture"
    assert main(["summary", "recording 1", "--db", str(db)]) == 0
    printed = capsys.readouterr().out
    assert [words.split()[0] for words in printed.splitlines() if words.endswith(line)] == ["profiles"]
    assert "2.50 s  50.0 %     20  125 ms  relu(float*)" in printed
    assert main(["report", "recording 1", "--db", str(db), "-o", str(page)]) == 0
    written = page.read_text()
    assert f"<h2>Longest kernels</h2><p>{line}.</p>" in written
    assert "void gemm&lt;float, 128&gt;(float const*, int)" in written


def test_import_without_room_leaves_nothing_behind(a100_export: Path, tmp_path: Path) -> None:
    words = ["import", str(a100_export), "--db", str(tmp_path / "small.duckdb")]
    done = subprocess.run(
        [sys.executable, "-m", "gswarm_tui", *words],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "small.duckdb can't grow because of a limit on file sizes (ulimit -f).\n" in done.stderr
    assert list(tmp_path.glob("small*")) == []
