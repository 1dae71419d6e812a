"""Tests of ports and file systems, on plain files instead of /proc and /sys.

The files are those of an mlx5 adapter and of an Ethernet card, as the kernel's Documentation/ABI describes
them (stable/sysfs-class-infiniband, testing/sysfs-class-net); mountstats is that of nfs-utils' man page.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gswarm_agent.frame import Row
from gswarm_agent.metrics import LISTING_S, MOUNT_COLUMNS, PORT_COLUMNS
from gswarm_agent.probes.mounts import Mounts
from gswarm_agent.probes.node import NodeProbe
from gswarm_agent.probes.ports import Ports

LOOK = round(LISTING_S * 1e9)
Values = dict[str, dict[str, "float | None"]]


def put(folder: Path, **texts: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(f"{text}\n")


class FakePorts:
    """A fake /sys with adapters ``mlx5_N`` and one Ethernet card."""

    def __init__(self, sys: Path, adapters: int) -> None:
        self.sys = sys
        for number in range(adapters):
            put(self.port(number), state="4: ACTIVE", phys_state="5: LinkUp", rate="400 Gb/sec (4X NDR)")
            put(sys / f"class/infiniband/mlx5_{number}/device", numa_node=number // 2)
            self.count(number, port_rcv_data=0, port_xmit_data=0, link_downed=0, symbol_error=3)
            put(self.port(number) / "hw_counters", out_of_sequence=0, np_cnp_sent=7)
        put(sys / "class/net/eth0", operstate="up", speed=25_000, carrier_changes=2)
        put(sys / "class/net/eth0/device", numa_node=-1)
        put(sys / "class/net/eth0/statistics", rx_bytes=0, tx_bytes=0, rx_errors=0, tx_errors=0, rx_dropped=9)
        put(sys / "class/net/veth7", operstate="up")

    def port(self, number: int) -> Path:
        return self.sys / f"class/infiniband/mlx5_{number}/ports/1"

    def count(self, number: int, **counters: object) -> None:
        put(self.port(number) / "counters", **counters)


def read(columns: tuple[str, ...], readers: Mapping[str, Callable[[], Row]]) -> Values:
    """Return rows by name and column."""
    return {name: dict(zip(columns, row(), strict=True)) for name, row in readers.items()}


def finish(but: str = "") -> None:
    """Wait until all rows but one are read."""
    for thread in threading.enumerate():
        if thread.name.startswith("listing ") and thread.name != f"listing {but}":
            thread.join()


@pytest.fixture
def fake(tmp_path: Path) -> FakePorts:
    return FakePorts(tmp_path / "sys", 3)


def test_ports_have_states_rates_and_counters(fake: FakePorts) -> None:
    ports = Ports(str(fake.sys))
    first = read(PORT_COLUMNS, ports.find(LOOK))
    assert list(first) == ["mlx5_0/1", "mlx5_1/1", "mlx5_2/1", "eth0"]
    assert first["eth0"] == {
        **dict.fromkeys(PORT_COLUMNS),
        "state": 4,
        "rate_gbit_s": 25,
        "new_errors": 0,
        "carrier_changes": 2,
        "rx_errors": 0,
        "tx_errors": 0,
        "rx_dropped": 9,
    }
    fake.count(0, port_rcv_data=5_000_000_000, port_xmit_data=2_500_000_000, symbol_error=5, link_downed=1)
    fake.count(1, symbol_error="N/A (no PMA)")
    put(fake.port(1), rate="unknown")
    fake.count(2, symbol_error=0, link_downed=2)  # somebody has reset the first
    put(fake.port(2), state="1: DOWN", phys_state="2: Polling")
    put(fake.sys / "class/net/eth0", operstate="lowerlayerdown", speed=-1, carrier_changes=3)
    second = read(PORT_COLUMNS, ports.find(2 * LOOK))
    busy, odd, down, card = second.values()
    assert (busy["state"], busy["phys_state"], busy["rate_gbit_s"], busy["numa_node"]) == (4, 5, 400, 0)
    assert (busy["rx_mb_s"], busy["tx_mb_s"]) == (2000, 1000)
    assert (busy["symbol_error"], busy["link_downed"], busy["new_errors"]) == (5, 1, 3)
    assert (busy["np_cnp_sent"], busy["port_xmit_wait"]) == (7, None)
    assert odd == {**first["mlx5_1/1"], "rx_mb_s": 0, "tx_mb_s": 0, "symbol_error": None, "rate_gbit_s": None}
    assert (down["state"], down["phys_state"], down["new_errors"], down["numa_node"]) == (1, 2, 2, 1)
    assert (card["state"], card["rate_gbit_s"], card["new_errors"]) == (1, None, 1)


NFS = """device overlay mounted on / with fstype overlay
device files:/home mounted on /my\\040work with fstype nfs4 statvers=1.1
\tper-op statistics
\t        READ: {reads} {reads} 0 128 4224 0 1 {read_ms} 0
\t       WRITE: 5 5 0 128 4224 0 1 9 0
"""


def job(root: Path, cwd: str) -> Mounts:
    """Return the file systems of a job in a container, whose second process can be read."""
    for folder in (cwd[1:], "tmp", "dev/shm", "proc/77"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "proc/77/cwd").symlink_to(cwd)
    (root / "proc/77/root").symlink_to(root)
    mounts = Mounts(str(root / "proc"), str(root / "sys"))
    mounts.pids = (76, 77)
    return mounts


def test_files_are_those_of_the_job_with_the_latency_of_nfs(tmp_path: Path) -> None:
    mounts = job(tmp_path, "/my work")
    put(tmp_path / "proc/77", mountstats=NFS.format(reads=10, read_ms=400))
    first = read(MOUNT_COLUMNS, mounts.find(LOOK))
    assert list(first) == ["/my work", "/tmp", "/dev/shm"]
    assert first["/my work"]["read_ms"] is None
    put(tmp_path / "proc/77", mountstats=NFS.format(reads=14, read_ms=410))
    row = read(MOUNT_COLUMNS, mounts.find(2 * LOOK))["/my work"]
    there = os.statvfs(tmp_path)
    assert row["total_mib"] == there.f_blocks * there.f_frsize // 2**20
    assert 0 < (row["free_mib"] or 0) <= row["total_mib"]
    assert (row["read_ms"], row["write_ms"]) == (2.5, None)


def test_lustre_has_the_latency_of_its_stats(tmp_path: Path) -> None:
    mounts, stats = job(tmp_path, "/data/run"), tmp_path / "proc/fs/lustre/llite/scratch-ff00"
    put(tmp_path / "proc/77", mountstats="device 10.0.0.1@tcp:/scratch/a mounted on /data with fstype lustre")
    for look, total_us in enumerate((5_000, 17_000), 1):
        counts = f"read_bytes 9 samples [bytes] 1 2 3\nwrite {look} samples [usecs] 2 9 {total_us} 99"
        put(stats, stats=counts)
        row = read(MOUNT_COLUMNS, mounts.find(look * LOOK))["/data/run"]
    assert (row["read_ms"], row["write_ms"]) == (None, 12)


def test_dead_file_server_stops_neither_ticks_nor_other_rows(
    tmp_path: Path, fake: FakePorts, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive, ask = threading.Event(), os.statvfs

    def statvfs(path: str) -> os.statvfs_result:
        if path == "/home/ada":
            alive.wait()
            return ask("/")
        return ask(path)

    monkeypatch.setattr(os, "statvfs", statvfs)
    monkeypatch.setenv("SLURM_SUBMIT_DIR", "/home/ada")
    probe = NodeProbe(str(tmp_path / "proc"), str(fake.sys))
    try:
        probe.read(LOOK)
        finish(but="/home/ada")
        assert not probe.read(LOOK + LOOK // 2).listings
        samples = probe.read(2 * LOOK)
        rows = dict(samples.listings["mounts"])
        assert rows["/home/ada"] is None
        assert rows["/tmp"] is not None
        reason = "/home/ada: no answer for 10 s"
        assert reason in [note.message for note in samples.notes]
        assert probe.facts()[2]["mounts"] == reason
        alive.set()
        finish()
        samples = probe.read(3 * LOOK)
        assert dict(samples.listings["mounts"])["/home/ada"] is not None
        assert "mounts" not in probe.facts()[2]
        assert "measured" in [note.kind for note in samples.notes]
    finally:
        alive.set()
        probe.close()
