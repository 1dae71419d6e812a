"""Nodes of jobs under other schedulers than Slurm, and host files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gswarm_tui.common.errors import UserError
from gswarm_tui.options.arguments import parse
from gswarm_tui.run.plan import Plan, resolve_nodes
from gswarm_tui.slurm.jobs import Slurm

NO_SLURM = Slurm({"PATH": "/nonexistent"})


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


def plan(line: str = "", environ: Mapping[str, str] | None = None) -> Plan:
    environ = environ or {}
    return resolve_nodes(parse(line.split(), environ), environ, NO_SLURM)


def refusal(line: str = "", environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(UserError) as caught:
        plan(line, environ)
    return str(caught.value)


@pytest.fixture
def hostfile(tmp_path: Path) -> Path:
    return tmp_path / "hosts.txt"


@pytest.mark.parametrize(
    "text",
    [
        "gpu01\ngpu02\n",
        "# our nodes\n\ngpu01 slots=8 max_slots=8\n  gpu02   # the slow one\n",
        "gpu01:8\ngpu02:8 binding=rr\n",
        "gpu01 8\ngpu02 8\n",
        "gpu[01-02]\n",
        "gpu[01-02]:8\n",
        "gpu01, gpu02\n",
        "gpu01\r\ngpu02\r\ngpu01\r\n",
    ],
)
def test_host_file_is_read_as_mpi_programs_write_it(hostfile: Path, text: str) -> None:
    hostfile.write_text(text)
    assert plan(f"--hostfile {hostfile}") == Plan(("gpu01", "gpu02"), source="host file hosts.txt")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "{path} names no host; name a file with one host on each line."),
        (b"# nothing\n", "{path} names no host; name a file with one host on each line."),
        (b"\x7fELF", '{path}, line 1: "\\x7fELF" is invalid: a node name can\'t contain "\\x7f".'),
        (b"gpu01\ngpu[02\n", '{path}, line 2: "gpu[02" is invalid: missing bracket.'),
        (b"-oA=x\n", '{path}, line 1: "-oA=x" is invalid: a node name can\'t start with a dash.'),
    ],
)  # fmt: skip
def test_bad_host_file_gets_one_sentence(hostfile: Path, content: bytes, problem: str) -> None:
    hostfile.write_bytes(content)
    assert refusal(f"--hostfile {hostfile}") == f"--hostfile: {problem.format(path=hostfile)}"


def test_missing_host_file_is_named(hostfile: Path) -> None:
    assert refusal(f"--hostfile {hostfile}") == (
        f"--hostfile: {hostfile} isn't a file; name a file with one host on each line."
    )


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("--hostfile f --nodes a", "--nodes and --hostfile both name the nodes; remove one of them."),
        ("--hostfile f --demo", "--demo simulates its nodes; remove --hostfile."),
        (
            "--hostfile f --launcher local",
            "--launcher local monitors only this machine; remove --hostfile, or use --launcher ssh.",
        ),
    ],
)
def test_host_file_contradicts_other_nodes(line: str, problem: str) -> None:
    assert refusal(line) == problem


NODES_IN_A_FILE = [
    ("PBS_NODEFILE", "PBS_JOBID", "PBS", "gpu01\ngpu01\ngpu02\n"),
    ("LSB_DJOB_HOSTFILE", "LSB_JOBID", "LSF", "gpu01\ngpu01\ngpu02\ngpu02\n"),
    ("LSB_DJOB_HOSTFILE", "LSB_JOBID", "LSF", "batch5\ngpu01\ngpu01\ngpu02\ngpu02\n"),
    ("OAR_NODEFILE", "OAR_JOB_ID", "OAR", "gpu01\ngpu02\n"),
    ("PE_HOSTFILE", "JOB_ID", "SGE", "gpu01 8 gpu.q@gpu01 UNDEFINED\ngpu02 8 gpu.q@gpu02 <NULL>\n"),
]


@pytest.mark.parametrize(("variable", "job_id", "scheduler", "content"), NODES_IN_A_FILE)
def test_nodes_of_a_job_come_from_the_file_that_its_scheduler_names(
    tmp_path: Path, variable: str, job_id: str, scheduler: str, content: str
) -> None:
    path = tmp_path / "nodes"
    path.write_text(content)
    source = f"{scheduler} job 12.head ({variable})"
    found = plan("", {variable: str(path), job_id: "12.head"})
    assert found == Plan(("gpu01", "gpu02"), source=source)


def flux(folder: Path, script: str) -> dict[str, str]:
    program = folder / "flux"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"FLUX_URI": "local:///tmp/flux/local-0", "PATH": f"{folder}:/usr/bin:/bin"}


def test_nodes_of_a_flux_job_come_from_flux_hostlist(tmp_path: Path) -> None:
    script = '[ "$*" = "hostlist local" ] && echo "gpu[01-02],login2,gpu01"'
    environ = {**flux(tmp_path, script), "FLUX_JOB_ID": "ƒ2JcfAR"}
    found = plan("", environ)
    assert found == Plan(("gpu01", "gpu02", "login2"), source="Flux job ƒ2JcfAR (FLUX_URI)")


def test_flux_that_fails_gets_one_sentence(tmp_path: Path) -> None:
    environ = flux(tmp_path, 'echo "flux-hostlist: ERROR: no broker" >&2; exit 1')
    assert refusal("", environ) == (
        "flux hostlist failed: flux-hostlist: ERROR: no broker; name nodes with --nodes or --hostfile."
    )
    assert refusal("", {"FLUX_URI": "local://x", "PATH": str(tmp_path / "none")}) == (
        "FLUX_URI is set, but flux can't be run: [Errno 2] No such file or directory: 'flux'; name nodes "
        "with --nodes or --hostfile."
    )


def test_file_of_a_scheduler_that_is_missing_is_named_with_its_variable(tmp_path: Path) -> None:
    assert refusal("", {"PBS_NODEFILE": str(tmp_path / "aux")}) == (
        f"PBS_NODEFILE: {tmp_path}/aux isn't a file; name nodes with --nodes or --hostfile."
    )


def test_named_nodes_beat_the_environment(tmp_path: Path, hostfile: Path) -> None:
    hostfile.write_text("login2\n")
    environ = {"PBS_NODEFILE": str(tmp_path / "missing")}
    assert plan("--nodes login1", environ) == Plan(("login1",))
    assert plan(f"--hostfile {hostfile}", environ).nodes == ("login2",)


def test_slurm_comes_before_schedulers_inside_its_job(tmp_path: Path) -> None:
    environ = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "gpu[01-02]"}
    found = plan("", {**environ, **flux(tmp_path, "echo gpu01")})
    assert (found.nodes, found.source) == (("gpu01", "gpu02"), "")
