"""The fault suite: recordings with injected faults, each reported as rows of counts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.faults.ballast import ballast
from tests.cluster.faults.clock import ProgramClock
from tests.cluster.faults.recorder import BACK_S, kill_at_random
from tests.cluster.faults.scene import FaultStep, FaultTest, recording
from tests.cluster.faults.steps import (
    at_random,
    cut,
    end_connections,
    fill_database,
    fill_disk,
    kill_agent,
    kill_head,
    reboot,
    step_clock,
    stop_sshd,
)
from tests.cluster.faults.witness import Count

Tell = Callable[[str], None]
NODES = tuple(f"gpu{index:02}" for index in range(1, 12))
HALF = NODES[::2]


@dataclass(frozen=True)
class Lengths:
    """Durations of the faults in seconds, and the number of kills of ``record``'s processes."""

    long_cut: float
    heads_down: Sequence[float]
    at_random: float
    kills: int


SHORT = Lengths(long_cut=20, heads_down=(), at_random=12, kills=3)
"""The suite without its longest parts: other parts also kill and resume a head."""
LONG = Lengths(long_cut=60, heads_down=(0.2, 3, 20), at_random=300, kills=50)


@dataclass(frozen=True)
class Row:
    """Frames that one fault cost. With ``may_lose`` it may lose frames if it reports them.

    ``wrong`` is what the sessions' coverage tells that isn't so.
    """

    fault: str
    count: Count
    may_lose: bool = False
    wrong: Sequence[str] = ()

    @property
    def problems(self) -> list[str]:
        """Broken promises in words; empty if all is well."""
        found = []
        if self.count.lost and not self.may_lose:
            found.append(f"{self.count.lost} lost")
        # On a busy machine the last frame of a killed agent may repeat a read, which then is none of its own.
        if abs(self.count.lost - self.count.said) > self.may_lose:
            found.append(f"{self.count.lost} lost, but {self.count.said} reported as lost")
        if self.count.twice:
            found.append(f"{self.count.twice} twice")
        if self.count.stray:
            found.append(f"{self.count.stray} that nobody sampled")
        return [*found, *self.wrong]


_COLUMNS = ("sampled", "in the database", "lost", "twice", "reported as lost")


def table(rows: Sequence[Row]) -> str:
    """Format all rows as a table."""
    width = max(len(row.fault) for row in rows)
    lines = ["  ".join(["fault".ljust(width), *_COLUMNS, "verdict"])]
    for row in rows:
        counts = (row.count.sampled, row.count.frames, row.count.lost, row.count.twice, row.count.said)
        cells = [str(n).rjust(len(name)) for n, name in zip(counts, _COLUMNS, strict=True)]
        lines.append("  ".join([row.fault.ljust(width), *cells, "; ".join(row.problems) or "as promised"]))
    return "\n".join(lines)


