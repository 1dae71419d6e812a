"""Tests of the host's metrics, on plain files instead of /proc and /sys."""

from __future__ import annotations

import os
import shutil
import socket
import time
from pathlib import Path

import pytest

from gswarm_agent.frame import Number
from gswarm_agent.metrics import PROC_COLUMNS
from gswarm_agent.probes.host import HostProbe, read_host_facts

SECOND = 1_000_000_000


class FakeHost:
    """A fake node: ``proc`` and ``sys`` as plain files."""

    def __init__(self, root: Path) -> None:
        self.proc, self.sys = root / "proc", root / "sys"
        self.cpu([0] * 8, [0] * 8, [0] * 8)
        self.put("proc/loadavg", "1.50 1.00 0.50 2/345 6789\n")
        self.memory(total=64 << 20, available=48 << 20, swap_total=8 << 20, swap_free=7 << 20)
        self.disks(vda=(0, 0))
        self.network(eth0=(0, 0), lo=(0, 0))
        for resource in ("cpu", "memory", "io"):
            self.pressure(resource, 0)
        self.device("sys/block/vda")
        self.device("sys/class/net/eth0")
        self.job("self", 9, used=512 << 20, limit=f"{2 << 30}")
        self.put("proc/sys/kernel/random/boot_id", "6c9a\n")
        self.put("proc/cpuinfo", "processor\t: 0\nmodel name\t: Big Iron 9000\nflags\t: a b\n")

    def put(self, name: str, text: str) -> None:
        path = self.proc.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def device(self, name: str) -> None:
        (self.proc.parent / name / "device").mkdir(parents=True)

    def cpu(self, *lines: list[int]) -> None:
        names = ["cpu ", *(f"cpu{i}" for i in range(len(lines) - 1))]
        text = "".join(
            f"{name} {' '.join(map(str, ticks))} 0 0\n" for name, ticks in zip(names, lines, strict=True)
        )
        self.put("proc/stat", text + "intr 99 0 1\nctxt 5\n")

    def memory(self, *, total: int, available: int, swap_total: int, swap_free: int) -> None:
        text = f"MemTotal: {total} kB\nMemFree: 1 kB\nMemAvailable: {available} kB\n"
        text += f"SwapCached: 3 kB\nSwapTotal: {swap_total} kB\nSwapFree: {swap_free} kB\nHugePages: 0\n"
        self.put("proc/meminfo", text)

    def disks(self, **bytes_by_name: tuple[int, int]) -> None:
        lines = [
            f" 8 0 {name} 1 0 {read // 512} 0 1 0 {written // 512} 0 0 0 0 0 0 0 0 0 0\n"
            for name, (read, written) in bytes_by_name.items()
        ]
        self.put("proc/diskstats", "".join(lines))

    def network(self, **bytes_by_name: tuple[int, int]) -> None:
        lines = [
            f"{name:>6}: {received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0\n"
            for name, (received, sent) in bytes_by_name.items()
        ]
        self.put("proc/net/dev", "Inter-| Receive\n face |bytes\n" + "".join(lines))

    def pressure(self, resource: str, total_us: int) -> None:
        self.put(
            f"proc/pressure/{resource}",
            f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total_us}\n"
            "full avg10=0.00 avg60=0.00 avg300=0.00 total=999999999\n",
        )

    def job(
        self, pid: str, number: int, *, used: int, limit: str = "max", kills: int = 0, us: int = 0
    ) -> Path:
        """Put a process into a Slurm job of a host with cgroups of version 2 (admin-guide/cgroup-v2.rst)."""
        path = f"/system.slice/slurmstepd.scope/job_{number}"
        self.put(f"proc/{pid}/cgroup", f"0::{path}/step_0/user/task_0\n")
        self.put(f"sys/fs/cgroup{path}/memory.current", f"{used}\n")
        self.put(f"sys/fs/cgroup{path}/memory.max", f"{limit}\n")
        self.put(f"sys/fs/cgroup{path}/memory.events", f"low 0\nhigh 0\nmax 7\noom 5\noom_kill {kills}\n")
        for resource in ("cpu", "memory", "io"):
            text = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={us}\nfull total=0\n"
            self.put(f"sys/fs/cgroup{path}/{resource}.pressure", text)
        return self.sys / f"fs/cgroup{path}"

    def port(self, device: str, received_words: int, sent_words: int) -> None:
        folder = f"sys/class/infiniband/{device}/ports/1/counters"
        self.put(f"{folder}/port_rcv_data", f"{received_words}\n")
        self.put(f"{folder}/port_xmit_data", f"{sent_words}\n")


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def read(probe: HostProbe, seconds: float) -> dict[str, Number | None]:
    return dict(zip(PROC_COLUMNS, probe.read(int(seconds * SECOND)), strict=True))


