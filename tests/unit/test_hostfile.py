"""Host files, also those of other schedulers than Slurm."""

from __future__ import annotations

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


def plan(line: str) -> Plan:
    return resolve_nodes(parse(line.split(), {}), {}, NO_SLURM)


def refusal(line: str) -> str:
    with pytest.raises(UserError) as caught:
        plan(line)
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
        "gpu01\ngpu01\ngpu02\ngpu02\n",
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
        f"--hostfile: {hostfile} can't be read: No such file or directory."
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
