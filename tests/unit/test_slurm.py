"""Slurm's output is parsed into jobs, nodes and GPUs, with a fake scontrol."""

from __future__ import annotations

import math
import os
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_tui.slurm.hosts import fold
from gswarm_tui.slurm.jobs import Job, JobEnd, Slurm, SlurmError, allocation, parse_gpus, parse_jobs

# As scontrol 22.05 writes it, the lines that say nothing of use here left out.
BLOCK = """\
JobId={job_id} {kind}JobName={name}
   UserId={user}({uid}) GroupId=staff(50) MCS_label=N/A
   Priority=4294901759 Nice=0 Account=(null) QOS=(null)
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:02 TimeLimit=UNLIMITED TimeMin=N/A
   StartTime={start} EndTime={end} Deadline=N/A
   Partition=main AllocNode:Sid=login:4821
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList={nodes}
   BatchHost=gpu01
   NumNodes=2 NumCPUs=2 NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   JOB_GRES=gpu:h100:6
{gres}   MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0
   Command=/home/me/run me.sh
   TresPerNode=gres:gpu:h100:3
"""
BLOCK_END = "   \n\n"


def block(
    job_id: int = 4711,
    *,
    kind: str = "",
    name: str = "train",
    uid: int | None = None,
    state: str = "RUNNING",
    reason: str = "None",
    restarts: int = 0,
    start: str = "2026-11-21T08:05:10",
    end: str = "Unknown",
    nodes: str = "gpu[01-02]",
    gres: dict[str, str] | None = None,
) -> str:
    lines = (gres if gres is not None else {"gpu[01-02]": "gpu:h100:3(IDX:0-2)"}).items()
    return (BLOCK + BLOCK_END).format(
        job_id=job_id,
        kind=kind,
        name=name,
        user="ada",
        uid=os.getuid() if uid is None else uid,
        state=state,
        reason=reason,
        restarts=restarts,
        start=start,
        end=end,
        nodes=nodes,
        gres="".join(f"     Nodes={where} CPU_IDs=0-1 Mem=0 GRES={what}\n" for where, what in lines),
    )


