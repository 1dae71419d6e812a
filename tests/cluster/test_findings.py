"""Findings on real nodes: ranks that ``srun`` started, on GPUs whose values follow a job in lock-step."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.person import user_env
from tests.cluster.running import tail, wait_until
from tests.cluster.standin import GpuProcess, Scenario, StandinGpu
from tests.terminal import PATIENCE_S

NODES = ("gpu01", "gpu02", "gpu04")
GPUS = 8
SPEED = float(os.environ.get("GSWARM_TUI_RULES_SPEED", "20"))
"""All times of the rules are so many times shorter; 1 for the times that users have."""
INTERVAL_S = max(0.25, 5 / SPEED) if SPEED > 5 else 1.0
USUAL_S = 300.0
"""Time in which the job runs well at first: the rules compare what comes with the minutes before."""
RANK = (
    'echo $SLURM_PROCID $$ >"$1/new-$SLURM_PROCID"; '
    'mv "$1/new-$SLURM_PROCID" "$1/$SLURMD_NODENAME-$SLURM_LOCALID"; exec sleep 10000'
)
"""A rank writes down its pid and then computes on its GPU, as far as NVML can tell."""
Gpu = tuple[str, int]
Named = tuple[str, str, str | None, int | None, int | None]
"""Severity, kind, node, GPU and rank of a finding."""
STEADY = {"memory_utilization_percent": 45}
"""Levels of the GPU that all others wait for: it works all the time."""
OF_THE_MACHINE = "few_cores", "oversubscribed"
"""Kinds that are true here: all nodes share the few cores of this machine with other tests."""
PORT = "/run/class/infiniband/mlx5_0/ports/1"
PORTS = """
mkdir -p /run/class/net {port} && echo "4: ACTIVE" >{port}/state
echo "5: LinkUp" >{port}/phys_state; echo "400 Gb/sec (4X NDR)" >{port}/rate
mount --rbind /sys/class/net /run/class/net && mount --rbind /run/class /sys/class
""".replace("{port}", PORT)
"""Gives a node a port of an adapter, as in the kernel's Documentation/ABI/stable/sysfs-class-infiniband."""
NO_PORTS = "umount -R /sys/class && umount -R /run/class/net && rm -r /run/class"


class LockStep:
    """A job with a rank on each GPU that exchanges gradients after each step, as NVML reports it.

    While one GPU computes more slowly, all others wait for it in a collective operation: they stay busy, but
    read less memory, draw less power and move fewer bytes.
    """

    def __init__(self, cluster: Cluster, pids: dict[Gpu, int]) -> None:
        self.pids = pids
        self._cluster = cluster
        self._nodes = {name: Scenario.of(name, GPUS) for name in NODES}
        self.run()

    def run(self, pace: float = 1.0, culprits: Sequence[Gpu] = (), **levels: int) -> None:
        """Let the job run at a share of its full pace, because of GPUs that have other levels."""
        for name, scenario in self._nodes.items():
            for index, gpu in enumerate(scenario.gpus):
                self._set(gpu, (name, index), pace)
                if (name, index) in culprits:
                    for level, value in levels.items():
                        setattr(gpu, level, value)
            scenario.write(self._cluster[name].scenario)

    def _set(self, gpu: StandinGpu, place: Gpu, pace: float) -> None:
        pid = self.pids.get(place)
        busy = pid is not None
        gpu.processes = [GpuProcess(pid, 60_000, sm_percent=95)] if pid is not None else []
        gpu.utilization_percent = 99 * busy
        gpu.memory_utilization_percent = round(45 * pace) * busy
        gpu.memory_used_mib = 60_000 * busy
        gpu.power_mw = gpu.power_instant_mw = round(250_000 + 400_000 * pace) if busy else 70_000
        gpu.sm_clock_mhz = gpu.graphics_clock_mhz = 1755 if busy else 345
        gpu.clock_reasons = 0 if busy else 0x1
        gpu.temperature_c, gpu.throttle_sw_thermal_ns_per_s, gpu.pcie_width = 62, 0, 16
        gpu.gpm = {2: 85 * pace * busy, 5: 50 * pace * busy, 10: 40 * pace * busy}
        gpu.nvlink_tx_kib_per_s = gpu.nvlink_rx_kib_per_s = round(60_000_000 * pace) * busy
        gpu.pcie_tx_bytes_per_s = gpu.pcie_rx_bytes_per_s = round(2_000_000_000 * pace) * busy