def test_the_first_row_has_gauges_and_no_rates(host: FakeHost) -> None:
    probe = HostProbe(str(host.proc), str(host.sys))
    row = read(probe, 0)
    assert row["load_1m"] == 1.5
    assert row["memory_used_mib"] == 16 << 10
    assert row["swap_used_mib"] == 1 << 10
    assert {name for name, value in row.items() if value is None} == {
        name for name in PROC_COLUMNS if name.endswith(("_pct", "_mb_s"))
    }


def test_the_host_is_read_at_most_twice_a_second(host: FakeHost) -> None:
    probe = HostProbe(str(host.proc), str(host.sys))
    read(probe, 0)
    host.network(eth0=(1_000_000, 0), lo=(0, 0))
    assert read(probe, 0.1)["net_rx_mb_s"] == 10  # at once: the first row had no rates
    host.put("proc/loadavg", "7.25 1.00 0.50 2/345 6789\n")
    host.network(eth0=(3_000_000, 0), lo=(0, 0))
    assert [read(probe, tenths / 10)["net_rx_mb_s"] for tenths in (2, 3, 4, 5)] == [10] * 4
    assert read(probe, 0.5)["load_1m"] == 1.5
    row = read(probe, 0.6)
    assert (row["net_rx_mb_s"], row["load_1m"]) == (4, 7.25)
    host.network(eth0=(4_000_000, 0), lo=(0, 0))
    assert read(probe, 1.1)["net_rx_mb_s"] == 2


def test_cpu_metrics_are_shares_of_all_cores_time(host: FakeHost) -> None:
    probe = HostProbe(str(host.proc), str(host.sys))
    read(probe, 0)
    # user nice system idle iowait irq softirq steal, of two cores in one second
    host.cpu(
        [60, 20, 10, 70, 30, 4, 1, 5],
        [50, 20, 8, 0, 10, 4, 1, 5],
        [10, 0, 2, 70, 20, 0, 0, 0],
    )
    row = read(probe, 1)
    assert row["cpu_pct"] == 50
    assert row["cpu_user_pct"] == 40
    assert row["cpu_system_pct"] == 7.5
    assert row["cpu_iowait_pct"] == 15
    assert row["cpu_busiest_pct"] == pytest.approx(100 * 88 / 98)


def test_only_whole_physical_disks_are_summed(host: FakeHost) -> None:
    host.device("sys/block/nvme0n1")
    host.device("sys/block/nvme0c0n1")
    (host.sys / "block/dm-0").mkdir()
    idle = dict.fromkeys(("vda", "vda1", "nvme0n1", "nvme0c0n1", "dm-0", "loop0"), (0, 0))
    host.disks(**idle)
    probe = HostProbe(str(host.proc), str(host.sys))
    read(probe, 0)
    host.disks(**dict.fromkeys(idle, (512000000, 51200000)))
    row = read(probe, 2)
    assert (row["disk_read_mb_s"], row["disk_write_mb_s"]) == (2 * 256, 2 * 25.6)


