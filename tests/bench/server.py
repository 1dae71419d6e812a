"""Cost of the HTTP server for a recorder at 1 Hz, and how fast it answers while it records."""

from __future__ import annotations

import re
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

from tests.bench.figures import BenchOptions, Figure
from tests.bench.processes import PROGRAM, Tree, as_of_a_head
from tests.integration.sshd import free_port

GPUS = 8
SETTLES_S, MEASURED_S = 8.0, 15.0
EVENT_READERS = 10


class Goals(NamedTuple):
    """Goals of a fleet: ms for a scrape, % of a core for the recorder, ms for other requests meanwhile."""

    scrape_ms: float
    cost_pct: float | None = None
    others_ms: float | None = None


class ServedRecording(NamedTuple):
    """A server beside a recorder: its processes, its address and its tokens."""

    tree: Tree
    url: str
    token: str
    scrape_token: str

    def get(self, path: str, token: str, **headers: str) -> float:
        """Send a request; return the milliseconds until the whole answer is read."""
        request = Request(self.url + path, headers={"Authorization": f"Bearer {token}", **headers})
        began = time.monotonic()
        with urlopen(request, timeout=60) as answer:
            while answer.read(1 << 20):
                pass
        return 1000 * (time.monotonic() - began)

    def scrape(self) -> float:
        """Send a request as Prometheus does; return the milliseconds until the whole answer is read."""
        accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
        return self.get("/metrics", self.scrape_token, **{"Accept": accept, "Accept-Encoding": "gzip"})


def run(options: BenchOptions) -> Iterator[Figure]:
    """Measure a job's fleet with and without the server, in turns; then a large fleet."""
    job, turns = options.count(64, 2), options.count(5, 1)
    yield from _scraped(options, job, Goals(150.0, 1.0, 50.0), turns)
    if not options.smoke:
        yield from _scraped(options, 1024, Goals(1000.0), turns=1)
    yield from _followed(options, job, options.count(EVENT_READERS, 2), turns)


def _scraped(options: BenchOptions, nodes: int, goals: Goals, turns: int) -> Iterator[Figure]:
    """Measure one scrape a second, and other requests meanwhile."""
    seconds = options.seconds(MEASURED_S)
    costs: list[float] = []
    servers: list[float] = []
    scrapes: list[float] = []
    others: list[float] = []
    with _recorder(options, nodes, "scraped") as (recorder, db):
        for _ in range(turns):
            alone = recorder.share_of_a_core(seconds)
            with _server(db) as server:
                time.sleep(options.seconds(SETTLES_S))
                with (
                    _repeated(1.0, server.scrape, scrapes),
                    _repeated(0.1, lambda: server.get("/status", server.token), others),
                ):
                    costs.append(recorder.share_of_a_core(seconds) - alone)
                    servers.append(server.tree.share_of_a_core(seconds))
    fleet = f"{nodes} nodes × {GPUS} GPUs at 1 Hz, scraped each second"
    cost = max(0.0, statistics.median(costs))
    yield Figure(f"recorder for its server, {fleet}", cost, "% of a core", goal=goals.cost_pct)
    yield Figure("   the server", statistics.median(servers), "% of a core")
    yield Figure("   /metrics, median", statistics.median(scrapes), "ms", goal=goals.scrape_ms)
    yield Figure("   /metrics, slowest", max(scrapes), "ms", goal=goals.scrape_ms)
    yield Figure("   /status meanwhile, median", statistics.median(others), "ms", goal=goals.others_ms)
    yield Figure("   /status meanwhile, slowest", max(others), "ms", goal=goals.others_ms)


def _followed(options: BenchOptions, nodes: int, readers: int, turns: int) -> Iterator[Figure]:
    """Measure readers of the event stream, in turns with none and no server."""
    seconds = options.seconds(MEASURED_S)
    costs: list[float] = []
    servers: list[float] = []
    with _recorder(options, nodes, "followed") as (recorder, db):
        for _ in range(turns):
            alone = recorder.share_of_a_core(seconds)
            with _server(db) as server, _following(server, readers) as received:
                time.sleep(options.seconds(SETTLES_S))
                costs.append(recorder.share_of_a_core(seconds) - alone)
                counted, began = sum(received), time.monotonic()
                servers.append(server.tree.share_of_a_core(seconds))
                rate = (sum(received) - counted) / readers / (time.monotonic() - began)
    fleet = f"{nodes} nodes × {GPUS} GPUs at 1 Hz, {readers} readers of all frames"
    yield Figure(f"recorder for its server, {fleet}", max(0.0, statistics.median(costs)), "% of a core", 1.0)
    yield Figure("   the server", statistics.median(servers), "% of a core")
    yield Figure("   messages for each reader, last turn", rate, "per second")


@contextmanager
def _recorder(options: BenchOptions, nodes: int, name: str) -> Iterator[tuple[Tree, Path]]:
    """Run ``record`` until the end of the block, on nodes that other processes simulate."""
    db, tree = options.folder / f"server-{name}-{nodes}.duckdb", Tree("record")
    words = [*PROGRAM, "record", "--demo", f"{nodes}x{GPUS}", "--db", str(db)]
    with subprocess.Popen(
        words, env=tree.environ(as_of_a_head()), stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stderr is not None
            while "recording" not in process.stderr.readline():
                assert process.poll() is None, "record ended"
            threading.Thread(target=process.stderr.read, daemon=True).start()
            time.sleep(options.seconds(SETTLES_S))
            yield tree, db
        finally:
            process.terminate()


@contextmanager
def _server(db: Path) -> Iterator[ServedRecording]:
    """Run ``gswarm-tui serve`` until the end of the block."""
    words, tree = [*PROGRAM, "serve", str(db), "--http", f"127.0.0.1:{free_port()}"], Tree("serve")
    with subprocess.Popen(
        words, env=tree.environ(as_of_a_head()), stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stderr is not None
        try:
            printed = process.stderr.readline()
            found = re.search(r"at (http://\S+), token in (.+)$", printed)
            assert found is not None, printed
            tokens = Path(found[2]), Path(f"{found[2]}.scrape")
            yield ServedRecording(tree, found[1], *(path.read_text().strip() for path in tokens))
        finally:
            process.terminate()


@contextmanager
def _following(server: ServedRecording, readers: int) -> Iterator[list[int]]:
    """Read the event stream in threads until the end of the block; yields the messages of each so far."""
    received = [0] * readers
    request = Request(f"{server.url}/api/v1/frames", headers={"Authorization": f"Bearer {server.token}"})
    ended = threading.Event()

    def read(number: int) -> None:
        with urlopen(request, timeout=60) as stream:
            for line in stream:
                received[number] += line.startswith(b"id: ")
                if ended.is_set():
                    return

    threads = [threading.Thread(target=read, args=(number,)) for number in range(readers)]
    for thread in threads:
        thread.start()
    try:
        yield received
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@contextmanager
def _repeated(pause_s: float, request: Callable[[], float], took_ms: list[float]) -> Iterator[None]:
    """Repeat a request in a thread until the end of the block."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.is_set():
            began = time.monotonic()
            took_ms.append(request())
            ended.wait(began + pause_s - time.monotonic())

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
