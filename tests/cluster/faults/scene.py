"""Runs the real program on some nodes, injects faults, and counts frames."""

from __future__ import annotations

import re
import signal
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.faults.coverage import CoverageRow, wrong
from tests.cluster.faults.witness import Count, NvmlRead, StoredFrame, Witness, became, count, settled
from tests.cluster.node import ClusterNode
from tests.cluster.person import agents, ask, user_env
from tests.cluster.running import ClusterError, wait_until
from tests.cluster.terminal import Terminal

INTERVAL_S = 0.5
PATIENCE_S = 180.0
"""After a fault of a minute, the next attempt to connect may be a minute away."""
_KILLED = 128 + signal.SIGKILL
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_LOST = re.compile(r"([\d,]+) frames? (?:is|are) missing")


@dataclass(frozen=True)
class FaultStep:
    """One action of a fault test, ``at`` seconds after the nodes are live."""

    at: float
    words: str
    act: Callable[[FaultTest], None]


class FaultTest:
    """A running head that records the named nodes into ``db``.

    ``words`` are more options of the command line, ``env`` more of the head's environment.
    """

    def __init__(
        self,
        cluster: Cluster,
        names: Sequence[str],
        db: Path,
        words: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.cluster = cluster
        self.names = tuple(names)
        self.db = db
        self.witnesses = {name: Witness(cluster[name]) for name in names}
        self._env = env or {}
        self._terminal: Terminal | None = None
        self._head("--nodes", *names, "--interval", f"{INTERVAL_S}", *words)

    # The head.

    def _head(self, *words: str) -> None:
        env = {**user_env(self.cluster), **self._env}
        command = ["gswarm-tui", *words, "--db", str(self.db)]
        self._terminal = Terminal(command, env=env, size=(160, 40), folder=self.cluster.home)

    def kill_head(self) -> None:
        """SIGKILL the head."""
        assert self._terminal is not None
        ended = self._terminal.ended()
        status = self._terminal.exit_status() if ended else self._terminal.kill(self.db)
        said = self._terminal.screen().strip()
        self._terminal.close()
        self._terminal = None
        if status != _KILLED:
            raise ClusterError(f"the head had ended with status {status} before it was to be killed: {said}")

    def recover(self) -> None:
        """Resume the recording in a new head."""
        self._head("recover", self._uid())

    def finish(self) -> str:
        """Run ``recover --finish``: fetch remaining frames and close the recording; return its output."""
        words = ["gswarm-tui", "recover", self._uid(), "--db", str(self.db), "--finish"]
        return self.cluster.run(words, timeout=PATIENCE_S).stdout

    def _uid(self) -> str:
        [(uid,)] = ask(self.db, "SELECT uid FROM recordings")
        return str(uid)

    def wait_for(self, shown: str) -> None:
        """Wait until the head's screen shows a text."""
        assert self._terminal is not None
        self._terminal.wait_for(shown, PATIENCE_S)

    def wait_live(self) -> None:
        """Wait until the head shows all nodes as live."""
        self.wait_for(f"nodes {len(self.names)}/{len(self.names)}")

    def start_session(self) -> None:
        """Start a session that runs to the end of the recording."""
        assert self._terminal is not None
        self._terminal.press("s")
        self._terminal.wait_for("start session")
        self._terminal.press("Enter")
        self._terminal.wait_for("● session-1")

    def play(self, steps: Iterable[FaultStep], tell: Callable[[str], None] = lambda _line: None) -> None:
        """Run each step at its time, then wait for all nodes and a few more frames."""
        began = time.monotonic()
        for step in sorted(steps, key=lambda step: step.at):
            time.sleep(max(0.0, began + step.at - time.monotonic()))
            tell(f"{time.monotonic() - began:6.1f} s  {step.words}")
            step.act(self)
        if self._terminal is not None:
            self.wait_live()
            self.wait_for_frames()

    def wait_for_frames(self, frames: int = 6) -> None:
        """Wait until each node was sampled ``more`` times."""
        before = {name: len(witness.readings()) for name, witness in self.witnesses.items()}
        for name, witness in self.witnesses.items():
            enough = before[name] + frames
            wait_until(partial(_has, witness, enough), f"a few more readings of {name}")

    def end(self) -> None:
        """Quit the head, fetch remaining frames, and check that no agent is left."""
        if self._terminal is not None:
            self._terminal.press("q")
            self._terminal.wait_for("end and quit")
            self._terminal.press("y")
            status = self._terminal.exit_status(PATIENCE_S)
            said = self._terminal.screen()
            self._terminal.close()
            self._terminal = None
            if status != 0:
                raise ClusterError(f"gswarm-tui ended with status {status}: {said}")
        if ask(self.db, "SELECT count(*) FROM recordings WHERE ended_at IS NULL") != [(0,)]:
            self.finish()
        wait_until(
            lambda: not any(agents(self.cluster[name]) for name in self.names), "the end of all agents"
        )

    def clear(self) -> None:
        """End all processes, also after a failure."""
        if self._terminal is not None:
            self._terminal.close()
        for name in self.names:
            node = self.cluster[name]
            if pids := agents(node):
                node.run(["kill", "-KILL", *map(str, pids)], check=False)
            node.run("rm -rf --one-file-system /var/tmp/gswarm-tui-* /tmp/gswarm-tui-*")

    # The nodes.

    def kill_agent(self, name: str) -> None:
        """SIGKILL the agent of a node."""
        for pid in serving(self.cluster[name]):
            self.witnesses[name].kill(pid)

    def shut_down(self, name: str, *, power_lost: bool) -> None:
        """Shut a node down, orderly or by a power loss.

        It is as good as namespaces can do it: the agent's processes and all connections end, the node has
        another boot id and an empty /tmp, and keeps /var/tmp. What the kernel has not yet written to a disk
        isn't lost, and CLOCK_BOOTTIME doesn't begin anew.
        """
        node = self.cluster[name]
        if power_lost:
            self.kill_agent(name)
        elif pids := serving(node):
            node.run(["kill", "-TERM", *map(str, pids)])
            wait_until(lambda: not serving(node), f"the agent's end on {name}")
        node.stop_sshd()
        node.run("rm -rf --one-file-system /tmp/gswarm-tui-*")
        boot_id = node.folder / "boot_id"
        boot_id.write_text(f"{uuid.uuid4()}\n")
        node.run(f"umount {_BOOT_ID} 2>/dev/null; mount --bind {boot_id} {_BOOT_ID}")

    # What became of it.

    def count(self, name: str) -> Count:
        """Count a node's frames in its witness's journal and in the database."""
        return count(self._readings(name), self._frames(name), self._said_lost(name))

    def wrong_coverage(self, name: str) -> list[str]:
        """Describe the errors in ``session_coverage`` of a node, according to its witness."""
        told = ask(
            self.db,
            "SELECT epoch(started_at), epoch(ended_at), frames, covered_s "
            f"FROM session_coverage WHERE node = '{name}'",
        )
        assert told, "each scene has a session"
        kept = became(self._readings(name), self._frames(name))
        return [words for row in told for words in wrong(CoverageRow(*row), kept)]

    def _readings(self, name: str) -> list[NvmlRead]:
        """Return a node's NVML reads at Unix times."""
        ahead = time.time() - time.monotonic()
        readings = [replace(one, at=one.at + ahead) for one in self.witnesses[name].readings()]
        return settled(readings, self._frames(name))

    def _frames(self, name: str) -> list[StoredFrame]:
        of_node = f"FROM host_samples JOIN nodes USING (node_id) WHERE node = '{name}'"
        return [StoredFrame(*row) for row in ask(self.db, f"SELECT seq, epoch(ts) {of_node} ORDER BY ts")]

    def _said_lost(self, name: str) -> int:
        messages = ask(
            self.db,
            "SELECT message FROM events JOIN nodes USING (node_id) "
            f"WHERE node = '{name}' AND kind = 'gap' ORDER BY ts",
        )
        found = [_LOST.search(message) for (message,) in messages]
        return sum(int(one[1].replace(",", "")) for one in found if one is not None)


def _has(witness: Witness, readings: int) -> bool:
    return len(witness.readings()) >= readings


def serving(node: ClusterNode) -> list[int]:
    """Return the pids of a node's serving agents, without attach processes."""
    return [int(pid) for pid in node.run(["pgrep", "-x", "gswarm-agent"], check=False).stdout.split()]


@contextmanager
def recording(
    cluster: Cluster,
    names: Sequence[str],
    db: Path,
    words: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Iterator[FaultTest]:
    """Run a fault test with a session after all nodes are live; end its processes afterwards."""
    scene = FaultTest(cluster, names, db, words, env)
    try:
        scene.wait_live()
        scene.start_session()
        yield scene
    finally:
        for name in names:
            cluster[name].heal()
        scene.clear()
