"""Tests that nvitop and pynvml read the values of a scenario from the NVML stand-in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.standin import (
    COUNTERS,
    Counter,
    GpuProcess,
    MigDevice,
    Return,
    Scenario,
    build,
    read_counters,
)
from tests.integration.standin_caller import Caller, environment


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gpu01.scenario"


Call = Callable[..., Caller]


@pytest.fixture
def caller(standin_lib: Path, path: Path) -> Iterator[Call]:
    """Start a process on the stand-in; by default its library reads this test's scenario."""
    started: list[Caller] = []

    def start(library: Path = standin_lib, scenario: Path | None = path) -> Caller:
        started.append(Caller(library, scenario))
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_pynvml_reports_every_level(caller: Call, path: Path) -> None:
    node = Scenario.of("gpu01", 2, fan_percent=41, clock_reasons=0x24, pcie_replays=7, remapped_pending=1)
    gpu = node.gpus[1]
    gpu.utilization_percent, gpu.memory_utilization_percent = 97, 61
    gpu.memory_used_mib, gpu.power_mw, gpu.power_limit_mw = 4096, 654_321, 600_000
    gpu.temperature_c, gpu.memory_temperature_c, gpu.pstate = 67, 88, 2
    gpu.graphics_clock_mhz, gpu.sm_clock_mhz, gpu.memory_clock_mhz, gpu.video_clock_mhz = 1, 2, 3, 4
    gpu.ecc_corrected_volatile, gpu.ecc_uncorrected_volatile = 11, 12
    gpu.ecc_corrected_aggregate, gpu.ecc_uncorrected_aggregate = 13, 14
    node.write(path)
    nvml = caller()
    nvml.start(2)

    expected = {
        "nvmlSystemGetDriverVersion()": "580.65.06",
        "nvmlSystemGetCudaDriverVersion()": 13000,
        "nvmlDeviceGetCount()": 2,
        "nvmlDeviceGetName(gpu1)": "NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetUUID(gpu1)": gpu.uuid,
        "nvmlDeviceGetIndex(gpu1)": 1,
        "nvmlDeviceGetMinorNumber(gpu1)": 1,
        "nvmlDeviceGetSerial(gpu1)": gpu.serial,
        "nvmlDeviceGetPciInfo(gpu1).busId": "00000000:27:00.0",
        "nvmlDeviceGetPciInfo(gpu1).bus": 0x27,
        f"nvmlDeviceGetUUID(nvmlDeviceGetHandleByUUID('{gpu.uuid}'))": gpu.uuid,
        "nvmlDeviceGetUUID(nvmlDeviceGetHandleByPciBusId('0000:27:00.0'))": gpu.uuid,
        "nvmlDeviceGetHandleByIndex(2)": "NVMLError_InvalidArgument",
        "nvmlDeviceGetUtilizationRates(gpu1).gpu": 97,
        "nvmlDeviceGetUtilizationRates(gpu1).memory": 61,
        "nvmlDeviceGetMemoryInfo(gpu1, nvmlMemory_v2).used >> 20": 4096,
        "nvmlDeviceGetMemoryInfo(gpu1, nvmlMemory_v2).reserved >> 20": 570,
        "nvmlDeviceGetMemoryInfo(gpu1, 0x1000001)": "NVMLError_ArgumentVersionMismatch",
        "nvmlDeviceGetMemoryInfo(gpu1).used >> 20": 4096 + 570,
        "nvmlDeviceGetMemoryInfo(gpu1).total >> 20": 81559,
        "nvmlDeviceGetPowerUsage(gpu1)": 654_321,
        "nvmlDeviceGetEnforcedPowerLimit(gpu1)": 600_000,
        "nvmlDeviceGetPowerManagementLimitConstraints(gpu1)": [200_000, 700_000],
        "nvmlDeviceGetTemperature(gpu1, NVML_TEMPERATURE_GPU)": 67,
        "nvmlDeviceGetPerformanceState(gpu1)": 2,
        "[nvmlDeviceGetClockInfo(gpu1, clock) for clock in range(4)]": [1, 2, 3, 4],
        "[nvmlDeviceGetMaxClockInfo(gpu1, clock) for clock in range(4)]": [1980, 1980, 2619, 1545],
        "nvmlDeviceGetCurrentClocksEventReasons(gpu1)": 0x24,
        "nvmlDeviceGetCurrentClocksThrottleReasons(gpu1)": 0x24,
        "nvmlDeviceGetFanSpeed(gpu1)": 41,
        "[nvmlDeviceGetTotalEccErrors(gpu1, t, k) for k in (0, 1) for t in (0, 1)]": [11, 12, 13, 14],
        "nvmlDeviceGetRemappedRows(gpu1)": [0, 0, 1, 0],
        "nvmlDeviceGetCurrPcieLinkGeneration(gpu1)": 5,
        "nvmlDeviceGetCurrPcieLinkWidth(gpu1)": 16,
        "nvmlDeviceGetPcieReplayCounter(gpu1)": 7,
        "nvmlDeviceGetCudaComputeCapability(gpu1)": [9, 0],
        "nvmlDeviceGetMigMode(gpu1)": [0, 0],
        "nvmlDeviceGetNvLinkState(gpu1, 17)": 1,
        "nvmlDeviceGetNvLinkState(gpu1, 18)": "NVMLError_InvalidArgument",
        "nvmlDeviceGetUtilizationRates(gpu0).gpu": 0,
        # memory temperature, NVLinks, PCIe replays, instant power; none of these ids: 999
        "fields(gpu1, 82, 91, 94, 186, 999)": [[0, 1, 88], [0, 1, 18], [0, 1, 7], [0, 1, 654_321], [3, 0, 0]],
    }
    assert {call: nvml(call) for call in expected} == expected


