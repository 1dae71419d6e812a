"""Many simulated nodes in one process, with the agent's sampler, spool and delivery; links may break.

``python -m tests.bench.nodes FOLDER NODES GPUS SEED READINGS`` listens on a socket ``FOLDER/NAME`` for each
node. With READINGS above 0, some nodes sample so many times beforehand, a second apart, and all repeat these
samples, which is cheaper than simulating; counters fall at each repetition.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from gswarm_agent.delivery import Delivery
from gswarm_agent.folder import Folder
from gswarm_agent.frame import GpuFacts, GpuLink, HostFacts
from gswarm_agent.probes.base import TickSamples
from gswarm_agent.sampler import Sampler, SystemWatch
from gswarm_agent.server import make_hello
from gswarm_agent.simulated import SimulatedNode, Simulation
from gswarm_agent.spool import Spool
from gswarm_agent.wire import Ack, SetInterval, Start, Stop
from gswarm_tui.launch.base import Launcher, LaunchError, allow_many_files
from gswarm_tui.launch.simulated import SimulatedChannel, simulated_names
from tests.bench.processes import cpu_s

if TYPE_CHECKING:
    from gswarm_agent.probes.base import Probe

RECORDED = 64
"""Nodes that sample beforehand; the others repeat their samples at other times."""
UNDER_WAY_NS = 60 * 10**9
"""The simulated job is past its warm-up when it is first seen."""
_CHUNK = 65536


class Repeated:
    """Probe that repeats another probe's samples, from the ``first`` on."""

    simulated = True

    def __init__(self, probe: Probe, readings: Sequence[TickSamples], first: int) -> None:
        self._facts = probe.facts()
        at = first % len(readings)
        self._readings = itertools.cycle([*readings[at:], *readings[:at]])

    def facts(self) -> tuple[HostFacts, tuple[GpuFacts, ...], dict[str, str]]:
        """Return the other probe's facts."""
        return self._facts

    def links(self) -> tuple[GpuLink, ...]:
        """Return no connections between GPUs."""
        return ()

    def switch(self, groups: Sequence[str]) -> None:
        """Repeat all metrics nevertheless."""

    def read(self, now_ns: int) -> TickSamples:
        """Return the next reading."""
        return next(self._readings)

    def close(self) -> None:
        """Hold no resource."""


class _BenchNode:
    """A node with its sampling life and its head's connection."""

    def __init__(self, folder: Path, name: str, probe: Probe) -> None:
        self._top, self._name, self._probe = folder, name, probe
        self._watch = SystemWatch()
        self._lives = 0
        self._spool: Spool | None = None
        self._folder: Folder | None = None
        self.sampler: Sampler | None = None
        self.connection: socket.socket | None = None
        self._delivery: Delivery | None = None
        self._unsent = memoryview(b"")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(folder / name))
        self.listener.listen()

    def _begin(self) -> Spool:
        self._lives += 1
        self._folder = Folder(str(self._top / "spools"), f"{self._name}-{self._lives}", create=True)
        return Spool(self._folder)

    def accept(self) -> None:
        """Accept a head in place of the last one."""
        connection, _ = self.listener.accept()
        connection.setblocking(False)
        if self._spool is None:
            self._spool = self._begin()
        self.connection, self._delivery = connection, Delivery(self._spool, self._watch.wall_ns)
        self._unsent = memoryview(b"")

    def receive(self) -> bool:
        """Handle the head's messages; return whether it is still connected."""
        assert self.connection is not None
        assert self._delivery is not None
        try:
            data = self.connection.recv(_CHUNK)
        except OSError:
            data = b""
        for message in self._delivery.receive(data):
            if self._spool is None:  # this life was asked to stop
                break
            if isinstance(message, Start):
                self._delivery.start(message)
                if self.sampler is None:
                    self.sampler = Sampler(self._probe, message.interval_ms, self._watch)
                    hello = make_hello(self._probe, message.interval_ms)
                    self._spool.begin(hello)
                    self._hello = hello
                self._delivery.introduce(self._hello)
            elif isinstance(message, Ack):
                self._spool.acknowledge(message.life, message.seq)
            elif isinstance(message, SetInterval) and self.sampler is not None:
                self.sampler.set_interval(message.interval_ms)
                self._hello = replace(self._hello, interval_ms=message.interval_ms)
            elif isinstance(message, Stop):
                self._delivery.end("the agent was asked to stop")
                self._end_life()
        return bool(data)

    def _end_life(self) -> None:
        if self._folder is not None:
            self._folder.close()
        self._spool = self.sampler = None

    def sample(self) -> None:
        """Take the due sample."""
        if self.sampler is not None and self._spool is not None:
            self._spool.put(self.sampler.take())

    def send(self) -> bool:
        """Send as much as possible; return whether the connection still works."""
        if self.connection is None or self._delivery is None:
            return False
        try:
            while True:
                if not self._unsent:
                    self._unsent = memoryview(self._delivery.take())
                    if not self._unsent:
                        return not self._delivery.ended
                self._unsent = self._unsent[self.connection.send(self._unsent) :]
        except BlockingIOError:
            return True
        except OSError:
            return False

    def leave(self) -> None:
        """Close the head's connection."""
        if self.connection is not None:
            self.connection.close()
        self.connection = self._delivery = None


