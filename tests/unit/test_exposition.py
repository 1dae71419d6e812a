"""Metrics for Prometheus: base units, labels, absent values, and text as prometheus_client writes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gswarm_agent.frame import ProcessSample
from gswarm_agent.metrics import GPU_METRICS, HOST_METRICS, LISTINGS
from gswarm_tui.fleet.events import (
    FindingChanged,
    FleetExamined,
    LinkChanged,
    LinkMeasured,
    NodeIntroduced,
    Phase,
    RecorderStatus,
)
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.server.exposition import (
    FINDING_FAMILIES,
    GPU_FAMILIES,
    HOST_FAMILIES,
    INFO_FAMILIES,
    LEDGER_FAMILIES,
    LISTING_FAMILIES,
    NODE_FAMILIES,
    RECORDER_FAMILIES,
    RecorderHealth,
    exposition_text,
    fleet_tables,
)
from tests.unit.store_recording import T0, arrived, finding, gpu_row, hello, host_row, listings, process_row

FAMILIES = (
    *GPU_FAMILIES,
    *HOST_FAMILIES,
    *chain(*LISTING_FAMILIES.values()),
    *NODE_FAMILIES,
    *RECORDER_FAMILIES,
    *INFO_FAMILIES,
    *FINDING_FAMILIES,
    *LEDGER_FAMILIES,
)
STATUS = RecorderStatus("run.duckdb", rows=1200, file_bytes=4096, waiting=3, committed={})
HEALTH = RecorderHealth("abd2", T0, STATUS, connected=True, disk_free_bytes=10**9)


def live_fleet(*nodes: str, allocation: dict[str, frozenset[int]] | None = None) -> Fleet:
    fleet = Fleet(nodes, allocation=allocation)
    for node in nodes:
        fleet.apply(LinkChanged(node, T0, Phase.LIVE))
        introduced = hello(node)
        gpus = tuple(replace(gpu, minor=gpu.index) for gpu in introduced.gpus)
        fleet.apply(NodeIntroduced(node, T0, replace(introduced, gpus=gpus)))
    return fleet


def samples(
    fleet: Fleet, now: float = T0 + 1, job_id: str = "", health: RecorderHealth | None = None
) -> list[Sample]:
    """Return the samples that a scrape gets."""
    text = exposition_text(fleet_tables(fleet, now, job_id, health)).decode()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def values_of(found: Sequence[Sample], name: str) -> list[float]:
    return [sample.value for sample in found if sample.name == name]


def test_values_are_in_base_units() -> None:
    fleet = live_fleet("n1")
    row = gpu_row(
        util_pct=97, mem_used_mib=1024, power_w=350.3, sm_clock_mhz=1980, energy_mj=86_172_890_421,
        nvlink_tx_mb_s=4.5, ecc_corrected=7, throttle_power_pct=12.5, temp_c=61, pstate=0,
    )  # fmt: skip
    fleet.apply(arrived(1, [row, None], host=host_row(cpu_pct=12.3, memory_used_mib=2, load_1m=3.5)))
    found = samples(fleet)
    assert {
        name: values_of(found, f"gswarm_{name}")
        for name in (
            "gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_power_watts", "gpu_sm_clock_hertz",
            "gpu_energy_joules_total", "gpu_nvlink_transmit_bytes_per_second",
            "gpu_ecc_corrected_errors_total",
            "gpu_throttle_power_ratio", "gpu_temperature_celsius", "gpu_pstate", "host_cpu_ratio",
            "host_memory_used_bytes", "host_load_1m", "host_memory_total_bytes",
        )
    } == {
        "gpu_utilization_ratio": [0.97],
        "gpu_memory_used_bytes": [2.0**30],
        "gpu_power_watts": [350.3],
        "gpu_sm_clock_hertz": [1.98e9],
        "gpu_energy_joules_total": [86_172_890.421],
        "gpu_nvlink_transmit_bytes_per_second": [4.5e6],
        "gpu_ecc_corrected_errors_total": [7],
        "gpu_throttle_power_ratio": [0.125],
        "gpu_temperature_celsius": [61],
        "gpu_pstate": [0],
        "host_cpu_ratio": [0.123],
        "host_memory_used_bytes": [2.0**21],
        "host_load_1m": [3.5],
        "host_memory_total_bytes": [515_000 * 2.0**20],
    }  # fmt: skip


def test_each_metric_of_the_catalogue_has_a_family_with_its_help() -> None:
    known = (GPU_METRICS, GPU_FAMILIES), (HOST_METRICS, HOST_FAMILIES)
    for metrics, families in (*known, *((LISTINGS[kind], LISTING_FAMILIES[kind]) for kind in LISTINGS)):
        assert [family.help for family in families[: len(metrics)]] == [each.meaning for each in metrics]
    names = [family.series for family in FAMILIES]
    assert len(set(names)) == len(names)


def test_labels_are_those_of_dcgm_exporter_with_job_and_rank() -> None:
    fleet = live_fleet("n1", allocation={"n1": frozenset({0})})
    ranks = [
        ProcessSample(0, pid, "ada", "python", rank, None, process_row()) for pid, rank in ((7, 9), (8, 8))
    ]
    fleet.apply(arrived(1, [gpu_row(util_pct=1), gpu_row(util_pct=2)], processes=tuple(ranks)))
    mine, other = (
        sample.labels
        for sample in samples(fleet, job_id="4711")
        if sample.name == "gswarm_gpu_utilization_ratio"
    )
    assert mine == {
        "hostname": "n1", "gpu": "0", "UUID": "GPU-n1-0", "modelName": "NVIDIA H100", "hpc_job": "4711",
        "rank": "8,9",
    }  # fmt: skip
    assert other == {"hostname": "n1", "gpu": "1", "UUID": "GPU-n1-1", "modelName": "NVIDIA H100"}


def test_ports_and_file_systems_have_series_in_base_units() -> None:
    fleet = live_fleet("n1")
    fleet.apply(
        arrived(1, [None, None], listed=listings(state=4, rate_gbit_s=400, rx_mb_s=1.5, symbol_error=9))
    )
    found = [sample for sample in samples(fleet) if sample.name.startswith(("gswarm_port", "gswarm_mount"))]
    assert {tuple(sample.labels.values()) for sample in found} == {("n1", "mlx5_0/1"), ("n1", "/home/ada")}
    assert {sample.name.removeprefix("gswarm_"): sample.value for sample in found} == {
        "port_state": 4, "port_rate_bytes_per_second": 5e10, "port_receive_bytes_per_second": 1.5e6,
        "port_symbol_error_total": 9,
        "mount_free_bytes": 7 * 2**20, "mount_total_bytes": 2.0**61, "mount_read_seconds": 0.0025,
    }  # fmt: skip


def test_label_from_a_hostile_node_is_short_and_printable() -> None:
    fleet = live_fleet("n1")
    introduced = hello("n1", gpus=1)
    gpus = (replace(introduced.gpus[0], name="\x1b[2J" + "x" * 4000),)
    fleet.apply(NodeIntroduced("n1", T0, replace(introduced, gpus=gpus)))
    fleet.apply(arrived(1, [gpu_row(util_pct=1)]))
    (sample,) = (each for each in samples(fleet) if each.name == "gswarm_gpu_utilization_ratio")
    assert sample.labels["modelName"] == "\\x1b[2J" + "x" * 193


def test_a_value_that_is_not_measured_now_is_absent() -> None:
    fleet = live_fleet("n1")
    fleet.apply(arrived(1, [gpu_row(util_pct=5, energy_mj=1000), gpu_row(energy_mj=2000)]))
    assert values_of(samples(fleet), "gswarm_gpu_utilization_ratio") == [0.05]
    fleet.apply(arrived(2, [gpu_row(util_pct=6), gpu_row(energy_mj=3000)]))
    later = samples(fleet, T0 + 2)
    assert values_of(later, "gswarm_gpu_energy_joules_total") == [1, 3], "it is read every 10 s"
    fleet.apply(arrived(17, [gpu_row(util_pct=6), gpu_row(energy_mj=9000)]))
    assert values_of(samples(fleet, T0 + 17), "gswarm_gpu_energy_joules_total") == [9]
    assert values_of(later, "gswarm_gpu_power_watts") == []
    assert values_of(later, "gswarm_host_cpu_ratio") == []


def test_a_stale_node_keeps_only_what_the_recorder_measures() -> None:
    fleet = live_fleet("n1", "n2")
    fleet.apply(LinkMeasured("n1", T0, 0.25, 0.002))
    for node, seq in (("n1", 1), ("n2", 1), ("n2", 60)):
        fleet.apply(arrived(seq, [gpu_row(util_pct=5)] * 2, node=node, host=host_row(cpu_pct=1)))
    found = samples(fleet, T0 + 60)
    assert [sample.value for sample in found if sample.labels["hostname"] == "n1"] == [0, 59, 0, 0, 0]
    by_name = {sample.name: sample.value for sample in found if sample.labels["hostname"] == "n2"}
    assert by_name["gswarm_node_up"] == 1
    assert by_name["gswarm_node_lost_frames_total"] == 58
    assert by_name["gswarm_node_lag_seconds"] == 0.0005
    assert "gswarm_node_round_trip_seconds" not in by_name
    unreachable = samples(Fleet(["n3"]))
    assert {sample.name for sample in unreachable} == {
        "gswarm_node_up", "gswarm_node_lost_frames_total", "gswarm_node_missed_ticks_total",
        "gswarm_node_reconnects_total",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("health", "up", "rows"),
    [
        (HEALTH, 1, [1200]),
        (HEALTH._replace(connected=False), 0, [1200]),
        (HEALTH._replace(status=replace(STATUS, error="no space left on device")), 0, [1200]),
        (HEALTH._replace(status=None), 0, []),
    ],
)
def test_the_recorder_reports_its_health(health: RecorderHealth, up: int, rows: list[int]) -> None:
    found = samples(live_fleet("n1"), job_id="4711", health=health)
    assert values_of(found, "gswarm_recorder_up") == [up]
    assert values_of(found, "gswarm_recorder_rows_total") == rows
    assert values_of(found, "gswarm_recorder_disk_free_bytes") == [10**9]
    (info,) = (sample.labels for sample in found if sample.name == "gswarm_recording_info")
    assert (info["recording"], info["hpc_job"]) == ("abd2", "4711")


def test_findings_that_hold_and_the_ledger_have_series() -> None:
    fleet = live_fleet("n1")
    assert not values_of(samples(fleet), "gswarm_finding")
    hang = finding(3, kind="hang", severity="fault", node=None, gpu=None)
    dismissed, ended = finding(4, dismissed=True), finding(5, until=T0 + 20)
    for found in (finding(1), hang, dismissed, ended):
        fleet.apply(FindingChanged(T0, found))
    fleet.apply(FleetExamined(T0, {"working": 90.0, "waiting": 10.5}, {}, {}))
    series = {
        frozenset(sample.labels.items()): sample.value
        for sample in samples(fleet, job_id="4711")
        if sample.name in ("gswarm_finding", "gswarm_ledger_gpu_seconds")
    }
    job = ("hpc_job", "4711")
    assert series == {
        frozenset({("kind", "hang"), ("severity", "fault"), job}): 1,
        frozenset({("kind", "thermal"), ("severity", "waste"), ("node", "n1"), ("gpu", "1"), job}): 1,
        frozenset({("cause", "working"), job}): 90,
        frozenset({("cause", "waiting"), job}): 10.5,
    }


@given(
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.floats(0, 2.0**40, width=32) | st.none(),
    st.integers(0, 10**15),
)
def test_text_is_parsed_for_any_label_and_value(model: str, power: float | None, energy: int) -> None:
    fleet = live_fleet("n1")
    introduced = hello("n1")
    gpus = tuple(replace(gpu, name=model) for gpu in introduced.gpus)
    fleet.apply(NodeIntroduced("n1", T0, replace(introduced, gpus=gpus)))
    rows = [gpu_row(util_pct=5, power_w=power, energy_mj=energy), None]
    fleet.apply(arrived(1, rows, host=host_row(cpu_pct=0.3)))
    found = samples(fleet, job_id='4711"\\', health=HEALTH)
    assert values_of(found, "gswarm_gpu_energy_joules_total") == [energy / 1000]
    assert {sample.labels["hpc_job"] for sample in found if sample.name == "gswarm_node_up"} == {'4711"\\'}
