"""Tests of a process's framework, NCCL and container, as its files in /proc show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gswarm_agent.probes.software import Software, read_container, read_software

PIP, CONDA = "/venv/lib/python3.11/site-packages", "/conda/lib/python3.12/site-packages"


def mapping(*paths: str) -> bytes:
    """Return /proc/PID/maps with these files among anonymous memory."""
    lines = [f"7f00-7f10 r-xp 00000000 08:01 {number}        {path}\n" for number, path in enumerate(paths)]
    return ("7e00-7e10 rw-p 00000000 00:00 0\n" + "".join(lines)).encode()


@pytest.mark.parametrize(
    ("mapped", "beside", "expected"),
    [
        (
            (f"{PIP}/torch/lib/libtorch_cpu.so", f"{PIP}/nvidia/nccl/lib/libnccl.so.2"),
            (f"{PIP}/torch-2.14.1.dist-info", f"{PIP}/nvidia_nccl_cu13-2.30.7.dist-info"),
            Software("torch 2.14.1", "2.30.7"),
        ),
        (
            (f"{CONDA}/torch/lib/libtorch_cpu.so", "/conda/lib/libnccl.so.2.21.5"),
            (f"{CONDA}/torchvision-0.9.dist-info", f"{CONDA}/torch-2.5.1+cu124-py3.12.egg-info"),
            Software("torch 2.5.1", "2.21.5"),
        ),
        (
            (f"{PIP}/jaxlib/libjax_common.so",),
            (f"{PIP}/jaxlib-0.10.2.dist-info",),
            Software("jax 0.10.2"),
        ),
        (
            (f"{PIP}/tensorflow/libtensorflow_framework.so.2 (deleted)",),
            (f"{PIP}/tensorflow_cpu-2.20.0.dist-info",),
            Software("tensorflow 2.20.0"),
        ),
        (("/opt/torch/lib/libtorch_cpu.so", "/usr/lib/libnccl.so.2"), (), Software("torch")),
        (("/usr/lib/libc.so.6",), (), Software()),
    ],
)
def test_versions_come_from_beside_the_mapped_libraries(
    tmp_path: Path, mapped: tuple[str, ...], beside: tuple[str, ...], expected: Software
) -> None:
    for folder in beside:
        Path(f"{tmp_path}{folder}").mkdir(parents=True)
    assert read_software(mapping(*mapped), str(tmp_path)) == expected


def test_a_framework_built_from_source_has_its_version_in_a_module(tmp_path: Path) -> None:
    (tmp_path / "src/torch").mkdir(parents=True)
    (tmp_path / "src/torch/version.py").write_text("debug = False\n__version__ = '2.15.0a0+git1'\n")
    assert read_software(mapping("/src/torch/lib/libtorch_cpu.so"), str(tmp_path)) == Software(
        "torch 2.15.0a0"
    )


@pytest.mark.parametrize(
    ("variables", "file", "text", "expected"),
    [
        ({b"APPTAINER_CONTAINER": b"/images/torch-24.10.sif"}, "", "", "apptainer torch-24.10.sif"),
        ({}, "cgroup", f"0::/system.slice/docker-{'0a1b' * 16}.scope\n", "docker 0a1b0a1b0a1b"),
        ({}, "cgroup", f"0::/user.slice/libpod-{'0a1b' * 16}.scope\n", "podman 0a1b0a1b0a1b"),
        ({}, "mountinfo", "9 8 8:1 /data/user-7/pyxis_12.0 / rw - xfs /dev/sda1 rw\n", "enroot pyxis_12.0"),
        ({}, "mountinfo", "9 8 8:1 /var/lib/machines / rw - xfs /dev/sda1 rw\n", None),
        ({b"container": b"podman"}, "", "", "podman"),
        ({}, "root/.dockerenv", "", "docker"),
        ({}, "", "", None),
    ],
)
def test_containers(
    tmp_path: Path, variables: dict[bytes, bytes], file: str, text: str, expected: str | None
) -> None:
    if file:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    assert read_container(str(tmp_path), variables) == expected
