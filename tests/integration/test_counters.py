"""Hardware counters: who may use them, what is counted, and how the agent yields them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gswarm_agent.metrics import COUNTER_COLUMNS
from gswarm_agent.probes.counters import CountersProbe
from gswarm_agent.probes.procfs import user_name
from tests.counters_standin import CounterTools
from tests.integration.agent_node import gone, until

SECOND = 1_000_000_000
ME = user_name(os.geteuid())


class NodeFiles:
    """A node's files that decide who may count, a stand-in for its /proc, and its tools on the PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.proc = folder / "proc"
        self.lock = folder / "var/run/likwid.lock"
        self.paranoid = self.proc / "sys/kernel/perf_event_paranoid"
        for file in (self.lock, self.paranoid):
            file.parent.mkdir(parents=True)
        self.tools = CounterTools(folder / "bin")
        self.probes: list[CountersProbe] = []
        self._last_pid = 100
        self.allow(0)

    def allow(self, paranoid: int) -> None:
        self.paranoid.write_text(f"{paranoid}\n")

    def run_program(self, *words: str, uid: int = 4_000_123, parent: int = 1) -> int:
        """Let a program appear in /proc; return its pid."""
        self._last_pid += 1
        pid = self._last_pid
        process = self.proc / str(pid)
        process.mkdir()
        name = Path(words[0]).name[:15]
        fields = " ".join(["S", str(parent), str(pid), str(pid), *["0"] * 15, str(pid), "0", "0"])
        (process / "stat").write_text(f"{pid} ({name}) {fields}\n")
        (process / "cmdline").write_text("\0".join(words) + "\0")
        (process / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        return pid

    def end_program(self, pid: int) -> None:
        shutil.rmtree(self.proc / str(pid))

    def probe(self) -> CountersProbe:
        """Return the node's probe, switched on."""
        probe = CountersProbe(str(self.folder), str(self.proc))
        probe.switch(on=True)
        self.probes.append(probe)
        return probe


class Ticks:
    """Reads a probe at ticks of a second of its clock; real time passes between them, for the tools."""

    def __init__(self, probe: CountersProbe) -> None:
        self.probe = probe
        self.now = SECOND
        self.messages: list[str] = []

    def tick(self) -> dict[str, Any]:
        self.now += SECOND
        row = self.probe.read(self.now)
        self.messages += [note.message for note in self.probe.take_notes()]
        return dict(zip(COUNTER_COLUMNS, row, strict=True))

    def until(
        self, condition: Callable[[dict[str, Any]], object], *, step: int = SECOND // 50
    ) -> dict[str, Any]:
        """Tick until a row fulfils the condition; its clock goes on by ``step`` each time."""
        row: dict[str, Any] = {}

        def reached() -> bool:
            nonlocal row
            self.now += step - SECOND
            row = self.tick()
            return bool(condition(row))

        until(reached)
        return row


def counts(row: dict[str, Any]) -> bool:
    return row["cycles_g_s"] is not None


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeFiles]:
    made = NodeFiles(tmp_path)
    monkeypatch.setenv("PATH", f"{made.tools.folder}:{os.environ['PATH']}")
    made.tools.add_perf()
    yield made
    for probe in made.probes:
        probe.close()


def tool_pids(node: NodeFiles) -> list[int]:
    """Return the real processes of the node's tools."""
    folder = str(node.tools.folder).encode()
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and folder in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_perf_counts_the_node(node: NodeFiles) -> None:
    ticks = Ticks(node.probe())
    row = ticks.until(counts)
    assert row == pytest.approx(
        {
            "instructions_g_s": 3.0,
            "cycles_g_s": 2.0,
            "ipc": 1.5,
            "flops_g_s": 17.0,
            "memory_bandwidth_mb_s": 2 * 1000 * 2**20 / 1e6,
            "llc_misses_m_s": 5.0,
            "page_faults_s": 40.0,
            "context_switches_s": 0.0,
            "cpu_migrations_s": 0.0,
        }
    )
    assert ticks.messages == ["CPU counters read with perf every 1 s"]
    assert "cycles_g_s" not in ticks.probe.reasons


@pytest.mark.parametrize(
    ("paranoid", "reason"),
    [
        (1, "closed to whole nodes: kernel.perf_event_paranoid is 1, above 0"),
        (4, "closed to users: kernel.perf_event_paranoid is 4, above 2"),
    ],
)
def test_kernels_setting_is_obeyed_and_named(node: NodeFiles, paranoid: int, reason: str) -> None:
    node.allow(paranoid)
    ticks = Ticks(node.probe())
    assert not counts(ticks.tick())
    assert ticks.probe.reasons["ipc"] == reason
    assert tool_pids(node) == []
    node.allow(0)
    ticks.until(counts)


