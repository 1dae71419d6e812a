"""The simulated fleet: reproducible and plausible, with problems to find."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import mean

import pytest

from gswarm_agent.frame import Row
from gswarm_agent.metrics import (
    ALL_GROUPS,
    COUNTER,
    GPU_COLUMNS,
    GPU_METRICS,
    HOST_COLUMNS,
    PROCESS_COLUMNS,
    RATE,
    REASON_SW_THERMAL,
)
from gswarm_agent.probes.base import TickSamples
from gswarm_agent.probes.gpus.simulated import HOT, LOADER, traits
from gswarm_agent.simulated import SimulatedNode, Simulation, parse_simulation

SECOND = 1_000_000_000


def fleet(nodes: int, gpus: int = 8, seed: int = 1) -> list[Simulation]:
    return [Simulation(f"sim{i:03d}", i, nodes, gpus, seed, origin_ns=0) for i in range(nodes)]


def readings(
    simulation: Simulation, until_s: int, begin_s: int = 0, step_s: float = 1.0
) -> list[TickSamples]:
    node = SimulatedNode(simulation)
    count = int((until_s - begin_s) / step_s)
    return [node.read(begin_s * SECOND + round(n * step_s * SECOND)) for n in range(count)]


def column(found: Sequence[TickSamples], gpu: int, name: str) -> list[float]:
    place = GPU_COLUMNS.index(name)
    rows = [reading.gpus[gpu] for reading in found]
    return [number for row in rows if row is not None and (number := row[place]) is not None]


def host_column(found: Sequence[TickSamples], name: str) -> list[float]:
    place = HOST_COLUMNS.index(name)
    return [number for r in found if r.host is not None and (number := r.host[place]) is not None]


def one_with(trait: str, nodes: int = 8) -> Simulation:
    return next(s for s in fleet(nodes) if trait in traits(s))


def test_seed_name_and_time_determine_everything() -> None:
    simulation = fleet(4)[2]
    assert readings(simulation, 90) == readings(simulation, 90)
    late = SimulatedNode(simulation)
    late.read(88 * SECOND)
    assert late.read(89 * SECOND).gpus == readings(simulation, 90)[-1].gpus
    assert SimulatedNode(simulation).facts() == SimulatedNode(simulation).facts()


def test_all_groups_that_can_be_switched_on_have_values() -> None:
    node = SimulatedNode(fleet(1)[0])
    node.switch(ALL_GROUPS)
    found = [node.read(second * SECOND) for second in (60, 61)]
    assert not [name for name in HOST_COLUMNS if not host_column(found, name)]


def test_another_seed_or_name_is_another_node() -> None:
    a, b = fleet(2)
    other = fleet(2, seed=2)[0]
    assert readings(a, 30) != readings(b, 30)
    assert readings(a, 30) != readings(other, 30)
    assert SimulatedNode(a).facts()[0].boot_id != SimulatedNode(b).facts()[0].boot_id


def test_rows_follow_the_catalogue_and_stay_on_their_scales() -> None:
    tops = [(place, metric) for place, metric in enumerate(GPU_METRICS) if metric.top is not None]
    for simulation in fleet(8):
        for reading in readings(simulation, 130, step_s=2.5):
            assert reading.host is not None
            assert len(reading.host) == len(HOST_COLUMNS)
            for row in reading.gpus:
                assert row is not None
                assert len(row) == len(GPU_COLUMNS)
                for place, metric in tops:
                    number = row[place]
                    assert number is None or 0 <= number <= (metric.top or 0), metric.name
            for process in reading.processes or ():
                assert len(process.row) == len(PROCESS_COLUMNS)


def test_the_first_samples_have_no_rates() -> None:
    first, second = readings(fleet(1)[0], 2)

    def unmeasured(row: Row | None) -> set[str]:
        assert row is not None
        return {metric.name for metric, number in zip(GPU_METRICS, row, strict=True) if number is None}

    rates = {metric.name for metric in GPU_METRICS if metric.kind == RATE}
    assert unmeasured(first.gpus[0]) == {*rates, "module_power_w"}
    lacking = SimulatedNode(fleet(1)[0]).facts()[2].keys()
    assert unmeasured(second.gpus[0]) == {*lacking, "module_power_w"}


def test_counters_only_grow() -> None:
    for simulation in fleet(8):
        found = readings(simulation, 100)
        for metric in GPU_METRICS:
            if metric.kind == COUNTER:
                for gpu in range(8):
                    assert all(a <= b for a, b in pairwise(column(found, gpu, metric.name)))


def test_energy_is_the_integral_of_power() -> None:
    found = readings(fleet(4)[1], 181, begin_s=60, step_s=0.5)
    for gpu in range(8):
        energy = column(found, gpu, "energy_mj")
        joules = (energy[-1] - energy[0]) / 1000
        assert joules == pytest.approx(sum(column(found, gpu, "power_w")[:-1]) * 0.5, rel=0.03)


def test_most_gpus_are_busy_and_the_odd_ones_stand_out() -> None:
    for nodes in (2, 8, 64):
        levels = [
            mean(column(readings(s, 52, begin_s=30, step_s=4), gpu, "util_pct"))
            for s in fleet(nodes)
            for gpu in range(8)
        ]
        busy = sum(level > 85 for level in levels) / len(levels)
        assert 0.7 < busy < 1
        assert min(levels) == 0


def test_the_job_warms_up_and_writes_checkpoints() -> None:
    simulation = next(s for s in fleet(16) if not traits(s))
    found = readings(simulation, 130)
    util, memory = column(found, 0, "util_pct"), column(found, 0, "mem_used_mib")
    assert util[0] < 5
    assert memory[0] < 2_000 < 60_000 < memory[20]
    dips = [second for second in range(20, 130) if util[second] < 15]
    assert dips == [57, 58, 59, 117, 118, 119]
    written = host_column(found, "disk_write_mb_s")
    assert mean(written[second - 1] for second in dips) > 100 * mean(written[20:50])


def test_a_hot_gpu_throttles_for_heat_and_cools_down_again() -> None:
    found = readings(one_with(HOT), 200, begin_s=20)
    throttled = [gpu for gpu in range(8) if max(column(found, gpu, "throttle_thermal_pct"), default=0) > 50]
    assert len(throttled) == 2
    for reading in found:
        for gpu in throttled:
            row = dict(zip(GPU_COLUMNS, reading.gpus[gpu] or (), strict=True))
            if (row["throttle_thermal_pct"] or 0) > 50:
                assert int(row["clock_reasons"] or 0) & REASON_SW_THERMAL
                assert (row["temp_c"] or 0) >= 84
                assert (row["sm_clock_mhz"] or 0) < 1_700
    assert min(column(found, throttled[0], "throttle_thermal_pct")) == 0


def test_a_starved_node_waits_for_its_disks() -> None:
    starved, well = one_with(LOADER), next(s for s in fleet(8) if not traits(s))
    slow, quick = readings(starved, 56, begin_s=15), readings(well, 56, begin_s=15)
    assert mean(host_column(slow, "cpu_iowait_pct")) > 5 + mean(host_column(quick, "cpu_iowait_pct"))
    assert mean(column(slow, 0, "util_pct")) < 0.8 * mean(column(quick, 0, "util_pct"))


def test_a_simulation_travels_as_json() -> None:
    text = '{"node": "a", "index": 1, "nodes": 3, "gpus": 4, "seed": 9, "origin_ns": 5}'
    assert parse_simulation(text) == Simulation("a", 1, 3, 4, 9, 5)
