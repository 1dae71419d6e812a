"""Traces of PyTorch: requested from real agents for processes that speak Kineto's protocol, and imported."""

from __future__ import annotations

import gzip
import json
import shlex
import sys
from pathlib import Path

import pytest

from gswarm_tui.cli import main
from tests.integration.heads import nothing_left
from tests.integration.test_record import record, run_beside
from tests.kineto_standin import write_trace
from tests.unit.store_recording import query

STANDIN = f"{shlex.quote(sys.executable)} -m tests.kineto_standin"
REPOSITORY = Path(__file__).parents[2]
RANKS = f"""
cd {shlex.quote(str(REPOSITORY))}
RANK=0 {STANDIN} & RANK=1 {STANDIN} & RANK=2 KINETO_USE_DAEMON=0 sleep 300 &
echo ranks started >&2
read line; kill %1 %2 %3; wait
"""


def test_ranks_are_traced_at_one_time_and_their_traces_are_queried_while_they_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        nothing_left(tmp_path / "run.duckdb"),
        record(tmp_path, "--launcher", "local", "--", "bash", "-c", RANKS) as running,
    ):
        running.wait_for("ranks started")
        status = run_beside(tmp_path, "trace", "--duration", "0.2", "--ranks", "0-2", "--json")
        printed = capsys.readouterr()
        assert status == 1, printed.err
        assert "files of at most 512 MiB a rank" in printed.err
        assert "rank 2 on " in printed.err, printed.out
        assert "started without KINETO_USE_DAEMON=1; start it with gswarm-tui record" in printed.err
        result = json.loads(printed.out)
        traced = [rank for rank in result["ranks"] if rank["state"] == "done"]
        assert [(rank["rank"], rank["imported"]) for rank in traced] == [(0, True), (1, True)]
        for rank in traced:
            whole = json.loads(gzip.decompress((Path(result["folder"]) / rank["file"]).read_bytes()))
            assert whole["distributedInfo"]["rank"] == rank["rank"]
        _, output = running.end("\n")
    configs = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert len(configs) == 2
    assert len({config["PROFILE_START_TIME"] for config in configs}) == 1
    for config in configs:
        folder = Path(config["ACTIVITIES_LOG_FILE"]).parent
        assert not [*folder.glob("*.json"), *folder.glob("dynolog")]
    db = tmp_path / "run.duckdb"
    assert query(db, "SELECT DISTINCT last_rank FROM trace_waits") == [(1,)]
    (message,) = query(db, "SELECT message FROM events WHERE kind = 'trace' AND severity = 'warning'")[0]
    assert message.startswith("2 traces over 0.2 s, ")
    assert "not traced: rank 2 on " in message


def test_imported_traces_show_each_rank_s_time_and_who_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = str(tmp_path / "run.duckdb")
    for rank in (0, 1):
        path = write_trace(tmp_path / f"trace_rank{rank}.json.gz", rank, late_us=100.0 * rank)
        assert main(["import", str(path), "--db", db]) == 0
    assert "11 events of gpu01, rank 1" in capsys.readouterr().out
    times = "rank, iteration, duration_ms, compute_ms, communication_ms, copy_ms, idle_ms, overlapped_ms"
    assert query(Path(db), f"SELECT {times} FROM trace_ranks") == [
        (0, 7, 1.0, 0.4, 0.4, 0.05, 0.15, 0.1),
        (1, 7, 1.0, 0.4, 0.4, 0.05, 0.15, 0.0),
        (0, 8, 1.0, 0.4, 0.4, 0.05, 0.15, 0.1),
        (1, 8, 1.0, 0.4, 0.4, 0.05, 0.15, 0.0),
    ]
    waits = "SELECT rank, sequence, ranks, wait_ms, last_rank FROM trace_waits ORDER BY sequence, rank"
    assert query(Path(db), waits) == [
        (0, 0, 2, 0.1, 1),
        (1, 0, 2, 0.0, 1),
        (0, 1, 2, 0.1, 1),
        (1, 1, 2, 0.0, 1),
    ]
    assert query(Path(db), "SELECT DISTINCT ranks, group_size FROM trace_waits") == [(2, 2)]
    names = query(Path(db), "SELECT DISTINCT name FROM trace_ops WHERE category = 'python_function'")
    assert names == [("train.py(12): step",)]
    ((when, node),) = query(Path(db), "SELECT min(ts), min(node) FROM trace_kernels WHERE rank = 0")
    assert (f"{when:%Y-%m-%d %H:%M}", node) == ("2026-11-24 09:53", "gpu01")


def test_ranks_are_matched_by_the_time_of_their_traces_not_by_names_of_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = str(tmp_path / "run.duckdb")
    later = (b'"baseTimeNanoseconds": 1', b'"baseTimeNanoseconds": 2')
    for run in (0, 1):
        for rank in (0, 1):  # as PyTorch's tensorboard_trace_handler names them
            path = write_trace(tmp_path / f"gpu01_{rank}.{run}.pt.trace.json", rank, late_us=100.0 * rank)
            if run:
                text = path.read_bytes()
                assert later[0] in text
                path.write_bytes(text.replace(*later))
            assert main(["import", str(path), "--db", db]) == 0
    counted = "SELECT rank, ranks, count(*), sum(wait_ms)::DOUBLE FROM trace_waits GROUP BY ALL ORDER BY ALL"
    assert query(Path(db), counted) == [(0, 2, 4, 0.4), (1, 2, 4, 0.0)]


def test_summary_counts_the_kernels_of_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = str(tmp_path / "run.duckdb")
    for rank in (0, 1):
        path = write_trace(tmp_path / f"trace_rank{rank}.json", rank, node=f"gpu{rank}")
        assert main(["import", str(path), "--db", db]) == 0
    assert capsys.readouterr().err == ""
    assert main(["summary", "--db", db]) == 0
    printed = capsys.readouterr().out
    assert "2 nodes" in printed
    ((kernels,),) = query(Path(db), "SELECT count(*) FROM trace_kernels WHERE kind <> 'copy'")
    assert f"profiles  2 profiles, {kernels} kernels on 2 GPUs, no kernel running for " in printed
    assert "gemm" in printed
    assert main(["sessions", "--db", db]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(" 1  trace_rank0 ")


def test_traces_with_infinite_numbers_or_another_compression_than_named_are_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = write_trace(tmp_path / "trace.json").read_bytes()
    numbers = (
        b'"args": {"bandwidth": inf, "share": -Infinity, "flops": [NaN, nan], "name": "is inf, NaN"},\n"cat"'
    )
    assert text.count(b'"cat"') > 10
    files = {
        "numbers.json": text.replace(b'"cat"', numbers),
        "unzipped.json.gz": text + b" ",
        "zipped.json": gzip.compress(text),
    }
    for name, content in files.items():
        path, db = tmp_path / name, tmp_path / f"{name}.duckdb"
        path.write_bytes(content)
        assert main(["import", str(path), "--db", str(db)]) == 0
        assert "11 events of gpu01, rank 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            b'{"schemaVersion": 1, "traceEvents": [{"ph": "X"',
            "can't be read as a trace: the file ends too early",
        ),
        (b'{"schemaVersion": 1, "traceEvents": []}', "has no events of PyTorch"),
        (
            b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", '
            b'"ts": 1e307, "dur": 1}]}',
            "has no events of PyTorch",
        ),
    ],
)
def test_a_cut_or_empty_trace_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes, sentence: str
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(text)
    assert main(["import", str(path), "--db", str(tmp_path / "new.duckdb")]) != 0
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "new.duckdb").exists()
