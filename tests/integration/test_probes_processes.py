"""Tests of the processes on the GPUs, with their details from /proc."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gswarm_agent.frame import TABLES, ProcessSample
from gswarm_agent.metrics import PROCESS_COLUMNS
from gswarm_agent.probes.gpus.nvidia_processes import sm_shares
from gswarm_agent.probes.processes import UNKNOWN, HostProcess, ProcessTable
from gswarm_agent.wire import MAX_MESSAGE, encode
from tests.cluster.standin import GpuProcess, Return, Scenario, build
from tests.integration.probe_driver import AS_AGENTS_S, NamedSamples, OnGpu, ProbeProcess

SECOND = 1_000_000_000
NOBODY = 4_194_303
"""A pid above any of this machine."""


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process like a rank of a job."""
    environment = {"RANK": "13", "LOCAL_RANK": "5", "WORLD_SIZE": "16", "PATH": os.environ["PATH"]}
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, "train me", "--lr", "3e-4"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()


def on_gpus(node: ProbeProcess) -> list[OnGpu]:
    node.read()
    processes = node.until(lambda reading: reading.processes is not None).processes
    assert processes is not None
    return sorted(processes, key=lambda process: (process.gpu, process.pid))


def test_processes_have_gpu_and_host_values(
    standin_lib: Path, tmp_path: Path, worker: subprocess.Popen[bytes]
) -> None:
    scenario = Scenario.of("n", 3)
    scenario.gpus[0].processes = [
        GpuProcess(worker.pid, used_mib=70_000, sm_percent=97),
        GpuProcess(NOBODY, used_mib=500, sm_percent=None),
    ]
    scenario.gpus[2].processes = [
        GpuProcess(worker.pid, used_mib=300, sm_percent=3),
        GpuProcess(worker.pid, used_mib=300, sm_percent=None, type="G"),
    ]
    scenario.write(tmp_path / "s")
    with ProbeProcess(standin_lib, tmp_path / "s") as node:
        assert "processes" not in node.facts().capabilities
        first, nobody, third = on_gpus(node)

    assert (first.gpu, first.pid, first.rank, first.local_rank) == (0, worker.pid, 13, 5)
    assert first.user == pwd.getpwuid(os.getuid()).pw_name
    assert first.command is not None
    assert first.command.endswith(" train me --lr 3e-4")
    assert (first.row["gpu_memory_mib"], first.row["sm_pct"]) == (70_000, 97)
    assert first.row["memory_mib"]
    assert first.row["memory_mib"] >= 5
    assert (first.row["world_size"], first.row["threads"], first.state) == (16, 1, "S")
    assert first.row["age_s"] is not None
    assert 0 <= first.row["age_s"] < 60
    assert (
        first.cpus
        == Path(f"/proc/{worker.pid}/status")
        .read_text()
        .partition("Cpus_allowed_list:\t")[2]
        .partition("\n")[0]
    )

    assert (nobody.gpu, nobody.pid, nobody.user, nobody.command) == (0, NOBODY, None, None)
    assert nobody.row == {**dict.fromkeys(PROCESS_COLUMNS), "gpu_memory_mib": 500, "sm_pct": 0}

    assert (third.gpu, third.row["gpu_memory_mib"], third.row["sm_pct"]) == (2, 300, 3)


def test_share_of_a_process_is_a_mean_and_missing_where_the_driver_has_none(
    standin_lib: Path, tmp_path: Path
) -> None:
    """The second GPU is busy, but its driver has no samples, as on Blackwell; the third is idle."""
    scenario = Scenario.of("n", 3)
    scenario.gpus[0].processes = [GpuProcess(NOBODY, used_mib=1, sm_percent=40)]
    for gpu, load in zip(scenario.gpus[1:], (95, 0), strict=True):
        gpu.processes = [GpuProcess(NOBODY, used_mib=1, sm_percent=None)]
        gpu.utilization_percent = load
    scenario.write(tmp_path / "s")
    with ProbeProcess(standin_lib, tmp_path / "s") as node:
        assert [process.row["sm_pct"] for process in on_gpus(node)] == [40, None, 0]


