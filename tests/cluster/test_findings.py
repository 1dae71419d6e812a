"""Findings on real nodes: ranks that ``srun`` started, on GPUs whose values follow a job in lock-step."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
    'mv "$1/new-$SLURM_PROCID" "$1/$SLURMD_NODENAME-$SLURM_LOCALID"; exec sleep 3000'
)
"""A rank writes down its pid and then computes on its GPU, as far as NVML can tell."""
Gpu = tuple[str, int]
OF_THE_MACHINE = "few_cores", "oversubscribed"
"""Kinds that are true here: all nodes share the few cores of this machine with other tests."""


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
    """A recording that is being written."""

    def __init__(self, cluster: Cluster, db: Path, log: Path) -> None:
        self.db, self.log = db, log
        self._known: set[int] = set()
        self.env = user_env(cluster) | {"GSWARM_TUI_RULES_SPEED": f"{SPEED:g}"}

    def json(self, *words: str) -> Any:
        """Run a command on it; return the JSON that it prints."""
        words = ("gswarm-tui", *words, "--json", f"--db={self.db}")
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr + tail(self.log)
        return json.loads(done.stdout)

    def sql(self, query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.json("sql", query)
        return found

    def found(self) -> list[dict[str, Any]]:
        """Return what the recorder has found that ends the job or costs it time, oldest first."""
        return self.sql(
            "SELECT * FROM findings WHERE severity <> 'note' "
            f"AND kind NOT IN {OF_THE_MACHINE} ORDER BY finding_id"
        )

    def wait_for(self, condition: Callable[[], object], what: str, seconds: float) -> None:
        """Wait for what takes so much of the rules' time."""
        wait_until(condition, what, self.log, timeout=seconds / SPEED + PATIENCE_S)

    def wait_measured(self, seconds: float, where: str) -> None:
        """Wait until samples like these span so much of the rules' time."""
        query = f"SELECT coalesce(epoch(max(ts) - min(ts)), -1) AS s FROM samples WHERE {where}"
        self.wait_for(lambda: self.sql(query)[0]["s"] >= seconds / SPEED, where, seconds)

    def wait_for_next(self, *first: object) -> None:
        """Wait for new findings, of which the first must have this severity, kind, node, GPU and rank."""
        self.wait_for(lambda: len(self.found()) > len(self._known), f"the finding {first}", 600)
        new = [one for one in self.found() if one["finding_id"] not in self._known]
        columns = "severity", "kind", "node", "gpu_index", "rank"
        assert tuple(new[0][name] for name in columns) == first, [one["sentence"] for one in new]
        self._known |= {one["finding_id"] for one in new}

    def wait_closed(self) -> None:
        """Wait until no finding holds any more."""
        self.wait_for(lambda: all(one["until"] for one in self.found()), "the end of the findings", 300)
        self._known = {one["finding_id"] for one in self.found()}


@contextmanager
def training(cluster: Cluster, folder: Path) -> Iterator[tuple[LockStep, Recording]]:
    """Record a job of Slurm's that runs a rank on each GPU."""
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


def test_findings_name_who_is_at_fault_on_real_nodes(cluster: Cluster, tmp_path: Path) -> None:
    folder = cluster.home / tmp_path.name
    folder.mkdir()
    with training(cluster, folder) as (job, recording):
        recording.wait_measured(USUAL_S, "util_pct > 90")
        assert recording.found() == [], "nothing is wrong yet"

        job.run(
            *(0.75, [("gpu02", 3)]),
            memory_utilization_percent=45,
            sm_clock_mhz=1300,
            temperature_c=89,
            clock_reasons=0x20,
            throttle_sw_thermal_ns_per_s=900_000_000,
        )
        recording.wait_for_next("waste", "thermal", "gpu02", 3, GPUS + 3)
        # The recording has steps at other moments than the recorder, so the heat lasts for several windows.
        recording.wait_measured(240, "node = 'gpu02' AND gpu_index = 3 AND throttle_thermal_pct > 50")
        job.run()
        recording.wait_closed()

        cluster["gpu01"].run(f"kill -KILL {job.pids.pop(('gpu01', 5))}")
        job.run(0)
        recording.wait_for_next("fault", "rank_died", "gpu01", 5, 5)
        told = [one for one in recording.json("diagnose")["findings"] if one["kind"] not in OF_THE_MACHINE]
        assert sorted(
            (one["severity"], one["kind"], one["node"], one["gpu"])
            for one in told
            if one["severity"] != "note"
        ) == [
            ("fault", "rank_died", "gpu01", 5),
            ("waste", "thermal", "gpu02", 3),
        ]
