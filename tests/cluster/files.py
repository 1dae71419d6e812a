"""Writes a test cluster's files: /etc, SSH, Slurm, environment modules, the NVML stand-in."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.cluster import slurm, ssh
from tests.cluster.login import Login
from tests.cluster.node import ClusterNode, address_of
from tests.cluster.standin import Scenario, build

_MODULE = """\
#%Module1.0
setenv CUDA_VERSION 12.4
prepend-path PATH /opt/cuda-12.4/bin
"""


def write(login: Login, nodes: Sequence[ClusterNode], gpus: int, slurm_site: Path | None) -> None:
    """Write all files into the cluster's root folder; `slurm_site` has files for Slurm's."""
    root = login.root
    logs = root / "logs"
    for folder in (logs, login.home, root / "nodes", root / "scenarios", root / "modulefiles" / "cuda"):
        folder.mkdir(parents=True)
    (root / "modulefiles" / "cuda" / "12.4").write_text(_MODULE)
    ssh.write_user(login.home)
    slurm.write(root / "slurm", logs, [node.name for node in nodes if node.kind.in_slurm], gpus, slurm_site)
    hosts = _hosts(nodes)
    _write_etc(login.folder, hosts, login.home, root)
    cache = _library_cache(root)
    for node in nodes:
        _write_etc(node.folder, hosts, node.home, root)
        ssh.write_node(node.folder, node.name, node.address, node.kind, login.home)
        if node.home != login.home:
            ssh.write_own_home(node.home, login.home)
        if node.kind.has_driver:
            shutil.copy(cache, node.folder / "etc" / "ld.so.cache")
            Scenario.of(node.name, node.gpus).write(node.scenario)


def _write_etc(folder: Path, hosts: str, home: Path, root: Path) -> None:
    """Write the files that take the place of those of the same name in a node's /etc."""
    etc = folder / "etc"
    (etc / "environment-modules").mkdir(parents=True)
    (etc / "hosts").write_text(hosts)
    users = [line.split(":") for line in Path("/etc/passwd").read_text().splitlines()]
    for user in users:
        if user[0] == "root":
            user[5] = str(home)
    (etc / "passwd").write_text("".join(":".join(user) + "\n" for user in users))
    (etc / "environment-modules" / "modulespath").write_text(f"{root / 'modulefiles'}\n")


def _hosts(nodes: Sequence[ClusterNode]) -> str:
    own = f"127.0.0.1 localhost\n{address_of(0)} login\n"
    return own + "".join(f"{node.address} {node.name}\n" for node in nodes)


def _library_cache(root: Path) -> Path:
    """Write a linker's cache with the stand-in, so that programs find it like an installed driver."""
    library = build(root / "lib", root / "scenarios")
    configuration = root / "ld.so.conf"
    configuration.write_text(f"{library}\ninclude /etc/ld.so.conf\n")
    cache = root / "ld.so.cache"
    subprocess.run(["ldconfig", "-X", "-C", cache, "-f", configuration], check=True)
    return cache
