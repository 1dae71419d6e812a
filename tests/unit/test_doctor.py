"""Rules of ``gswarm-tui doctor`` over made-up reports, and the agent's checks."""

from __future__ import annotations

import dataclasses
import getpass
from pathlib import Path
from typing import Any

import pytest

from gswarm_agent.checks import check
from gswarm_tui.doctor.checks import checks, subject
from gswarm_tui.doctor.local import check_here
from gswarm_tui.doctor.report import DoctorReport, LocalReport, NodeReport

HERE = LocalReport("3.12.1", "2.0.0", "8.2.8", "xterm 80×24", "UTF-8", "/home/me/.local/state", 9999, ())
READY = NodeReport(
    "gpu01",
    answered_s=0.2,
    python="/usr/bin/python3",
    python_version="3.9.18",
    agent_version="0.1.0",
    kernel="5.14.0",
    cpus=192,
    driver_version="580.65.06",
    cuda_version="13.0",
    gpus=("H100",) * 8,
    clock_offset_ms=0.4,
    spool_folder="/var/tmp/gswarm-tui-1000",
    spool_free_mib=100_000,
    perf_event_paranoid=2,
)


def fleet(**changes: dict[str, Any]) -> list[NodeReport]:
    """Return gpu01 to gpu04, alike but for these changes by node."""
    names = [f"gpu{number:02d}" for number in range(1, 5)]
    return [dataclasses.replace(READY, node=name, **changes.get(name, {})) for name in names]


def told(nodes: list[NodeReport], here: LocalReport = HERE) -> list[str]:
    """Return the checks as lines, those to fix with an exclamation mark."""
    found = checks(here, nodes)
    return [f"{'! ' if each.fix else ''}{subject(each)}: {each.text}" for each in found]


def test_nodes_without_faults_have_no_findings() -> None:
    nodes = fleet()
    assert told(nodes) == []
    assert DoctorReport("", HERE, tuple(nodes), ()).verdict == "4 of 4 nodes ready, nothing to fix."


def test_nodes_that_fail_alike_share_a_sentence() -> None:
    def refused(node: str) -> dict[str, Any]:
        return {"failed_step": "log in", "reason": "it refuses the user me", "remedy": f"try `ssh {node}`"}

    assert told(fleet(gpu02=refused("gpu02"))) == [
        "! gpu02: failed to log in: it refuses the user me; try `ssh gpu02`."
    ]
    both = fleet(gpu02=refused("gpu02"), gpu03=refused("gpu03"))
    assert told(both) == ["! gpu[02-03]: failed to log in: it refuses the user me; try `ssh gpu02`."]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"driver_version": "535.1"},
            "! gpu03: the driver is 535.1, but 580.65.06 on 3 other nodes; ask the administrators for one "
            "version, as jobs over all of them may fail.",
        ),
        (
            {"gpus": ("H100",) * 7},
            "! gpu03: GPUs: 7, but 8 on 3 other nodes; a GPU may have fallen off the bus; run nvidia-smi "
            "there.",
        ),
        ({"gpus": ("A100",) * 8}, "gpu03: the GPUs are A100, but H100 on 3 other nodes."),
        ({"kernel": "6.1"}, "gpu03: the kernel is 6.1, but 5.14.0 on 3 other nodes."),
        (
            {"unmeasured": {"gpu5": "GPU is lost"}},
            "! gpu03: GPU 5 doesn't answer: GPU is lost; ask the administrators to reset it.",
        ),
        (
            {"health": {"3": {"found": ("a row waits", "the driver asks to reset the GPU"), "counted": ()}}},
            "! gpu03: GPU 3: a row waits; the driver asks to reset the GPU.",
        ),
        (
            {"health": {"3": {"found": (), "counted": ("2 NVLink errors",)}}},
            "gpu03: GPU 3: 2 NVLink errors.",
        ),
        (
            {"spool_free_mib": 100},
            "! gpu03: only 100 MiB free for waiting samples in /var/tmp/gswarm-tui-1000; free some space.",
        ),
        (
            {"spool_folder": None, "spool_problems": ("/tmp/x: it belongs to eve",)},
            "! gpu03: no private folder for waiting samples: /tmp/x: it belongs to eve.",
        ),
        (
            {"clock_offset_ms": -3200.0},
            "! gpu03: its clock is 3.2 s behind this machine's; samples are corrected, logs of jobs aren't: "
            "check its time service.",
        ),
        (
            {"gpu_counters_admin_only": True, "gpu_counters": "administrators only"},
            "gpu03: GPU counters: administrators only; administrators can set "
            "NVreg_RestrictProfilingToAdminUsers=0.",
        ),
        (
            {
                "perf_event_paranoid": 4,
                "cpu_counters": "closed to users",
                "counter_obstacle": "closed to users",
            },
            "gpu03: CPU counters: closed to users; administrators can set kernel.perf_event_paranoid to 2, "
            "or to 0 for a job.",
        ),
        (
            {"cpu_counters": "held by root (owner of /var/run/likwid.lock)", "likwid_lock_owner": "root"},
            "gpu03: CPU counters: held by root (owner of /var/run/likwid.lock).",
        ),
        (
            {"unmeasured": {"mem_temp_c": "not supported", "gpu3.power_w": "not supported"}},
            "gpu03: not measured: mem_temp_c, gpu3.power_w: not supported.",
        ),
    ],
)
def test_what_differs_or_fails_gets_one_sentence(change: dict[str, Any], line: str) -> None:
    assert told(fleet(gpu03=change)) == [line]


def test_what_is_to_fix_comes_first_and_is_counted() -> None:
    nodes = fleet(gpu01={"kernel": "6.1"}, gpu02={"failed_step": "connect", "reason": "no route"})
    lines = told(nodes)
    assert [line.startswith("!") for line in lines] == [True, False]
    report = DoctorReport("", HERE, tuple(nodes), checks(HERE, nodes))
    assert report.verdict == "3 of 4 nodes ready, 1 thing to fix."


def test_problems_of_this_machine_are_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    report = check_here({"PATH": str(tmp_path), "SLURM_JOB_ID": "1"}, tmp_path)
    assert report.slurm_commands == ()
    assert report.problems == ("this shell is in a Slurm job, but scontrol, srun aren't on your PATH.",)
    (tmp_path / "gswarm-tui").mkdir(mode=0o777)
    (tmp_path / "gswarm-tui").chmod(0o777)
    assert "others can write to" in check_here({}, tmp_path).problems[0]


def test_agent_reads_who_may_use_counters_and_the_spools_folder(tmp_path: Path) -> None:
    for path, text in {
        "proc/sys/kernel/perf_event_paranoid": "4\n",
        "proc/driver/nvidia/params": "EnableMSI: 1\nRmProfilingAdminOnly: 1\n",
        "var/run/likwid.lock": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    found = check(str(tmp_path), [str(tmp_path / "spool")])
    assert found["perf_event_paranoid"] == 4
    assert found["gpu_counters_admin_only"] is True
    assert found["likwid_lock_owner"] == getpass.getuser()
    assert found["spool_folder"] == str(tmp_path / "spool")
    assert found["spool_free_mib"] > 0
    assert not (tmp_path / "spool").exists(), "it only reads"
