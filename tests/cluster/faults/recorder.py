"""``gswarm-tui record`` whose processes are killed: viewers and its recorder, then its command."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.faults.scene import FaultTest
from tests.cluster.faults.witness import Count
from tests.cluster.person import ask, user_env
from tests.cluster.running import wait_until
from tests.terminal import PATIENCE_S, InTerminal

COMMAND = ("sleep", "3600")
KILLED = 128 + signal.SIGKILL
BACK_S = 5.0
"""A killed recorder is promised to record again after this long."""
RECORDER_KILLS = 2
"""More within five minutes end a recording."""
VIEWER_LIVES_S = 5.0


class RecordTest(FaultTest):
    """A running ``gswarm-tui record`` around a command, without a screen.

    ``restarts_s`` are the seconds from each kill of the recorder until all nodes sent data again.
    """

    def __init__(self, cluster: Cluster, names: Sequence[str], db: Path) -> None:
        self._log = db.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None
        self.restarts_s: list[float] = []
        super().__init__(cluster, names, db)

    def _head(self, *words: str) -> None:
        command = ["gswarm-tui", "record", *words, "--db", str(self.db), "--", *COMMAND]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env=user_env(self.cluster),
                cwd=self.cluster.home,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def wait_live(self) -> None:
        """Wait until the recorder has had data from all nodes once more than it was killed."""
        times = len(self.restarts_s) + 1
        words = f"{len(self.names)} nodes send data"
        wait_until(
            lambda: self._log.read_text().count(words) >= times, f"{words!r}, {times} times", self._log
        )

    def kill_recorder(self) -> None:
        """SIGKILL the recorder, and wait until it records again."""
        began = time.monotonic()
        os.kill(self._child(is_command=False), signal.SIGKILL)
        self.restarts_s.append(0.0)
        self.wait_live()
        self.restarts_s[-1] = time.monotonic() - began

    def kill_viewer(self, after_s: float) -> None:
        """Attach a screen and SIGKILL it after so many seconds: while it starts, connects or is drawn."""
        with InTerminal(["gswarm-tui", "attach", str(self.db)], env=user_env(self.cluster)) as viewer:
            time.sleep(after_s)
            os.killpg(viewer.process.pid, signal.SIGKILL)

    def kill_command(self) -> None:
        """SIGKILL the command, which ends the recording."""
        os.kill(self._child(is_command=True), signal.SIGKILL)

    def exit_status(self) -> int:
        """Wait for the end of ``record``; return its exit status."""
        assert self._process is not None
        return self._process.wait(PATIENCE_S)

    def clear(self) -> None:
        """End all processes, also after a failure."""
        if self._process is not None and self._process.poll() is None:
            for child in self._children():
                os.kill(child, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
        super().clear()

    def _children(self) -> list[int]:
        assert self._process is not None
        pid = self._process.pid
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def _child(self, *, is_command: bool) -> int:
        """Return the pid of the command, or of the recorder."""
        words = {one: Path(f"/proc/{one}/cmdline").read_bytes().split(b"\0") for one in self._children()}
        (found,) = (one for one, (first, *_) in words.items() if (first.decode() == COMMAND[0]) is is_command)
        return found

    def broken(self) -> Iterator[str]:
        """Yield what the recording and the exit status tell that isn't so, in words."""
        if (status := self.exit_status()) != KILLED:
            yield f"exit status {status}, not {KILLED}"
        found = ask(self.db, "SELECT count(*), count(ended_at) FROM recordings")
        found += ask(self.db, "SELECT count(*), count(ended_at) FROM sessions")
        if found != [(1, 1), (1, 1)]:
            yield f"recordings and sessions, all and ended: {found}"
        told = ask(self.db, "SELECT count(*) FROM events WHERE kind = 'recorder_restarted'")
        if told != [(len(self.restarts_s),)]:
            yield f"{told[0][0]} events of {len(self.restarts_s)} restarts"


@contextmanager
def recorded_command(cluster: Cluster, names: Sequence[str], db: Path) -> Iterator[RecordTest]:
    """Run ``record`` around a command until all nodes send data; end its processes afterwards."""
    test = RecordTest(cluster, names, db)
    try:
        test.wait_live()
        yield test
    finally:
        test.clear()


def kill_at_random(
    cluster: Cluster,
    names: Sequence[str],
    folder: Path,
    kills: int,
    rng: random.Random,
    tell: Callable[[str], None],
) -> tuple[Count, list[str], list[float]]:
    """Kill viewers, recorders and commands; return frames, broken promises, and the restarts' seconds."""
    total, broken, restarts_s, left, number = Count(), list[str](), list[float](), kills, 0
    while left:
        number += 1
        with recorded_command(cluster, names, folder / f"kills-{number}.duckdb") as test:
            killed = (("viewer", "recorder") * RECORDER_KILLS)[: left - 1]
            for process in killed:
                if process == "viewer":
                    test.kill_viewer(rng.uniform(0, VIEWER_LIVES_S))
                    tell(f"run {number}: viewer killed")
                    continue
                time.sleep(rng.uniform(0, 2))
                test.kill_recorder()
                tell(f"run {number}: recorder killed, back after {test.restarts_s[-1]:.1f} s")
            time.sleep(rng.uniform(0, 2))
            test.kill_command()
            tell(f"run {number}: command killed, exit status {test.exit_status()}")
            broken += [f"run {number}: {words}" for words in test.broken()]
            for name in names:
                total += test.count(name)
            restarts_s += test.restarts_s
            left -= len(killed) + 1
    return total, broken, restarts_s
