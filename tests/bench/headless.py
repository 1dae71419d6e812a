"""A head without a screen (links, hub and recorder), in its own process.

``python -m tests.bench.headless JOURNAL WHERE INTERVAL_MS PATH NODE …`` records nodes until SIGTERM. WHERE is
the folder with the sockets of the bench's nodes, or an SSH configuration: then each node is an agent of its
own that simulates.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from gswarm_tui.fleet.events import RecorderStatus
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.launch.base import Channel, Launcher, allow_many_files
from gswarm_tui.link.clock import steady_wall_clock
from gswarm_tui.link.hub import Hub
from gswarm_tui.link.link import Clocks, Link
from gswarm_tui.run import event_loop
from gswarm_tui.run.lifetime import delay_garbage_collection
from gswarm_tui.store.recording.database import RecordingInfo
from gswarm_tui.store.recording.recorder import Recorder
from tests.bench.nodes import ToNodes
from tests.bench.processes import as_of_a_head
from tests.bench.watched import Journal


class Headless:
    """The process of the head; it ends and its recording closes at the end of the block."""

    def __init__(
        self, journal: Path, where: Path, names: Sequence[str], interval_ms: int, path: Path
    ) -> None:
        words = map(str, (journal, where, interval_ms, path, *names))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.headless", *words], env=as_of_a_head()
        )
        self.pid = self._process.pid
        self.writes: list[tuple[float, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise


class _BySsh(Launcher):
    """A launcher of simulated nodes, each an agent of its own behind SSH; see ``Launcher``."""

    def __init__(self, configuration: Path, names: Sequence[str]) -> None:
        from gswarm_tui.launch.ssh import SshLauncher, SshSettings

        self._launcher = SshLauncher(SshSettings("", str(configuration), ""))
        self._index = {name: index for index, name in enumerate(names)}

    async def open(self, node: str, *arguments: str) -> Channel:
        """Start the agent of a node over SSH."""
        simulation = {"node": node, "index": self._index[node], "nodes": len(self._index)}
        return await self._launcher.open(node, "stream", "--simulate", json.dumps(simulation))

    async def close(self) -> None:
        """Close the shared connections."""
        await self._launcher.close()


async def _record(journal: Path, where: Path, interval_ms: int, path: Path, names: Sequence[str]) -> None:
    allow_many_files()
    hub = Hub(Fleet(names, interval_ms), clock=steady_wall_clock())
    noted, loop = Journal(journal, names, hub.now), asyncio.get_running_loop()

    def committed(status: RecorderStatus) -> None:
        noted.committed(status)
        hub.recorded(status)

    def told(status: RecorderStatus) -> None:
        loop.call_soon_threadsafe(committed, status)

    info = RecordingInfo(time.time(), "bench", "bench", "bench", interval_ms, "bench")
    recorder = Recorder(path, info, told)
    recorder.open()
    hub.recorder = recorder.status()
    hub.sinks += [recorder, noted]
    clocks = Clocks(wall=hub.now)
    launcher: Launcher = ToNodes(where) if where.is_dir() else _BySsh(where, names)
    for name in names:
        hub.links[name] = Link(name, launcher, interval_ms, hub.publish, of_nodes=len(names), clocks=clocks)
    asked = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, asked.set)
    delay_garbage_collection()
    running = asyncio.create_task(hub.run())
    await asked.wait()
    await hub.stop_links()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await launcher.close()
    recorder.close(time.time(), 60)


if __name__ == "__main__":
    _, to, source, every, database, *nodes = sys.argv
    event_loop.run(_record(Path(to), Path(source), int(every), Path(database), nodes))
