"""The test cluster is what it claims to be: real nodes, real SSH, real Slurm."""

from __future__ import annotations

import re
import subprocess

from tests.cluster.cluster import Cluster
from tests.cluster.kinds import REPOSITORY

COUNT_GPUS = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"


def ssh(cluster: Cluster, name: str, *command: str) -> subprocess.CompletedProcess[str]:
    return cluster.run(["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", name, *command], check=False)


def test_an_allocation_has_its_nodes_and_steps_on_them(cluster: Cluster) -> None:
    script = "scontrol show hostnames; srun hostname | sort; srun --overlap -n1 -N1 hostname"
    done = cluster.run(["salloc", "-N2", "--gres=gpu:4", "-w", "gpu01,gpu04", "bash", "-c", script])
    assert done.stdout.split() == ["gpu01", "gpu04", "gpu01", "gpu04", "gpu01"]


def test_slurm_tells_which_gpus_a_job_has(cluster: Cluster) -> None:
    script = "scontrol show job -d $SLURM_JOB_ID; squeue --me --noheader; srun printenv CUDA_VISIBLE_DEVICES"
    said = cluster.run(["salloc", "-N1", "-w", "gpu02", "--gres=gpu:3", "bash", "-c", script]).stdout
    assert "GRES=gpu:h100:3(IDX:0-2)" in said
    assert re.search(r" R .* gpu02", said)
    assert said.splitlines()[-1] == "0,1,2"


def test_a_step_sees_its_nodes_gpus(cluster: Cluster) -> None:
    python = str(REPOSITORY / ".venv" / "bin" / "python")
    done = cluster.run(["srun", "-N2", "-w", "gpu01,gpu02", python, "-c", COUNT_GPUS])
    assert done.stdout.split() == ["8", "8"]