class Recording:
    """A recording that is being written, and the findings that it must have so far."""

    def __init__(self, cluster: Cluster, db: Path, log: Path) -> None:
        self.db, self.log = db, log
        self.named: set[Named] = set()
        self.env = user_env(cluster) | {"GSWARM_TUI_RULES_SPEED": f"{SPEED:g}"}

    def json(self, *words: str) -> Any:
        """Run a command on it; return the JSON that it prints."""
        words = ("gswarm-tui", *words, "--json", f"--db={self.db}")
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr + tail(self.log)
        return json.loads(done.stdout)

    def found(self, where: str = "true") -> dict[Named, str]:
        """Return what the recorder has found that ends the job or costs it time, with the sentences."""
        return found_in(self.json("sql", f"SELECT *, gpu_index AS gpu FROM findings WHERE {where}"))

    def wait_for(self, condition: Callable[[], object], what: str, seconds: float) -> None:
        """Wait for what takes so much of the rules' time."""
        wait_until(condition, what, self.log, timeout=seconds / SPEED + PATIENCE_S)

    def wait_measured(self, seconds: float, where: str) -> None:
        """Wait until samples like these span so much of the rules' time."""
        query = f"SELECT coalesce(epoch(max(ts) - min(ts)), -1) AS s FROM samples WHERE {where}"
        self.wait_for(lambda: self.json("sql", query)[0]["s"] >= seconds / SPEED, where, seconds)

    def wait_named(self, *new: Named) -> None:
        """Wait until these are found within five minutes, and nothing else is in the half-minute after.

        Commands divide the recording into other steps than the recorder, so that faults have to last longer.
        """
        self.named |= {*new}
        self.wait_for(lambda: len(self.found()) >= len(self.named), f"the findings {new}", 300)
        self.wait_measured(30, f"epoch(ts) > {time.time()}")
        assert self.found().keys() == self.named, self.found().values()

    def wait_closed(self) -> None:
        """Wait until no finding holds any more."""
        self.wait_for(lambda: not self.found("until IS NULL"), "the end of the findings", 300)


def found_in(findings: Sequence[Mapping[str, Any]]) -> dict[Named, str]:
    """Return who is named by findings that aren't notes, with their sentences."""
    return {
        (one["severity"], one["kind"], one["node"], one["gpu"], one["rank"]): one["sentence"]
        for one in findings
        if one["severity"] != "note" and one["kind"] not in OF_THE_MACHINE
    }


@contextmanager
def training(cluster: Cluster, folder: Path) -> Iterator[tuple[LockStep, Recording]]:
    """Record a job of Slurm's that runs a rank on each GPU."""
    for name in NODES:
        cluster[name].run(PORTS)
    nodes = f"-N{len(NODES)} -w {','.join(NODES)} --ntasks-per-node={GPUS} --gres=gpu:{GPUS}"
    job = cluster.run(f"salloc {nodes} --no-shell").stderr.split()[-1]
    recording = Recording(cluster, folder / "run.duckdb", folder / "record.log")
    step = ["srun", f"--jobid={job}", f"--ntasks={GPUS * len(NODES)}", "--kill-on-bad-exit=0"]
    words = ["gswarm-tui", "record", f"--job={job}", f"--interval={INTERVAL_S}", f"--db={recording.db}"]
    words += ["--", *step, "bash", "-c", RANK, "rank", str(folder)]
    with recording.log.open("w") as log:
        popen = subprocess.Popen(words, env=recording.env, cwd=folder, stdout=log, stderr=log)
    try:

        def ranks() -> list[Path]:
            assert popen.poll() is None, recording.log.read_text()
            return list(folder.glob("gpu??-?"))

        wait_until(lambda: len(ranks()) == len(NODES) * GPUS, "the start of all ranks", recording.log)
        pids = {(path.name[:5], int(path.name[6:])): int(path.read_text().split()[1]) for path in ranks()}
        yield LockStep(cluster, pids), recording
    finally:
        cluster.run(["scancel", job])
        popen.wait(60)
        for name in NODES:
            Scenario.of(name, GPUS).write(cluster[name].scenario)
            cluster[name].run(NO_PORTS)


@pytest.mark.timeout(360 + 3600 / SPEED)
def test_findings_name_who_is_at_fault_on_real_nodes(cluster: Cluster, tmp_path: Path) -> None:
    folder = cluster.home / tmp_path.name
    folder.mkdir()
    with training(cluster, folder) as (job, recording):
        recording.wait_measured(USUAL_S, "util_pct > 90")
        assert not recording.found(), "nothing is wrong yet"

        job.run(0)
        recording.wait_named(("fault", "hang", None, None, None))
        # Agents read links and ports every 10 s, whatever the speed of the rules.
        job.run(1.0, [("gpu02", 6)], **STEADY, pcie_width=4)
        recording.wait_measured(0, "pcie_width = 4")
        recording.wait_closed()

        job.run(0.8, [("gpu02", 6)], **STEADY, pcie_width=4)
        recording.wait_named(("waste", "pcie_degraded", "gpu02", 6, GPUS + 6))

        heat = {"sm_clock_mhz": 1300, "temperature_c": 89, "throttle_sw_thermal_ns_per_s": 900_000_000}
        job.run(0.75, [("gpu02", 3)], **STEADY, **heat, clock_reasons=0x20)
        cluster["gpu01"].run(f"echo 1: DOWN >{PORT}/state")
        recording.wait_named(
            ("waste", "thermal", "gpu02", 3, GPUS + 3), ("fault", "port_down", "gpu01", None, None)
        )
        cluster["gpu01"].run(f"echo 4: ACTIVE >{PORT}/state")

        job.run(0.6, [("gpu04", index) for index in range(GPUS)], utilization_percent=60)
        recording.wait_named(("waste", "input_straggler", "gpu04", None, None))
        job.run()
        recording.wait_closed()

        cluster["gpu01"].run(f"kill -KILL {job.pids.pop(('gpu01', 5))}")
        job.run(0)
        recording.wait_named(("fault", "rank_died", "gpu01", 5, 5))
        told = found_in(recording.json("diagnose")["findings"])
        assert told.keys() == recording.named, told.values()
