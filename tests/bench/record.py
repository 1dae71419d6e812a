"""CPU time of ``gswarm-tui record`` at 1 Hz, in turns with links, hub and recorder alone."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gswarm_tui.launch.simulated import simulated_names
from tests.bench.figures import BenchOptions, Figure
from tests.bench.headless import Headless
from tests.bench.nodes import Nodes
from tests.bench.processes import as_of_a_head, cpu_s
from tests.bench.watched import Reader

GPUS_A_NODE = 8
SETTLES_S = 4.0
MEASURED_S = 20.0


def run(options: BenchOptions) -> Iterator[Figure]:
    """Measure both three times on the same nodes."""
    nodes = options.count(64, 2)
    shares: dict[bool, list[float]] = {False: [], True: []}
    with Nodes(
        options.folder / "record", nodes, GPUS_A_NODE, options.seed, readings=options.count(30, 3)
    ) as served:
        for turn in range(options.count(3, 1)):
            for is_record in (False, True):
                stem = options.folder / f"record-{turn}-{'record' if is_record else 'headless'}"
                shares[is_record].append(_share(options, served, stem, is_record=is_record))
    yield Figure(
        f"record, {nodes} nodes × {GPUS_A_NODE} GPUs at 1 Hz", statistics.median(shares[True]), "% of a core",
        limit="links, hub and recorder alone, in turns", beside=statistics.median(shares[False]),
    )  # fmt: skip


def _share(options: BenchOptions, served: Nodes, stem: Path, *, is_record: bool) -> float:
    """Return the share of a core that a recorder and its parent need, in percent."""
    journal, db = stem.with_suffix(".jsonl"), stem.with_suffix(".duckdb")
    if is_record:
        head = recording(journal, served.folder, served.nodes, db)
    else:
        head = _headless(journal, served, db)
    with head as pids:
        Reader(journal, ()).wait_for(served.nodes)
        time.sleep(options.seconds(SETTLES_S))
        began, before = time.monotonic(), sum(map(cpu_s, pids))
        time.sleep(options.seconds(MEASURED_S))
        return 100 * (sum(map(cpu_s, pids)) - before) / (time.monotonic() - began)


@contextmanager
def _headless(journal: Path, served: Nodes, db: Path) -> Iterator[Sequence[int]]:
    with Headless(journal, served.folder, simulated_names(served.nodes), 1000, db) as head:
        yield [head.pid]


@contextmanager
def recording(journal: Path, sockets: Path, nodes: int, db: Path) -> Iterator[Sequence[int]]:
    """Run ``record`` until the end of the block; yield the pids of parent and recorder."""
    own = [str(journal), str(sockets), "inf", "0"]
    words = ["record", "--demo", f"{nodes}x{GPUS_A_NODE}", "--db", str(db)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.watched", *own, *words],
        env=as_of_a_head(),
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stderr is not None
        while "recording" not in process.stderr.readline():
            assert process.poll() is None, "record ended"
        pid = process.pid
        (recorder,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        yield [pid, int(recorder)]
        process.terminate()
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
