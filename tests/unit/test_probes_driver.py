"""Tests of the facts about NVIDIA's driver that the probes rely on."""

from __future__ import annotations

import pynvml
import pytest

from gswarm_agent.probes.gpus.nvidia_nvml import Nvml, reason_of


@pytest.mark.parametrize("version", ["nonsense", "", None])
def test_an_unknown_driver_counts_as_new(version: str | None) -> None:
    nvml = Nvml.__new__(Nvml)
    nvml.driver_version = version
    assert not nvml.driver_before(580, 82)


def test_every_nvml_error_has_a_reason() -> None:
    codes = [value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")]
    assert len(codes) > 25
    assert all(reason_of(code).strip() for code in codes)
    assert reason_of(4711) == "NVML error 4711"