def test_only_physical_interfaces_are_summed(host: FakeHost) -> None:
    host.device("sys/class/net/eth1")
    idle = dict.fromkeys(("lo", "eth0", "eth1", "bond0", "br0", "veth3"), (0, 0))
    host.network(**idle)
    probe = HostProbe(str(host.proc), str(host.sys))
    read(probe, 0)
    host.network(**dict.fromkeys(idle, (10000000, 3000000)))
    row = read(probe, 1)
    assert (row["net_rx_mb_s"], row["net_tx_mb_s"]) == (20, 6)


def test_pressure_is_the_share_of_time_some_task_waited(host: FakeHost) -> None:
    probe = HostProbe(str(host.proc), str(host.sys))
    read(probe, 0)
    host.pressure("cpu", 250_000)
    host.pressure("io", 2_000_100)  # its clock and ours differ a little
    row = read(probe, 2)
    assert (row["psi_cpu_pct"], row["psi_memory_pct"]) == (12.5, 0)
    assert row["psi_io_pct"] == pytest.approx(100.005), "not clipped"


def test_a_job_s_memory_and_pressure_come_from_its_cgroup(host: FakeHost) -> None:
    probe = HostProbe(str(host.proc), str(host.sys))
    row = read(probe, 0)
    assert (row["job_memory_mib"], row["job_memory_limit_mib"], row["job_oom_kills"]) == (512, 2048, 0)
    folder = host.job("self", 9, used=1 << 30, kills=2, us=250_000)
    row = read(probe, 1)
    assert (row["job_memory_mib"], row["job_memory_limit_mib"], row["job_oom_kills"]) == (1024, None, 2)
    assert [row[f"job_psi_{name}_pct"] for name in ("cpu", "memory", "io")] == [25] * 3
    assert probe.reasons["job_memory_limit_mib"] == "the job has no memory limit"
    host.job("71", 10, used=3 << 20, us=10**9)
    probe.follow([71, 72])
    row = read(probe, 2)
    assert (row["job_memory_mib"], row["job_psi_io_pct"]) == (3, None)
    host.put("proc/72/cgroup", "0::/user.slice\n")
    probe.follow([72, 71])
    assert read(probe, 3)["job_memory_mib"] == 3
    probe.follow([72])
    assert read(probe, 4)["job_memory_mib"] is None
    assert "Slurm job's cgroup" in probe.reasons["job_memory_mib"]
    # The end of a job is no event.
    shutil.rmtree(folder)
    assert read(HostProbe(str(host.proc), str(host.sys)), 0)["job_memory_mib"] is None
    assert probe.take_notes() == []


def test_a_job_s_memory_is_measured_under_cgroups_of_version_1(host: FakeHost) -> None:
    """Slurm's folders are as in src/plugins/cgroup/v1, the files as in admin-guide/cgroup-v1/memory.rst."""
    lines = ("9:cpuset:/slurm/uid_7/job_9/step_0", "4:memory:/slurm/uid_7/job_9/step_0/task_0", "0::/")
    host.put("proc/self/cgroup", "\n".join(lines))
    job = "sys/fs/cgroup/memory/slurm/uid_7/job_9"
    host.put(f"{job}/memory.usage_in_bytes", f"{3 << 30}\n")
    host.put(f"{job}/memory.limit_in_bytes", "9223372036854771712\n")
    for folder, kills in (("", 0), ("/step_0", 1), ("/step_0/task_0", 2)):
        text = f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"
        host.put(f"{job}{folder}/memory.oom_control", text)
    probe = HostProbe(str(host.proc), str(host.sys))
    row = read(probe, 0)
    assert (row["job_memory_mib"], row["job_memory_limit_mib"], row["job_oom_kills"]) == (3072, None, 3)
    assert "no io.pressure" in probe.reasons["job_psi_io_pct"]


def test_infiniband_ports_count_words_of_four_bytes(host: FakeHost) -> None:
    for device in ("mlx5_0", "mlx5_1"):
        host.port(device, 0, 0)
    probe = HostProbe(str(host.proc), str(host.sys))
    read(probe, 0)
    host.port("mlx5_0", 25_000_000, 0)
    host.port("mlx5_1", 50_000_000, 1_000_000)
    row = read(probe, 1)
    assert (row["ib_rx_mb_s"], row["ib_tx_mb_s"]) == (300, 4)
    assert probe.reasons == {}