def test_counters_are_yielded_to_the_locks_new_owner_within_a_tick(
    node: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.lock.touch()
    ticks = Ticks(node.probe())
    ticks.until(counts)
    assert tool_pids(node)
    owner = 4_000_123
    real = os.lstat

    def lstat(path: Any) -> Any:
        found = real(path)
        if str(path) == str(node.lock):
            return os.stat_result((found.st_mode, 0, 0, 1, owner, owner, 0, 0, 0, 0))
        return found

    with monkeypatch.context() as patch:
        patch.setattr("gswarm_agent.probes.counter_rights.os.lstat", lstat)
        assert not counts(ticks.tick())
        assert tool_pids(node) == []
        held = f"held by {owner} (owner of {node.lock})"
        assert ticks.probe.reasons["cpu_counters"] == ticks.probe.reasons["ipc"] == held
        assert ticks.messages[1:] == [f"CPU counters not read: {held}"]
    ticks.until(counts)
    assert ticks.messages[-1] == "CPU counters read with perf every 1 s"


@pytest.mark.parametrize(
    "words",
    [
        ("/usr/bin/perf", "stat", "-a", "sleep", "9"),
        ("/usr/bin/perf_6.1", "record", "train"),
        ("/opt/nsys", "profile", "train"),
        ("ncu", "train"),
    ],
)
def test_counters_are_yielded_to_a_profiler(node: NodeFiles, words: tuple[str, ...]) -> None:
    ticks = Ticks(node.probe())
    ticks.until(counts)
    pid = node.run_program(*words)
    for _ in range(4):
        ticks.tick()
    assert not counts(ticks.tick())
    assert tool_pids(node) == []
    taker = f"in use by {Path(words[0]).name} (pid {pid}) of 4000123"
    assert ticks.messages[-1] == f"CPU counters not read: {taker}"
    assert ticks.probe.reasons["ipc"] == taker
    assert not counts(ticks.tick())
    node.end_program(pid)
    ticks.until(counts)


@pytest.mark.parametrize(
    "words",
    [
        ("perform", "x"),
        ("python", "perf"),
    ],
)
def test_programs_with_similar_names_take_no_counters(node: NodeFiles, words: tuple[str, ...]) -> None:
    ticks = Ticks(node.probe())
    ticks.until(counts)
    node.run_program(*words)
    assert counts(ticks.tick())


def test_counters_in_use_are_left_alone_from_the_start(node: NodeFiles) -> None:
    pid = node.run_program("perf", "stat", "-a")
    ticks = Ticks(node.probe())
    assert not counts(ticks.tick())
    assert tool_pids(node) == []
    assert ticks.messages == [f"CPU counters not read: in use by perf (pid {pid}) of 4000123"]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("dies", "perf ended: perf: Segmentation fault"),
        ("garbage", "perf counted nothing for 6 s: ?[2Jwhat is this?"),
        ("endless", "perf printed too much"),
        ("hangs", "perf counted nothing for 6 s"),
        ("denied", "perf ended: Access to performance monitoring and observability operations is limited."),
    ],
)
def test_a_tool_that_fails_is_ended_named_and_tried_again(node: NodeFiles, fault: str, reason: str) -> None:
    node.tools.show(fault)
    step = SECOND if fault in ("hangs", "garbage") else SECOND // 50
    ticks = Ticks(node.probe())
    not_read = f"CPU counters not read: {reason}"
    ticks.until(lambda _: ticks.messages[-1:] == [not_read], step=step)
    assert ticks.probe.reasons["ipc"] == reason
    assert tool_pids(node) == []
    node.tools.show("")
    ticks.now += 60 * SECOND
    ticks.until(counts)


def test_a_value_isnt_repeated_while_a_tool_stalls(node: NodeFiles) -> None:
    node.tools.show("stalls")
    ticks = Ticks(node.probe())
    ticks.until(counts)
    ticks.until(lambda row: not counts(row))
    assert ticks.messages == ["CPU counters read with perf every 1 s"]
    assert tool_pids(node)


def test_who_may_count_is_reported_and_kept_current_while_counters_are_off(node: NodeFiles) -> None:
    probe = node.probe()
    probe.switch(on=False)
    assert probe.reasons["cpu_counters"] == f"open to {ME}, the whole node (kernel.perf_event_paranoid is 0)"
    ticks = Ticks(probe)
    ticks.tick()
    node.allow(3)
    ticks.now += 10 * SECOND
    ticks.tick()
    closed = "closed to users: kernel.perf_event_paranoid is 3, above 2"
    assert probe.reasons["cpu_counters"] == closed
    assert ticks.messages == [f"CPU counters: {closed}"]
    assert tool_pids(node) == []


def test_gpu_counters_are_named_with_the_drivers_setting(node: NodeFiles) -> None:
    params = node.folder / "proc/driver/nvidia/params"
    params.parent.mkdir(parents=True)
    params.write_text("EnableMSI: 1\nRmProfilingAdminOnly: 0\n")
    assert node.probe().reasons["gpu_counters"] == f"open to {ME} (RmProfilingAdminOnly is 0)"


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def cmdline(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


HOLDER = """
import sys, time
from gswarm_agent.probes.counter_tools import Perf, ToolProcess
tool = Perf(sys.argv[1])
process = ToolProcess(tool.counting(()))
while not process.lines():
    time.sleep(0.02)
print(process.pid, flush=True)
time.sleep(600)
"""


def test_real_perf_ends_with_an_agent_that_is_killed() -> None:
    perf = shutil.which("perf")
    assert perf, "install linux-perf"
    with subprocess.Popen([sys.executable, "-c", HOLDER, perf], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        pid = int(holder.stdout.readline())
        tools = [pid, *children(pid)]
        assert len(tools) == 2, "perf and the program at its lifeline"
        os.kill(holder.pid, signal.SIGKILL)
        until(lambda: all(gone(each) for each in tools))


def test_reading_costs_microseconds(node: NodeFiles) -> None:
    ticks = Ticks(node.probe())
    ticks.until(counts)
    begun = time.thread_time()
    for _ in range(200):
        ticks.now += SECOND // 100
        ticks.probe.read(ticks.now)
    assert (time.thread_time() - begun) / 200 < 0.002, "a tick's look at rights, profilers and the tool"
