"""What the agent costs its node: CPU, memory, lateness against the NVML stand-in, and bytes on the wire."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping

from gswarm_agent.frame import Frame
from gswarm_agent.wire import MAGIC, Ack, Decoder, Start, encode
from tests.bench.figures import Figure, Form
from tests.bench.processes import peak_mib, share_of_a_core
from tests.bench.standin import stand_in

GPUS = 8
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


def run(form: Form) -> Iterator[Figure]:
    """A real agent of eight GPUs at 1 Hz and 10 Hz; beside it, nvitop's own methods for the GPUs alone."""
    environ = stand_in(form.folder, GPUS)
    for hertz, most in ((1, 0.15), (10, 1.0)):
        seconds = form.seconds(30 if hertz == 10 else 60)
        with Watched(environ, 1000 // hertz) as agent:
            agent.wait_for(2)
            share = share_of_a_core(agent.process.pid, seconds)
            memory, frames, received = peak_mib(agent.process.pid), list(agent.frames), agent.received
        beside = _peer(environ, hertz, seconds)
        yield Figure(
            f"agent, {GPUS} GPUs at {hertz} Hz", share, "% of a core", most,
            limit="nvitop's Device methods, GPUs alone", beside=beside,
        )  # fmt: skip
        if hertz == 10:
            late = sorted(frame.late_ms for frame in frames)
            yield Figure("agent, lateness p99 at 10 Hz", late[int(0.99 * (len(late) - 1))], "ms", 5)
            yield Figure("agent, peak memory", memory, "MiB", 25)
        else:
            yield Figure(
                "wire, a GPU-sample with all metrics, host and processes",
                received / max(1, len(frames)) / GPUS, "bytes", 80,
            )  # fmt: skip


def _peer(environ: Mapping[str, str], hertz: int, seconds: float) -> float:
    script = PEER.format(seconds=seconds, hertz=hertz)
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, check=True, capture_output=True, text=True
    )
    return float(done.stdout)


class Watched:
    """A real agent process whose frames are taken in and acknowledged."""

    def __init__(self, environ: Mapping[str, str], interval_ms: int) -> None:
        self.frames: list[Frame] = []
        self.received = 0
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gswarm_agent", "stream"],
            env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
        )  # fmt: skip
        self._write(MAGIC + encode(Start(interval_ms, time.time_ns())))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()
        self._reader.join()

    def _write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)

    def _read(self) -> None:
        assert self.process.stdout is not None
        decoder, life = Decoder(), ""
        while data := self.process.stdout.read(1 << 16):
            for message in decoder.feed(data):
                if isinstance(message, Frame):
                    self._write(encode(Ack(life, message.seq)))
                    with self._changed:
                        self.frames.append(message)
                        self._changed.notify_all()
                else:
                    life = getattr(message, "life", life)
            if self.frames:
                self.received += len(data)

    def wait_for(self, frames: int) -> None:
        """Wait until so many frames came."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.frames) >= frames, 30):
                raise TimeoutError("the agent sends no frames")
