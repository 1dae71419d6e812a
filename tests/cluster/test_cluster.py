"""The test cluster has real nodes, SSH and Slurm."""

from __future__ import annotations

import re
import socket
import subprocess
import sys

import asyncssh
import pytest

from gswarm_tui.control.registry import SHARED
from tests.cluster.cluster import Cluster
from tests.cluster.kinds import REPOSITORY
from tests.cluster.person import wait_granted
from tests.cluster.running import wait_until
from tests.cluster.standin import GpuProcess, Scenario
from tests.cluster.terminal import Terminal

COUNT_GPUS = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"


def ssh(cluster: Cluster, name: str, command: str) -> subprocess.CompletedProcess[str]:
    """Run `ssh` as a user, without passwords and confirmations."""
    options = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=2"]
    return cluster.run(["ssh", *options, name, command], check=False)


def test_allocation_runs_steps_on_its_nodes(cluster: Cluster) -> None:
    script = "scontrol show hostnames; srun hostname | sort; srun --overlap -n1 -N1 hostname"
    done = cluster.run(["salloc", "-N2", "--gres=gpu:4", "-w", "gpu01,gpu04", "bash", "-c", script])
    assert done.stdout.split() == ["gpu01", "gpu04", "gpu01", "gpu04", "gpu01"]


def test_salloc_works_in_a_terminal(cluster: Cluster) -> None:
    with Terminal(["bash", "--norc"], env=cluster.env()) as terminal:
        terminal.type("salloc -N2 -w gpu02,gpu03 --gres=gpu:8")
        wait_granted(terminal)
        terminal.type("echo on $(scontrol show hostnames)")
        terminal.wait_for("on gpu02 gpu03")
        terminal.type("exit")
        terminal.wait_for("Relinquishing job allocation")
        terminal.type("exit 0")
        assert terminal.exit_status() == 0


def test_slurm_reports_a_jobs_gpus(cluster: Cluster) -> None:
    script = "scontrol show job -d $SLURM_JOB_ID; squeue --me --noheader; srun printenv CUDA_VISIBLE_DEVICES"
    said = cluster.run(["salloc", "-N1", "-w", "gpu02", "--gres=gpu:3", "bash", "-c", script]).stdout
    assert "GRES=gpu:h100:3(IDX:0-2)" in said
    assert re.search(r" R .* gpu02", said)
    assert said.splitlines()[-1] == "0,1,2"


def test_step_sees_the_gpus_of_its_node(cluster: Cluster) -> None:
    done = cluster.run(["srun", "-N2", "-w", "gpu01,gpu02", sys.executable, "-c", COUNT_GPUS])
    assert done.stdout.split() == ["8", "8"]


def test_ssh_reaches_each_node(cluster: Cluster) -> None:
    said = ssh(cluster, "gpu01", "hostname; echo $HOME; ls /sys/class/net; ps -A -o comm").stdout.split()
    assert said[:2] == ["gpu01", str(cluster.home)]
    assert set(said[2:4]) == {"eth0", "lo"}
    assert "slurmd" in said
    assert "slurmctld" not in said


def test_nvml_answers_from_the_nodes_scenario(cluster: Cluster) -> None:
    query = (
        "import pynvml as p; p.nvmlInit(); h = p.nvmlDeviceGetHandleByIndex(2);"
        "print(p.nvmlDeviceGetUtilizationRates(h).gpu, p.nvmlDeviceGetComputeRunningProcesses(h)[0].pid)"
    )
    node = cluster["gpu02"]
    scenario = Scenario.of(node.name, node.gpus)
    with node.spawn(["sleep", "infinity"]) as pid:
        scenario.gpus[2].utilization_percent = 83
        scenario.gpus[2].processes.append(GpuProcess(pid=pid, used_mib=1024))
        scenario.write(node.scenario)
        said = ssh(cluster, "gpu02", f"{sys.executable} -c '{query}'; cat /proc/{pid}/comm")
    Scenario.of(node.name, node.gpus).write(node.scenario)
    assert said.stdout.split() == ["83", str(pid), "sleep"], said.stderr


