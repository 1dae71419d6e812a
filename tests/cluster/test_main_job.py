"""The main use end to end: salloc, gswarm-tui, a session, quit, SQL; checked against known values."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.person import allocated, ask, every_tick_is_a_frame, fill, leave, start, wait_seconds
from tests.cluster.standin import GpuProcess, Scenario, read_counters

NODES = ("gpu01", "gpu02", "gpu03")
GPUS = 8
INTERVAL_S = 0.5
# A reading takes a moment, and the two wall clocks of a test are one: this is what times may differ by.
SLACK_S = 0.25
# Memory, temperature and shares of time are read once a second, and rows in between repeat them.
PERIOD_S = 1.0
BEFORE, AFTER = 0, 1


def util(node: str, gpu: int, phase: int) -> int:
    """Return a utilisation that is unique for GPU and phase: 1, 3, 5 … and 2, 4, 6 …."""
    return 1 + 2 * (NODES.index(node) * GPUS + gpu) + phase


def power_mw(node: str, gpu: int, phase: int) -> int:
    return 100_000 + 10_000 * util(node, gpu, phase)


def set_levels(scenario: Scenario, node: str, phase: int) -> None:
    for index, gpu in enumerate(scenario.gpus):
        gpu.utilization_percent = util(node, index, phase)
        gpu.power_mw = power_mw(node, index, phase)
        gpu.memory_used_mib = 1000 * (index + 1) + phase
        gpu.temperature_c = 30 + index + 20 * phase
        gpu.nvlink_tx_kib_per_s = 1000 * (index + 1)
        gpu.throttle_power_ns_per_s = 250_000_000 * phase


@pytest.fixture
def scenarios(cluster: Cluster) -> Iterator[dict[str, Scenario]]:
    """Write each node's scenario for the first phase; restore it at the end."""
    made = {}
    for name in NODES:
        node = cluster[name]
        made[name] = Scenario.of(name, GPUS)
        set_levels(made[name], name, BEFORE)
        made[name].write(node.scenario)
    yield made
    for name in NODES:
        Scenario.of(name, GPUS).write(cluster[name].scenario)


@dataclass
class MainJob:
    """A finished recording and the Unix times of the user's actions."""

    db: Path
    changed_at: dict[str, float]
    pid: int
    session_started: tuple[float, float]
    session_stopped: tuple[float, float]
    truth: dict[str, dict[str, dict[str, Any]]]

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        return ask(self.db, sql)


@pytest.fixture
def run(cluster: Cluster, scenarios: dict[str, Scenario], tmp_path: Path) -> MainJob:
    db = tmp_path / "run.duckdb"
    with (
        cluster["gpu02"].spawn("sleep 600") as pid,
        allocated(cluster, "-N3 --gres=gpu:8") as terminal,
    ):
        scenarios["gpu02"].gpus[5].processes.append(GpuProcess(pid, used_mib=4321, sm_percent=77))
        scenarios["gpu02"].write(cluster["gpu02"].scenario)
        start(terminal, f"--nodes $(scontrol show hostnames) --interval {INTERVAL_S} --db {db}")
        terminal.wait_for("nodes 3/3")
        terminal.wait_for(re.compile(r"^ gpu03 .* 47 ", re.MULTILINE))
        before = time.time()
        terminal.press("s")
        terminal.wait_for("start session")
        fill(terminal, "lr=3e-4 [bold]; DROP TABLE x")
        terminal.press("Enter")
        terminal.wait_gone("start session")
        started = (before, time.time())
        wait_seconds(terminal, 3)
        changed = {}
        for name in NODES:
            set_levels(scenarios[name], name, AFTER)
            at_ns = scenarios[name].write(cluster[name].scenario)
            changed[name] = time.time() - (time.monotonic_ns() - at_ns) / 1e9
        terminal.wait_for(re.compile(r"^ gpu03 .* 48 ", re.MULTILINE))
        wait_seconds(terminal, 3)
        before = time.time()
        terminal.press("x")
        terminal.wait_for("stopped lr=3e-4")
        stopped = (before, time.time())
        status, said = leave(terminal)
        assert status == 0, said
        truth = {name: read_counters(cluster[name].scenario) for name in NODES}
    return MainJob(db, changed, pid, started, stopped, truth)


def test_sql_returns_exactly_the_simulated_values(run: MainJob) -> None:
    levels_are_the_scenarios(run)
    every_tick_is_a_frame(run.db, INTERVAL_S)
    each_frame_has_all_gpus_once(run)
    counters_are_the_scenarios(run)
    the_session_has_its_bounds(run)
    the_process_is_there(run)
    the_summary_agrees(run)


