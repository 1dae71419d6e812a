"""``gswarm-tui sessions`` and ``summary``: text, tables, data and errors."""

from __future__ import annotations

import csv
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC
from pathlib import Path

import pytest

from gswarm_agent.frame import ProcessSample
from gswarm_tui.analysis.periods import find_period
from gswarm_tui.analysis.summary_data import summarize
from gswarm_tui.analysis.summary_text import heading, share
from gswarm_tui.cli import main
from gswarm_tui.fleet.events import Event, SessionChanged, SessionStarted, SessionStopped
from gswarm_tui.store.recording.recorder import FileWriter
from tests.unit.store_recording import INFO, T0, arrived, gpu_row, host_row, introduced, process_row, record


@pytest.fixture(autouse=True)
def _in_tokyo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set an empty home folder and the time zone of Tokyo."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.chdir(tmp_path)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def frames(node: str = "n1") -> Iterator[Event]:
    """Return 21 seconds of frames: GPU 0 idle for two, GPU 1 throttled by heat, a process on each."""
    yield introduced(node)
    for i in range(1, 22):
        stalled = i in (8, 9)
        first = gpu_row(
            util_pct=0 if stalled else 90, power_w=100 if stalled else 600, mem_used_mib=40_000 + i,
            energy_mj=i * 500_000, temp_c=60, clock_reasons=0,
        )  # fmt: skip
        second = gpu_row(
            util_pct=80, power_w=500, mem_used_mib=20_480, energy_mj=i * 500_000, temp_c=88,
            clock_reasons=0x40 if i > 11 else 0,
        )  # fmt: skip
        process = ProcessSample(0, 11, "ada", "train.py", 0, 0, process_row(gpu_memory_mib=40_000, sm_pct=88))
        host = host_row(cpu_pct=40 + i, memory_used_mib=100_000)
        yield arrived(i, [first, second], node=node, host=host, processes=(process,))


def session(name: str, began: float, until: float | None, note: str = "") -> Iterator[Event]:
    yield SessionStarted(name, began, name, T0 + began)
    if note:
        yield SessionChanged(name, began, note=note)
    if until is not None:
        yield SessionStopped(name, T0 + until, T0 + until)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("summary") / "run.duckdb"
    events = [*frames(), *session("warm", 0, 5, "too cold"), *session("train", 5, 21)]
    record(path, events, ended_at=T0 + 21)
    return path


@pytest.fixture
def recording(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(original, tmp_path))


@pytest.fixture(scope="module")
def with_empty_session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "run.duckdb"
    record(path, [*frames(), *session("train", 1, 21), *session("empty", -10, -5)])
    return path