@dataclass
class Suite:
    """All recordings on a cluster with nodes ``NODES``; each method is one and yields its rows."""

    cluster: Cluster
    folder: Path
    lengths: Lengths
    seed: int
    tell: Tell = print

    def faults_of_nodes(self) -> Iterator[Row]:
        """Inject one fault on each node at the same time, except one node."""
        long_cut = self.lengths.long_cut
        names = iter(NODES)
        clock_node = next(names)
        clock, heads_clock = ProgramClock.of_agents(self.cluster[clock_node]), ProgramClock(self.folder)
        faults: dict[str, tuple[str, list[FaultStep], bool]] = {}

        def of(node: str, fault: str, *steps: list[FaultStep], may_lose: bool = False) -> None:
            faults[node] = fault, [step for part in steps for step in part], may_lose

        of(
            clock_node,
            "node's clock 1 h ahead, then 2 h back, and an agent that begins then¹",
            step_clock(clock_node, 2, clock, 1),
            end_connections(clock_node, 4),
            step_clock(clock_node, 8, clock, -1),
            kill_agent(clock_node, 11),
            may_lose=True,
        )
        of(
            next(names),
            "nothing but the head's clock 1 h ahead, then 2 h back¹",
            step_clock("head", 3, heads_clock, 1),
            step_clock("head", 7, heads_clock, -1),
            step_clock("head", 12, heads_clock, 0),
        )
        of(node := next(names), "link cut for 5 s", cut(node, 2, 5))
        of(node := next(names), f"link cut for {long_cut:g} s", cut(node, 2, long_cut))
        of(node := next(names), "sshd sessions killed", end_connections(node, 2), end_connections(node, 9))
        of(node := next(names), "agent killed", kill_agent(node, 2), kill_agent(node, 9), may_lose=True)
        of(
            node := next(names),
            f"link cut for {long_cut:g} s, agent killed in it",
            cut(node, 2, long_cut),
            kill_agent(node, long_cut - 1),
            may_lose=True,
        )
        of(node := next(names), "node rebooted²", reboot(node, 3, power_lost=False))
        of(node := next(names), "node without power²", reboot(node, 3, power_lost=True), may_lose=True)
        of(
            node := next(names),
            f"node's disk full, link cut for {long_cut:g} s",
            fill_disk(node, 9, long_cut - 6),
            cut(node, 2, long_cut),
        )
        of(
            node := next(names),
            "node lets nobody in, its spool of 1 MiB overflows",
            stop_sshd(node, 2, long_cut),
            may_lose=True,
        )
        small_spools = ("--spool-mib", "1")
        with (
            ballast(self.cluster[node]),
            self._recording("nodes", words=small_spools, env=heads_clock.env) as scene,
        ):
            self._play(scene, [step for _, steps, _ in faults.values() for step in steps])
            scene.end()
            clock.set(0)
            for node, (fault, _, may_lose) in faults.items():
                yield Row(fault, scene.count(node), may_lose, scene.wrong_coverage(node))

    def faults_of_the_head(self) -> Iterator[Row]:
        """Disconnect half of the nodes; kill, resume and finish the head while it writes."""
        long_cut = self.lengths.long_cut
        if self.lengths.heads_down:
            with self._recording("half") as scene:
                self._play(scene, [step for node in HALF for step in cut(node, 2, long_cut)])
                yield self._row(scene, f"half of the nodes cut off for {long_cut:g} s")
            downs = self.lengths.heads_down
            with self._recording("killed") as scene:
                for down_s in downs:
                    self._play(scene, kill_head(2.1, down_s))
                yield self._row(scene, f"head killed while writing, recover ({len(downs)} times)")
        with self._recording("finished") as scene:
            cuts = [step for node in HALF for step in cut(node, 1, 4)]
            self._play(scene, [*cuts, FaultStep(3, "head killed", FaultTest.kill_head)])
            yield self._row(scene, "half of the nodes cut off for 4 s, head killed in it, recover --finish")

    def agents_by_srun(self) -> Iterator[Row]:
        """Run agents as job steps; kill and resume the head; kill an agent."""
        names = NODES[1:3]
        granted = self.cluster.run(f"salloc -N{len(names)} -w {','.join(names)} --no-shell")
        job = granted.stderr.split()[-1]
        try:
            words = ("--launcher", "srun", "--job", job)
            with self._recording("srun", names=names, words=words) as scene:
                self._play(scene, kill_head(2.1, 3))
                yield self._row(scene, "by srun: head killed while writing, recover")
            with self._recording("srun-agents", names=names, words=words) as scene:
                self._play(scene, [step for name in names for step in kill_agent(name, 2)])
                yield self._row(scene, "by srun: agents killed", may_lose=True)
        finally:
            self.cluster.run(["scancel", job])

    def a_full_disk(self) -> Iterator[Row]:
        """Fill the database's disk, and kill the head meanwhile."""
        long_cut = self.lengths.long_cut
        small = self.cluster.home / "small"
        small.mkdir()
        self.cluster.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(small)])
        try:
            login = self.cluster[NODES[0]]
            if self.lengths.heads_down:
                with self._recording("full", small) as scene:
                    self._play(scene, fill_database(2, long_cut, scene.db, login))
                    yield self._row(scene, f"database's disk full for {long_cut:g} s")
            with self._recording("full-killed", small) as scene:
                full = fill_database(2, 6, scene.db, login)
                self._play(
                    scene,
                    [
                        *full,
                        FaultStep(5, "head killed", FaultTest.kill_head),
                        FaultStep(9, "recover", FaultTest.recover),
                    ],
                )
                yield self._row(scene, "database's disk full for 6 s, head killed in it")
        finally:
            self.cluster.run(["umount", str(small)])
            small.rmdir()

    def killed_records(self) -> Iterator[Row]:
        """Kill viewers, the recorder and the command of ``gswarm-tui record`` at random moments."""
        kills, rng = self.lengths.kills, random.Random(self.seed)
        total, broken, restarts_s = kill_at_random(
            self.cluster, NODES[1:3], self.folder, kills, rng, self.tell
        )
        slowest = max(restarts_s)
        if self.lengths is LONG and slowest > BACK_S:
            broken.append(f"a recorder was back after {slowest:.1f} s")
        yield Row(f"record: {kills} kills, recorders back within {slowest:.1f} s", total, wrong=broken)

    def at_random(self) -> Iterator[Row]:
        """Inject random faults from the seed."""
        seconds = self.lengths.at_random
        with self._recording("random") as scene:
            self._play(scene, at_random(NODES[1:], seconds, random.Random(self.seed)))
            yield self._row(scene, f"all at random for {seconds:g} s, seed {self.seed}", may_lose=True)

    @contextmanager
    def _recording(
        self,
        name: str,
        folder: Path | None = None,
        names: Sequence[str] = NODES,
        words: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> Iterator[FaultTest]:
        db = (folder or self.folder) / f"{name}.duckdb"
        self.tell(f"recording {db}")
        with recording(self.cluster, names, db, words, env) as scene:
            yield scene

    def _play(self, scene: FaultTest, steps: Sequence[FaultStep]) -> None:
        scene.play(steps, self.tell)

    def _row(self, scene: FaultTest, fault: str, *, may_lose: bool = False) -> Row:
        scene.end()
        rows = [
            Row(f"{name}: {fault}", scene.count(name), may_lose, scene.wrong_coverage(name))
            for name in scene.names
        ]
        if wrong := [row for row in rows if row.problems]:
            self.tell(table(wrong))
        said = [
            f"{name}: {words}" for name, row in zip(scene.names, rows, strict=True) for words in row.wrong
        ]
        return Row(fault, reduce(add, (row.count for row in rows)), may_lose, said)


PARTS: Mapping[str, Callable[[Suite], Iterator[Row]]] = {
    "nodes": Suite.faults_of_nodes,
    "head": Suite.faults_of_the_head,
    "srun": Suite.agents_by_srun,
    "disk": Suite.a_full_disk,
    "record": Suite.killed_records,
    "random": Suite.at_random,
}
"""The parts of the suite; each makes one or more recordings."""

NOTES = """\
¹ The kernel has no namespace for the wall clock: a shim in the process shifts the clock that it reads.
² As namespaces can do it: another boot id, /tmp empty, /var/tmp kept; what isn't on a disk yet isn't lost.
"""
