"""Writes a test cluster's Slurm configuration: GPUs as generic resources, no systemd."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

_SLURM_CONF = """\
ClusterName=gswarm
SlurmctldHost=login
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=1
SlurmdParameters=config_overrides
GresTypes=gpu
MpiDefault=none
ReturnToService=2
KillWait=5
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/spool
SlurmctldLogFile={logs}/login-slurmctld.log
SlurmdLogFile={logs}/%n-slurmd.log
NodeName={nodes} CPUs={cpus} Gres=gpu:{model}:{gpus}
PartitionName=main Nodes={nodes} Default=YES MaxTime=INFINITE State=UP
"""

MODEL = "h100"
_CPUS = 16


def write(folder: Path, logs: Path, nodes: Sequence[str], gpus: int, site: Path | None) -> Path:
    """Write slurm.conf and gres.conf into `folder`; return the value of SLURM_CONF.

    Args:
        site: a folder of files to copy beside them; slurm.conf includes its `site.conf` first.
    """
    folder.mkdir()
    include = ""
    if site is not None:
        shutil.copytree(site, folder, dirs_exist_ok=True)
        include = f"Include {folder}/site.conf\n"
    names = ",".join(nodes)
    path = folder / "slurm.conf"
    text = _SLURM_CONF.format(logs=logs, nodes=names, cpus=_CPUS, model=MODEL, gpus=gpus)
    path.write_text(include + text)
    devices = f"/run/gpu/nvidia[0-{gpus - 1}]" if gpus > 1 else "/run/gpu/nvidia0"
    (folder / "gres.conf").write_text(f"NodeName={names} Name=gpu Type={MODEL} File={devices}\n")
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    return path