def output_of(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    """Run a command and return its output, or with a status its error message."""
    assert main(list(words)) == status
    out, err = capsys.readouterr()
    assert (err if status == 0 else out) == ""
    return out if status == 0 else err


def test_sessions_lists_figures(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [" ".join(line.split()) for line in output_of(capsys, "sessions").splitlines()]
    file, _, heads, _, warm, train = lines
    assert file == f"{recording.name}: 2 sessions"
    assert heads == "id session started duration status GPUs util energy coverage note"
    assert warm == "1 warm 2027-01-15 17:00 5 s ended 2 85 % 1.11 Wh 80 % too cold"
    assert train == "2 train 2027-01-15 17:00 16 s ended 2 79 % 4.44 Wh 100 %"


def test_sessions_are_written_as_data(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, train = json.loads(output_of(capsys, "sessions", "--format", "json"))
    assert train == {
        "session_id": 2, "session": "train", "recording_id": 1, "started_at": "2027-01-15T08:00:05.000000Z",
        "ended_at": "2027-01-15T08:00:21.000000Z", "duration_s": 16.0, "status": "stopped", "nodes": 1,
        "complete_nodes": 1, "gpus": 2, "util_mean_pct": pytest.approx(79.375), "energy_j": 16_000.0,
        "energy_kwh": pytest.approx(16_000 / 3.6e6), "coverage": 1.0, "note": "",
    }  # fmt: skip


def test_recording_without_sessions_is_listed_and_summarized(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.duckdb"
    record(path, list(frames()), ended_at=T0 + 21)
    first, _, _, _, whole = output_of(capsys, "sessions").splitlines()
    assert first == f"{path.name} has no sessions. Its recordings:"
    assert whole.split()[:3] == ["recording", "1", "2027-01-15"]
    assert output_of(capsys, "summary").startswith(f"recording 1 · {path.name}\n")


def test_recording_without_samples_points_to_its_events(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path / "run.duckdb", [introduced()], ended_at=T0 + 3)
    reason = "gswarm-tui sessions lists others, and gswarm-tui sql 'FROM event_log' the events.\n"
    assert output_of(capsys, "summary", status=2) == (
        f"gswarm-tui: recording 1 in run.duckdb has no GPU samples; {reason}"
    )
    for command in ("plot", "report"):
        printed = output_of(capsys, command, status=2)
        assert printed.startswith(
            'gswarm-tui: "recording 1" in run.duckdb has no samples of util, power, mem, '
        )
        assert "; gswarm-tui sql 'FROM event_log' --db=run.duckdb lists its events, " in printed


def test_recordings_of_one_file_are_numbered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.duckdb"
    for _ in range(2):
        record(path, list(frames()), ended_at=T0 + 21)
    assert [line.split()[:2] for line in output_of(capsys, "sessions").splitlines()[4:]] == [
        ["recording", "1"],
        ["recording", "2"],
    ]
    assert output_of(capsys, "summary", "recording", "1").startswith("recording 1 · ")


def test_summary_prints_the_whole_then_nodes_and_gpus(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = output_of(capsys, "summary", "train")
    assert shown.startswith(f"""\
train · {recording.name}
2027-01-15 17:00:05 to 17:00:21 · 16 s · 1 node · 2 GPUs · job 4711

utilisation  mean 79 %, median 80 %, p95 90 %, max 90 %
busy         94 % of the measured time: busy 30 GPU-s, idle 2 GPU-s
bubbles      6.2 % of the time between busy phases: 1 bubble, total 2 GPU-s, longest 2 s (n1:0)
throttled    heat 10 GPU-s (31 %)
power        mean 519 W per GPU, max 600 W (n1:0)
energy       4.44 Wh (16,000 J)
GPU memory   max 39.1 of 79.6 GiB (n1:0)
temperature  max 88 °C (n1:1)
hosts        max CPU 61 %, max memory 97.7 of 503 GiB
coverage     100 % of the GPU time, 32 samples

""")
    names, _, *rows = [" ".join(line.split()) for line in shown.splitlines()[-7:-3]]
    assert (
        names
        == "GPU rank util % p95 % busy bubbles W energy memory throttled coverage max W median % max % max °C"
    )
    assert rows == [
        "n1:0 0 79 90 88 % 12 % 538 2.22 Wh 39.1 GiB 0 % 100 % 600 90 90 60",
        "n1:1 – 80 80 100 % 0 % 500 2.22 Wh 20 GiB 62 % 100 % 500 80 80 88",
    ]


def test_summary_in_markdown_is_the_terminals_text(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    title, times, empty, *lines = output_of(capsys, "summary", "train", "--format", "markdown").splitlines()
    assert (title, times, empty) == (
        f"**train** · {recording.name}  ",
        "2027-01-15 17:00:05 to 17:00:21 · 16 s · 1 node · 2 GPUs · job 4711",
        "",
    )
    assert lines[:4] == [
        "| figure | value |",
        "| --- | --- |",
        "| utilisation | mean 79 %, median 80 %, p95 90 %, max 90 % |",
        "| busy | 94 % of the measured time: busy 30 GPU-s, idle 2 GPU-s |",
    ]
    note = lines.index("| note | what the rules find |")
    assert lines[note - 6 : note - 1] == [
        "",
        "| GPU | rank | util % | p95 % | busy | bubbles | W | energy | memory | throttled | coverage "
        "| max W | median % | max % | max °C |",
        "| --- " + "| ---: " * 14 + "|",
        "| n1:0 | 0 | 79 | 90 | 88 % | 12 % | 538 | 2.22 Wh | 39.1 GiB | 0 % | 100 % | 600 | 90 | 90 | 60 |",
        "| n1:1 | – | 80 | 80 | 100 % | 0 % | 500 | 2.22 Wh | 20 GiB | 62 % | 100 % | 500 | 80 | 80 | 88 |",
    ]
    (header, *_) = output_of(capsys, "summary", "train", "--format", "csv").splitlines()
    assert header.count(",") > 30


def test_session_without_an_end_is_summarized_up_to_its_last_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.duckdb"
    recorder = FileWriter(path, INFO, lambda _status: None)
    recorder.open()
    recorder.submit([*frames(), *session("train", 5, None)])
    wait_until(lambda: recorder.status().rows > 0)
    with closing(recorder.queries()) as source:
        summary = summarize(source, find_period(source))
    assert heading(summary, UTC).split(" · ")[:3] == [
        "2027-01-15 08:00:05 to 08:00:21",
        "16 s",
        "still running",
    ]
    recorder.close(None)
    assert "16 s · no end · 1 node" in output_of(capsys, "summary")
    assert "no end" in output_of(capsys, "sessions")


def test_newest_session_of_a_name_is_chosen_with_a_notice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again: list[Event] = [
        SessionStarted("again", T0 + 12, "train", T0 + 12),
        SessionStopped("again", T0 + 20, T0 + 20),
    ]
    record(tmp_path / "run.duckdb", [*frames(), *session("train", 2, 8), *again])
    assert main(["summary", "train"]) == 0
    printed = capsys.readouterr()
    assert "8 s ·" in printed.out
    assert printed.err == (
        "gswarm-tui: 2 sessions are named train; using the newest, number 2. "
        "Choose the other by its number: 1.\n"
    )
    assert main(["summary", "1"]) == 0
    printed = capsys.readouterr()
    assert "6 s ·" in printed.out
    assert printed.err == ""


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_summary_ends_with_where_gpu_time_went_and_what_the_rules_find(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = output_of(capsys, "summary", "train")
    *_, where, found = shown.splitlines()
    assert where.startswith("GPU time  32 GPU-s: ")  # 2 GPUs for 16 s
    assert sum(map(int, re.findall(r"(\d+) %", where))) == 100
    assert found == "findings  none in what the rules watched"
    assert shown.startswith(output_of(capsys, "summary", "train", "--no-findings"))


def test_by_chooses_the_grouping(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = output_of(capsys, "summary", "train")
    alone = output_of(capsys, "summary", "train", "--by", "all")
    assert plain.startswith(alone)
    for by, names in (("node", ["n1"]), ("gpu", ["n1:0", "n1:1"])):
        _, _, *rows = (
            output_of(capsys, "summary", "train", "--by", by).removeprefix(alone).strip().splitlines()
        )
        assert [row.split()[0] for row in rows] == names
    _, _, row = (
        output_of(capsys, "summary", "train", "--by", "process").removeprefix(alone).strip().splitlines()
    )
    assert " ".join(row.split()) == "n1:0 11 0 39.1 GiB 88 – – train.py ada"


def test_many_gpus_are_listed_only_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.duckdb"
    rows = [gpu_row(util_pct=50 + i, temp_c=40) for i in range(20)]
    record(path, [introduced(gpus=20), *(arrived(i, rows) for i in range(1, 6)), *session("train", 0, 6)])
    shown = output_of(capsys, "summary")
    assert len(shown.splitlines()) < 24
    assert len(output_of(capsys, "summary", "--by", "gpu").splitlines()) > 30


def test_summary_is_written_as_data_with_units(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(output_of(capsys, "summary", "warm", "--format", "json"))
    assert [(row["scope"], row["node"], row["gpu_index"]) for row in found] == [
        ("all", None, None),
        ("gpu", "n1", 0),
        ("gpu", "n1", 1),
        ("node", "n1", None),
    ]
    assert {(row["session"], row["recording_id"], row["duration_s"]) for row in found} == {("warm", 1, 5.0)}
    assert (found[0]["energy_j"], found[0]["busy_s"], found[0]["bubbles"]) == (4000.0, 8.0, 0)
    assert output_of(capsys, "summary", "train", "--by", "process", "-o", "peaks.csv") == ""
    (row,) = csv.DictReader((tmp_path / "peaks.csv").read_text().splitlines())
    assert (row["pid"], row["command"], row["gpu_memory_max_mib"]) == ("11", "train.py", "40000")


def test_summary_names_partial_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.duckdb"
    row = gpu_row(util_pct=50)
    short: list[Event] = [introduced("n2", gpus=1), *(arrived(i, [row], node="n2") for i in range(1, 6))]
    record(path, [*frames(), *short, introduced("n3"), *session("train", 1, 21)])
    said_of_it = " ".join(output_of(capsys, "summary").split())
    assert "partial: 1 of 3 nodes cover all of it; n[2-3] cover as little as 0 %" in said_of_it
    assert output_of(capsys, "sessions").splitlines()[-1] == "partial: train (1 of 3 nodes)"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["summary", "tain"], 'has no session "tain"; perhaps you meant train.'),
        (
            ["summary", "--by", "gpus"],
            "--by: invalid choice: 'gpus' (choose from 'all', 'node', 'gpu', 'process')",
        ),
        (["summary", "--format", "xml"], '--format: "xml" isn\'t a format; it is one of'),
        (
            ["summary", "empty"],
            "empty in {path} has no GPU samples; gswarm-tui sessions lists others,",
        ),
        (
            ["compare", "other.duckdb"],
            "compare needs two different runs or more, as in gswarm-tui compare a.duckdb b",
        ),
        (["compare", "train", "empty"], "empty in {path} has no GPU samples"),
        (
            ["compare", "train", "1"],
            "all runs are the same one, train in {path}; name another to compare it with.",
        ),
    ],
)
def test_mistake_prints_one_sentence(
    words: list[str],
    complaint: str,
    with_empty_session: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = Path(shutil.copy(with_empty_session, tmp_path))
    output = output_of(capsys, *words, status=2)
    assert complaint.format(path=path.name) in output
    assert output.count("\n") == 1


def test_share_rounds_to_0_and_100_only_if_exact() -> None:
    said_of = {1.0: "100 %", 0.9999: "99.9 %", 0.5: "50 %", 0.0625: "6.2 %", 0.0001: "0.1 %", 0.0: "0 %"}
    assert {part: share(part) for part in said_of} == said_of
    assert share(None) == "–"
