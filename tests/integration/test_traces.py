"""Traces of PyTorch: requested from real agents for processes that speak Kineto's protocol, and imported."""

from __future__ import annotations

import gzip
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gswarm_tui.cli import main
from gswarm_tui.common.quantities import file_size
from tests.integration.heads import nothing_left
from tests.integration.test_record import record, run_beside
from tests.kineto_standin import BASE_NS, on_gpu, write_trace
from tests.unit.store_recording import query

STANDIN = f"{shlex.quote(sys.executable)} -m tests.kineto_standin"
REPOSITORY = Path(__file__).parents[2]
TRACES = REPOSITORY / "tests" / "data" / "traces"
RANKS = f"""
cd {shlex.quote(str(REPOSITORY))}
RANK=0 {STANDIN} & RANK=1 {STANDIN} & RANK=2 KINETO_USE_DAEMON=0 sleep 300 &
until grep -qzx RANK=2 /proc/$!/environ; do :; done
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
        assert "it didn't ask for a trace within 12 s; start it with gswarm-tui record" in printed.err
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
    size = sum((Path(result["folder"]) / rank["file"]).stat().st_size for rank in traced)
    assert message.startswith(f"2 traces over 0.2 s, {file_size(size)} in ")
    assert "not traced: rank 2 on " in message


def test_a_trace_is_cancelled_by_another_command_and_by_ctrl_c(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "gswarm_tui", "trace", "--duration", "60"]
    with record(tmp_path, "--launcher", "local", "--", "bash", "-c", RANKS) as running:
        running.wait_for("ranks started")
        for cancel, status in (("--cancel", 1), ("Ctrl-C", 130)):
            with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as tracing:
                assert tracing.stderr is not None
                assert "requested a trace" in tracing.stderr.readline()
                if cancel == "--cancel":
                    assert run_beside(tmp_path, "trace", "--cancel") == 0
                else:
                    tracing.send_signal(signal.SIGINT)
                printed = tracing.stderr.read()
            assert tracing.returncode == status, printed
        assert run_beside(tmp_path, "trace", "--cancel") == 1
        assert "no trace is under way" in capsys.readouterr().err
        running.end("\n")
    db = tmp_path / "run.duckdb"
    cancelled = query(db, "SELECT count(*) FROM events WHERE message = 'the trace was cancelled'")
    assert cancelled == [(2,)]


def test_imported_traces_show_each_rank_s_time_and_who_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = str(tmp_path / "run.duckdb")
    for rank in (0, 1):
        path = write_trace(tmp_path / f"trace_rank{rank}.json.gz", rank, late_us=100.0 * rank)
        assert main(["import", str(path), "--db", db]) == 0
    assert "20 events of gpu01, rank 1" in capsys.readouterr().out
    times = "rank, iteration, duration_ms, compute_ms, communication_ms, copy_ms, idle_ms, overlapped_ms"
    assert query(Path(db), f"SELECT {times} FROM trace_ranks") == [
        (0, 7, 0.9, 0.4, 0.4, 0.05, 0.05, 0.1),
        (1, 7, 0.9, 0.4, 0.4, 0.05, 0.05, 0.0),
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
        assert "20 events of gpu01, rank 3" in capsys.readouterr().out


def test_bad_events_cost_no_others_wherever_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A start of 0, a duration below 0, a month later, no such device; odd bytes in names do no harm."""
    times = (
        b'0, "dur": 1',
        b'4657000000000, "dur": -1',
        b'7657000000000, "dur": 1',
        b'4657000000000, "dur": 1, "args": {"device": 99999999999}',
    )
    events = [b'"name": "k", "ts": ' + each for each in times]
    events += [b'"name": "k' + name + b'", "ts": 4657000000000, "dur": 1' for name in (b"\x01", b"\x90\xff")]
    bad = b",".join(b'{"ph": "X", "cat": "kernel", ' + each + b"}" for each in events)
    text = write_trace(tmp_path / "good.json").read_bytes()
    for name, before, after in (
        ("first", b'"traceEvents": [', b'"traceEvents": [' + bad + b","),
        ("last", b'}\n ],\n "traceName"', b"}," + bad + b'\n ], "traceName"'),
    ):
        assert before in text
        path, db = tmp_path / f"{name}.json", tmp_path / f"{name}.duckdb"
        path.write_bytes(text.replace(before, after))
        assert main(["import", str(path), "--db", str(db)]) == 0
        printed = capsys.readouterr()
        assert "22 events of gpu01, rank 3" in printed.out
        assert "gswarm-tui: 4 events left out: no valid time, duration, device or name.\n" in printed.err
        assert query(db, "SELECT ended_at - started_at < INTERVAL 1 SECOND, messages FROM profiles") == [
            (True, '["4 events left out: no valid time, duration, device or name."]')
        ]


