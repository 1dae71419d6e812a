"""The signals that rules read: which metrics, as means of short steps of time.

Each has its SQL over the columns of a recording, and the same as a function of the newest values.
"""

from __future__ import annotations

from typing import NamedTuple

from gswarm_agent.metrics import (
    REASON_HW_SLOWDOWN,
    REASON_HW_THERMAL,
    REASON_POWER_BRAKE,
    REASON_POWER_CAP,
    REASON_SW_THERMAL,
)


class Signal(NamedTuple):
    """A signal: the sum of some metrics, or the share in % of samples that have one of some reason bits."""

    name: str
    columns: tuple[str, ...]
    bits: int = 0

    @property
    def sql(self) -> str:
        """The signal of one sample."""
        if self.bits:
            return f"CASE WHEN {self.columns[0]} & {self.bits} <> 0 THEN 100 ELSE 0 * {self.columns[0]} END"
        return " + ".join(self.columns)


def _plain(*names: str) -> tuple[Signal, ...]:
    return tuple(Signal(name, (name,)) for name in names)


_REASONS = ("clock_reasons",)
GPU_SIGNALS: tuple[Signal, ...] = (
    *_plain("util_pct", "mem_util_pct", "mem_used_mib", "power_w", "temp_c", "sm_clock_mhz"),
    *_plain("throttle_power_pct", "throttle_thermal_pct", "throttle_brake_pct"),
    *_plain("sm_active_pct", "tensor_active_pct", "dram_active_pct"),
    *_plain("pcie_gen", "pcie_width", "pcie_replays"),
    Signal("pcie_mb_s", ("pcie_tx_mb_s", "pcie_rx_mb_s")),
    Signal("nvlink_mb_s", ("nvlink_tx_mb_s", "nvlink_rx_mb_s")),
    Signal("reason_power_pct", _REASONS, REASON_POWER_CAP),
    Signal("reason_thermal_pct", _REASONS, REASON_SW_THERMAL | REASON_HW_THERMAL),
    Signal("reason_brake_pct", _REASONS, REASON_POWER_BRAKE | REASON_HW_SLOWDOWN),
    Signal("reason_locked_pct", _REASONS, 0x2),
)
"""Signals of GPUs, kept by step."""
HOST_SIGNALS: tuple[Signal, ...] = (
    *_plain("cpu_pct", "cpu_iowait_pct", "cpu_busiest_pct", "load_1m", "memory_used_mib", "swap_used_mib"),
    *_plain("disk_read_mb_s", "disk_write_mb_s", "psi_cpu_pct", "psi_memory_pct", "psi_io_pct"),
    *_plain("job_memory_mib", "job_memory_limit_mib", "job_oom_kills"),
    *_plain("job_psi_cpu_pct", "job_psi_memory_pct", "job_psi_io_pct"),
    Signal("net_mb_s", ("net_rx_mb_s", "net_tx_mb_s")),
    Signal("ib_mb_s", ("ib_rx_mb_s", "ib_tx_mb_s")),
)
"""Signals of nodes, kept by step."""
NEWEST: tuple[str, ...] = (
    *("ecc_corrected", "ecc_uncorrected", "remapped_correctable", "remapped_uncorrectable"),
    *("remap_pending", "remap_failed", "recovery_action", "temp_margin_c", "power_limit_now_w"),
    *("app_sm_clock_mhz", "nvlink_errors", "nvlink_recoveries"),
    *("fabric_state", "energy_mj"),
)
"""Metrics of GPUs of which the rules read the newest and the first value."""