def test_share_is_the_mean_of_the_last_seconds() -> None:
    begun = time.time_ns() // 1000
    taken = [
        SimpleNamespace(pid=7, timeStamp=begun - 1000 * ms, smUtil=sm)
        for ms, sm in ((9000, 99), (900, 90), (500, 30))
    ]
    api = SimpleNamespace(
        nvmlDeviceGetProcessUtilization=lambda _, since: taken, nvmlDeviceGetUtilizationRates=0
    )
    nvml: Any = SimpleNamespace(api=api, Error=ValueError, maybe=lambda *_: None)
    assert sm_shares(nvml, None) == {7: 60}


@pytest.mark.parametrize("driver", ["535.54.03", "580.65.06"])
def test_a_gpu_can_have_many_processes(standin_lib: Path, tmp_path: Path, driver: str) -> None:
    """Drivers 535.43 to 535.98 list them in entries of 32 bytes instead of 24."""
    scenario = Scenario.of("n", 1)
    scenario.driver_version = driver
    pids = list(range(NOBODY - 60, NOBODY))
    scenario.gpus[0].processes = [GpuProcess(pid, used_mib=i, sm_percent=i) for i, pid in enumerate(pids)]
    scenario.write(tmp_path / "s")
    with ProbeProcess(standin_lib, tmp_path / "s") as node:
        processes = on_gpus(node)
    assert [(p.pid, p.row["gpu_memory_mib"], p.row["sm_pct"]) for p in processes] == [
        (pid, i, i) for i, pid in enumerate(pids)
    ]


def test_processes_are_read_every_five_seconds_and_new_ones_again_soon(
    standin_lib: Path, tmp_path: Path
) -> None:
    scenario = Scenario.of("n", 1)
    scenario.write(tmp_path / "s")
    with ProbeProcess(standin_lib, tmp_path / "s") as node:
        assert on_gpus(node) == []
        listed = [node.read().processes is not None for _ in range(10)]
        assert [second for second, at in enumerate(listed) if at] == [4, 9]
        scenario.gpus[0].processes = [GpuProcess(os.getpid(), used_mib=500)]
        scenario.write(tmp_path / "s")
        (process,) = node.read(skip_s=5).processes or []
        assert (process.row["gpu_memory_mib"], process.row["cpu_pct"]) == (500, None)
        (process,) = node.read().processes or []
        assert process.row["cpu_pct"] is not None, "its rates come with the second list"


def test_processes_are_listed_in_time_on_slow_gpus(standin_lib: Path, tmp_path: Path) -> None:
    scenario = Scenario.of("n", 1)
    scenario.gpus[0].processes = [GpuProcess(os.getpid(), used_mib=1)]
    slow_s = 0.1
    scenario.gpus[0].delays_ms["nvmlDeviceGetPowerUsage"] = round(1000 * slow_s)
    scenario.write(tmp_path / "s")
    with ProbeProcess(standin_lib, tmp_path / "s") as node:
        has_processes = [node.read(skip_s=5 - slow_s).processes is not None for _ in range(6)]
    assert has_processes[2:] == [True] * 4


