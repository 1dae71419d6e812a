"""The framework, NCCL and container of a process: its mapped libraries tell where their packages lie.

Reads may hang with the process or its file system, so they belong into a process that can be killed.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass

from gswarm_agent.probes.procfs import read_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional

_FRAMEWORKS = (
    # A mapped library, its folders inside "site-packages", its framework, and its distribution.
    (b"/torch/lib/libtorch_cpu.so", 2, "torch", "torch"),
    (b"/jaxlib/libjax_common.so", 1, "jax", "jaxlib"),
    (b"/jaxlib/xla_extension.so", 1, "jax", "jaxlib"),
    (
        b"/tensorflow/libtensorflow_framework.so",
        1,
        "tensorflow",
        r"(?:intel_)?tensorflow(?:_\w+)?|tf_nightly",
    ),
    (b"/paddle/base/libpaddle.so", 2, "paddle", r"paddlepaddle(?:_\w+)?"),
    (b"/libtorch_cpu.so", 2, "torch", "torch"),
)
_NCCL = b"/libnccl.so"
_VERSION = r"[0-9][0-9A-Za-z.]{0,19}"
_ASSIGNED = re.compile(rf"^__version__ = ['\"]({_VERSION})".encode(), re.MULTILINE)
_CONTROLLED = re.compile(rb"[/:-](docker|libpod|crio|cri-containerd|nerdctl)[-/]([0-9a-f]{12})[0-9a-f]{52}")
_ENGINES = {b"libpod": "podman"}
_ROOT = re.compile(rb"^\S+ \S+ \S+ (\S*/([^/ ]+)) / ", re.MULTILINE)
_LONGEST = 40
"""Characters of a container's name: those of all processes must fit into a message."""


@dataclass(frozen=True)
class Software:
    """The framework of a process with its version, as in "torch 2.14.1", and the version of NCCL."""

    framework: Optional[str] = None
    nccl: Optional[str] = None


def read_software(maps: bytes, root: str = "") -> Software:
    """Return the software that /proc/PID/maps shows. ``root`` is /proc/PID/root, the process's own root.

    A version that no file beside the library tells is left out.
    """
    framework = nccl = None
    for library, depth, name, distribution in _FRAMEWORKS:
        if path := _mapped(maps, library):
            package = path.rsplit("/", depth)[0]
            version = _distributed(f"{root}{os.path.dirname(package)}", distribution)
            source = f"{root}{package}/version.py"
            # A pipe in its place would stop the reader.
            if version is None and os.path.isfile(source) and (found := _ASSIGNED.search(read_start(source))):
                version = found[1].decode()
            framework = name if version is None else f"{name} {version}"
            break
    if path := _mapped(maps, _NCCL):
        if in_name := re.search(rf"\.so\.({_VERSION}\.[0-9.]+)", path):
            nccl = in_name[1]
        else:
            nccl = _distributed(f"{root}{path.rsplit('/', 4)[0]}", r"nvidia_nccl_cu\d+")
    return Software(framework, nccl)


def _mapped(maps: bytes, library: bytes) -> Optional[str]:
    """Return the path of a library among the mappings. A pattern would take a hundred times as long."""
    at = maps.find(library)
    if at < 0:
        return None
    start, end = maps.rfind(b"\n", 0, at) + 1, maps.find(b"\n", at)
    line = maps[start : end if end >= 0 else None]
    return os.fsdecode(line[line.index(b"/") :])


def _distributed(folder: str, distribution: str) -> Optional[str]:
    """Return the version of an installed distribution, from the name of the folder that describes it."""
    form = re.compile(rf"(?:{distribution})-({_VERSION})(?:\+[\w.]+)?(?:-py[\d.]+)?\.(?:dist|egg)-info")
    with suppress(OSError):
        for name in os.listdir(folder):
            if found := form.fullmatch(name):
                return found[1]
    return None


def read_container(folder: str, variables: Dict[bytes, bytes]) -> Optional[str]:
    """Return the container of the process of a folder of /proc, as in "apptainer torch.sif".

    ``variables`` are its environment. It is None outside containers, and where nothing tells of one.
    """
    for name in (b"APPTAINER_CONTAINER", b"SINGULARITY_CONTAINER"):
        if image := variables.get(name):
            return _text(f"apptainer {os.fsdecode(image).rpartition('/')[2]}")
    if found := _CONTROLLED.search(read_start(f"{folder}/cgroup")):
        return f"{_ENGINES.get(found[1], found[1].decode())} {found[2].decode()}"
    # The root of an Enroot container is a folder of the host, which Pyxis names after itself.
    mounted = _ROOT.search(read_start(f"{folder}/mountinfo"))
    if mounted and (b"enroot" in mounted[1] or mounted[2].startswith(b"pyxis_")):
        return _text(f"enroot {os.fsdecode(mounted[2])}")
    if engine := variables.get(b"container"):
        return _text(os.fsdecode(engine))
    for mark, engine_name in ((".dockerenv", "docker"), ("run/.containerenv", "podman")):
        if os.path.exists(f"{folder}/root/{mark}"):
            return engine_name
    return None


def _text(words: str) -> str:
    return words[:_LONGEST].encode("ascii", "replace").decode()
