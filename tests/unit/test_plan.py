"""Plan of a run: nodes from options, environment and Slurm."""

from __future__ import annotations

import io
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gswarm_tui.common.errors import UserError
from gswarm_tui.options.arguments import parse
from gswarm_tui.run.plan import Plan, require_terminal, resolve_nodes
from gswarm_tui.slurm.jobs import Job, Slurm, SlurmError

GPUS = {"gpu01": frozenset({0, 1}), "gpu02": frozenset({2, 3})}
JOB = Job("4711", "4711", ("gpu01", "gpu02"), name="train", cluster="hopper", started_at=1.0, gpus=GPUS)
INSIDE = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "gpu[01-02]"}


class Jobs(Slurm):
    """A fake Slurm with these jobs."""

    def __init__(self, *jobs: Job) -> None:
        self.jobs = {job.label: job for job in jobs}

    def job(self, job_id: str) -> Job:
        try:
            return self.jobs[job_id]
        except KeyError:
            raise SlurmError(f"Slurm has no job {job_id}.") from None


@pytest.fixture(autouse=True)
def no_config(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


def plan(line: str, environ: Mapping[str, str] | None = None, slurm: Jobs | None = None) -> Plan:
    environ = environ or {}
    return resolve_nodes(parse(line.split(), environ), environ, slurm or Jobs())


def refusal(line: str, environ: Mapping[str, str] | None = None, slurm: Jobs | None = None) -> str:
    with pytest.raises(UserError) as caught:
        plan(line, environ, slurm)
    return str(caught.value)


def test_job_without_slurm_suggests_alternatives(tmp_path: Path) -> None:
    nowhere = Slurm({"PATH": str(tmp_path)})
    with pytest.raises(UserError) as caught:
        resolve_nodes(parse(["--job", "5"], {}), {}, nowhere)
    assert str(caught.value) == (
        "--job 5: scontrol isn't on your PATH, so Slurm can't be queried; run this on a node of the "
        "cluster, or name nodes with --nodes."
    )


def test_named_nodes_need_no_slurm() -> None:
    assert plan("--nodes gpu[01-02] login") == Plan(("gpu01", "gpu02", "login"))


def test_nodes_default_to_the_shells_allocation() -> None:
    assert plan("", INSIDE, Jobs(JOB)) == Plan(("gpu01", "gpu02"), JOB, GPUS)


def test_named_nodes_of_the_allocation_belong_to_its_job() -> None:
    found = plan("--nodes gpu02.cluster.org other", INSIDE, Jobs(JOB))
    assert found == Plan(("gpu02.cluster.org", "other"), JOB, {"gpu02.cluster.org": frozenset({2, 3})})


def test_named_nodes_outside_the_allocation_belong_to_no_job() -> None:
    assert plan("--nodes other", INSIDE, Jobs(JOB)) == Plan(("other",))


def test_allocation_unknown_to_slurm_is_monitored_with_a_notice() -> None:
    found = plan("", INSIDE, Jobs())
    assert found.nodes == ("gpu01", "gpu02")
    assert found.job == Job("4711", "4711", ("gpu01", "gpu02"))
    assert found.allocation is None
    assert found.notice == ("The GPUs of job 4711 are unknown: Slurm has no job 4711.")


def test_job_is_monitored_from_anywhere_and_narrowed_by_nodes() -> None:
    assert plan("--job 4711", {}, Jobs(JOB)) == Plan(("gpu01", "gpu02"), JOB, GPUS)
    assert plan("--job 4711 --nodes gpu02", {}, Jobs(JOB)) == Plan(("gpu02",), JOB, {"gpu02": GPUS["gpu02"]})
    assert refusal("--job 4711 --nodes gpu[02-04]", {}, Jobs(JOB)) == (
        "job 4711 has no node gpu[03-04]; its nodes are gpu[01-02]."
    )
    assert refusal("--job 12", INSIDE, Jobs(JOB)) == "Slurm has no job 12."


def test_counters_are_read_in_an_exclusive_job_only() -> None:
    counters = "--metrics core,counters"
    assert plan(f"{counters} --job 4711", {}, Jobs(replace(JOB, exclusive=True))).counters_refusal == ""
    assert plan(f"{counters} --demo 1x2").nodes
    assert plan("--job 4711", {}, Jobs(JOB)).nodes, "everything else is measured in any job"
    said = (
        "--metrics counters: hardware counters count all users' processes, so they are measured on the "
        "nodes of a running node-exclusive Slurm job only: request it with --exclusive; without Slurm, run "
        "perf stat."
    )
    assert refusal(f"{counters} --job 4711", {}, Jobs(replace(JOB, exclusive=False))) == said
    assert refusal(f"{counters} --nodes other") == said
    assert refusal(counters, INSIDE, Jobs()) == said
    assert refusal(f"{counters} --nodes gpu01 other", INSIDE, Jobs(replace(JOB, exclusive=True))) == said


def test_job_without_gpus_has_no_allocation() -> None:
    job = Job("5", "5", ("gpu01",))
    assert plan("--job 5", {}, Jobs(job)).allocation is None


def test_demo_simulates_the_given_number_of_nodes() -> None:
    assert plan("--demo", INSIDE) == Plan(("sim01", "sim02", "sim03", "sim04"))
    many = plan("--demo 128x8").nodes
    assert (len(many), many[0], many[-1]) == (128, "sim001", "sim128")


def test_local_is_this_machine_even_inside_an_allocation() -> None:
    assert plan("--launcher local", INSIDE, Jobs(JOB)) == Plan((socket.gethostname(),))


def test_srun_needs_a_job() -> None:
    assert refusal("--launcher srun --nodes gpu01") == (
        "--launcher srun needs a job: add --job ID, or start inside salloc."
    )
    assert plan("--launcher srun", INSIDE, Jobs(JOB)).job == JOB


def test_without_nodes_the_error_lists_ways_to_name_them() -> None:
    assert refusal("", {}, Jobs(JOB)) == (
        "no nodes: use --nodes 'gpu[01-04]', --hostfile FILE or --job ID (squeue --me lists yours), or start "
        "inside a Slurm job, as with salloc; --demo simulates nodes."
    )
    assert refusal("--nodes") == "--nodes names no node; is this shell inside salloc?"


class TtyText(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_screen_needs_a_terminal() -> None:
    require_terminal(TtyText(), TtyText())
    for stdin, stdout, name in (
        (io.StringIO(), TtyText(), "input"),
        (TtyText(), io.StringIO(), "output"),
    ):
        with pytest.raises(UserError, match=f"standard {name} isn't one"):
            require_terminal(stdin, stdout)