def test_bare_node_has_only_a_driver_and_python(cluster: Cluster) -> None:
    script = f"""
        command -v python3
        test ! -e {REPOSITORY}/pyproject.toml && echo no repository
        test ! -e {sys.executable} && echo no environment
        python3 -c 'import msgpack' 2>/dev/null || echo no msgpack
        python3 -c 'import ctypes; print(ctypes.CDLL("libnvidia-ml.so.1").nvmlInit_v2())'
    """
    said = ssh(cluster, "gpu03", script).stdout.splitlines()
    assert said == ["/usr/bin/python3", "no repository", "no environment", "no msgpack", "0"]


def test_driverless_node_has_no_nvml(cluster: Cluster) -> None:
    said = ssh(cluster, "bad03", f"{sys.executable} -c '{COUNT_GPUS}'")
    assert "NVML Shared Library Not Found" in said.stderr


def test_bad_nodes_refuse_ssh(cluster: Cluster) -> None:
    assert "Permission denied (publickey)" in ssh(cluster, "bad01", "true").stderr
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in ssh(cluster, "bad02", "true").stderr
    assert "Host key verification failed" in ssh(cluster, "bad04", "true").stderr
    assert "Could not resolve hostname" in ssh(cluster, "gpu99", "true").stderr


def test_login_shell_has_environment_modules(cluster: Cluster) -> None:
    said = ssh(cluster, "gpu03", "bash -lc 'module load cuda/12.4; echo $CUDA_VERSION'")
    assert said.stdout.split() == ["12.4"], said.stderr


def test_heads_of_the_machine_are_invisible_at_the_login_node(cluster: Cluster) -> None:
    said = cluster.run(["stat", "-c", "%m %a", SHARED])
    assert said.stdout.split() == [SHARED, "700"], "a file system of its own"


def test_nodes_share_only_the_home_folder(cluster: Cluster) -> None:
    ssh(cluster, "gpu01", "touch ~/shared /tmp/own /dev/shm/own /run/own")
    said = ssh(cluster, "gpu03", "ls ~/shared /tmp/own /dev/shm/own /run/own 2>/dev/null")
    (cluster.home / "shared").unlink()
    ssh(cluster, "gpu01", "rm /tmp/own /dev/shm/own /run/own")
    assert said.stdout.split() == [str(cluster.home / "shared")]


def test_node_can_have_its_own_home_folder(machine: None) -> None:
    with Cluster.up(["gpu01", "gpu02"], 1, own_homes=["gpu02"]) as pair, pair.entered():
        (pair.home / "notes").touch()
        said = [ssh(pair, node.name, "pwd; ls ~").stdout.split() for node in pair]
        assert said == [[str(pair.home), "notes"], [str(pair["gpu02"].home)]]


def test_partitioned_node_is_silent_until_it_heals(cluster: Cluster) -> None:
    node = cluster["gpu04"]
    node.partition()
    try:
        silent = ssh(cluster, "gpu04", "hostname")
    finally:
        node.heal()
    assert re.search("timed out|No route to host", silent.stderr)
    wait_until(lambda: ssh(cluster, "gpu04", "hostname").stdout == "gpu04\n", "gpu04's return")


def test_stopped_sshd_refuses_and_started_sshd_accepts(cluster: Cluster) -> None:
    node = cluster["gpu04"]
    node.stop_sshd()
    try:
        refused = ssh(cluster, "gpu04", "hostname")
    finally:
        node.start_sshd()
    assert "Connection refused" in refused.stderr
    assert ssh(cluster, "gpu04", "hostname").stdout == "gpu04\n"


@pytest.mark.usefixtures("login_env")
async def test_test_process_is_at_the_login_node(cluster: Cluster) -> None:
    assert socket.gethostname() == "login"
    assert socket.gethostbyname("gpu01") == cluster["gpu01"].address
    async with asyncssh.connect("gpu01") as connection:
        first = await connection.run("hostname")
        assert first.stdout == "gpu01\n"
        cluster["gpu01"].end_connections()
        await connection.wait_closed()
    with pytest.raises(asyncssh.PermissionDenied):
        await asyncssh.connect("bad01")
    with pytest.raises(asyncssh.HostKeyNotVerifiable):
        await asyncssh.connect("bad02")