class Programs:
    """Scripts in place of Slurm's commands, in a folder that is the whole PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, body: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def scontrol(self, jobs: dict[str, str], config: str = "ClusterName             = hopper") -> None:
        """Write a fake scontrol that prints ``jobs``, by its arguments."""
        cases = "".join(
            f"'show job -d {asked}' | 'show job {asked}') cat <<'END'\n{said}END\n;;\n"
            for asked, said in jobs.items()
        )
        self.add(
            "scontrol",
            f"case \"$*\" in\n{cases}'show config') echo '{config}';;\n"
            "*) echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1;;\nesac",
        )

    def slurm(self, **environ: str) -> Slurm:
        return Slurm({"PATH": f"{self.folder}:/bin:/usr/bin", **environ})


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


def refusal(slurm: Slurm, job_id: str) -> str:
    with pytest.raises(SlurmError) as caught:
        slurm.job(job_id)
    return str(caught.value)


def test_running_job_has_nodes_gpus_times_and_cluster(programs: Programs) -> None:
    gres = {"gpu01": "gpu:h100:3(IDX:0-1,5)", "gpu02": "gpu:h100:1(IDX:7),mps:100(IDX:3)"}
    programs.scontrol({"4711": block(name="my  NodeList=x job", end="2026-11-22T08:05:10", gres=gres)})
    assert programs.slurm().job("4711") == Job(
        job_id="4711",
        label="4711",
        nodes=("gpu01", "gpu02"),
        name="my  NodeList=x job",
        cluster="hopper",
        started_at=datetime(2026, 11, 21, 8, 5, 10).astimezone().timestamp(),
        ends_at=datetime(2026, 11, 22, 8, 5, 10).astimezone().timestamp(),
        gpus={"gpu01": frozenset({0, 1, 5}), "gpu02": frozenset({7})},
    )


def test_slurm_output_contains_no_escape_sequences(programs: Programs) -> None:
    programs.add("scontrol", r"printf 'no \033[2J\342\200\256way\n' >&2; exit 1")
    assert refusal(programs.slurm(), "4711") == r"scontrol show job failed: no \x1b[2J\u202eway."


def test_cluster_name_comes_from_the_jobs_environment(programs: Programs) -> None:
    programs.scontrol({"4711": block()})
    assert programs.slurm(SLURM_CLUSTER_NAME="lovelace").job("4711").cluster == "lovelace"


@pytest.mark.parametrize(
    ("state", "reason", "sentence"),
    [
        ("PENDING", "Resources", "job 4711 is pending (Resources); try again when it runs."),
        ("CONFIGURING", "None", "job 4711 is configuring; try again when it runs."),
        ("COMPLETED", "None", "job 4711 is no longer running: it is completed."),
        ("FAILED", "NonZeroExitCode", "job 4711 is no longer running: it is failed (NonZeroExitCode)."),
        (
            "OUT_OF_MEMORY",
            "OutOfMemory",
            "job 4711 is no longer running: it is out of memory (OutOfMemory).",
        ),
    ],
)
def test_job_that_is_not_running_is_reported_with_its_state(
    programs: Programs, state: str, reason: str, sentence: str
) -> None:
    programs.scontrol({"4711": block(state=state, reason=reason, start="Unknown", nodes="", gres={})})
    assert refusal(programs.slurm(), "4711") == sentence


def test_another_users_job_is_refused_with_a_remedy(programs: Programs) -> None:
    programs.scontrol({"4711": block(uid=os.getuid() + 1)})
    assert refusal(programs.slurm(), "4711") == (
        "job 4711 belongs to ada; if you can log in to its nodes, name them with --nodes."
    )


def test_missing_job_is_reported(programs: Programs) -> None:
    programs.scontrol({})
    assert refusal(programs.slurm(), "99") == "Slurm has no job 99."
    programs.add("scontrol", "echo 'Job 2_9 not found'; exit 1")
    assert refusal(programs.slurm(), "2_9") == "Slurm has no job 2_9."


def test_failing_slurm_command_is_reported(programs: Programs) -> None:
    assert refusal(Slurm({"PATH": str(programs.folder)}), "1") == (
        "scontrol isn't on your PATH, so Slurm can't be queried."
    )
    programs.add("scontrol", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    assert refusal(programs.slurm(), "1") == (
        "scontrol show job failed: slurm_load_jobs error: Unable to contact slurm controller."
    )
    (programs.folder / "scontrol").chmod(0o644)
    assert refusal(Slurm({"PATH": str(programs.folder)}), "1") == "scontrol can't be run: Permission denied."


def test_array_job_needs_a_task(programs: Programs) -> None:
    tasks = [
        block(8, kind="ArrayJobId=2 ArrayTaskId=2 ", state="COMPLETED"),
        block(7, kind="ArrayJobId=2 ArrayTaskId=1 ", nodes="gpu03", gres={}),
        block(2, kind="ArrayJobId=2 ArrayTaskId=3 "),
        block(9, kind="ArrayJobId=2 ArrayTaskId=4-9 ", state="PENDING", nodes=""),
    ]
    programs.scontrol(
        {"2": "".join(tasks), "2_1": tasks[1], "3": tasks[0] + tasks[1], "4": tasks[0] + tasks[3]}
    )
    slurm = programs.slurm()
    assert refusal(slurm, "2") == "2 tasks of job array 2 are running; name one, such as --job 2_1."
    assert refusal(slurm, "4") == "job 4 is pending; try again when it runs."
    for asked in ("2_1", "3"):  # named, or the only one that runs
        job = slurm.job(asked)
        assert (job.job_id, job.label, job.nodes, job.gpus) == ("7", "2_1", ("gpu03",), {})


def test_heterogeneous_job_is_combined(programs: Programs) -> None:
    parts = [
        block(3, kind="HetJobId=3 HetJobOffset=0 ", nodes="cpu1", gres={"cpu1": ""}),
        block(
            4, kind="HetJobId=3 HetJobOffset=1 ", nodes="gpu01,cpu1", gres={"gpu01": "gpu(IDX:0)", "cpu1": ""}
        ),
    ]
    programs.scontrol({"3": "".join(parts), "3+1": parts[1]})
    whole, part = programs.slurm().job("3"), programs.slurm().job("3+1")
    assert (whole.label, whole.nodes) == ("3", ("cpu1", "gpu01"))
    assert whole.gpus == {"gpu01": frozenset({0}), "cpu1": frozenset()}
    assert whole.het_groups == {"cpu1": 0, "gpu01": 1}
    assert (part.label, part.nodes) == ("3+1", ("gpu01", "cpu1"))
    assert (part.job_id, part.het_groups) == ("3", {"gpu01": 1, "cpu1": 1})


@pytest.mark.parametrize(
    ("gres", "expected"),
    [
        ({"n[1-2]": "gpu:h100:2(IDX:0,3)"}, {"n1": {0, 3}, "n2": {0, 3}}),
        ({"n1": "gpu:2(IDX:0-1),gpu:a100:1(IDX:6)"}, {"n1": {0, 1, 6}}),
        ({"n1": "nic:1(IDX:0),gpu:1(IDX:2)", "n2": ""}, {"n1": {2}, "n2": set()}),
        ({"n1": "gpu:h100:2(CNT:2)", "n2": "gpu:1(IDX:1)"}, {"n2": {1}}),
        ({"n1": "gpu:1(IDX:N/A)", "n2": "gpu:1"}, {}),
        ({"n1": "", "n2": ""}, {}),
        ({"n1": "craygpu:1(IDX:4)"}, {}),
        ({"n1": "gpu:a100_1g.5gb:1(IDX:3)", "n2": "gpu:1(IDX:1)"}, {"n1": {3}, "n2": {1}}),
        ({"n2": "shard:2(IDX:0)", "n3": "gpu:1(IDX:1)"}, {"n3": {1}}),
    ],
)
def test_allocated_gpus_are_parsed(gres: dict[str, str], expected: dict[str, set[int]]) -> None:
    assert parse_gpus(block(gres=gres)) == expected


def test_allocated_gpus_are_parsed_as_slurm_printed_them_before_20_02() -> None:
    assert parse_gpus(block(gres={"n1": "gpu(IDX:0,2-3)"}).replace(" GRES=", " GRES_IDX=")) == {
        "n1": {0, 2, 3}
    }


minors = st.sets(st.integers(0, 127), min_size=1, max_size=16)


@given(
    st.dictionaries(st.integers(0, 999).map("gpu{:03}".format), minors, min_size=1, max_size=8), st.booleans()
)
def test_any_allocation_is_parsed_as_slurm_prints_it(allocated: dict[str, set[int]], ranges: bool) -> None:
    by_minors: dict[frozenset[int], list[str]] = {}
    for node, chosen in allocated.items():
        by_minors.setdefault(frozenset(chosen), []).append(node)
    gres = {}
    for together, nodes in by_minors.items():
        text = fold(f"x{minor}" for minor in together).removeprefix("x").strip("[]") if ranges else ""
        indices = text or ",".join(map(str, sorted(together)))
        gres[fold(nodes)] = f"gpu:h100:{len(together)}(IDX:{indices})"
    (record,) = parse_jobs(block(nodes=fold(allocated), gres=gres))
    assert record.job.gpus == allocated
    assert set(record.job.nodes) == set(allocated)


def test_allocation_is_read_from_the_environment() -> None:
    assert allocation({}) is None
    environ = {
        "SLURM_JOB_ID": "8",
        "SLURM_JOB_NODELIST": "gpu[01-02]",
        "SLURM_JOB_NAME": "interactive",
        "SLURM_CLUSTER_NAME": "hopper",
    }
    plain = allocation(environ)
    assert plain == Job("8", "8", ("gpu01", "gpu02"), name="interactive", cluster="hopper")
    task = allocation(environ | {"SLURM_ARRAY_JOB_ID": "2", "SLURM_ARRAY_TASK_ID": "5"})
    assert task is not None
    assert (task.job_id, task.label) == ("8", "2_5")
    groups = {
        "SLURM_HET_SIZE": "2",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "cpu1",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "gpu[01-02],cpu1",
    }
    together = allocation(environ | groups)
    assert together is not None
    assert together.nodes == ("cpu1", "gpu01", "gpu02")
    assert together.het_groups == {"cpu1": 0, "gpu01": 1, "gpu02": 1}


@pytest.mark.parametrize(
    ("state", "end", "told"),
    [
        ("RUNNING", "2026-11-22T08:05:10", True),
        ("COMPLETING", "2026-11-22T08:05:10", True),
        ("TIMEOUT", "2026-11-22T08:05:10", False),
        ("RUNNING", "Unknown", True),
    ],
)
def test_job_end_is_reported_in_every_state(programs: Programs, state: str, end: str, told: bool) -> None:
    programs.scontrol({"4711": block(state=state, end=end)})
    at = math.inf if end == "Unknown" else datetime.fromisoformat(end).timestamp()
    assert programs.slurm().end_of("4711") == JobEnd(at, told)


@pytest.mark.parametrize(
    ("state", "reason", "restarts", "why"),
    [
        ("COMPLETING", "TimeLimit", 1, "the job reached its time limit"),
        ("COMPLETING", "NodeDown", 1, "a node of the job failed"),
        ("OUT_OF_MEMORY", "None", 1, "the job ran out of memory"),
        ("COMPLETING", "None", 2, "the job was requeued"),
        ("COMPLETING", "job_requeued_in_held_state", 2, "the job was requeued"),
        ("COMPLETING", "None", 1, "the job was cancelled or preempted"),
        ("PENDING", "BeginTime", 2, "the job was requeued"),
        ("RUNNING", "None", 2, ""),
    ],
)
def test_reason_of_a_jobs_end_is_known_while_its_processes_are_signalled(
    programs: Programs, state: str, reason: str, restarts: int, why: str
) -> None:
    programs.scontrol({"4711": block(state=state, reason=reason, restarts=restarts)})
    assert programs.slurm(SLURM_RESTART_COUNT="1").why_ending("4711") == why
    assert programs.slurm().why_ending("4712") == ""


@pytest.mark.parametrize(
    ("sharing", "exclusive"), [("NO", True), ("OK", False), ("YES", False), ("USER", False)]
)
def test_a_job_is_exclusive_if_no_other_may_be_on_its_nodes(sharing: str, exclusive: bool) -> None:
    line = f"   OverSubscribe={sharing} Contiguous=0 Licenses=(null) Network=(null)\n   Command="
    (record,) = parse_jobs(block().replace("   Command=", line))
    assert record.job.exclusive is exclusive
    (silent,) = parse_jobs(block(name="x OverSubscribe=NO Contiguous=0"))
    assert silent.job.exclusive is None
