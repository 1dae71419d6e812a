"""Faults of nodes and of the head as steps, single or at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cluster.faults.clock import ProgramClock
from tests.cluster.faults.scene import FaultStep, FaultTest
from tests.cluster.node import ClusterNode

BOOT_S = 3.0
_FILLER = "/var/tmp/filler"  # on the node
_HOUR = 3600


def cut(name: str, at: float, seconds: float) -> list[FaultStep]:
    """Disconnect the node's network cable for some seconds."""
    return [
        FaultStep(at, f"{name}: cut off", lambda scene: scene.cluster[name].partition()),
        FaultStep(at + seconds, f"{name}: connected again", lambda scene: scene.cluster[name].heal()),
    ]


def end_connections(name: str, at: float) -> list[FaultStep]:
    """Kill the sshd sessions."""
    act: Callable[[FaultTest], None] = lambda scene: scene.cluster[name].end_connections()  # noqa: E731
    return [FaultStep(at, f"{name}: sshd's sessions killed", act)]


def stop_sshd(name: str, at: float, seconds: float) -> list[FaultStep]:
    """Stop sshd for some seconds."""
    return [
        FaultStep(at, f"{name}: sshd stopped", lambda scene: scene.cluster[name].stop_sshd()),
        FaultStep(at + seconds, f"{name}: sshd started", lambda scene: scene.cluster[name].start_sshd()),
    ]


def kill_agent(name: str, at: float) -> list[FaultStep]:
    """SIGKILL the agent."""
    return [FaultStep(at, f"{name}: agent killed", lambda scene: scene.kill_agent(name))]


def reboot(name: str, at: float, *, power_lost: bool) -> list[FaultStep]:
    """Shut the node down and boot it some seconds later."""
    how = "power lost" if power_lost else "shut down"
    return [
        FaultStep(at, f"{name}: {how}", lambda scene: scene.shut_down(name, power_lost=power_lost)),
        FaultStep(at + BOOT_S, f"{name}: up again", lambda scene: scene.cluster[name].start_sshd()),
    ]


def fill_disk(name: str, at: float, seconds: float) -> list[FaultStep]:
    """Fill the node's disk for some seconds."""

    def fill(scene: FaultTest) -> None:
        node = scene.cluster[name]
        node.run("mount -o remount,size=4m /var/tmp")
        node.run(f"cat /dev/zero >{_FILLER}", check=False)

    def free(scene: FaultTest) -> None:
        scene.cluster[name].run(f"rm {_FILLER}; mount -o remount,size=50% /var/tmp")

    return [
        FaultStep(at, f"{name}: disk full", fill),
        FaultStep(at + seconds, f"{name}: disk has room again", free),
    ]


def step_clock(whose: str, at: float, clock: ProgramClock, hours: float) -> list[FaultStep]:
    """Set the wall clock of a node or the head this far ahead of the true time."""
    words = f"{whose}: clock {hours:+g} h off"
    return [FaultStep(at, words, lambda _scene: clock.set(round(hours * _HOUR)))]


def kill_head(at: float, down_s: float) -> list[FaultStep]:
    """SIGKILL the head and resume the recording after ``down_s``."""
    return [
        FaultStep(at, "head killed", FaultTest.kill_head),
        FaultStep(at + down_s, "recover", FaultTest.recover),
    ]


def fill_database(at: float, seconds: float, db: Path, node: ClusterNode) -> list[FaultStep]:
    """Fill the database's small file system for some seconds."""
    filler = db.with_name("filler")
    fill = f"cat /dev/zero >{filler}"
    return [
        FaultStep(at, "database's disk full", lambda _scene: _run_at_login(node, fill)),
        FaultStep(at + seconds / 2, "the head says so", lambda scene: scene.wait_for("its disk is full")),
        FaultStep(at + seconds, "database's disk has room again", lambda _scene: filler.unlink()),
    ]


def _run_at_login(node: ClusterNode, command: str) -> None:
    node.login.run(command, check=False)


def at_random(names: Sequence[str], seconds: float, rng: random.Random) -> list[FaultStep]:
    """Return random faults on every node, and repeated kills of the head."""
    steps: list[FaultStep] = []
    lengths = [length for length in (1, 4, 10, 22) if length <= seconds / 2]
    for name in names:
        at = rng.uniform(1, 5)
        while at < seconds:
            lasts = rng.choice(lengths)
            made = rng.choice(
                (
                    cut(name, at, lasts),
                    end_connections(name, at),
                    kill_agent(name, at),
                    [*cut(name, at, lasts), *kill_agent(name, at + rng.uniform(0, lasts))],
                    reboot(name, at, power_lost=rng.random() < 0.5),
                    [*fill_disk(name, at, lasts + 2), *cut(name, at + 1, lasts)],
                )
            )
            steps += made
            at = max(step.at for step in made) + rng.uniform(2, 6)
    at = rng.uniform(4, 10)
    while at < seconds:
        down_s = rng.choice((0.2, 2, 8))
        steps += kill_head(at, down_s)
        at += down_s + rng.uniform(5, 25)
    return steps
