"""Tests of the parsers for files in /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_agent.probes import procfs
from gswarm_agent.redact import redact

TICKS = st.lists(st.integers(0, 2**40), min_size=10, max_size=10)


@given(TICKS, st.lists(TICKS, min_size=1, max_size=5))
def test_cpu_times_are_parsed(everything: list[int], cores: list[list[int]]) -> None:
    lines = [f"cpu  {' '.join(map(str, everything))}"]
    lines += [f"cpu{3 * i} {' '.join(map(str, core))}" for i, core in enumerate(cores)]
    text = "\n".join([*lines, "intr 12345 0 0", "ctxt 7", ""]).encode()

    total = procfs.parse_stat(text)

    user, nice, system, _idle, iowait, irq, softirq, steal, _guest, _guest_nice = everything
    assert total.user == user + nice
    assert total.system == system + irq + softirq
    assert total.iowait == iowait
    assert total.busy == user + nice + system + irq + softirq + steal
    assert total.total == sum(everything[:8])
    assert total.cores_total == [sum(core[:8]) for core in cores]
    assert total.cores_busy == [sum(core[:8]) - core[3] - core[4] for core in cores]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"intr 1 2 3\n",
        b"cpu\nintr 1\n",
        b"memory 1 2\nintr 1\n",
    ],
)
def test_a_stat_file_of_another_form_is_rejected(text: bytes) -> None:
    with pytest.raises((ValueError, LookupError)):
        procfs.parse_stat(text)


def test_pressure_is_parsed_from_the_some_line() -> None:
    text = (
        b"some avg10=1.53 avg60=0.87 avg300=0.26 total=4842160\n"
        b"full avg10=0.00 avg60=0.00 avg300=0.00 total=17\n"
    )
    assert procfs.parse_pressure(text) == 4842160


def test_an_interface_whose_count_touches_its_name_is_parsed() -> None:
    text = (
        b"Inter-|   Receive                                                |  Transmit\n"
        b" face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop\n"
        b"    lo:    3193      29    0    0    0     0          0         0     3193      29    0    0\n"
        b"enp1s0:95694044    2729    0    0    0     0          0         0   169004    1407    0    0\n"
        b"eth0:1: 5 1 0 0 0 0 0 0 6 1 0 0\n"
    )
    assert procfs.parse_net_dev(text) == {
        "lo": (3193, 3193),
        "enp1s0": (95694044, 169004),
        "eth0:1": (5, 6),
    }


def test_disk_sectors_are_converted_to_bytes() -> None:
    text = (
        b" 259       0 nvme0n1 93014 28232 3622514 15231 11901 23817 1251000 3433 0 7696 18984 4086 46 1 2\n"
        b" 259       1 nvme0n1p1 1 2 3 4 5 6 7 8 9 10 11\n"  # as kernels before 4.18 write it
    )
    assert procfs.parse_diskstats(text) == {
        "nvme0n1": (3622514 * 512, 1251000 * 512),
        "nvme0n1p1": (3 * 512, 7 * 512),
    }


@given(
    st.text(st.characters(exclude_characters="\0"), max_size=20), st.integers(0, 2**40), st.integers(0, 2**60)
)
def test_a_process_name_can_hold_any_character(name: str, ticks: int, started: int) -> None:
    before = " ".join(["D", *["0"] * 10, str(ticks), "7", *"0000", "3", "0", str(started), "0", "5", "0"])
    stat = procfs.parse_process_stat(
        b"123 (" + name.encode("utf-8", "surrogatepass") + b") " + before.encode() + b"\n"
    )
    assert stat == procfs.ProcessStat(ticks + 7, started, 5, "D", 3)


@given(st.lists(st.text(st.characters(exclude_characters="\0"), min_size=1), min_size=1))
def test_a_command_line_is_redacted(words: list[str]) -> None:
    text = b"".join(word.encode("utf-8", "surrogatepass") + b"\0" for word in [*words, "--token", "zq7zq7"])
    expected = " ".join(redact([*text[:-1].decode("utf-8", "replace").split("\0")]))
    assert procfs.parse_command(text) == expected
    assert "zq7zq7" not in expected


def test_a_kernel_thread_has_no_command_line() -> None:
    assert procfs.parse_command(b"") is None


def test_a_launchers_rank_overrides_slurms() -> None:
    slurm = b"SLURM_PROCID=1\0SLURM_LOCALID=0\0SLURM_NTASKS=4\0SLURM_STEP_NUM_TASKS=2\0"
    assert procfs.parse_ranks(slurm) == (1, 0, 2)
    assert procfs.parse_ranks(slurm + b"RANK=11\0LOCAL_RANK=3\0WORLD_SIZE=16\0SECRET=RANK=5\0") == (11, 3, 16)
    for name, size in ((b"OMPI_COMM_WORLD", b"_SIZE"), (b"MV2_COMM_WORLD", b"_SIZE")):
        environ = b"%b_RANK=9\0%b_LOCAL_RANK=1\0%b%b=12\0" % (name, name, name, size)
        assert procfs.parse_ranks(environ) == (9, 1, 12)
    assert procfs.parse_ranks(b"PMI_RANK=4\0PMI_SIZE=8\0") == (4, None, 8)
    # A batch script has the job's number of tasks, but its processes aren't ranks of so many.
    assert procfs.parse_ranks(b"SLURM_NTASKS=4\0") == (None, None, None)


@pytest.mark.parametrize("value", [b"", b"-1", b"one", b"1" * 30, b" 1", b"\xff"])
def test_a_rank_that_is_not_a_number_is_none(value: bytes) -> None:
    assert procfs.parse_ranks(b"RANK=" + value) == (None, None, None)


@given(st.binary())
def test_any_environment_is_parsed(environ: bytes) -> None:
    assert all(number is None or number >= 0 for number in procfs.parse_ranks(environ))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_only_expected_errors(text: bytes) -> None:
    """Callers expect ValueError and LookupError only."""
    for parse in (
        procfs.parse_stat,
        procfs.parse_meminfo,
        procfs.parse_loadavg,
        procfs.parse_pressure,
        procfs.parse_diskstats,
        procfs.parse_net_dev,
        procfs.parse_process_stat,
        procfs.parse_process_io,
        procfs.parse_process_uid,
        procfs.parse_thread_status,
        lambda text: procfs.parse_cpu_list(text.decode("latin-1")),
    ):
        try:
            parse(text)
        except (ValueError, LookupError):
            continue


def test_this_machines_own_files_are_parsed() -> None:
    proc = Path("/proc")
    total = procfs.parse_stat((proc / "stat").read_bytes())
    assert 0 < total.busy < total.total
    assert len(total.cores_total) == os.cpu_count()
    memory = procfs.parse_meminfo((proc / "meminfo").read_bytes())
    assert 0 < memory[b"MemAvailable"] <= memory[b"MemTotal"]
    assert procfs.parse_loadavg((proc / "loadavg").read_bytes()) >= 0
    assert "lo" in procfs.parse_net_dev((proc / "net/dev").read_bytes())
    me = proc / str(os.getpid())
    assert procfs.parse_process_uid((me / "status").read_bytes()) == os.getuid()
    assert procfs.parse_process_stat((me / "stat").read_bytes()).cpu > 0
    assert procfs.parse_process_io((me / "io").read_bytes())[0] >= 0
    assert "python" in (procfs.parse_command((me / "cmdline").read_bytes()) or "")