def serve(folder: Path, nodes: int, gpus: int, seed: int, readings: int) -> None:
    """Run these nodes until the process is ended."""
    allow_many_files()
    (folder / "spools").mkdir(mode=0o700)
    origin_ns = 0 if readings else time.monotonic_ns() - UNDER_WAY_NS
    recorded: list[list[TickSamples]] = []
    fleet = []
    with selectors.DefaultSelector() as selector:
        for index, name in enumerate(simulated_names(nodes)):
            simulated = SimulatedNode(Simulation(name, index, nodes, gpus, seed, origin_ns))
            probe: Probe = simulated
            if readings:
                if index < RECORDED:
                    recorded.append([simulated.read(UNDER_WAY_NS + n * 10**9) for n in range(readings)])
                probe = Repeated(simulated, recorded[index % RECORDED], index // RECORDED)
            node = _BenchNode(folder, name, probe)
            fleet.append(node)
            selector.register(node.listener, selectors.EVENT_READ, _accepting(selector, node))
        print("ready", flush=True)
        while True:
            for key, _ in selector.select(_until_next(fleet)):
                key.data()
            now = time.monotonic_ns()
            for node in fleet:
                if node.sampler is not None and node.sampler.due <= now:
                    node.sample()
                    if not node.send():
                        _leave(selector, node)


def _until_next(fleet: Sequence[_BenchNode]) -> float | None:
    due = min((node.sampler.due for node in fleet if node.sampler is not None), default=None)
    return None if due is None else max(0.0, (due - time.monotonic_ns()) / 1e9)


def _accepting(selector: selectors.BaseSelector, node: _BenchNode) -> Callable[[], None]:
    def hear() -> None:
        if not (node.receive() and node.send()):
            _leave(selector, node)

    def accept() -> None:
        _leave(selector, node)
        node.accept()
        assert node.connection is not None
        selector.register(node.connection, selectors.EVENT_READ, hear)

    return accept


def _leave(selector: selectors.BaseSelector, node: _BenchNode) -> None:
    if node.connection is not None:
        selector.unregister(node.connection)
        node.leave()


class Nodes:
    """The process that runs the nodes; a context that ends it."""

    def __init__(self, folder: Path, nodes: int, gpus: int, seed: int, *, readings: int = 0) -> None:
        self.folder, self.nodes = folder, nodes
        folder.mkdir()
        words = map(str, (folder, nodes, gpus, seed, readings))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.nodes", *words], stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            self._process.wait()
            raise RuntimeError("the nodes did not begin")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()

    def cpu_s(self) -> float:
        """Return the CPU seconds used."""
        return cpu_s(self._process.pid)


class ToNodes(Launcher):
    """Launcher whose connections break at random, after ``lives_s`` on average."""

    def __init__(self, folder: Path, lives_s: float = math.inf, rng: random.Random | None = None) -> None:
        self._folder, self._lives_s, self._rng = folder, lives_s, rng or random.Random()

    async def open(self, node: str, *arguments: str) -> CutChannel:
        """Open a connection that breaks at random, unless ``lives_s`` is infinite."""
        try:
            lives_s = None if math.isinf(self._lives_s) else self._rng.expovariate(1 / self._lives_s)
            _, channel = await asyncio.get_running_loop().create_unix_connection(
                lambda: CutChannel(lives_s), str(self._folder / node)
            )
        except OSError as error:
            raise LaunchError(f"the bench's nodes are gone: {error.strerror}") from None
        return channel


class CutChannel(SimulatedChannel):
    """A connection that ends after a while; see ``gswarm_tui.launch.base.FlakyChannel``."""

    def __init__(self, lives_s: float | None) -> None:
        super().__init__()
        self._until = None if lives_s is None else time.monotonic() + lives_s

    async def for_each_chunk(self, take: Callable[[bytes], bool]) -> bool:
        """Handle data until the connection is cut."""
        if self._until is None:
            return await super().for_each_chunk(take)
        try:
            async with asyncio.timeout(max(0.0, self._until - time.monotonic())):
                return await super().for_each_chunk(take)
        except TimeoutError:
            return False

    async def explain_end(self) -> str:
        """Explain its end."""
        return "the bench cut the connection"


if __name__ == "__main__":
    serve(Path(sys.argv[1]), *map(int, sys.argv[2:]))
