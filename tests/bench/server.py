"""Cost of the servers for a recorder at 1 Hz, and how fast the HTTP server answers while it records."""

from __future__ import annotations

import asyncio
import itertools
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self
from urllib.request import Request, urlopen

import aiohttp

from tests.bench.figures import BenchOptions, Figure
from tests.bench.nodes import Nodes
from tests.bench.processes import cpu_s, descendants
from tests.bench.record import GPUS_A_NODE, recording
from tests.bench.watched import Reader
from tests.integration.sshd import free_port

SETTLES_S, MEASURED_S = 8.0, 15.0
EVENT_READERS = 10


class Goals(NamedTuple):
    """Goals of a fleet: ms for a scrape, % of a core for the recorder, ms for other requests meanwhile."""

    scrape_ms: float
    cost_pct: float | None = None
    others_ms: float | None = None


JOB, LARGE = Goals(150.0, 1.0, 50.0), Goals(1000.0)
SCREENS = 3
FIRST_PICTURE = 2000
"""Bytes after which a screen has been drawn."""
MISSED_AFTER_S = 1.5
"""Time without a tick of a recorder at 1 Hz after which it has missed one."""


class ServedRecording(NamedTuple):
    """A server beside a recorder: its process, its address and its tokens."""

    pid: int
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
    yield from _scraped(options, options.count(64, 2), JOB, turns=options.count(5, 1))
    if not options.smoke:
        yield from _scraped(options, 1024, LARGE, turns=1)
    yield from _followed(options, options.count(64, 2), options.count(EVENT_READERS, 2))
    yield from _in_browsers(options, options.count(64, 2), turns=options.count(5, 1))


def _scraped(options: BenchOptions, nodes: int, goals: Goals, turns: int) -> Iterator[Figure]:
    """Measure one scrape a second, and other requests meanwhile."""
    stem = options.folder / f"server-{nodes}"
    journal, db = stem.with_suffix(".jsonl"), stem.with_suffix(".duckdb")
    costs: list[float] = []
    servers: list[float] = []
    scrapes: list[float] = []
    others: list[float] = []
    missed = 0
    with (
        Nodes(stem, nodes, GPUS_A_NODE, options.seed, readings=options.count(30, 3)) as simulated,
        recording(journal, simulated.folder, nodes, db) as pids,
    ):
        reader = Reader(journal, ())
        reader.wait_for(nodes)
        time.sleep(options.seconds(SETTLES_S))
        for _ in range(turns):
            alone = _share(pids, options.seconds(MEASURED_S))
            with _server(db) as server:
                time.sleep(options.seconds(SETTLES_S))
                reader.read()
                before = cpu_s(server.pid)
                began = time.monotonic()
                with (
                    _repeated(1.0, server.scrape, scrapes),
                    _repeated(0.1, lambda: server.get("/status", server.token), others),
                ):
                    costs.append(_share(pids, options.seconds(MEASURED_S)) - alone)
                servers.append(100 * (cpu_s(server.pid) - before) / (time.monotonic() - began))
                ticks = [entry.at for entry in reader.read() if not entry.on_disk]
                missed += sum(after - at > MISSED_AFTER_S for at, after in itertools.pairwise(ticks))
    fleet = f"{nodes} nodes × {GPUS_A_NODE} GPUs at 1 Hz, scraped each second"
    yield Figure(
        f"recorder for its server, {fleet}",
        max(0.0, statistics.median(costs)),
        "% of a core",
        goal=goals.cost_pct,
    )
    yield Figure("   ticks that the recorder missed", missed, "ticks", goal=0)
    yield Figure("   the server", statistics.median(servers), "% of a core")
    yield Figure("   /metrics, median", statistics.median(scrapes), "ms", goal=goals.scrape_ms)
    yield Figure("   /metrics, slowest", max(scrapes), "ms", goal=goals.scrape_ms)
    yield Figure("   /status meanwhile, median", statistics.median(others), "ms", goal=goals.others_ms)
    yield Figure("   /status meanwhile, slowest", max(others), "ms", goal=goals.others_ms)


def _followed(options: BenchOptions, nodes: int, readers: int) -> Iterator[Figure]:
    """Measure readers of the event stream, in turns with none and no server."""
    stem = options.folder / f"server-frames-{nodes}"
    journal, db = stem.with_suffix(".jsonl"), stem.with_suffix(".duckdb")
    costs: list[float] = []
    servers: list[float] = []
    messages: list[int] = []
    seconds = options.seconds(MEASURED_S)
    with (
        Nodes(stem, nodes, GPUS_A_NODE, options.seed, readings=options.count(30, 3)) as simulated,
        recording(journal, simulated.folder, nodes, db) as pids,
    ):
        Reader(journal, ()).wait_for(nodes)
        time.sleep(options.seconds(SETTLES_S))
        for _ in range(options.count(5, 1)):
            alone = _share(pids, seconds)
            with _server(db) as server, _following(server, readers) as received:
                time.sleep(options.seconds(SETTLES_S))
                before, began = cpu_s(server.pid), time.monotonic()
                counted = sum(received)
                costs.append(_share(pids, seconds) - alone)
                servers.append(100 * (cpu_s(server.pid) - before) / (time.monotonic() - began))
                messages.append(sum(received) - counted)
    fleet = f"{nodes} nodes × {GPUS_A_NODE} GPUs at 1 Hz, {readers} readers of all frames"
    yield Figure(
        f"recorder for its server, {fleet}",
        max(0.0, statistics.median(costs)),
        "% of a core",
        goal=JOB.cost_pct,
    )
    yield Figure("   the server", statistics.median(servers), "% of a core")
    yield Figure("   messages for each reader", statistics.median(messages) / readers / seconds, "per second")


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