def levels_are_the_scenarios(run: MainJob) -> None:
    """Assert that each GPU has the first phase's values until the change, and the second's from then on."""
    gpus = run.query("SELECT node, gpu_index FROM gpus JOIN nodes USING (node_id) ORDER BY ALL")
    assert gpus == [(node, gpu) for node in NODES for gpu in range(GPUS)]
    rows = run.query(
        "SELECT node, gpu_index, epoch(ts), util_pct, power_w, mem_used_mib, temp_c, throttle_power_pct "
        "FROM samples ORDER BY ts"
    )
    seen = set()
    shares: dict[int, list[float]] = {BEFORE: [], AFTER: []}
    for node, gpu, ts, *values, throttled in rows:
        past = ts - run.changed_at[node]
        if abs(past) < SLACK_S:
            continue
        phase = AFTER if past > 0 else BEFORE
        seen.add((node, gpu, phase))
        assert values[:2] == [util(node, gpu, phase), power_mw(node, gpu, phase) / 1000]
        if abs(past) > SLACK_S + PERIOD_S:
            assert values[2:] == [1000 * (gpu + 1) + phase, 30 + gpu + 20 * phase]
        if throttled is not None and abs(past) > SLACK_S + 2 * PERIOD_S:
            shares[phase].append(throttled)
    assert len(seen) == len(NODES) * GPUS * 2
    for phase, throttled_pct in shares.items():  # one is off where its reading was held up
        assert median(throttled_pct) == pytest.approx(25 * phase, rel=0.1)


def each_frame_has_all_gpus_once(run: MainJob) -> None:
    """Assert that each frame has one row per GPU, and that no frame was lost."""
    for node in NODES:
        counts = run.query(
            f"SELECT count(*), count(DISTINCT ts) FROM samples WHERE node = '{node}' GROUP BY gpu_index"
        )
        [(frames,)] = run.query(
            f"SELECT count(*) FROM host_samples JOIN nodes USING (node_id) WHERE node = '{node}'"
        )
        assert counts == [(frames, frames)] * GPUS
    assert run.query("SELECT sum(lost_frames), sum(reconnects) FROM links") == [(0, 0)]


def counters_are_the_scenarios(run: MainJob) -> None:
    """Assert that energy is the counter's value at the sample's time, and NVLink traffic its growth."""
    # A pause between the two makes it less. Times are whole milliseconds.
    boot_ns = max(time.time_ns() - time.monotonic_ns() for _ in range(9))
    slack_ns = int(SLACK_S * 1e9)
    energies = run.query(
        "SELECT node, uuid, epoch_us(ts), energy_mj "
        "FROM gpu_samples JOIN gpus USING (gpu_id) JOIN nodes USING (node_id) WHERE energy_mj IS NOT NULL"
    )
    assert {(node, uuid) for node, uuid, *_ in energies} == {(n, u) for n in NODES for u in run.truth[n]}
    for node, uuid, us, energy in energies:
        counter = run.truth[node][uuid]["energy_mj"]
        at_ns = us * 1000 - boot_ns
        assert counter.at(at_ns - 500_000) - 1 <= energy <= counter.at(at_ns + slack_ns)
    rates = run.query(
        "SELECT gpu_index, median(nvlink_tx_mb_s), count(nvlink_tx_mb_s), count(*) FROM samples GROUP BY ALL"
    )
    for gpu, rate, measured, samples in rates:
        assert rate == pytest.approx(1.024 * (gpu + 1), rel=0.02)
        # A rate needs two readings, of which the second comes within a second.
        assert samples - len(NODES) * (1 + PERIOD_S / INTERVAL_S) <= measured <= samples - len(NODES)


def the_session_has_its_bounds(run: MainJob) -> None:
    [(name, started, ended, status)] = run.query(
        "SELECT name, epoch(started_at), epoch(ended_at), status FROM sessions"
    )
    assert name == "lr=3e-4 [bold]; DROP TABLE x"
    assert run.session_started[0] <= started <= run.session_started[1]
    assert run.session_stopped[0] <= ended <= run.session_stopped[1]
    assert status == "stopped"


def the_process_is_there(run: MainJob) -> None:
    found = run.query(
        "SELECT DISTINCT node, gpu_index, pid, user_name, command, gpu_memory_mib, sm_pct "
        "FROM process_samples JOIN gpus USING (gpu_id) JOIN nodes USING (node_id) WHERE sm_pct IS NOT NULL"
    )
    assert found == [("gpu02", 5, run.pid, "root", "sleep 600", 4321, 77)]


def the_summary_agrees(run: MainJob) -> None:
    """Assert that the summary's mean is that of both phases, and its energy is power times duration."""
    rows = run.query(
        "SELECT node, gpu_index, util_mean_pct, util_max_pct, energy_j, power_mean_w * duration_s, coverage "
        "FROM session_summary WHERE scope = 'gpu'"
    )
    assert len(rows) == len(NODES) * GPUS
    for node, gpu, mean, most, energy_j, by_power_j, coverage in rows:
        assert util(node, gpu, BEFORE) < mean < util(node, gpu, AFTER) == most
        assert energy_j == pytest.approx(by_power_j, rel=0.15)
        assert coverage > 0.8
