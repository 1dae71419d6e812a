"""Tests of a chip's activity by NVML's GPU performance monitoring; metric ids are those of nvml.h."""

from __future__ import annotations

import math

from gswarm_agent.metrics import ACTIVITY_COLUMNS, DEFAULT_GROUPS
from tests.cluster.standin import Return, Scenario
from tests.integration.probe_stage import Stage, about, values

SHARES = {2: 12.5, 5: 3.125, 10: 40.5, 3: 6.25, 11: 0.0, 12: 8.5, 13: 1.5}
"""nvmlGpmMetricId_t: SMs, tensor cores, DRAM, occupancy, FP64, FP32, FP16."""


def test_activity_is_read_metric_by_metric(stage: Stage) -> None:
    scenario = Scenario.of("n", 2, utilization_percent=100)
    # A Grace Hopper module has C2C, and NVML answers in MiB/s; one metric that fails costs only itself.
    scenario.gpus[0].gpm = {**SHARES, 100: 1000.0, 101: 2000.0, 20: 10.0, 21: 20.0}
    scenario.gpus[1].gpm = {**SHARES, 5: math.nan}
    stage.set(scenario)
    with stage.node() as node:
        assert node.facts().capabilities["gpu1.c2c_tx_mb_s"] == "not supported by this GPU"
        node.until(lambda reading: values(reading, "sm_active_pct") == [12.5, 12.5])
        first, second = node.read(0).gpus
        assert first is not None
        assert second is not None
        wanted = [*SHARES.values(), about(1048.576), about(2097.152)]
        assert [first[name] for name in ACTIVITY_COLUMNS] == wanted
        assert [second[name] for name in ACTIVITY_COLUMNS] == [wanted[0], None, *wanted[2:7], None, None]
        assert second["pcie_tx_mb_s"] is not None
        node.switch("core", "activity")
        row = node.read(0).gpus[0]
        assert row is not None
        assert (row["sm_active_pct"], row["pcie_tx_mb_s"]) == (12.5, None)
        node.switch("core", "pcie")
        row = node.read(0).gpus[0]
        assert row is not None
        assert (row["sm_active_pct"], row["pcie_tx_mb_s"]) == (None, about(10.48576))
        node.switch(*DEFAULT_GROUPS)
        assert values(node.read(0), "sm_active_pct") == [12.5, 12.5]


def test_why_activity_is_not_measured(stage: Stage) -> None:
    scenario = Scenario.of("n", 3, pcie_tx_bytes_per_s=1024 * 10**6)
    scenario.gpus[0].name, scenario.gpus[0].has_gpm = "NVIDIA A100-SXM4-80GB", 0
    scenario.gpus[2].gpm = SHARES
    scenario.gpus[1].answers = {"nvmlGpmSampleGet": Return.NO_PERMISSION}
    stage.set(scenario)
    with stage.node() as node:
        reasons = node.facts().capabilities
        assert "Hopper" in reasons["gpu0.tensor_active_pct"]
        assert "NVreg_RestrictProfilingToAdminUsers=0" in reasons["gpu1.tensor_active_pct"]
        reading = node.until(lambda reading: values(reading, "pcie_tx_mb_s") == [about(1024)] * 3)
        assert values(reading, "tensor_active_pct") == [None, None, 3.125]
        assert not {name for name in node.facts().capabilities if "pcie" in name}


def test_counters_that_stand_still_on_a_busy_gpu_are_unknown(stage: Stage) -> None:
    # DCGM's issue 303: after XID 31 they say 0 while kernels run.
    scenario = Scenario.of("n", 3, utilization_percent=100)
    for gpu in scenario.gpus:
        gpu.gpm = dict.fromkeys(SHARES, 0.0) | {20: 1.0, 21: 1.0}
    scenario.gpus[1].utilization_percent = 0
    scenario.gpus[2].gpm[10] = 0.004  # as while it only copies
    stage.set(scenario)
    with stage.node() as node:
        reading = node.until(lambda reading: values(reading, "pcie_tx_mb_s") == [about(1.048576)] * 3)
        assert values(reading, "tensor_active_pct") == [None, 0, 0]