def _in_browsers(options: BenchOptions, nodes: int, turns: int) -> Iterator[Figure]:
    """Measure what screens in browsers cost."""
    stem = options.folder / f"browsers-{nodes}"
    journal, db = stem.with_suffix(".jsonl"), stem.with_suffix(".duckdb")
    costs: list[float] = []
    screens: list[float] = []
    number = options.count(SCREENS, 1)
    sent: list[float] = []
    with (
        Nodes(stem, nodes, GPUS_A_NODE, options.seed, readings=options.count(30, 3)) as simulated,
        recording(journal, simulated.folder, nodes, db) as pids,
    ):
        Reader(journal, ()).wait_for(nodes)
        time.sleep(options.seconds(SETTLES_S))
        for _ in range(turns):
            alone = _share(pids, options.seconds(MEASURED_S))
            with _web_server(db) as (pid, url, token), Browsers(url, token, number) as browsers:
                time.sleep(options.seconds(SETTLES_S))
                own = [pid, *descendants(pid, "attach")]
                before, bytes_before, began = sum(map(cpu_s, own)), browsers.received, time.monotonic()
                costs.append(_share(pids, options.seconds(MEASURED_S)) - alone)
                seconds = time.monotonic() - began
                screens.append(100 * (sum(map(cpu_s, own)) - before) / seconds / number)
                sent.append((browsers.received - bytes_before) / seconds / number / 1000)
    fleet = f"{nodes} nodes × {GPUS_A_NODE} GPUs at 1 Hz, {number} screens in browsers"
    yield Figure(
        f"recorder for {fleet}", max(0.0, statistics.median(costs)), "% of a core", goal=JOB.cost_pct
    )
    yield Figure(
        "   each screen, with its share of the web server", statistics.median(screens), "% of a core"
    )
    yield Figure("   sent to each browser", statistics.median(sent), "kB/s")


class Browsers:
    """Browsers that watch in a thread until the end of the block, once each has its first picture."""

    def __init__(self, url: str, token: str, number: int) -> None:
        self.received = 0
        self._url, self._token, self._number = url, token, number
        self._first = threading.Semaphore(0)
        self._loop = asyncio.new_event_loop()
        self._watching: asyncio.Future[list[None]] | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        for _ in range(self._number):
            assert self._first.acquire(timeout=60), "a browser got no picture"
        return self

    def __exit__(self, *_: object) -> None:
        if self._watching is not None:
            self._loop.call_soon_threadsafe(self._watching.cancel)
        self._thread.join()

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._watch_all())
        self._loop.close()

    async def _watch_all(self) -> None:
        self._watching = asyncio.gather(*(self._watch() for _ in range(self._number)))
        await self._watching

    async def _watch(self) -> None:
        headers = {"Origin": self._url}
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
            await client.post(f"{self._url}/enter", data=self._token, headers=headers)
            async with client.ws_connect(f"{self._url}/ws?width=150&height=42", headers=headers) as screen:
                seen = 0
                async for message in screen:
                    size = len(message.data)
                    self.received += size
                    if seen < FIRST_PICTURE <= seen + size:
                        self._first.release()
                    seen += size


@contextmanager
def _web_server(db: Path) -> Iterator[tuple[int, str, str]]:
    """Run ``gswarm-tui web`` until the end of the block; yield its pid, its address and a token."""
    words = [sys.executable, "-m", "gswarm_tui", "web", str(db), "--web", f"127.0.0.1:{free_port()}"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        try:
            printed = process.stderr.readline()
            found = re.search(r"to watch: (http://[^/]+)/#TOKEN, with the token in (.+)$", printed)
            assert found is not None, printed
            yield process.pid, found[1], Path(found[2]).read_text().strip()
        finally:
            process.terminate()


def _share(pids: Sequence[int], seconds: float) -> float:
    """Return the share of a core that these processes need, in percent."""
    began, before = time.monotonic(), sum(map(cpu_s, pids))
    time.sleep(seconds)
    return 100 * (sum(map(cpu_s, pids)) - before) / (time.monotonic() - began)


@contextmanager
def _server(db: Path) -> Iterator[ServedRecording]:
    """Run ``gswarm-tui serve`` until the end of the block."""
    words = [sys.executable, "-m", "gswarm_tui", "serve", str(db), "--http", f"127.0.0.1:{free_port()}"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        try:
            printed = process.stderr.readline()
            found = re.search(r"at (http://\S+), token in (.+)$", printed)
            assert found is not None, printed
            tokens = Path(found[2]), Path(f"{found[2]}.scrape")
            yield ServedRecording(process.pid, found[1], *(path.read_text().strip() for path in tokens))
        finally:
            process.terminate()


@contextmanager
def _repeated(pause_s: float, request: Callable[[], float], took_ms: list[float]) -> Iterator[None]:
    """Repeat a request in a thread until the end of the block."""
    ended = threading.Event()

    def repeat() -> None:
        due = time.monotonic()
        while not ended.is_set():
            took_ms.append(request())
            due = max(due + pause_s, time.monotonic())
            ended.wait(due - time.monotonic())

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
