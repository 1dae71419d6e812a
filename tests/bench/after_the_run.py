"""Commands after a run: summaries, plots, replay, export of a day of 64 GPUs (5.5 million GPU samples)."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb

from gswarm_tui.analysis import periods
from gswarm_tui.analysis.summary_data import summarize
from gswarm_tui.commands.output_files import size_of
from gswarm_tui.playback.recorded_source import RecordedSource
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.recording.database import RecordingInfo
from gswarm_tui.store.recording.recorder import Recorder
from tests.bench.day import Size, kept
from tests.bench.figures import BenchOptions, Figure

PROGRAM = [sys.executable, "-m", "gswarm_tui"]


def run(options: BenchOptions) -> Iterator[Figure]:
    """Measure time and memory of the commands, and of a summary while a recorder has the file open."""
    size = Size(seconds=options.count(86_400, 600))
    path, runs = kept(size), options.count(3, 1)
    scanned = statistics.median(_scan(path) for _ in range(runs))
    for what, words, goal in (
        ("summary of a day of 64 GPUs", ["summary", "day"], 1.0),
        ("summary of a minute of it", ["summary", "minute"], None),
        ("sessions: a day, six hours, a minute", ["sessions"], None),
        ("compare the day with six hours of it", ["compare", "day", "morning"], None),
    )[:: options.count(1, 3)]:
        took, peaks = zip(*(command([*words, "--db", str(path)]) for _ in range(runs)), strict=True)
        wall = statistics.median(took)
        yield Figure(f"{what}, the whole command", wall, "s", goal, limit="one scan", beside=scanned)
        yield Figure("  its memory", max(peaks), "MiB")
    recorder_s = statistics.median(_while_recording(path, options.folder) for _ in range(runs))
    yield Figure("the day's summary by a recorder", recorder_s, "s", 1.0, limit="one scan", beside=scanned)
    yield from _jumps(path)
    yield from _plots(options, path, runs)
    yield from _exports(options, path)


def _jumps(path: Path) -> Iterator[Figure]:
    """Measure jumps in a replay: the fleet at a time, with an hour of history."""
    with closing(FileSource(path)) as source:
        replay = RecordedSource(source, 1)
        took = []
        for share in (0.5, 0.95, 0.2, 0.75, 0.4, 0.99, 0.6):
            began = time.monotonic()
            replay.fleet(replay.recording.start + share * (replay.end() - replay.recording.start))
            took.append(1000 * (time.monotonic() - began))
    yield Figure("replay: jump to another time of a day of 64 GPUs", statistics.median(took), "ms", 200)
    yield Figure("  the slowest of seven, the first among them", max(took), "ms")


def _plots(options: BenchOptions, day: Path, runs: int) -> Iterator[Figure]:
    """Measure plots and reports of the day and of an hour of 512 GPUs."""
    hour = kept(Size(nodes=options.count(64, 4), seconds=options.count(3600, 60)))
    for what, path, word, out, goal in (
        ("plot of an hour of 512 GPUs", hour, "plot", "hour.pdf", 5.0),
        ("plot of a day of 64 GPUs", day, "plot", "day.pdf", 5.0),
        ("report of an hour of 512 GPUs", hour, "report", "hour.html", None),
        ("report of a day of 64 GPUs", day, "report", "day.html", None),
    )[:: options.count(1, 3)]:
        made = options.folder / out
        words = [word, "day", "--db", str(path), "-o", str(made), "--force"]
        took, peaks = zip(*(command(words) for _ in range(runs)), strict=True)
        yield Figure(f"{what}, the whole command", statistics.median(took), "s", goal)
        yield Figure("  its memory", max(peaks), "MiB")
        yield Figure("  its file", made.stat().st_size / 1e6, "MB")


def _exports(options: BenchOptions, day: Path) -> Iterator[Figure]:
    """Measure exports of the day and their imports."""
    for kind, goal in (("parquet", 10.0), ("csv", None), ("json", 100.0))[: options.count(3, 1)]:
        made, back = options.folder / f"day.{kind}", options.folder / f"{kind}.duckdb"
        wall, peak = command(["export", "day", "--db", str(day), "-o", str(made)])
        yield Figure(f"export of a day of 64 GPUs as {kind}, the whole command", wall, "s", goal)
        yield Figure("  its memory", peak, "MiB")
        yield Figure("  its size", size_of(made) / 1e6, "MB")
        if kind != "csv":
            wall, peak = command(["import", str(made), "--db", str(back)])
            yield Figure("  the import of it, the whole command", wall, "s")
            yield Figure("  its memory", peak, "MiB")


_STARTER = """
import json, os, subprocess, sys, time
began = time.monotonic()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), time.monotonic() - began, used.ru_maxrss / 1024]))
"""


def command(words: list[str]) -> tuple[float, float]:
    """Return wall time [s] and peak memory [MiB] of ``gswarm-tui`` with these arguments.

    A process counts what its starter had in memory as its own, so a small one starts it.
    """
    starter = [sys.executable, "-S", "-c", _STARTER, *PROGRAM, *words]
    done = subprocess.run(starter, stdout=subprocess.PIPE, text=True, check=True)
    status, took, peak = json.loads(done.stdout)
    if status:
        raise subprocess.CalledProcessError(status, words)
    return float(took), float(peak)


def _scan(path: Path) -> float:
    """Return the time DuckDB takes to read the columns once and aggregate them by GPU."""
    with duckdb.connect(str(path), read_only=True, config={"threads": 2}) as connection:
        began = time.monotonic()
        connection.execute(
            "SELECT gpu_id, max(ts), sum(interval_ms), sum(util_pct), sum(power_w), max(mem_used_mib), "
            "max(energy_mj), max(clock_reasons) FROM gpu_samples GROUP BY gpu_id"
        ).fetchall()
        return time.monotonic() - began


def _while_recording(path: Path, folder: Path) -> float:
    copy = folder / "recording.duckdb"
    shutil.copy(path, copy)
    info = RecordingInfo(time.time(), "login1", "ada", "gswarm-tui", 1000, "0.1.0")
    recorder = Recorder(copy, info, lambda _status: None)
    recorder.open()
    try:
        with closing(recorder.queries()) as source:
            began = time.monotonic()
            summarize(source, periods.find_period(source, "day"))
            return time.monotonic() - began
    finally:
        recorder.close(None)
        copy.unlink()
