"""The agent's cost on its node: CPU, memory, lateness on the NVML stand-in, and bytes on the wire."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from statistics import median

from gswarm_agent.attach import connect, peer
from gswarm_agent.folder import Folder
from gswarm_agent.frame import INFO, Frame
from gswarm_agent.metrics import ALL_GROUPS, CORE, COUNTERS, DEFAULT_GROUPS, GPU_COLUMNS, HOST, PROCESSES
from gswarm_agent.probes.counter_rights import ProfilerWatch, RightsReader
from gswarm_agent.probes.rates import SECOND_NS
from gswarm_agent.wire import MAGIC, Ack, Decoder, Start, Stop, encode
from tests.bench.figures import BenchOptions, Figure
from tests.bench.processes import children, cpu_s, peak_mib, stand_in
from tests.bench.throughput import recorded
from tests.block_rows import rows_of
from tests.cluster.standin import H200_US

GPUS = 8
UTIL = GPU_COLUMNS.index("util_pct")
RECORDING, NODE = "bench", "node"
DEADLINE_S = 30.0
COMMIT_EVERY_S = 2.0
"""The shortest time between two commits of the recorder."""
PLAIN_MSGPACK = {"MSGPACK_PUREPYTHON": "1"}
GOALS = {
    "core, host and processes": ((CORE, HOST, PROCESSES), 0.35),
    "all usual groups": (DEFAULT_GROUPS, 0.6),
    "hardware counters, too": (ALL_GROUPS, 0.9),
}
"""Metric groups, and the most CPU that they may take, as a share of nvitop's."""
WORKER = "import sys; sys.stdin.read()"
PEER = """
import time, nvitop
devices = nvitop.Device.all()
began, cpu, ticks = time.monotonic(), time.process_time(), 0
while time.monotonic() - began < {seconds}:
    for d in devices:
        with d.oneshot():
            (d.gpu_utilization(), d.memory_utilization(), d.memory_used(), d.power_usage(), d.temperature(),
             d.sm_clock(), d.memory_clock(), d.pcie_tx_throughput(), d.pcie_rx_throughput(),
             d.performance_state())
    ticks += 1
    time.sleep(max(0, began + ticks / {hertz} - time.monotonic()))
print(100 * (time.process_time() - cpu) / (time.monotonic() - began))
"""


