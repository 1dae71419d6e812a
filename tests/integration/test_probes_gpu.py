"""Tests of the GPU probe on the NVML stand-in, whose answers are known."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gswarm_agent.frame import ERROR, INFO, WARNING, Note
from gswarm_agent.metrics import DEFAULT_GROUPS, GPU_COUNTERS, GPU_METRICS, HEALTH, RATE
from gswarm_agent.probes.gpus.nvidia_gpu import STRIKES
from tests.cluster.standin import H200_US, GpuProcess, MigDevice, Return, Scenario, read_counters
from tests.integration.heads import eventually
from tests.integration.probe_driver import AS_AGENTS_S, NamedSamples, ProbeProcess
from tests.integration.probe_stage import Stage, about, values

NO_FAULT = (
    *("pcie_replays", "remapped_correctable", "remapped_uncorrectable", "remap_pending", "remap_failed"),
    *("recovery_action", "nvlink_errors", "nvlink_recoveries"),
)
HEALTH_COLUMNS = [metric.name for metric in GPU_METRICS if metric.group == HEALTH]
RATES = {metric.name for metric in GPU_METRICS if metric.kind == RATE}


def test_every_metric_equals_the_drivers_value(stage: Stage) -> None:
    scenario = Scenario.of("n", 8)
    for i, gpu in enumerate(scenario.gpus):
        gpu.utilization_percent, gpu.memory_utilization_percent = 90 + i, 40 + i
        gpu.memory_used_mib, gpu.power_mw = 1000 * i, 400_500 + i
        gpu.temperature_c, gpu.memory_temperature_c = 50 + i, 60 + i
        gpu.sm_clock_mhz, gpu.memory_clock_mhz = 1900 + i, 2600 + i
        gpu.clock_reasons, gpu.pstate = 4 * i, i
        gpu.ecc_corrected_volatile, gpu.ecc_uncorrected_volatile = 10 + i, i
        gpu.pcie_tx_bytes_per_s, gpu.pcie_rx_bytes_per_s = (i + 1) * 10**9, (i + 1) * 2 * 10**9
        gpu.nvlink_tx_kib_per_s, gpu.nvlink_rx_kib_per_s = (i + 1) * 10**6, (i + 1) * 3 * 10**6
        gpu.throttle_power_ns_per_s, gpu.throttle_power_brake_ns_per_s = 10**8 * (i + 1), 10**7 * (i + 1)
        gpu.throttle_sw_thermal_ns_per_s, gpu.throttle_hw_thermal_ns_per_s = 10**8, 3 * 10**7 * (i + 1)
        gpu.starts = {"energy_mj": 2**53 + 1}
        gpu.gpm = dict.fromkeys((2, 3, 5, 10, 11, 12, 13, 100, 101), 1.0)
    stage.set(scenario)
    with stage.node() as node:
        facts = node.facts()
        first = node.read()
        later = node.until(
            lambda reading: all(
                row is not None
                and row["pcie_tx_mb_s"] == about((i + 1) * 1000)
                and row["pcie_rx_mb_s"] == about((i + 1) * 2000)
                and row["nvlink_tx_mb_s"] == about((i + 1) * 1024)
                and row["nvlink_rx_mb_s"] == about((i + 1) * 3072)
                and row["throttle_power_pct"] == about((i + 1) * 10)
                and row["throttle_thermal_pct"] == about(max(10, 3 * (i + 1)))
                and row["throttle_brake_pct"] == about(i + 1)
                for i, row in enumerate(reading.gpus)
            )
        )
    assert not {name for name in facts.capabilities if name in RATES or name.startswith("gpu")} - {
        GPU_COUNTERS
    }
    truth = read_counters(stage.file)
    for i, (before, row) in enumerate(zip(first.gpus, later.gpus, strict=True)):
        assert before is not None
        assert row is not None
        assert {name for name, value in before.items() if value is None} == {*RATES, "module_power_w"}
        gauges = {name: value for name, value in row.items() if name not in {*RATES, "module_power_w"}}
        assert gauges.pop("energy_mj") is None, "it isn't due"
        energy = before["energy_mj"]
        assert gauges == {
            "util_pct": 90 + i,
            "mem_util_pct": 40 + i,
            "mem_used_mib": 1000 * i,
            "power_w": (400_500 + i) / 1000,
            "temp_c": 50 + i,
            "mem_temp_c": 60 + i,
            "sm_clock_mhz": 1900 + i,
            "mem_clock_mhz": 2600 + i,
            "clock_reasons": 4 * i,
            "ecc_corrected": 10 + i,
            "ecc_uncorrected": i,
            "pstate": i,
            "power_instant_w": 70,
            "power_limit_now_w": 700,
            "temp_margin_c": 55,
            "app_sm_clock_mhz": 1980,
            "app_mem_clock_mhz": 2619,
            "pcie_gen": 5,
            "pcie_width": 16,
            "fabric_state": 3,
            **dict.fromkeys(NO_FAULT, 0),
        }
        counter = truth[scenario.gpus[i].uuid]["energy_mj"]
        assert isinstance(energy, int)
        assert counter.at(first.begun) <= energy <= counter.at(first.ended)


def test_gpu_facts_come_from_the_driver(stage: Stage) -> None:
    stage.set(Scenario.of("n", 2, power_limit_mw=350_500, memory_total_mib=40960, max_sm_clock_mhz=1410))
    with stage.node() as node:
        facts = node.facts()
    assert (facts.host["driver_version"], facts.host["cuda_version"]) == ("580.65.06", "13.0")
    first, second = stage.scenario.gpus
    assert facts.gpus[1] == {
        "index": 1,
        "uuid": second.uuid,
        "name": second.name,
        "pci_bus_id": second.pci_bus_id,
        "minor": 1,
        "memory_total_mib": 40960,
        "power_limit_w": 350.5,
        "sm_clock_max_mhz": 1410,
        "mem_clock_max_mhz": second.max_memory_clock_mhz,
        "mig": False,
        "parent_index": None,
        "mig_profile": None,
        "numa_node": None,
    }
    assert facts.gpus[0]["uuid"] == first.uuid


def test_energy_counter_of_a_whole_module_is_not_the_gpus(stage: Stage) -> None:
    scenario = Scenario.of("n", 2)
    scenario.gpus[0].name = "NVIDIA GH200 480GB"
    stage.set(scenario)
    with stage.node() as node:
        assert "module" in node.facts().capabilities["gpu0.energy_mj"]
        first, second = node.read().gpus
        assert first is not None
        assert second is not None
        assert (first["energy_mj"], second["energy_mj"] is None) == (None, False)


def test_health_of_one_odd_gpu(stage: Stage) -> None:
    scenario = Scenario.of("n", 3, utilization_percent=90)
    odd, idle = scenario.gpus[1], scenario.gpus[2]
    odd.pcie_gen, odd.pcie_width, odd.pcie_replays = 4, 8, 3
    odd.remapped_corrected, odd.remapped_uncorrected, odd.remapped_pending, odd.remapped_failure = 5, 2, 1, 1
    odd.nvlink_crc_errors, odd.nvlink_replays, odd.nvlink_recoveries = 37, 100, 4
    odd.recovery_action, odd.fabric_state, odd.power_instant_mw, odd.module_power_mw = 4, 2, 512_500, 900_000
    odd.power_limit_mw, odd.app_sm_clock_mhz = 450_000, 1410
    # Without the margin, it is the slowdown threshold of 87 °C less the temperature.
    odd.answers = {"nvmlDeviceGetMarginTemperature": Return.FUNCTION_NOT_FOUND}
    odd.temperature_c = 80
    idle.utilization_percent, idle.pcie_gen = 0, 1
    stage.set(scenario)
    with stage.node() as node:
        reasons = node.facts().capabilities
        reading = node.read()
    row = reading.gpus[1]
    assert row is not None
    assert {name: row[name] for name in HEALTH_COLUMNS} == {
        "pcie_gen": 4,
        "pcie_width": 8,
        "pcie_replays": 3,
        "remapped_correctable": 5,
        "remapped_uncorrectable": 2,
        "remap_pending": 1,
        "remap_failed": 1,
        "recovery_action": 4,
        "nvlink_errors": 137,
        "nvlink_recoveries": 4,
        "fabric_state": 2,
        "temp_margin_c": 7,
        "power_limit_now_w": 450,
        "app_sm_clock_mhz": 1410,
        "app_mem_clock_mhz": 2619,
        "module_power_w": 900,
    }
    assert row["power_instant_w"] == 512.5
    # An idle GPU's link may sleep, so its speed says nothing.
    assert values(reading, "pcie_gen") == [5, 4, None]
    assert values(reading, "pcie_width") == [16, 8, None]
    assert "gpu1.module_power_w" not in reasons
    assert "board" in reasons["gpu0.module_power_w"]


@pytest.mark.parametrize(
    ("version", "answers"),
    [
        pytest.param(6, {}, id="each link"),
        pytest.param(6, dict.fromkeys((161, 162), Return.NOT_SUPPORTED), id="totals"),
        pytest.param(7, {}, id="NVLink 5"),
    ],
)
def test_nvlink_errors_of_all_generations(stage: Stage, version: int, answers: dict[str | int, int]) -> None:
    levels = {"nvlink_crc_errors": 37, "nvlink_replays": 100, "nvlink_recoveries": 4}
    scenario = Scenario.of("n", 1, nvlink_version=version, **levels)
    scenario.answers = answers
    stage.set(scenario)
    with stage.node() as node:
        reading = node.read()
    assert (values(reading, "nvlink_errors"), values(reading, "nvlink_recoveries")) == ([137], [4])


@pytest.mark.parametrize(
    ("driver", "newest", "brake"),
    [
        ("535.161.08", "hopper", None),
        ("550.90.07", "hopper", None),
        ("570.133.20", "blackwell", None),
        ("575.57.08", "blackwell", 10),
        ("580.65.06", "blackwell", 10),
        ("580.82.07", "blackwell", 10),
        ("590.44.01", "blackwell", 10),
    ],
)
def test_each_driver_is_read_by_its_own_fields(
    stage: Stage, driver: str, newest: str, brake: int | None
) -> None:
    """Field ids moved from driver to driver, and NVLink counts in another unit and field on Blackwell."""
    scenario = Scenario.of("n", 2, nvlink_tx_kib_per_s=10**6, nvlink_rx_kib_per_s=2 * 10**6)
    scenario.driver_version = driver
    for gpu in scenario.gpus:
        gpu.throttle_sw_thermal_ns_per_s, gpu.throttle_hw_thermal_ns_per_s = 2 * 10**8, 10**8
        gpu.throttle_power_ns_per_s, gpu.throttle_power_brake_ns_per_s = 4 * 10**8, 10**8
    if newest == "blackwell":
        scenario.gpus[1].architecture, scenario.gpus[1].nvlink_version = 10, 7
    stage.set(scenario)
    wanted = {"nvlink_tx_mb_s": about(1024), "nvlink_rx_mb_s": about(2048), "throttle_power_pct": about(40)}
    # Software and hardware may hold the clocks down at the same time, so the longer one counts, not the sum.
    wanted |= {
        "throttle_thermal_pct": about(20),
        "throttle_brake_pct": None if brake is None else about(brake),
    }
    with stage.node() as node:
        reading = node.until(
            lambda reading: all(values(reading, name) == [value] * 2 for name, value in wanted.items())
        )
        assert values(reading, "temp_c") == [30, 30]
        assert ("throttle_brake_pct" in node.facts().capabilities) == (brake is None)


def test_a_gpu_without_own_memory_has_the_hosts(stage: Stage) -> None:
    # NVML answers so on a GB10: nvitop's pull request 208, with driver 580.173.02.
    stage.set(Scenario.of("n", 1, memory_total_mib=None, memory_used_mib=None))
    with stage.node() as node:
        (facts,) = node.facts().gpus
        (row,) = node.read().gpus
    total = int(Path("/proc/meminfo").read_text().split()[1]) >> 10
    assert row is not None
    assert facts["memory_total_mib"] == total
    assert 0 < (row["mem_used_mib"] or 0) < total


def test_a_metric_that_one_gpu_lacks_is_none_with_a_reason(stage: Stage) -> None:
    scenario = Scenario.of("n", 3, power_mw=100_000)
    scenario.gpus[1].power_mw = None
    scenario.gpus[2].answers = {82: Return.NO_PERMISSION}
    for gpu in scenario.gpus:
        gpu.nvlink_links = None
    stage.set(scenario)
    with stage.node() as node:
        capabilities = node.facts().capabilities
        reading = node.read()
        assert node.read().notes == []
    assert capabilities["gpu1.power_w"] == "not supported by this GPU"
    assert capabilities["gpu2.mem_temp_c"] == "not permitted to this user"
    assert {"nvlink_tx_mb_s", "nvlink_rx_mb_s"} <= set(capabilities)
    assert not {"power_w", "gpu0.power_w", "gpu0.nvlink_tx_mb_s"} & set(capabilities)
    assert values(reading, "power_w") == [100, None, 100]
    assert values(reading, "mem_temp_c") == [38, 38, None]


def test_an_unsupported_metric_is_retried_after_a_minute(stage: Stage) -> None:
    stage.set(Scenario.of("n", 1, power_mw=None))
    with stage.node() as node:
        node.read()
        stage.scenario.gpus[0].power_mw = 70_000
        stage.write()
        assert values(node.read(skip_s=30), "power_w") == [None]
        assert values(node.read(skip_s=31), "power_w") == [70]
        assert values(node.read(), "power_w") == [70]
        assert "power_w" not in node.facts().capabilities


def test_a_metric_that_becomes_unsupported_is_noted_once(stage: Stage) -> None:
    stage.set(Scenario.of("n", 2, power_mw=100_000))
    with stage.node() as node:
        node.read()
        stage.scenario.gpus[1].answers = {"nvmlDeviceGetPowerUsage": Return.NOT_SUPPORTED}
        stage.write()
        reading = node.read()
        assert values(reading, "power_w") == [100, None]
        (note,) = reading.notes
        assert (note.kind, note.severity, note.gpu) == ("unmeasured", WARNING, 1)
        assert "power_w" in note.message
        assert "gpu1.power_w" in node.facts().capabilities
        assert node.read().notes == []


def test_a_passing_error_leaves_a_gap_and_no_note(stage: Stage) -> None:
    stage.set(Scenario.of("n", 1, power_mw=100_000))
    with stage.node() as node:
        node.read()
        stage.scenario.gpus[0].answers = {"nvmlDeviceGetPowerUsage": Return.UNKNOWN}
        stage.write()
        reading = node.read()
        assert (values(reading, "power_w"), reading.notes) == ([None], [])
        stage.scenario.gpus[0].answers = {}
        stage.write()
        reading = node.read()
        assert (values(reading, "power_w"), reading.notes) == ([100], [])


def test_slow_values_repeat_for_their_period(stage: Stage) -> None:
    stage.set(Scenario.of("n", 2, power_mw=100_000, temperature_c=30, memory_clock_mhz=1000, pstate=8))
    with stage.node() as node:
        node.read()
        for gpu in stage.scenario.gpus:
            gpu.power_mw, gpu.temperature_c, gpu.memory_clock_mhz, gpu.pstate = 200_000, 40, 2000, 0
        stage.write()
        readings = [node.read(skip_s=0.05) for _ in range(20)]
        assert values(readings[0], "power_w") == [200, 200]
        changes = [[values(reading, "temp_c")[gpu] for reading in readings].index(40) for gpu in (0, 1)]
        assert 0 < min(changes) < max(changes), "the readings of GPUs are spread"
        node.read(skip_s=10)
        assert values(node.read(), "mem_clock_mhz") == [2000, 2000]


def test_energy_is_on_the_row_of_its_reading_and_comes_at_once_if_requested(stage: Stage) -> None:
    stage.set(Scenario.of("n", 2))
    with stage.node() as node:
        rows = [values(node.read(), "energy_mj") for _ in range(21)]
        assert None not in rows[0]
        for gpu in (0, 1):
            at = [second for second, row in enumerate(rows) if row[gpu] is not None]
            assert len(at) == 3, "the first, and then one in ten seconds"
            assert at[2] - at[1] == 10
        assert values(node.read(0), "energy_mj") == [None, None]
        reading = node.read(0, last=True)
        assert all(isinstance(energy, int) for energy in values(reading, "energy_mj"))
        assert values(node.read(0), "energy_mj") == [None, None]


def test_last_reading_waits_for_the_energy(stage: Stage) -> None:
    stage.set(Scenario.of("n", 2))
    with stage.node(wait_s=0.02) as node:
        node.until(lambda reading: None not in values(reading, "power_w"))
        stage.scenario.delays_ms["nvmlDeviceGetPowerUsage"] = 100
        stage.write()
        node.read(0)  # begins a round, during which the recorder stops
        assert None not in values(node.read(0, last=True), "energy_mj")


def test_a_lost_gpu_is_noted_and_measured_again_when_it_returns(stage: Stage) -> None:
    stage.set(Scenario.of("n", 3, pcie_tx_bytes_per_s=10**9))
    with stage.node() as node:
        node.read()
        stage.scenario.gpus[1].lost = True
        stage.write()
        reading = node.read()
        assert values(reading, "temp_c") == [30, "lost", 30]
        (note,) = reading.notes
        assert (note.kind, note.severity, note.gpu) == ("gpu_lost", ERROR, 1)
        assert "fallen off the bus" in note.message
        assert "gpu1" in node.facts().capabilities
        children = node.children()
        assert values(node.read(), "temp_c") == [30, "lost", 30]
        assert not set(children) & set(node.children()), "who holds the GPU keeps it from a reset"
        assert node.read(skip_s=61).notes == [], "it is tried again, and still lost"
        assert values(node.read(), "temp_c") == [30, "lost", 30]

        stage.scenario.gpus[1].lost = False
        stage.write()
        assert values(node.read(skip_s=290), "temp_c") == [30, "lost", 30]
        reading = node.read(skip_s=10)
        assert values(reading, "temp_c") == [30, 30, 30]
        (note,) = reading.notes
        assert (note.kind, note.severity, note.gpu) == ("gpu_back", INFO, 1)
        assert values(reading, "pcie_tx_mb_s")[1] is None
        assert "gpu1" not in node.facts().capabilities
        node.until(lambda reading: values(reading, "pcie_tx_mb_s") == [about(1000)] * 3)


def test_a_gpu_lost_at_the_start_doesn_t_stop_the_others(stage: Stage) -> None:
    scenario = Scenario.of("n", 4)
    scenario.gpus[0].lost_from_start = True
    scenario.gpus[2].lost = True
    stage.set(scenario)
    with stage.node() as node:
        facts = node.facts()
        children = node.children()
        reading = node.read()
        assert values(reading, "temp_c") == ["lost", 30, "lost", 30]
        assert node.children() == children, "the process that found them lost has ended before"
        assert sorted(note.gpu or 0 for note in reading.notes if note.kind == "gpu_lost") == [0, 2]
        scenario.gpus[0].lost_from_start = scenario.gpus[2].lost = False
        stage.write()
        node.read(skip_s=61)
        assert values(node.read(), "temp_c") == [30] * 4
    assert [gpu["index"] for gpu in facts.gpus] == [0, 1, 2, 3]
    assert len({gpu["uuid"] for gpu in facts.gpus}) == 4
    assert facts.gpus[3]["uuid"] == scenario.gpus[3].uuid
    assert {"gpu0", "gpu2"} <= set(facts.capabilities)


@pytest.mark.parametrize(
    ("code", "reason"), [(Return.UNKNOWN, "unknown error"), (Return.INVALID_ARGUMENT, "no longer knows it")]
)
def test_a_gpu_on_which_every_call_fails_is_lost(stage: Stage, code: Return, reason: str) -> None:
    stage.set(Scenario.of("n", 2))
    with stage.node() as node:
        node.read()
        functions = [
            *("UtilizationRates", "MemoryInfo_v2", "PowerUsage", "TemperatureV", "ClockInfo", "FieldValues"),
            *("TotalEnergyConsumption", "CurrentClocksEventReasons", "TotalEccErrors", "PerformanceState"),
            *("CurrPcieLinkGeneration", "RemappedRows", "MarginTemperature", "EnforcedPowerLimit"),
            *("ApplicationsClock", "GpuFabricInfoV"),
        ]
        stage.scenario.gpus[0].answers = {f"nvmlDeviceGet{name}": code for name in functions}
        stage.write()
        reading = node.until(lambda reading: reading.notes)
        (note,) = reading.notes
        assert (note.kind, note.gpu) == ("gpu_lost", 0)
        assert reason in note.message
        assert values(reading, "temp_c") == ["lost", 30]


def test_a_gpu_whose_call_hangs_is_left_out_and_tried_again_each_minute(stage: Stage) -> None:
    stage.set(Scenario.of("n", 4))
    with stage.node(wait_s=AS_AGENTS_S) as node:
        node.read()
        stage.scenario.gpus[1].delays_ms["nvmlDeviceGetPowerUsage"] = 30_000
        stage.write()
        reading = node.read()
        assert values(reading, "temp_c") == ["lost"] * 4, "the node is late while the call hangs"
        assert reading.host["memory_used_mib"]
        reading = node.until(lambda reading: values(reading, "temp_c") == [30, "lost", 30, 30])
        assert [(note.kind, note.gpu) for note in reading.notes] == [("late", 1)]
        assert node.facts().capabilities["gpu1"] == "the driver is slow or hangs"
        assert values(node.read(skip_s=61), "temp_c") == ["lost"] * 4, "it is tried again, and still hangs"
        assert node.until(lambda reading: values(reading, "temp_c") == [30, "lost", 30, 30]).notes == []
        assert values(node.read(skip_s=40), "temp_c") == [30, "lost", 30, 30], "left out for a minute"
        del stage.scenario.gpus[1].delays_ms["nvmlDeviceGetPowerUsage"]
        stage.write()
        notes = node.read(skip_s=61).notes
        reading = node.until(lambda reading: values(reading, "temp_c") == [30] * 4)
        assert [(note.kind, note.gpu) for note in notes + reading.notes] == [("gpu_back", 1)]
        assert "gpu1" not in node.facts().capabilities


def at_ten_hertz(node: ProbeProcess) -> tuple[list[list[object]], list[Note]]:
    """Return the power of all GPUs in twenty samples, and the notes."""
    rows: list[list[object]] = []

    def enough(reading: NamedSamples) -> bool:
        rows.append(values(reading, "power_w"))
        return len(rows) == 20

    return rows, node.until(enough).notes


def test_eight_gpus_behind_one_lock_lose_no_row_at_ten_hertz(stage: Stage) -> None:
    scenario = Scenario.of("n", 8, power_mw=100_000)
    scenario.spins_us, scenario.one_lock = H200_US, True
    stage.set(scenario)
    with stage.node(wait_s=0.09) as node:
        node.until(lambda reading: "lost" not in values(reading, "power_w"))
        rows, notes = at_ten_hertz(node)
    assert rows == [[100] * 8] * 20
    assert notes == []


def test_a_slow_but_steady_driver_costs_no_row(stage: Stage) -> None:
    """All calls of a round take 0.2 s, and an agent waits 0.09 s for them."""
    scenario = Scenario.of("n", 2, power_mw=100_000)
    for gpu in scenario.gpus:
        gpu.delays_ms = {"nvmlDeviceGetPowerUsage": 60, "nvmlDeviceGetUtilizationRates": 40}
    stage.set(scenario)
    with stage.node(wait_s=0.09) as node:
        rows, notes = at_ten_hertz(node)
    assert rows[2:] == [[100] * 2] * 18, "the first round takes longer than two ticks"
    assert notes == []


def test_a_gpu_that_hangs_at_the_start_is_in_the_capabilities(stage: Stage) -> None:
    scenario = Scenario.of("n", 3)
    scenario.gpus[2].delays_ms["nvmlDeviceGetTemperatureV"] = 30_000
    stage.set(scenario)
    with stage.node(wait_s=AS_AGENTS_S) as node:
        facts = node.facts()
        assert len(facts.gpus) == 3
        assert "gpu2" in facts.capabilities
        reading = node.until(lambda reading: values(reading, "temp_c") == [30, 30, "lost"])
        assert [(note.kind, note.gpu) for note in reading.notes] == [("late", 2)]
        del stage.scenario.gpus[2].delays_ms["nvmlDeviceGetTemperatureV"]
        stage.write()
        node.read(skip_s=61)
        node.until(lambda reading: values(reading, "temp_c") == [30] * 3)


def test_a_driver_that_hangs_at_the_start_has_a_reason(stage: Stage) -> None:
    scenario = Scenario.of("n", 2)
    scenario.delays_ms["nvmlDeviceGetCount_v2"] = 30_000
    stage.set(scenario)
    with stage.node(start_s=1) as node:
        assert "didn't answer within 1 s" in node.facts().capabilities["gpu"]
        assert node.read().gpus == []


def test_the_process_that_reads_gpus_ends_with_an_agent_that_is_killed(stage: Stage) -> None:
    stage.set(Scenario.of("n", 2))
    with stage.node(wait_s=AS_AGENTS_S) as node:
        node.read()
        (child,) = node.children()
        stage.scenario.gpus[0].delays_ms["nvmlDeviceGetPowerUsage"] = 60_000
        stage.write()
        assert values(node.read(), "temp_c") == ["lost", "lost"]
        node.kill()
        eventually(lambda: not Path(f"/proc/{child}").exists(), "the process ends though a call hangs")


def test_mig_instances_follow_their_gpu_with_memory_and_processes(stage: Stage) -> None:
    scenario = Scenario.of("n", 3, memory_used_mib=9_000)
    divided = scenario.gpus[1]
    divided.mig_mode = 1
    divided.migs = [MigDevice(f"MIG-{n}", 7 + n, used_mib=1_000 * n, sm_active=10 * n) for n in (1, 2)]
    divided.gpm = {2: 15.0, 5: 4.0}
    divided.processes = [GpuProcess(os.getpid(), 900, gpu_instance=9, compute_instance=0)]
    scenario.gpus[2].processes = [GpuProcess(os.getpid(), 50)]
    stage.set(scenario)
    with stage.node() as node:
        facts = node.facts()
        reading = node.until(lambda reading: reading.processes is not None)
        scenario.gpus[2].xid(79)
        stage.write()
        (note,) = node.until(lambda reading: bool(reading.notes)).notes
        node.until(
            lambda reading: (
                values(reading, "sm_active_pct") == [None, 15, 10, 20, None]
                and values(reading, "tensor_active_pct") == [None, 4, 4, 4, None]
                and values(reading, "pcie_tx_mb_s") == [0, 0, None, None, 0]
            )
        )
    assert [gpu["index"] for gpu in facts.gpus] == [0, 1, 1010, 1011, 2]
    assert [gpu["mig"] for gpu in facts.gpus] == [False, True, False, False, False]
    instance = facts.gpus[3]
    assert (instance["parent_index"], instance["mig_profile"], instance["uuid"]) == (1, "1g.10gb", "MIG-2")
    assert instance["memory_total_mib"] == 9_856
    assert values(reading, "mem_used_mib") == [9_000, 9_000, 1_000, 2_000, 9_000]
    assert values(reading, "util_pct") == [0, None, None, None, 0]
    assert values(reading, "power_w") == [70, 70, None, None, 70]
    assert [(one.gpu, one.row["gpu_memory_mib"]) for one in reading.processes or ()] == [(3, 900), (4, 50)]
    assert "MIG instance" in facts.capabilities["mig"]
    assert "MIG is on" in facts.capabilities["gpu1.util_pct"]
    assert not [name for name in facts.capabilities if name.startswith("gpu101")]
    assert note.gpu == 4, "the third GPU has the fifth place"


def test_mig_instances_keep_their_places_while_their_gpu_hangs(stage: Stage) -> None:
    scenario = Scenario.of("n", 2, memory_used_mib=9_000)
    scenario.gpus[0].mig_mode = 1
    scenario.gpus[0].migs = [MigDevice("MIG-1", 7, used_mib=1_000)]
    stage.set(scenario)
    with stage.node(wait_s=AS_AGENTS_S) as node:
        node.until(lambda reading: values(reading, "mem_used_mib") == [9_000, 1_000, 9_000])
        scenario.gpus[0].delays_ms["nvmlDeviceGetPowerUsage"] = 60_000
        stage.write()
        node.until(lambda reading: values(reading, "mem_used_mib") == ["lost", 1_000, 9_000])
        assert "gpu0" in node.facts().capabilities
        scenario.gpus[0].delays_ms.clear()
        scenario.gpus[0].migs.clear()
        stage.write()
        node.until(lambda reading: any(note.gpu == 1 for note in reading.notes))
        assert "gpu1000" in node.facts().capabilities, "the instance was deleted"


def test_utilisation_that_stays_at_100_on_an_unused_gpu_is_not_busy(stage: Stage) -> None:
    scenario = Scenario.of("n", 3, utilization_percent=100, memory_used_mib=2, power_mw=90_000)
    scenario.gpus[1].memory_used_mib = 600  # a process that copies: an H200 drew 19 % of its limit so
    scenario.gpus[2].power_mw = 500_000
    stage.set(scenario)
    with stage.node() as node:
        assert values(node.read(), "util_pct") == [100] * 3, "a job may have begun"
        reading = node.read(skip_s=4)
        assert values(reading, "util_pct") == [None, 100, 100]
        assert [(note.kind, note.gpu) for note in reading.notes] == [("unmeasured", 0)]
        assert "without a process" in node.facts().capabilities["gpu0.util_pct"]
        stage.scenario.gpus[0].memory_used_mib = 600
        stage.write()
        reading = node.read(skip_s=4)
        assert (values(reading, "util_pct"), reading.notes) == ([100] * 3, [])


def test_xids_are_noted_with_what_nvidia_advises(stage: Stage) -> None:
    stage.set(Scenario.of("n", 3))
    with stage.node() as node:
        node.read()
        stage.scenario.gpus[1].xid(79)
        stage.scenario.gpus[0].xid(12345)
        stage.scenario.gpus[2].xid(63)
        stage.write()
        reading = node.until(lambda reading: len(reading.notes) == 3)
    unknown, lost, remapped = sorted(reading.notes, key=lambda note: note.gpu or 0)
    assert (unknown.kind, unknown.severity) == ("xid", ERROR)
    assert unknown.message == "XID 12345: not among NVIDIA's current XIDs up to 172"
    assert (lost.kind, lost.severity, lost.gpu) == ("xid", ERROR, 1)
    assert lost.message == (
        "XID 79 ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS: the GPU has fallen off the bus; "
        "NVIDIA: reboot the node; if it returns, contact support"
    )
    assert json.loads(lost.detail or "") == {
        "xid": 79,
        "mnemonic": "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS",
        "immediate": "RESTART_BM",
        "investigatory": "CONTACT_SUPPORT",
    }
    assert (remapped.severity, remapped.message) == (
        WARNING,
        "XID 63 INFOROM_DRAM_RETIREMENT_EVENT: a row of memory was remapped; NVIDIA: nothing to do",
    )


def test_a_fault_that_a_gpu_reports_twice_is_one_event(stage: Stage) -> None:
    stage.set(Scenario.of("n", 4))
    with stage.node() as node:
        node.read()
        for gpu in stage.scenario.gpus:
            gpu.xid(119)
            gpu.xid(119)
        stage.write()
        notes = node.until(lambda reading: reading.notes).notes
        assert [(note.kind, note.gpu) for note in notes] == [("xid", gpu) for gpu in range(4)]


def test_gpus_without_xid_events_are_in_the_capabilities(stage: Stage) -> None:
    scenario = Scenario.of("n", 2)
    scenario.gpus[0].event_types = 0
    stage.set(scenario)
    with stage.node() as node:
        assert "gpu0.xid" in node.facts().capabilities
        stage.scenario.gpus[1].xid(31)
        stage.write()
        reading = node.until(lambda reading: reading.notes)
    assert reading.notes[0].gpu == 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Return.DRIVER_NOT_LOADED, "the NVIDIA driver isn't loaded on this node"),
        (Return.LIB_RM_VERSION_MISMATCH, "updated but not reloaded"),
        (Return.UNKNOWN, "unknown error"),
    ],
)
def test_a_driver_that_fails_to_start_has_a_reason(stage: Stage, answer: Return, reason: str) -> None:
    scenario = Scenario.of("n", 2)
    scenario.answers["nvmlInit"] = answer
    stage.set(scenario)
    with stage.node() as node:
        facts = node.facts()
        reading = node.read()
    assert reason in facts.capabilities["gpu"]
    assert (facts.gpus, reading.gpus, reading.processes) == ([], [], None)
    assert reading.host["memory_used_mib"]


def test_a_driver_without_gpus_has_a_reason(stage: Stage) -> None:
    stage.set(Scenario())
    with stage.node() as node:
        facts = node.facts()
        assert node.read().gpus == []
    assert "no GPU" in facts.capabilities["gpu"]
    assert facts.host["driver_version"] == "580.65.06"


def test_a_node_without_the_library_measures_its_host() -> None:
    with ProbeProcess() as node:
        facts = node.facts()
        node.read()
        assert node.children() == [], "no process to read GPUs"
        reading = node.until(lambda reading: reading.host["cpu_pct"] is not None)
    assert "libnvidia-ml.so.1" in facts.capabilities["gpu"]
    assert reading.gpus == []
    assert facts.host["hostname"]


def test_what_is_switched_off_is_not_read_and_begins_again_with_its_rates(stage: Stage) -> None:
    scenario = Scenario.of("n", 2, has_gpm=0, pcie_tx_bytes_per_s=10**9, nvlink_tx_kib_per_s=10**6)
    stage.set(scenario)
    with stage.node() as node:
        node.until(lambda reading: values(reading, "pcie_tx_mb_s") == [about(1000)] * 2)
        node.switch("core")
        node.read()
        for gpu in stage.scenario.gpus:  # whoever reads these loses the GPU
            gpu.answers = dict.fromkeys((138, 139), Return.GPU_IS_LOST)
            gpu.answers |= {"nvmlDeviceGetComputeRunningProcesses_v3": Return.GPU_IS_LOST}
        stage.write()
        for _ in range(2 * STRIKES):
            reading = node.read(10)
            assert values(reading, "temp_c") == [30, 30]
            assert values(reading, "pcie_tx_mb_s") == values(reading, "nvlink_tx_mb_s") == [None, None]
            assert not reading.host
            assert reading.processes is None
            assert not reading.notes
        for gpu in stage.scenario.gpus:
            gpu.answers = {}
        stage.write()
        node.switch(*DEFAULT_GROUPS)
        first = node.read()
        assert values(first, "nvlink_tx_mb_s") == [None, None]
        node.until(
            lambda reading: (
                values(reading, "pcie_tx_mb_s") == [about(1000)] * 2
                and values(reading, "nvlink_tx_mb_s") == [about(1024)] * 2
                and reading.host["cpu_pct"] is not None
            )
        )
