"""Tests of the facts about NVIDIA's driver that the probes rely on."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

from gswarm_agent.probes.gpus.nvidia import facts_of_lost_gpu
from gswarm_agent.probes.gpus.nvidia_nvml import Nvml, reason_of
from gswarm_agent.probes.gpus.nvidia_sources import field_sources


def driver(version: str | None) -> Nvml:
    """Return an Nvml with only a driver version."""
    nvml = Nvml.__new__(Nvml)
    nvml.api, nvml.driver_version = pynvml, version
    return nvml


def thermal_fields(version: str | None) -> list[int]:
    (source,) = [s for s in field_sources(driver(version)) if "throttle_thermal_pct" in s.columns]
    return [field for field, _ in source.fields]


@pytest.mark.parametrize("version", ["580.82.07", "580.82", "590.44.01", "nonsense", "", None])
def test_throttle_fields_have_new_ids(version: str | None) -> None:
    assert thermal_fields(version) == [269, 270]


@pytest.mark.parametrize("version", ["580.65.06", "575.57.08", "535.183.01"])
def test_throttle_fields_have_old_ids_on_older_drivers(version: str) -> None:
    assert thermal_fields(version) == [251, 252]


def test_every_nvml_error_has_a_reason() -> None:
    codes = [value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")]
    assert len(codes) > 25
    assert all(reason_of(code).strip() for code in codes)
    assert reason_of(4711) == "NVML error 4711"


INFORMATION = """\
Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 183
GPU UUID: \t {uuid}
Video BIOS: \t ??.??.??.??.??
Bus Type: \t PCIe
Bus Location: \t 0000:{bus}:00.0
Device Minor: \t 2
GPU Excluded:\t No
"""


def kernel_module(proc: Path, **uuids: str) -> None:
    for bus, uuid in uuids.items():
        folder = proc / f"driver/nvidia/gpus/0000:{bus}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(INFORMATION.format(uuid=uuid, bus=bus))


def test_facts_of_a_lost_gpu_come_from_the_kernel_module(tmp_path: Path) -> None:
    kernel_module(tmp_path, b8="GPU-2", a1="GPU-1", c0="GPU-????????-????-????")
    facts = facts_of_lost_gpu(1, 3, str(tmp_path))
    assert (facts.index, facts.uuid, facts.name) == (1, "GPU-2", "NVIDIA H100 80GB HBM3")
    assert (facts.pci_bus_id, facts.minor, facts.memory_total_mib) == ("0000:b8:00.0", 2, None)
    assert facts_of_lost_gpu(2, 3, str(tmp_path)).uuid == "unknown-2"


def test_facts_of_a_lost_gpu_are_unknown_if_not_all_gpus_are_visible(tmp_path: Path) -> None:
    kernel_module(tmp_path, a1="GPU-1", b8="GPU-2")
    assert facts_of_lost_gpu(0, 1, str(tmp_path)).uuid == "unknown-0"
    assert facts_of_lost_gpu(0, 1, str(tmp_path / "nowhere")).name == "unknown GPU"