def run(options: BenchOptions) -> Iterator[Figure]:
    """Measure an agent of eight GPUs and processes at 1 and 10 Hz, against nvitop for the GPUs alone.

    The agent is the daemon on a node, and SSH starts a relay to it; both count. Both use msgpack in pure
    Python, as it is sent to nodes.
    """
    with _workers(GPUS) as pids:
        environ = {**stand_in(options.folder, GPUS, pids), **PLAIN_MSGPACK}
        yield from _in_turns(options, environ)
        for hertz, most in ((1, 0.15), (10, 1.0)):
            seconds = options.seconds(60)
            with Attached(environ, options.folder / f"{hertz}-hz", 1000 // hertz) as agent:
                agent_share, relay_share = agent.shares(round(seconds * hertz), hertz)
                memory, relay_memory = peak_mib(agent.pid), peak_mib(agent.relay.pid)
                frames, received = list(agent.frames), agent.received
            yield Figure(
                f"agent and its relay, {GPUS} GPUs at {hertz} Hz", agent_share + relay_share, "% of a core",
                most, limit="nvitop's Device methods, GPUs alone", beside=_peer(environ, hertz, seconds),
            )  # fmt: skip
            yield Figure(f"of that the relay, at {hertz} Hz", relay_share, "% of a core")
            if hertz == 10:
                late = sorted(frame.late_ms for frame in frames[3:])
                yield Figure("agent, lateness p99 at 10 Hz", late[int(0.99 * (len(late) - 1))], "ms", 5)
                yield Figure("agent, peak memory", memory * 1.048576, "MB", 25)
                yield Figure("relay, peak memory", relay_memory * 1.048576, "MB")
            else:
                yield Figure(
                    "wire, a GPU-sample with all metrics, host and processes, little changes",
                    received / len(frames) / GPUS, "bytes", 80,
                )  # fmt: skip
                ticks = options.count(300, 30)
                pieces = recorded("sim01", 0, 1, ticks, options.seed)[1:]
                sent = sum(map(len, pieces)) / ticks / GPUS
                yield Figure("wire, the same of simulated GPUs that train", sent, "bytes", 80)
    yield from _on_h200(options)
    yield Figure("looking who may and does use hardware counters", _look_us(options), "µs a tick", 300)


def _on_h200(options: BenchOptions) -> Iterator[Figure]:
    """Measure the agent on GPUs whose calls take as long as an H200's, one in turns with nvitop."""
    seconds = options.seconds(30)
    with _workers(GPUS) as pids:
        environ = {**stand_in(options.folder, 1, pids[:1], H200_US), **PLAIN_MSGPACK}
        turns: list[tuple[float, float, float]] = []
        for turn in range(options.count(3, 1)):
            slow, fast = (
                _alone(environ, options.folder / f"h200-{hertz}-{turn}", hertz, seconds)[0]
                for hertz in (1, 10)
            )
            turns.append((slow, fast, _peer(environ, 1, seconds)))
        slow, fast, peer = map(median, zip(*turns, strict=True))
        yield Figure(
            "agent, one GPU with the call times of an H200, at 1 Hz", slow, "% of a core",
            0.8 * peer, limit="nvitop's Device methods in turns", beside=peer,
        )  # fmt: skip
        yield Figure("agent, the same at 10 Hz", fast, "% of a core", 2.5 * slow)
        for one_lock in (False, True):
            environ = {**stand_in(options.folder, GPUS, pids, H200_US, one_lock=one_lock), **PLAIN_MSGPACK}
            share, frames = _alone(environ, options.folder / f"h200-{one_lock}", 10, 2 * seconds)
            what = f"agent, {GPUS} such GPUs at 10 Hz" + ", calls behind one lock" * one_lock
            yield Figure(what, share, "% of a core", 20)
            lost = sum(row[UTIL] is None for frame in frames for row in rows_of(frame.gpus))
            yield Figure(f"{what}: rows lost", lost + GPUS * sum(frame.missed for frame in frames), "rows", 0)
            warnings = [note for frame in frames for note in frame.notes if note.severity != INFO]
            yield Figure(f"{what}: warnings", len(warnings), "notes", 0)


def _alone(environ: Mapping[str, str], folder: Path, hertz: int, seconds: float) -> tuple[float, list[Frame]]:
    """Return an agent's CPU without its relay's [% of a core], and its frames but for the first three."""
    with Attached(environ, folder, 1000 // hertz) as agent:
        share, _ = agent.shares(round(seconds * hertz), hertz)
        return share, agent.frames[3:]


def _look_us(options: BenchOptions) -> float:
    """Return the CPU time that one tick's look at locks, settings and profilers takes, in microseconds."""
    reader, watch, ticks = RightsReader(), ProfilerWatch(), options.count(2000, 100)
    began = time.thread_time()
    for tick in range(ticks):
        reader.read()
        watch.look(tick * SECOND_NS)
    used = time.thread_time() - began
    return used / ticks * 1e6


def _in_turns(options: BenchOptions, environ: Mapping[str, str]) -> Iterator[Figure]:
    """Measure the agent with fewer and more metric groups at 1 Hz, in turns with nvitop: medians.

    With hardware counters, the tools that count for it are included.
    """
    seconds = options.seconds(20)
    shares: dict[str, list[float]] = {name: [] for name in GOALS}
    peers = []
    is_counting = True
    for turn in range(options.count(5, 1)):
        for name, (groups, _) in GOALS.items():
            folder = options.folder / f"{name.replace(' ', '-')}-{turn}"
            with Attached(environ, folder, 1000, groups) as agent:
                shares[name].append(sum(agent.shares(round(seconds), 1)))
                is_counting &= COUNTERS not in groups or bool(children(agent.pid))
        peers.append(_peer(environ, 1, seconds))
    peer = median(peers)
    for name, (groups, factor) in GOALS.items():
        what = name if is_counting or COUNTERS not in groups else f"{name} (not counted: closed or in use)"
        yield Figure(
            f"agent and its relay with {what}, in turns with nvitop", median(shares[name]), "% of a core",
            factor * peer, limit="nvitop's Device methods, GPUs alone", beside=peer,
        )  # fmt: skip


def _peer(environ: Mapping[str, str], hertz: int, seconds: float) -> float:
    script = PEER.format(seconds=seconds, hertz=hertz)
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, check=True, capture_output=True, text=True
    )
    return float(done.stdout)


@contextmanager
def _workers(count: int) -> Iterator[list[int]]:
    """Run processes like the ranks of a job; yields their pids."""
    with ExitStack() as stack:
        workers = []
        for rank in range(count):
            command = [sys.executable, "-c", WORKER, "train.py", "--layers", "48", "--rank", str(rank)]
            environ = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            worker = stack.enter_context(subprocess.Popen(command, env=environ, stdin=subprocess.PIPE))
            workers.append(worker)
            assert worker.stdin is not None
            stack.callback(worker.stdin.close)
        yield [worker.pid for worker in workers]


class Attached:
    """A node's agent behind a relay, whose frames are received and acknowledged as by a head."""

    def __init__(
        self,
        environ: Mapping[str, str],
        folder: Path,
        interval_ms: int,
        groups: tuple[str, ...] = DEFAULT_GROUPS,
    ) -> None:
        self.frames: list[Frame] = []
        self.received = 0
        self._groups = groups
        self._life = ""
        self._leaving = False
        self._changed = threading.Condition()
        folder.mkdir(mode=0o700)
        names = ["--recording", RECORDING, "--node", NODE, "--folder", str(folder)]
        self.relay = subprocess.Popen(
            [sys.executable, "-m", "gswarm_agent", "attach", *names],
            env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
        )  # fmt: skip
        self._write(MAGIC + encode(Start(interval_ms, time.time_ns(), (), groups)))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.wait_for(1)
        with closing(connect(Folder.find([str(folder)], f"{RECORDING}@{NODE}"))) as connection:
            self.pid, _ = peer(connection)

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError), self._changed:
            self._leaving = True  # the agent ends when all of its frames are acknowledged
            self._write(encode(Ack(self._life, self.frames[-1].seq)) + encode(Stop()))
        try:
            self.relay.wait(DEADLINE_S)
        finally:
            self.relay.kill()
            self.relay.wait()
        self._reader.join()

    def usage(self) -> tuple[float, float]:
        """Return the CPU seconds so far of the agent with the tools that count for it, and of its relay."""
        agent = cpu_s(self.pid)
        for tool in children(self.pid):
            with suppress(OSError):  # it ended, as another user counts
                agent += cpu_s(tool)
        return agent, cpu_s(self.relay.pid)

    def shares(self, ticks: int, hertz: int) -> tuple[float, float]:
        """Return percent of a core that the agent and its relay use during a number of ticks.

        Ticks, because an interval of time may hold one tick more or less.
        """
        first = 8 if COUNTERS in self._groups else 3  # the tools that count have started by then
        self.wait_for(first)
        before = self.usage()
        self.wait_for(first + ticks)
        agent, relay = (100 * (b - a) * hertz / ticks for a, b in zip(before, self.usage(), strict=True))
        return agent, relay

    def _write(self, data: bytes) -> None:
        assert self.relay.stdin is not None
        self.relay.stdin.write(data)

    def _read(self) -> None:
        assert self.relay.stdout is not None
        decoder, committed = Decoder(), 0.0
        while data := self.relay.stdout.read(1 << 16):
            for message in decoder.feed(data):
                if isinstance(message, Frame):
                    with self._changed:
                        self.frames.append(message)
                        self._changed.notify_all()
                    if due := time.monotonic() - committed >= COMMIT_EVERY_S:
                        committed = time.monotonic()
                    if self._leaving or due:
                        self._write(encode(Ack(self._life, message.seq)))
                else:
                    self._life = getattr(message, "life", self._life)
            if self.frames:
                self.received += len(data)

    def wait_for(self, frames: int) -> None:
        """Wait until this many frames have arrived."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.frames) >= frames, DEADLINE_S + frames):
                raise TimeoutError("the agent sent too few frames")
