"""Tests of the facts about NVIDIA's driver that the probes rely on."""

from __future__ import annotations

import pynvml
import pytest

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
