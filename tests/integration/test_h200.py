"""A stand-in that answers as a real H200 did under known loads: samples are what nvidia-smi showed then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gswarm_agent.metrics import ACTIVITY_COLUMNS, GPU_COLUMNS, GPU_METRICS
from tests.cluster import standin
from tests.cluster.standin import Return, Scenario
from tests.integration.probe_stage import Stage, values

H200: dict[str, Any] = json.loads((Path(standin.__file__).parent / "h200.json").read_text())
COLUMNS = {
    "pwr": ("power_w", 1.5),
    "gtemp": ("temp_c", 1),
    "mtemp": ("mem_temp_c", 1),
    "sm": ("util_pct", 1),
    "mem": ("mem_util_pct", 1),
    "mclk": ("mem_clock_mhz", 0),
    "pclk": ("sm_clock_mhz", 10),
    "pviol": ("throttle_power_pct", 1),
    "fb": ("mem_used_mib", 1),
}
"""The column for each column of ``nvidia-smi dmon``, and by how much its mean may differ."""


def as_h200(load: str) -> Scenario:
    levels = dict(H200["loads"][load]["nvml"])
    gpm = {int(metric): value for metric, value in levels.pop("gpm").items()}
    scenario = Scenario.of("n", 1, **H200["levels"], **levels)
    scenario.driver_version, scenario.nvml_version = H200["driver_version"], H200["nvml_version"]
    (gpu,) = scenario.gpus
    gpu.name, gpu.gpm = H200["name"], gpm
    gpu.answers = {"nvmlDeviceGetNvLinkState": Return.NOT_SUPPORTED}
    return scenario


@pytest.mark.parametrize("load", H200["loads"])
def test_samples_are_what_nvidia_smi_shows(stage: Stage, load: str) -> None:
    stage.set(as_h200(load))
    with stage.node() as node:
        (row,) = node.until(lambda reading: values(reading, "pcie_rx_mb_s") != [None]).gpus
        assert row is not None
        shown = H200["loads"][load]["nvidia_smi"]
        for name, (column, tolerance) in COLUMNS.items():
            assert row[column] == pytest.approx(shown[name], abs=tolerance), column
        # GPM leaves out the requests with which the GPU reads from the host, nvidia-smi counts them.
        traffic = [row["pcie_rx_mb_s"] or 0, row["pcie_tx_mb_s"] or 0]
        assert max(traffic) == pytest.approx(max(shown["rxpci"], shown["txpci"]), rel=0.2, abs=10)
        assert row["throttle_thermal_pct"] == row["throttle_brake_pct"] == 0
        assert (row["nvlink_tx_mb_s"], row["nvlink_rx_mb_s"]) == (None, None)
        lacking = node.facts().capabilities.keys() & set(GPU_COLUMNS)
        nvlink = {metric.name for metric in GPU_METRICS if metric.name.startswith("nvlink_")}
        # Only PCIe was asked of GPM when these answers were kept.
        assert lacking == {*nvlink, "module_power_w", *ACTIVITY_COLUMNS}