def test_nvitop_reports_the_scenario(standin_lib: Path, path: Path) -> None:
    node = Scenario.of("gpu01", 4, utilization_percent=93, power_mw=512_000, memory_used_mib=2048)
    node.gpus[1].processes.append(GpuProcess(os.getpid(), used_mib=1024, sm_percent=55, memory_percent=12))
    node.gpus[2].mig_mode, node.gpus[2].migs = 1, [MigDevice("MIG-1", gpu_instance=7)]
    node.gpus[3].lost = True
    node.write(path)
    program = """
import json, nvitop
one = nvitop.Device(1).as_snapshot()
links = nvitop.Device(1).nvlink_total_throughput(interval=0.02)
[process] = nvitop.Device(1).processes().values()
print(json.dumps([one.name, one.gpu_utilization, one.power_usage, one.memory_used >> 20, one.temperature,
    links.tx, process.pid, process.gpu_memory() >> 20, process.gpu_sm_utilization()]))
"""
    snapshot, screen = (
        subprocess.run(
            [sys.executable, *arguments],
            env=environment(standin_lib, path),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for arguments in (["-c", program], ["-m", "nvitop", "--once"])
    )
    assert json.loads(snapshot) == ["NVIDIA H100 80GB HBM3", 93, 512_000, 2048, 30, 0, os.getpid(), 1024, 55]
    assert "H100 80GB HBM3" in screen
    assert "512W / 700W" in screen
    assert "1g.10gb" in screen
    assert str(os.getpid()) in screen


def test_a_rewritten_scenario_is_visible_at_once(caller: Call, path: Path) -> None:
    node = Scenario.of("gpu01", 1)
    node.write(path)
    nvml = caller()
    nvml.start()
    for percent in (10, 100, 55):
        node.gpus[0].utilization_percent = percent
        node.write(path)
        assert nvml("nvmlDeviceGetUtilizationRates(gpu0).gpu") == percent


def test_energy_is_exact_while_the_power_changes(caller: Call, path: Path) -> None:
    node = Scenario.of("gpu01", 1, power_mw=700_000)
    node.write(path)
    nvml = caller()
    nvml.start()
    nvml("across_a_rewrite(gpu0)")
    node.gpus[0].power_mw = 90_000
    changed = node.write(path)
    samples = nvml.receive()

    energy = read_counters(path)[node.gpus[0].uuid]["energy_mj"]
    assert [rate for _, _, rate in energy.segments] == [700_000, 90_000]
    assert samples[0][2] < changed < samples[-1][0]
    assert all(energy.at(before) <= value <= energy.at(after) for before, value, after in samples)


def test_field_values_are_exact(caller: Call, path: Path) -> None:
    rates = {f"{name}_per_s": 1_000_003 * (index + 1) for index, name in enumerate(COUNTERS)}
    node = Scenario.of("gpu01", 1, nvlink_links=7, nvlink_version=7, **rates)
    node.gpus[0].starts = {"nvlink_tx_kib": 12_345}
    node.write(path)
    truth = read_counters(path)[node.gpus[0].uuid]
    nvml = caller()
    nvml.start()
    by_field = {
        "83": ("energy_mj", 1),
        "197": ("pcie_tx_bytes", 1),
        "198": ("pcie_rx_bytes", 1),
        "(138, 0xFFFFFFFF)": ("nvlink_tx_kib", 1),
        "(139, 0xFFFFFFFF)": ("nvlink_rx_kib", 1),
        "(202, 0xFFFFFFFF)": ("nvlink_tx_kib", 1024),
        "74": ("throttle_power_ns", 1),
        "269": ("throttle_sw_thermal_ns", 1),
        "270": ("throttle_hw_thermal_ns", 1),
        "271": ("throttle_power_brake_ns", 1),
    }
    before, values, after = nvml(f"timed(fields, gpu0, {', '.join(by_field)})")
    for [verdict, _, value], (name, scale) in zip(values, by_field.values(), strict=True):
        assert verdict == Return.SUCCESS
        assert truth[name].at(before) * scale <= value <= truth[name].at(after) * scale

    before, links, after = nvml("timed(fields, gpu0, *[(138, link) for link in range(7)])")
    assert truth["nvlink_tx_kib"].at(before) <= sum(value for _, _, value in links)
    assert sum(value for _, _, value in links) <= truth["nvlink_tx_kib"].at(after)
    assert nvml("fields(gpu0, (138, 7))")[0][0] == Return.INVALID_ARGUMENT


def test_pcie_counts_wrap_and_throughput_is_their_rate(caller: Call, path: Path) -> None:
    node = Scenario.of("gpu01", 1, pcie_tx_bytes_per_s=1024 * 5000, pcie_rx_bytes_per_s=0)
    node.gpus[0].starts = {"pcie_rx_bytes": 2**32 + 5}
    node.write(path)
    nvml = caller()
    nvml.start()
    assert nvml("fields(gpu0, 198)") == [[0, 1, 5]]
    rate = nvml("nvmlDeviceGetPcieThroughput(gpu0, NVML_PCIE_UTIL_TX_BYTES)")
    assert rate == pytest.approx(5000, abs=1)
    before, _, after = nvml("timed(nvmlDeviceGetPcieThroughput, gpu0, NVML_PCIE_UTIL_RX_BYTES)")
    assert after - before >= 20_000_000


def test_processes_and_their_utilisation_samples(caller: Call, path: Path) -> None:
    node = Scenario.of("gpu01", 1)
    node.gpus[0].processes = [
        GpuProcess(101, used_mib=11, sm_percent=30, memory_percent=5),
        GpuProcess(102, used_mib=12, sm_percent=None),
        GpuProcess(103, used_mib=13, type="G"),
    ]
    node.write(path)
    nvml = caller()
    nvml.start()
    listed = "[[p.pid, p.usedGpuMemory >> 20] for p in nvmlDeviceGet{}RunningProcesses(gpu0)]"
    assert nvml(listed.format("Compute")) == [[101, 11], [102, 12]]
    assert nvml(listed.format("Graphics")) == [[103, 13]]
    samples = "[[p.pid, p.smUtil, p.memUtil] for p in nvmlDeviceGetProcessUtilization(gpu0, {})]"
    assert nvml(samples.format(0)) == [[101, 30, 5], [103, 0, 0]]
    assert nvml(samples.format((time.time_ns() + 10**10) // 1000)) == "NVMLError_NotFound"


def test_a_lost_gpu_does_not_affect_the_others(caller: Call, path: Path) -> None:
    node = Scenario.of("gpu01", 3, power_mw=300_000)
    node.write(path)
    nvml = caller()
    nvml.start(3)
    node.gpus[1].lost = True
    node.gpus[2].lost_from_start = True
    node.write(path)
    for call in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetUUID", "nvmlDeviceGetComputeRunningProcesses"):
        assert nvml(f"{call}(gpu1)") == nvml(f"{call}(gpu2)") == "NVMLError_GpuIsLost"
    assert nvml("fields(gpu1, 83)") == "NVMLError_GpuIsLost"
    assert nvml("nvmlDeviceGetPowerUsage(gpu0)") == 300_000
    assert nvml("nvmlDeviceGetCount()") == 3
    assert nvml("again := nvmlDeviceGetHandleByIndex(1)") is None
    assert nvml("nvmlDeviceGetHandleByIndex(2)") == "NVMLError_GpuIsLost"


def test_faults_and_delays_by_function_and_field(caller: Call, path: Path) -> None:
    node = Scenario.of("gpu01", 2)
    node.answers = {"nvmlDeviceGetFanSpeed": Return.FUNCTION_NOT_FOUND}
    node.gpus[0].answers = {"nvmlDeviceGetPowerUsage": Return.NOT_SUPPORTED, 83: Return.NO_PERMISSION}
    node.gpus[0].delays_ms["nvmlDeviceGetTotalEnergyConsumption"] = 30
    node.gpus[0].temperature_c = None
    node.write(path)
    nvml = caller()
    nvml.start(2)
    assert nvml("nvmlDeviceGetFanSpeed(gpu0)") == nvml("nvmlDeviceGetFanSpeed(gpu1)")
    assert nvml("nvmlDeviceGetFanSpeed(gpu0)") == "NVMLError_FunctionNotFound"
    assert nvml("nvmlDeviceGetPowerUsage(gpu0)") == "NVMLError_NotSupported"
    assert nvml("nvmlDeviceGetTemperature(gpu0, 0)") == "NVMLError_NotSupported"
    assert nvml("nvmlDeviceGetPowerUsage(gpu1)") == 70_000
    assert [verdict for verdict, _, _ in nvml("fields(gpu0, 83, 186)")] == [Return.NO_PERMISSION, 0]
    before, _, after = nvml("timed(nvmlDeviceGetTotalEnergyConsumption, gpu0)")
    assert after - before >= 30_000_000


def test_xids_reach_each_event_set_once(caller: Call, path: Path) -> None:
    node = Scenario.of("gpu01", 2)
    node.gpus[0].xid(13)
    node.write(path)
    nvml = caller()
    nvml.start(2)
    nvml("early := nvmlEventSetCreate()")
    for gpu in ("gpu0", "gpu1"):
        nvml(f"nvmlDeviceRegisterEvents({gpu}, nvmlEventTypeXidCriticalError, early)")
    assert nvml("nvmlEventSetWait_v2(early, 0)") == "NVMLError_Timeout"

    nvml.send("[(e.eventData, e.eventType) for e in [nvmlEventSetWait_v2(early, 60000)]]")
    node.gpus[1].lost = True
    node.gpus[1].xid(79)
    node.write(path)
    assert nvml.receive() == [[79, 8]]
    assert nvml("nvmlEventSetWait_v2(early, 0)") == "NVMLError_Timeout"

    nvml("late := nvmlEventSetCreate()")
    nvml("nvmlDeviceRegisterEvents(gpu0, nvmlEventTypeXidCriticalError, late)")
    node.gpus[0].xid(48)
    node.write(path)
    for events in ("late", "early"):
        assert nvml(f"nvmlEventSetWait_v2({events}, 0).eventData") == 48
        assert nvml(f"nvmlEventSetWait_v2({events}, 0)") == "NVMLError_Timeout"
        assert nvml(f"nvmlEventSetFree({events})") is None


def test_wait_finds_an_event_from_just_before_it(caller: Call, path: Path) -> None:
    node = Scenario.of("gpu01", 1)
    node.write(path)
    nvml = caller()
    nvml.start(1)
    nvml("events := nvmlEventSetCreate()")
    nvml("nvmlDeviceRegisterEvents(gpu0, nvmlEventTypeXidCriticalError, events)")
    node.gpus[0].xid(79)
    node.write(later := path.with_name("later"))
    replaced = f"__import__('os').replace({str(later)!r}, {str(path)!r})"
    waited = "nvmlEventSetWait_v2(events, 3_600_000).eventData"
    assert nvml(f"[nvmlDeviceGetPowerUsage(gpu0), {replaced}, {waited}]")[2] == 79


def test_mig_devices_are_listed_with_their_processes(caller: Call, path: Path) -> None:
    node = Scenario.of("gpu01", 1, mig_mode=1)
    first = MigDevice("MIG-1b5e3d7c-0000-5000-8000-000000000001", gpu_instance=7, used_mib=100)
    node.gpus[0].migs = [first, replace(first, uuid="MIG-2", gpu_instance=8, profile="2g.20gb", slices=2)]
    node.gpus[0].processes = [GpuProcess(201, 90, gpu_instance=7, compute_instance=0)]
    node.write(path)
    nvml = caller()
    nvml.start()
    nvml("mig0 := nvmlDeviceGetMigDeviceHandleByIndex(gpu0, 0)")
    nvml("mig1 := nvmlDeviceGetMigDeviceHandleByIndex(gpu0, 1)")
    expected = {
        "nvmlDeviceGetMigMode(gpu0)": [1, 1],
        "nvmlDeviceGetMaxMigDeviceCount(gpu0)": 7,
        "nvmlDeviceGetMigDeviceHandleByIndex(gpu0, 2)": "NVMLError_NotFound",
        "nvmlDeviceGetUUID(mig0)": first.uuid,
        "nvmlDeviceGetName(mig1)": "NVIDIA H100 80GB HBM3 MIG 2g.20gb",
        "nvmlDeviceGetUUID(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig1))": node.gpus[0].uuid,
        "nvmlDeviceGetGpuInstanceId(mig1)": 8,
        "nvmlDeviceGetAttributes_v2(mig1).gpuInstanceSliceCount": 2,
        "nvmlDeviceGetMemoryInfo(mig0, nvmlMemory_v2).used >> 20": 100,
        "[p.pid for p in nvmlDeviceGetComputeRunningProcesses(mig0)]": [201],
        "nvmlDeviceGetComputeRunningProcesses(mig1)": [],
        "nvmlDeviceGetUtilizationRates(mig0)": "NVMLError_NotSupported",
        "nvmlDeviceGetUtilizationRates(gpu0)": "NVMLError_NotSupported",
        "nvmlDeviceGetPowerUsage(gpu0)": 70_000,
    }
    assert {call: nvml(call) for call in expected} == expected


def test_gpm_needs_two_samples_some_time_apart(caller: Call, path: Path) -> None:
    node = Scenario.of("gpu01", 2, pcie_tx_bytes_per_s=3 * 2**20)
    node.gpus[0].has_gpm = 0
    node.gpus[1].gpm = {2: 87.5, 10: 41.25}
    node.write(path)
    nvml = caller()
    nvml.start(2)
    assert nvml("[nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice for gpu in (gpu0, gpu1)]") == [0, 1]
    nvml("first := nvmlGpmSampleGet(gpu1, nvmlGpmSampleAlloc())")
    nvml("second := nvmlGpmSampleGet(gpu1, nvmlGpmSampleAlloc())")
    nvml("get := c_nvmlGpmMetricsGet_t(version=1, numMetrics=4, sample1=first, sample2=second)")
    nvml("[setattr(get.metrics[i], 'metricId', metric) for i, metric in enumerate((2, 10, 5, 20))]")
    metrics = "[[m.nvmlReturn, m.value] for m in nvmlGpmMetricsGet(get).metrics[:4]]"
    assert nvml(metrics) == [[0, 0], [0, 0], [3, 0], [0, 0]]
    deadline = time.monotonic() + 60
    while (values := nvml(metrics))[0] == [0, 0] and time.monotonic() < deadline:
        nvml("second := nvmlGpmSampleGet(gpu1, second)")
    assert values == [[0, 87.5], [0, 41.25], [3, 0.0], [0, pytest.approx(3, rel=1e-4)]]


def test_a_host_without_a_scenario_has_no_driver(caller: Call, standin_dir: Path) -> None:
    nvml = caller(scenario=None)
    assert nvml("nvmlInit()") == "NVMLError_DriverNotLoaded"
    own = standin_dir / "scenarios" / f"{os.uname().nodename}.scenario"
    Scenario.of("gpu01", 4).write(own)
    try:
        assert nvml("nvmlDeviceGetCount()") == "NVMLError_Uninitialized"
        assert nvml("nvmlInit()") is None
        assert nvml("nvmlDeviceGetCount()") == 4
    finally:
        own.unlink()


def test_functions_can_be_omitted(caller: Call, standin_lib: Path, path: Path, tmp_path: Path) -> None:
    library = build(tmp_path / "lib", tmp_path, omit=["nvmlDeviceGetPowerUsage"])
    Scenario.of("gpu01", 1).write(path)
    nvml = caller(library)
    nvml.start()
    assert nvml("nvmlDeviceGetPowerUsage(gpu0)") == "NVMLError_FunctionNotFound"
    assert nvml("nvmlDeviceGetEnforcedPowerLimit(gpu0)") == 700_000


@given(st.lists(st.tuples(st.integers(1, 10**12), st.integers(0, 10**12)), min_size=1, max_size=8))
def test_counters_continue_from_their_value_at_a_new_rate(changes: list[tuple[int, int]]) -> None:
    counter = Counter(((0, 5, 1),))
    anchor = 0
    for after_ns, rate in changes:
        anchor += after_ns
        before = counter
        counter = counter.with_rate(rate, anchor)
        assert counter.at(anchor) == before.at(anchor)
        assert counter.at(anchor - 1) == before.at(anchor - 1) <= counter.at(anchor)
        assert abs(counter.at(anchor + 10**9) - counter.at(anchor) - rate) <= 1