def test_a_trace_with_long_metadata_first_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = write_trace(tmp_path / "good.json").read_text()
    base = f'"baseTimeNanoseconds": {BASE_NS}'
    long = text.replace(f" {base},\n", "").replace("{", '{"metadata": "' + "long " * 20_000 + '",', 1)
    path, db = tmp_path / "long.json", tmp_path / "long.duckdb"
    path.write_text(long.rstrip("}\n") + f", {base}}}")
    assert main(["import", str(path), "--db", str(db), "--node", "gpu07"]) == 0
    assert "20 events of gpu07, rank 3" in capsys.readouterr().out
    found = query(db, "SELECT iteration, ts, duration_ns FROM trace_iterations ORDER BY ALL")
    assert [(row[0], f"{row[1]:%Y-%m-%d %H:%M}", row[2]) for row in found] == [
        (number, "2026-11-24 09:53", 1_000_000) for number in (7, 8)
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            b'{"schemaVersion": 1, "traceEvents": [{"ph": "X"',
            "can't be read as a trace: the file ends too early",
        ),
        (b'{"traceEvents": []' + b" " * 100 + b"hello", "near byte 118: hello.\n"),
        (b'{"schemaVersion": 1, "traceEvents": []}', "has no events of PyTorch: no traceEvents. It may be"),
        (
            b'{"traceEvents": [{"ph": "X", "name": "{"device": "cpu"}(12): run"}]}',
            'run"}]}. Some PyTorch versions write unescaped quotes in names: escape them, or trace again.',
        ),
        (
            b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", '
            b'"ts": 1e307, "dur": 1}]}',
            "has no events of PyTorch: none with a valid time, duration and name.",
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


def union_ns(spans: Iterable[tuple[int, int]]) -> int:
    """Return the time that at least one of the spans covers."""
    total, end = 0, 0
    for first, last in sorted(spans):
        total += max(0, last - max(first, end))
        end = max(end, last)
    return total


class RealTrace:
    """A trace of a real GPU, read without the importer; times are nanoseconds from its base."""

    KINDS: ClassVar = {"kernel": "compute", "gpu_memcpy": "copy", "gpu_memset": "copy"}
    ON_CPU = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver")

    def __init__(self, path: Path) -> None:
        whole = json.loads(gzip.decompress(path.read_bytes()))
        self.base_ns = whole["baseTimeNanoseconds"]
        self.events = [one for one in whole["traceEvents"] if one["ph"] == "X" and one["cat"] != "Trace"]
        (self.began,) = (self.ns(one["ts"]) for one in whole["traceEvents"] if one.get("cat") == "Trace")
        (end,) = (self.ns(one["ts"]) for one in whole["traceEvents"] if one["name"] == "Record Window End")
        self.ended = max(end, *(self.span(one)[1] for one in self.events if one["cat"] in self.ON_CPU))
        self.on_gpu = [one for one in self.events if one["cat"] in self.KINDS]

    @staticmethod
    def ns(micros: float) -> int:
        return round(micros * 1000)

    def span(self, event: dict[str, Any]) -> tuple[int, int]:
        start = self.ns(event["ts"])
        return start, start + self.ns(event["dur"])

    def busy_ns(self, span: tuple[int, int], *kinds: str) -> int:
        """Return the time in which events of these kinds ran on the GPU."""
        spans = (self.span(one) for one in self.on_gpu if self.KINDS[one["cat"]] in kinds)
        return union_ns((max(first, span[0]), min(last, span[1])) for first, last in spans)

    def iterations(self) -> Iterator[tuple[int, int] | None]:
        """Yield the times from the end of the GPU's work before to that of what an iteration launched."""
        ends = sorted(
            self.span(one)[1]
            for one in self.events
            if one["name"] == "Optimizer.step#AdamW.step" and one["cat"] == "user_annotation"
        )
        on_cpu = [one for one in self.events if one["cat"] in ("cuda_runtime", "cuda_driver")]
        calls = {one["args"]["correlation"]: self.ns(one["ts"]) for one in on_cpu}
        kernels = {one["args"]["correlation"] for one in on_cpu if "LaunchKernel" in one["name"]}
        work = [(calls.get(one["args"]["correlation"], -1), self.span(one)[1]) for one in self.on_gpu]
        ran = {one["args"]["correlation"] for one in self.on_gpu}
        for first, last in pairwise(ends):
            own = max(end for call, end in work if first <= call < last)
            launched = {key for key, call in calls.items() if first <= call < last and key in kernels}
            yield (max(end for call, end in work if call < first), own) if launched <= ran else None


@pytest.mark.parametrize("name", ["h200-duration", "h200-iterations"])
def test_figures_of_a_real_gpu_s_trace_are_those_of_its_events(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path, db = TRACES / f"{name}.json.gz", tmp_path / "run.duckdb"
    real = RealTrace(path)
    assert main(["import", str(path), "--db", str(db), "--node", "gpu01", "--rank", "0"]) == 0
    rows = len(real.on_gpu) + sum(one["cat"] in real.ON_CPU for one in real.events)
    assert f"{rows:,} events of gpu01, rank 0" in capsys.readouterr().out
    kernels = "name, kind, device, stream, correlation_id, start_ns, duration_ns"
    assert query(db, f"SELECT {kernels} FROM trace_kernels ORDER BY ALL") == sorted(
        (
            one["name"],
            real.KINDS[one["cat"]],
            *(one["args"][key] for key in ("device", "stream", "correlation")),
            *map(real.ns, (one["ts"], one["dur"])),
        )
        for one in real.on_gpu
    )
    ops = "name, category, pid, tid, coalesce(correlation_id, -1), start_ns, duration_ns"
    assert query(db, f"SELECT {ops} FROM trace_ops ORDER BY ALL") == sorted(
        (
            *(one[key] for key in ("name", "cat", "pid", "tid")),
            one["args"].get("correlation", -1),
            *map(real.ns, (one["ts"], one["dur"])),
        )
        for one in real.events
        if one["cat"] in real.ON_CPU
    )
    times = "iteration, duration_ms, compute_ms, communication_ms, copy_ms, idle_ms, overlapped_ms"
    expected: list[tuple[float | None, ...]] = []
    for number, span in enumerate(real.iterations()):
        if span is None:  # the trace ended before the GPU had run all of it
            expected.append((number, *[None] * 6))
            continue
        compute, busy = real.busy_ns(span, "compute"), real.busy_ns(span, "compute", "copy")
        length = span[1] - span[0]
        parts = length, compute, 0, busy - compute, length - busy, 0
        expected.append((number, *(round(part / 1e6, 3) for part in parts)))
    assert [row[1] is None for row in expected] == [False, name == "h200-iterations"]
    assert query(db, f"SELECT {times} FROM trace_ranks ORDER BY iteration") == expected
    assert query(db, "SELECT epoch_us(started_at), epoch_us(ended_at) FROM profiles") == [
        tuple((real.base_ns + at) // 1000 for at in (real.began, real.ended))
    ]
    assert main(["summary", "--db", str(db)]) == 0
    idle = 100 * (1 - real.busy_ns((real.began, real.ended), "compute") / (real.ended - real.began))
    count = sum(one["cat"] == "kernel" for one in real.events)
    printed = capsys.readouterr().out
    assert (
        f"1 profile, {count} kernels on 1 GPU, no kernel running for {idle:.0f} % of the capture" in printed
    )
    functor = "UnaryOpFunctor<float, 2, 1, 1>, Sqrt<float>"
    assert f"  multi_tensor_apply_kernel<TensorListMetadata<2>, {functor}>\n" in printed


@pytest.mark.parametrize(
    ("name", "words", "rank"), [("pid100", [], None), ("rank1", [], 1), ("rank1", ["--rank=5"], 5)]
)
def test_a_trace_on_request_has_the_rank_of_its_name(
    tmp_path: Path, name: str, words: list[str], rank: int | None
) -> None:
    """Kineto appends a rank, too, which is the root's after a broadcast."""
    path, db = tmp_path / f"20261126-054917-{name}-gpu01.json", tmp_path / "run.duckdb"
    write_trace(path, 3, on_request=True)
    assert main(["import", str(path), "--db", str(db), *words]) == 0
    assert query(db, "SELECT rank FROM profiles") == [(rank,)]


@pytest.mark.parametrize("ahead_us", [-200, 0, 200])
def test_collectives_and_iterations_are_matched_although_one_trace_lacks_the_first(
    tmp_path: Path, ahead_us: int
) -> None:
    """Rank 0 was in its first collective when the traces began, so only rank 1 has it; clocks may differ."""
    db, late = tmp_path / "run.duckdb", (50.0, 0.0, 200.0, 0.0, 100.0)
    for rank in (0, 1):
        path = tmp_path / f"20261126-rank{rank}-gpu01.json"
        write_trace(path, rank, on_request=True, late_us=late if rank else [0.0] * 5, first=1 - rank)
        ahead = f'"baseTimeNanoseconds": {BASE_NS + 1000 * ahead_us * rank}'
        path.write_text(path.read_text().replace(f'"baseTimeNanoseconds": {BASE_NS}', ahead))
        assert main(["import", str(path), "--db", str(db), "--node", "gpu01"]) == 0
    waits = "SELECT rank, sequence, duration_ms, wait_ms, last_rank FROM trace_waits ORDER BY ts, rank"
    assert [row for row in query(db, waits) if row[3]] == [(0, None, 0.5, 0.2, 1), (0, None, 0.5, 0.1, 1)]
    assert query(db, "SELECT ranks, count(*) FROM trace_waits GROUP BY ALL ORDER BY ALL") == [(1, 1), (2, 8)]
    overlapped = "SELECT iteration, rank, overlapped_ms FROM trace_ranks ORDER BY ALL"
    assert query(db, overlapped) == [
        (0, 1, 0.1),
        *(
            (number, rank, ms)
            for number, both in ((1, (0.1, 0.0)), (2, (0.1, 0.1)), (3, (0.1, 0.0)))
            for rank, ms in enumerate(both)
        ),
    ]


def test_who_waited_is_known_by_the_ranks_peers_and_times_of_a_call_else_nobody_is_named(
    tmp_path: Path,
) -> None:
    """Sibling groups of one split share a name, and rank 1's trace lacks its second call."""
    db, four = tmp_path / "run.duckdb", {"Process Group Name": "0", "Group size": 4}
    for rank in range(4):
        pair = {"Process Group Name": "1", "Group size": 2, "Process Group Ranks": str([rank & 2, rank | 1])}
        # Ranks 0 and 2 send to 3 and 1; PyTorch names only the other side, and each rank has its own numbers.
        peer = {"Src Rank" if rank % 2 else "Dst Rank": 3 - rank, "Seq": rank}
        calls: list[tuple[int, int, str, dict[str, Any]]] = [
            (100, 300, "allreduce", pair),
            (350, 600, "allreduce", pair),
            (650, 900, "allreduce", pair),
            (1000, 1200, "recv" if rank % 2 else "send", {**four, **peer}),
            (1300, 1500, "broadcast", {"Process Group Name": "2", "Group size": 2}),
            (1600, 4000 + 2000 * rank, "reduce", four),
        ]
        if rank == 1:
            del calls[1]
        kernels = [
            on_gpu(
                "kernel",
                "nccl",
                at + 20 * rank,
                last - at - 20 * rank,
                9,
                at,
                **facts,
                **{"Collective name": name},
            )
            for at, last, name, facts in calls
        ]
        write_trace(
            path := tmp_path / f"rank{rank}.json", rank, instead=[one for each in kernels for one in each]
        )
        assert main(["import", str(path), "--db", str(db)]) == 0
    waits = "SELECT collective, rank, last_rank, ranks, wait_ms FROM trace_waits ORDER BY ALL"
    nobody: tuple[None, int, None] = (None, 1, None)
    assert query(db, waits) == [
        *[("allreduce", 0, 1, 2, 0.02)] * 2,
        ("allreduce", 0, *nobody),
        *[("allreduce", 1, 1, 2, 0.0)] * 2,
        *[("allreduce", 2, 3, 2, 0.02)] * 3,
        *[("allreduce", 3, 3, 2, 0.0)] * 3,
        *(("broadcast", rank, *nobody) for rank in range(4)),  # four ranks in a group of two
        ("recv", 1, 2, 2, 0.02),
        ("recv", 3, 3, 2, 0.0),
        *(("reduce", rank, *nobody) for rank in range(4)),  # which end 2 ms apart
        ("send", 0, 3, 2, 0.06),
        ("send", 2, 2, 2, 0.0),
    ]


COMMUNICATES = (
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(unsigned long)",
    "void sglang::cross_device_reduce_2stage<__half, 8>(sglang::RankData*, sglang::RankSignals)",
    "void aiter::allreduce_fusion_kernel_1stage<std::bfloat16_t, 4, true>(aiter::RankData*)",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<8>(int)",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<float, 2, true>(AllReduceParams)",
    "void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<8>(int const*)",
    "void deep_ep::internode_ll::dispatch<true, 7168>(void*, float*, int*)",
    "mscclpp::collective::allgatherFullmesh2(int*)",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
)
COMPUTES = (
    "small_reduce_kernel(float*)",
    "triton_poi_fused_add_all_reduce_wait_tensor_1",
    "void at::native::vectorized_gather_kernel<16, long>(char*)",
    "void LayerNormForward<BlockAllReduce<float>>(float*)",
    "void softmax<WarpAllReduce>(float*)",
    "sgemm",
)


def test_kernels_of_all_communication_libraries_are_communication_and_their_lack_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, names in enumerate((COMMUNICATES + COMPUTES, COMPUTES)):
        kernels = [on_gpu("kernel", name, 20.0 * at, 10, 7, at + 1) for at, name in enumerate(names)]
        path = tmp_path / f"{number}.json"
        write_trace(path, instead=[event for each in kernels for event in each])
        assert main(["import", str(path), "--db", str(tmp_path / f"{number}.duckdb")]) == 0
        assert ("communication may be missing" in capsys.readouterr().err) == (names is COMPUTES)
    kinds = {"communication": COMMUNICATES, "compute": COMPUTES}
    for kind, names in kinds.items():
        found = query(tmp_path / "0.duckdb", f"SELECT name FROM trace_kernels WHERE kind = '{kind}'")
        assert {name for (name,) in found} == set(names)