def test_processes_of_an_old_driver_come_through_nvitop(
    standin_lib: Path, tmp_path: Path, worker: subprocess.Popen[bytes]
) -> None:
    omit = [f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics")]
    omit += [
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetMemoryInfo_v2",
    ]
    lib = build(tmp_path / "lib", tmp_path, omit=omit)
    scenario = Scenario.of("n", 1, memory_used_mib=900, memory_reserved_mib=100, clock_reasons=4)
    scenario.gpus[0].processes = [GpuProcess(worker.pid, used_mib=800, sm_percent=50)]
    scenario.write(tmp_path / "s")
    with ProbeProcess(lib, tmp_path / "s") as node:
        capabilities = node.facts().capabilities
        (row,) = node.read().gpus
        (process,) = on_gpus(node)
    assert "processes" not in capabilities
    assert (process.pid, process.row["gpu_memory_mib"], process.row["sm_pct"]) == (worker.pid, 800, 50)
    assert row is not None
    assert (row["clock_reasons"], row["mem_used_mib"], row["mem_temp_c"]) == (4, 1000, None)
    assert "driver is too old" in capabilities["mem_temp_c"]


def test_a_gpu_without_a_process_list_is_in_the_capabilities(standin_lib: Path, tmp_path: Path) -> None:
    scenario = Scenario.of("n", 2)
    scenario.gpus[0].answers = {
        "nvmlDeviceGetComputeRunningProcesses_v3": Return.NO_PERMISSION,
        "nvmlDeviceGetGraphicsRunningProcesses_v3": Return.NO_PERMISSION,
    }
    scenario.gpus[1].processes = [GpuProcess(os.getpid(), used_mib=1)]
    scenario.write(tmp_path / "s")
    with ProbeProcess(standin_lib, tmp_path / "s") as node:
        assert node.facts().capabilities["gpu0.processes"] == "not permitted to this user"
        assert [process.gpu for process in on_gpus(node)] == [1]


def test_a_lost_gpu_doesn_t_stop_process_lists_of_the_others(standin_lib: Path, tmp_path: Path) -> None:
    scenario = Scenario.of("n", 2)
    for gpu in scenario.gpus:
        gpu.processes = [GpuProcess(os.getpid(), used_mib=1)]
    scenario.write(tmp_path / "s")

    def only_the_second(reading: NamedSamples) -> bool:
        return reading.processes is not None and [p.gpu for p in reading.processes] == [1]

    with ProbeProcess(standin_lib, tmp_path / "s") as node:
        assert [process.gpu for process in on_gpus(node)] == [0, 1]
        scenario.gpus[0].lost = True
        scenario.write(tmp_path / "s")
        node.until(only_the_second)


def test_a_gpu_whose_process_list_hangs_doesn_t_stop_the_others(standin_lib: Path, tmp_path: Path) -> None:
    scenario = Scenario.of("n", 3)
    for gpu in scenario.gpus:
        gpu.processes = [GpuProcess(os.getpid(), used_mib=1)]
    scenario.write(tmp_path / "s")

    def on(*gpus: int) -> Callable[[NamedSamples], bool]:
        return lambda reading: (
            reading.processes is not None and [p.gpu for p in reading.processes] == list(gpus)
        )

    with ProbeProcess(standin_lib, tmp_path / "s", wait_s=AS_AGENTS_S) as node:
        node.until(on(0, 1, 2))
        scenario.gpus[1].delays_ms["nvmlDeviceGetComputeRunningProcesses_v3"] = 30_000
        scenario.write(tmp_path / "s")
        reading = node.until(on(0, 2))
        assert [(note.kind, note.gpu) for note in reading.notes] == [("late", 1)]
        assert node.facts().capabilities["gpu1"] == "the driver is slow or hangs"
        scenario.gpus[1].delays_ms = {}
        scenario.write(tmp_path / "s")
        node.read(skip_s=61)
        node.until(on(0, 1, 2))


class ProcFolder:
    """A made-up /proc with one process, whose files have the forms of proc_pid_stat(5) and its like."""

    def __init__(self, proc: Path, pid: int) -> None:
        self.path = proc / str(pid)
        self.path.mkdir(parents=True)
        self.put(started=100, ticks=0, resident_pages=0, io=(0, 0), command=b"python\0train.py\0")
        self.environ(b"RANK=1\0WORLD_SIZE=4\0")
        self.status(os.getuid())
        (self.path / "wchan").write_text("futex_wait_queue")

    def put(
        self, *, started: int, ticks: int, resident_pages: int, io: tuple[int, int] | None, command: bytes
    ) -> None:
        rest = ["D", *["0"] * 10, str(ticks), *"00000", "9", "0", str(started), "0", str(resident_pages), "0"]
        (self.path / "stat").write_text(f"7 (a) b) {' '.join(rest)}\n")
        (self.path / "cmdline").write_bytes(command)
        if io is None:
            (self.path / "io").unlink(missing_ok=True)
        else:
            calls = f"rchar: {10 * io[0]}\nwchar: {10 * io[1]}\nsyscr: 5\nsyscw: 5\n"
            (self.path / "io").write_text(f"{calls}read_bytes: {io[0]}\nwrite_bytes: {io[1]}\n")

    def environ(self, text: bytes) -> None:
        (self.path / "environ").write_bytes(text)

    def status(self, uid: int, cpus: str = "0-3", switches: tuple[int, int] = (0, 0)) -> None:
        text = f"Name:\tx\nUid:\t{uid}\t0\t0\t0\nGid:\t0\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t0\n"
        text += f"voluntary_ctxt_switches:\t{switches[0]}\nnonvoluntary_ctxt_switches:\t{switches[1]}\n"
        (self.path / "status").write_text(text)


def named(process: HostProcess) -> dict[str, float | None]:
    """Return a process's use of the host by column, but for its age, which the real clock decides."""
    values = dict(zip(PROCESS_COLUMNS[2:], process.usage, strict=True))
    del values["age_s"]
    return {name: value for name, value in values.items() if value is not None}


def test_host_usage_of_a_process(tmp_path: Path) -> None:
    folder = ProcFolder(tmp_path, 7)
    for node, cpus in enumerate(("0-3,8-11", "4-7,12-15", "")):
        (tmp_path / f"devices/system/node/node{node}").mkdir(parents=True)
        (tmp_path / f"devices/system/node/node{node}/cpulist").write_text(f"{cpus}\n")
    table = ProcessTable(str(tmp_path), str(tmp_path))
    first = table.read([7], 0)[7]
    assert (first.command, first.rank) == ("python train.py", 1)
    assert (first.state, first.wchan, first.cpus) == ("D", "futex_wait_queue", "0-3")
    assert named(first) == {"memory_mib": 0, "world_size": 4, "threads": 9, "numa_node": 0}
    pages = 512 * 2**20 // os.sysconf("SC_PAGE_SIZE")
    ticks = 3 * os.sysconf("SC_CLK_TCK")
    folder.put(started=100, ticks=ticks, resident_pages=pages, io=(8 * 10**6, 10**6), command=b"renamed")
    folder.status(os.getuid(), "5,12-13", (1000, 7))
    second = table.read([7, 7], 2 * SECOND)[7]
    of_files = {"read_mb_s": 4, "write_mb_s": 0.5, "read_calls_mb_s": 40, "write_calls_mb_s": 5}
    switches = {"voluntary_switches_s": 500, "involuntary_switches_s": 3.5}
    constant = {"world_size": 4, "threads": 9, "numa_node": 1}
    assert named(second) == {"cpu_pct": 150, "memory_mib": 512, **of_files, **switches, **constant}
    folder.status(os.getuid(), "0-15")
    assert "numa_node" not in named(table.read([7], 3 * SECOND)[7])
    assert table.read([7], 7 * SECOND)[7].command == "renamed"


def test_a_reused_pid_is_another_process(tmp_path: Path) -> None:
    folder = ProcFolder(tmp_path, 7)
    table = ProcessTable(str(tmp_path))
    table.read([7], 0)
    folder.put(started=200, ticks=9000, resident_pages=0, io=(10**9, 0), command=b"other")
    folder.environ(b"RANK=4\0")
    other = table.read([7], SECOND)[7]
    assert (other.rank, other.command) == (4, "other")
    assert named(other) == {"memory_mib": 0, "threads": 9}


def test_a_rank_has_its_slurm_step_and_software(tmp_path: Path) -> None:
    folder, site = ProcFolder(tmp_path, 7), "/venv/site-packages"
    folder.environ(b"SLURM_JOB_ID=4711\0SLURM_STEP_ID=4294967290\0APPTAINER_CONTAINER=/i/torch.sif\0")
    (folder.path / f"root{site}/torch-2.14.1.dist-info").mkdir(parents=True)
    table = ProcessTable(str(tmp_path))

    def software(seconds: int) -> tuple[str | None, ...]:
        side = table.read([7], seconds * SECOND)[7]
        return side.slurm_job, side.slurm_step, side.framework, side.nccl, side.container

    assert software(0) == ("4711", "interactive", None, None, "apptainer torch.sif")
    (folder.path / "maps").write_text(f"1-2 r-xp 0 8:1 9  {site}/torch/lib/libtorch_cpu.so\n")
    # A process that hasn't loaded its libraries is read again each minute.
    assert software(59)[2] is None
    assert software(61)[2] == "torch 2.14.1"
    folder.put(started=200, ticks=0, resident_pages=0, io=(0, 0), command=b"other")
    folder.environ(b"SLURM_JOB_ID=x\0")
    (folder.path / "cgroup").write_text("0::/system.slice/slurmstepd.scope/job_9/step_0/user/task_0\n")
    assert software(62)[:2] == ("9", "0")


def test_another_users_process_shows_only_public_details(tmp_path: Path) -> None:
    folder = ProcFolder(tmp_path, 7)
    folder.status(3_000_000_000)
    (folder.path / "environ").unlink()
    # The kernel writes this to those who may not trace the process (proc_pid_wchan in fs/proc/base.c).
    (folder.path / "wchan").write_text("0")
    folder.put(started=1, ticks=0, resident_pages=0, io=None, command=b"secret\0")
    table = ProcessTable(str(tmp_path), str(tmp_path))
    table.read([7], 0)
    side = table.read([7], SECOND)[7]
    assert (side.user, side.command, side.rank) == ("3000000000", "secret", None)
    assert (side.state, side.wchan, side.cpus) == ("D", None, "0-3")
    public = {"cpu_pct", "memory_mib", "threads", "voluntary_switches_s", "involuntary_switches_s"}
    assert named(side).keys() == public


def test_a_missing_process_is_unknown(tmp_path: Path) -> None:
    assert ProcessTable(str(tmp_path)).read([7], 0) == {7: UNKNOWN}
    folder = ProcFolder(tmp_path, 7)
    (folder.path / "stat").write_text("nonsense")
    assert ProcessTable(str(tmp_path)).read([7], 0) == {7: UNKNOWN}


def test_a_long_or_broken_command_line_can_be_sent(tmp_path: Path) -> None:
    folder = ProcFolder(tmp_path, 7)
    folder.put(started=1, ticks=0, resident_pages=0, io=None, command=b"\xff\x1b[31m" + b"x" * 100_000)
    command = ProcessTable(str(tmp_path)).read([7], 0)[7].command
    assert command is not None
    assert command.startswith("�\x1b[31mxx")
    assert len(command) == 4096


def test_all_commands_together_fit_into_a_frame(tmp_path: Path) -> None:
    for pid in range(1, 201):
        ProcFolder(tmp_path, pid).put(
            started=1, ticks=0, resident_pages=0, io=None, command="\N{PILE OF POO}".encode() * 100_000
        )
        (tmp_path / f"{pid}/wchan").write_text("x" * 500)
        (tmp_path / f"{pid}/environ").write_bytes(b"container=" + b"x" * 500)
    pids = [pid for pid in range(1, 201) for _ in range(16)]  # each on sixteen GPUs
    sides = ProcessTable(str(tmp_path)).read(pids, 0)
    row = (None,) * len(PROCESS_COLUMNS)
    processes = [
        ProcessSample(
            *(0, pid, "u", sides[pid].command, 0, 0, row, sides[pid].cpus, "S", sides[pid].wchan),
            *("4711", "batch", "torch 2.15.0.dev20281128", "2.30.7", sides[pid].container),
        )
        for pid in pids
    ]
    assert len(encode(TABLES.frame(1, 1, 0.0, 0, gpus=(), host=None, processes=processes))) < MAX_MESSAGE
    assert (sides[1].command or "").startswith("\N{PILE OF POO}" * 100)
