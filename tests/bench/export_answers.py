"""How fast the HTTP server answers while a session of an hour of 512 GPUs stops and is exported.

``python -m tests.bench.export_answers [--gpus NODESxGPUS] [--seconds N]`` prints the times.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from tests.served import ServedRecorder, environ_of, served
from tests.terminal import InTerminal

SESSION = "hour"
EVERY_S = 0.02
GOAL_MS = 50.0
# Each sample of the last tick, again in each second before the recording began.
_PAST = """
INSERT INTO {table} BY NAME
SELECT * EXCLUDE (n) REPLACE (ts - to_seconds(n) AS ts)
FROM (SELECT * FROM {table} WHERE ts >= (SELECT max(ts) FROM {table}) - INTERVAL 500 MILLISECOND),
     generate_series(5, {seconds}) past(n)
"""


def main() -> int:
    """Print how long requests took; return 1 if one took longer than the goal."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.export_answers", description=__doc__)
    parser.add_argument("--gpus", default="64x8", metavar="NODESxGPUS")
    parser.add_argument("--seconds", type=int, default=3600, help="of the session that is exported")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gswarm-export-") as name:
        folder = Path(name)
        db = _recording(folder, arguments.gpus, arguments.seconds)
        with _resumed(folder, db) as recorder:
            alone = _times(recorder, lambda: time.sleep(10))
            began = time.monotonic()
            exporting = _times(recorder, lambda: _stop(recorder, folder))
            took = time.monotonic() - began
            size = (folder / f"{SESSION}.json").stat().st_size
    print(f"{arguments.gpus} GPUs, {arguments.seconds:,} s: {size / 1e6:.0f} MB of JSON after {took:.0f} s")
    for what, times in (("before", alone), ("while it stops and is exported", exporting)):
        print(
            f"/status {what}: {len(times):,} requests, median {statistics.median(times):.1f} ms, "
            f"99 % within {sorted(times)[len(times) * 99 // 100]:.1f} ms, slowest {max(times):.1f} ms"
        )
    return 1 if max(exporting) > GOAL_MS else 0


def _recording(folder: Path, gpus: str, seconds: int) -> Path:
    """Return an interrupted recording with a running session that began so many seconds ago."""
    with served(folder, "--name", SESSION, demo=gpus) as recorder:
        recorder.call("POST", "/profiling/start", {"name": "other"})
        newest = "SELECT max(seq) AS seq FROM host_samples GROUP BY node_id"
        ticks = {"sql": f"SELECT coalesce(min(seq), 0) FROM ({newest})"}
        recorder.eventually(
            lambda: recorder.call("POST", "/api/v1/query", ticks).json["rows"][0][0] >= 3, "samples on disk"
        )
        children = Path(f"/proc/{recorder.process.pid}/task/{recorder.process.pid}/children").read_text()
        recorder.process.kill()  # or it would restart its recorder
        os.kill(int(children.split()[0]), signal.SIGKILL)
    db = folder / "run.duckdb"
    with duckdb.connect(str(db)) as connection:
        for table in ("gpu_samples", "host_samples"):
            connection.execute(_PAST.format(table=table, seconds=seconds))
        connection.execute("DELETE FROM gpu_minutes")
        for table in ("recordings", "sessions"):
            connection.execute(f"UPDATE {table} SET started_at = started_at - to_seconds({seconds})")
    return db


@contextmanager
def _resumed(folder: Path, db: Path) -> Iterator[ServedRecorder]:
    """Resume the recording on a screen, and serve it."""
    environ = environ_of(folder)
    with duckdb.connect(str(db), read_only=True) as connection:
        ((uid,),) = connection.execute("SELECT uid FROM recordings").fetchall()
    command = [sys.executable, "-m", "gswarm_tui"]
    with InTerminal([*command, "recover", uid, "--db", str(db)], env=environ, folder=folder) as app:
        app.wait_for("rec")
        with subprocess.Popen(
            [*command, "serve", str(db), "--http", "127.0.0.1:0"],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            recorder = ServedRecorder(process, folder, 0, folder / "gswarm-tui" / "tokens" / uid)
            try:
                recorder.port = int(recorder.read_until("HTTP server at").split(",")[0].rpartition(":")[2])
                recorder.eventually(lambda: bool(recorder.get("/metrics/latest")["client_data"]), "samples")
                yield recorder
            finally:
                process.terminate()


def _stop(recorder: ServedRecorder, folder: Path) -> None:
    """Stop the session and wait for its export."""
    answer = recorder.call("POST", "/profiling/stop", {"name": SESSION})
    assert answer.json["success"], answer
    deadline = time.monotonic() + 900
    while not (folder / f"{SESSION}.json").exists():
        assert time.monotonic() < deadline, recorder.get("/profiling/sessions")
        time.sleep(0.2)


def _times(recorder: ServedRecorder, work: Callable[[], None]) -> list[float]:
    """Return how long requests took during the work, in ms."""
    ended = threading.Event()
    times: list[float] = []

    def ask() -> None:
        while not ended.wait(EVERY_S):
            began = time.monotonic()
            recorder.get("/status")
            times.append(1000 * (time.monotonic() - began))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        work()
    finally:
        ended.set()
        asking.join()
    return times


if __name__ == "__main__":
    sys.exit(main())