def test_a_metric_that_the_kernel_lacks_is_none_with_a_reason(host: FakeHost) -> None:
    (host.proc / "pressure/io").unlink()
    host.put("proc/loadavg", "")
    probe = HostProbe(str(host.proc), str(host.sys))
    assert set(probe.reasons) == {"psi_io_pct", "load_1m", "ib_rx_mb_s", "ib_tx_mb_s"}
    assert "pressure/io" in probe.reasons["psi_io_pct"]
    assert "No such file" in probe.reasons["psi_io_pct"]
    assert "InfiniBand" in probe.reasons["ib_rx_mb_s"]
    read(probe, 0)
    row = read(probe, 1)
    assert {name for name, value in row.items() if value is None} == {*probe.reasons, "cpu_pct"} | {
        name for name in PROC_COLUMNS if name.startswith("cpu_")
    }
    assert probe.take_notes() == []


def test_a_metric_that_fails_is_noted_once_and_can_return(host: FakeHost) -> None:
    probe = HostProbe(str(host.proc), str(host.sys))
    read(probe, 0)
    host.put("proc/loadavg", "no number\n")
    assert read(probe, 1)["load_1m"] is None
    assert read(probe, 2)["load_1m"] is None
    (note,) = probe.take_notes()
    assert (note.kind, note.gpu) == ("unmeasured", None)
    assert "load_1m" in note.message
    assert "load_1m" in probe.reasons
    host.put("proc/loadavg", "3.00 1 1 1/1 1\n")
    assert read(probe, 3)["load_1m"] == 3
    assert "load_1m" not in probe.reasons
    assert probe.take_notes() == []
    host.put("proc/meminfo", "MemTotal: odd kB\nMemAvailable: 1 kB\nSwapTotal: 4096 kB\nSwapFree: 0 kB\n")
    row = read(probe, 4)
    assert (row["memory_used_mib"], row["swap_used_mib"]) == (None, 4)


def test_an_odd_port_costs_no_other_and_what_was_missing_is_tried_again(host: FakeHost) -> None:
    (host.proc / "loadavg").unlink()
    host.port("mlx5_0", 0, 0)
    host.port("mlx5_1", 0, 0)
    host.put("sys/class/infiniband/mlx5_1/ports/1/counters/port_rcv_data", "N/A (no PMA)\n")
    probe = HostProbe(str(host.proc), str(host.sys))
    read(probe, 0)
    host.port("mlx5_0", 25_000_000, 0)
    host.put("proc/loadavg", "2.00 1 1 1/1 1\n")
    row = read(probe, 1)
    assert (row["ib_rx_mb_s"], row["load_1m"]) == (100, 2)
    assert probe.reasons == {}
    assert probe.take_notes() == []


def test_a_host_without_any_file_still_has_a_row(tmp_path: Path) -> None:
    probe = HostProbe(str(tmp_path / "proc"), str(tmp_path / "sys"))
    assert set(read(probe, 0).values()) == {None}
    assert set(probe.reasons) == set(PROC_COLUMNS)


def test_host_facts_come_from_proc(host: FakeHost) -> None:
    facts = read_host_facts(str(host.proc))
    assert facts.hostname == socket.gethostname()
    assert facts.boot_id == "6c9a"
    assert facts.cpu_model == "Big Iron 9000"
    assert facts.cpus == 2
    assert facts.memory_total_mib == 64 << 10
    assert facts.kernel == os.uname().release


def test_this_machine_is_measured() -> None:
    probe = HostProbe()
    probe.read(time.monotonic_ns())
    deadline = time.monotonic() + 30
    row = dict.fromkeys(PROC_COLUMNS)
    while row["cpu_pct"] is None and time.monotonic() < deadline:
        row = dict(zip(PROC_COLUMNS, probe.read(time.monotonic_ns()), strict=True))
    assert row["cpu_pct"] is not None
    assert 0 <= row["cpu_pct"] <= 100
    assert row["memory_used_mib"]
