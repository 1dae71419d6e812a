"""The simulated fleet: reproducible and plausible, with one fault to find."""

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
from gswarm_agent.probes.gpus.simulated import HEAT_FROM_S, hot_gpu
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


def test_the_job_warms_up_and_writes_checkpoints() -> None:
    found = readings(fleet(16)[3], 130)
    util, memory = column(found, 0, "util_pct"), column(found, 0, "mem_used_mib")
    assert util[0] < 5
    assert memory[0] < 2_000 < 60_000 < memory[20]
    dips = [second for second in range(20, 130) if util[second] < 15]
    assert dips == [59, 119]
    written = host_column(found, "disk_write_mb_s")
    assert mean(written[second - 1] for second in dips) > 100 * mean(written[20:50])


def test_one_gpu_overheats_and_all_others_wait_for_it() -> None:
    simulations = fleet(4)
    hot = hot_gpu(1, 4, 8)
    for simulation in simulations:
        before = readings(simulation, 110, begin_s=70)
        after = readings(simulation, round(HEAT_FROM_S) + 50, begin_s=round(HEAT_FROM_S) + 20)
        for gpu in range(8):
            change = {
                name: mean(column(after, gpu, name)) / mean(column(before, gpu, name))
                for name in ("util_pct", "nvlink_tx_mb_s", "sm_clock_mhz", "mem_util_pct", "power_w")
            }
            assert change["util_pct"] > 0.95, "GPUs that wait are busy"
            assert change["nvlink_tx_mb_s"] < 0.87
            assert change["power_w"] < 0.9
            is_hot = (simulation.index, gpu) == hot
            assert (change["sm_clock_mhz"] < 0.85) == is_hot
            assert (change["mem_util_pct"] > 0.95) == is_hot, "it waits least"
            assert (mean(column(after, gpu, "throttle_thermal_pct")) > 50) == is_hot
            bits = [int(bits) & REASON_SW_THERMAL for bits in column(after, gpu, "clock_reasons")]
            assert any(bits) == is_hot


def test_a_simulation_travels_as_json() -> None:
    text = '{"node": "a", "index": 1, "nodes": 3, "gpus": 4, "seed": 9, "origin_ns": 5}'
    assert parse_simulation(text) == Simulation("a", 1, 3, 4, 9, 5)
