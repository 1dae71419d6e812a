"""All ways to name and reach nodes, and their errors."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.node import ClusterNode
from tests.cluster.person import allocated, ask, leave, measuring, seated, start, told
from tests.cluster.running import wait_until
from tests.cluster.standin import Scenario
from tests.cluster.terminal import Terminal

WIDE = (200, 40)
HTTP = "127.0.0.1:18091"


@pytest.fixture
def terminal(cluster: Cluster) -> Iterator[Terminal]:
    """Open a terminal outside an allocation."""
    with seated(cluster, WIDE) as terminal:
        yield terminal


@pytest.fixture(scope="module")
def job(cluster: Cluster) -> Iterator[str]:
    """Start a job with two GPUs on each of gpu02 and gpu03 (the bare node)."""
    said = cluster.run("salloc -N2 -w gpu02,gpu03 --gres=gpu:2 --no-shell").stderr
    found = re.search(r"Granted job allocation (\d+)", said)
    assert found is not None, said
    yield found[1]
    cluster.run(["scancel", found[1]])


@pytest.fixture
def config(cluster: Cluster) -> Iterator[Path]:
    """Return the path of the user's config file."""
    path = cluster.home / ".config" / "gswarm-tui" / "config.toml"
    path.parent.mkdir(parents=True)
    yield path
    shutil.rmtree(path.parent)


@pytest.fixture
def uneven(cluster: Cluster) -> Iterator[ClusterNode]:
    """Set four GPUs of gpu01, those of the job, to 50 % and the other four to 100 %."""
    node = cluster["gpu01"]
    scenario = Scenario.of(node.name, node.gpus)
    for index, gpu in enumerate(scenario.gpus):
        gpu.utilization_percent = 50 if index < 4 else 100
    scenario.write(node.scenario)
    yield node
    Scenario.of(node.name, node.gpus).write(node.scenario)


def variables(node: ClusterNode, pid: int) -> dict[str, str]:
    """Return the environment with which a process of a node was started."""
    pairs = node.run(["cat", f"/proc/{pid}/environ"]).stdout.split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def test_allocated_gpus_count_inside_an_allocation(cluster: Cluster, uneven: ClusterNode) -> None:
    with allocated(cluster, "-N1 -w gpu01 --gres=gpu:4") as terminal:
        start(terminal, f"--http {HTTP}")
        screen = terminal.wait_for("util 50 %")
        title = re.search(r"job (\d+) · gpu01 · 1 node · 4 GPUs", screen)
        assert title is not None, screen
        assert "busy 4/4" in screen
        assert re.search(r"^ gpu01( +50){4}( +100){4} +50 ", screen, re.MULTILINE), "the mean is of its own"
        own, others = heat(terminal, 1), heat(terminal, 5)
        assert own != others, "GPUs of others look like the job's own"
        jobs = dict(
            re.findall(
                r'^gswarm_gpu_pstate\{.*gpu="(\d)",hostname="gpu01"(.*),modelName',
                scraped(cluster),
                re.MULTILINE,
            )
        )
        assert jobs == {str(gpu): f',hpc_job="{title[1]}"' if gpu < 4 else "" for gpu in range(8)}
        status, said = leave(terminal)
    assert status == 0, said
    db = cluster.home / f"gswarm-job{title[1]}.duckdb"
    assert ask(db, "SELECT gpu_index, allocated FROM gpus ORDER BY ALL") == [
        (gpu, gpu < 4) for gpu in range(8)
    ]
    assert ask(db, "SELECT slurm_job_id, slurm_cluster FROM recordings") == [(title[1], "gswarm")]
    db.unlink()


def scraped(cluster: Cluster) -> str:
    """Return the metrics of the running recording, as Prometheus at the login node gets them."""
    tokens = cluster.home / ".local" / "state" / "gswarm-tui" / "tokens"
    wait_until(lambda: [*tokens.glob("*.scrape")], "a token")
    (token,) = tokens.glob("*.scrape")
    request = Request(
        f"http://{HTTP}/metrics", headers={"Authorization": f"Bearer {token.read_text().strip()}"}
    )
    answers: list[bytes] = []

    def answered() -> list[bytes]:
        # The server listens some time after its tokens have been made.
        with suppress(URLError), cluster.entered(), urlopen(request) as answer:
            answers.append(answer.read())
        return answers

    wait_until(answered, "an answer to a scrape")
    return answers[0].decode()


def heat(terminal: Terminal, gpu: int) -> str:
    """Return the background colour of one GPU's number on the heatmap."""
    screen = terminal.drawn()
    y, line = next(each for each in enumerate(screen.text().splitlines()) if each[1].startswith(" gpu01 "))
    numbers = [found.start() for found in re.finditer(r"\b(?:50|100)\b", line)]
    return screen.line(y)[numbers[gpu]].bg


def test_no_record_leaves_no_file(cluster: Cluster, terminal: Terminal) -> None:
    before = set(cluster.home.iterdir())
    start(terminal, "--nodes 'gpu[01-02]' --no-record")
    screen = terminal.wait_for("nodes 2/2")
    assert "not recording" in screen
    assert leave(terminal) == (0, "")
    left = {path.name for path in set(cluster.home.iterdir()) - before}
    assert left <= {".cache", ".local"}  # the agent and the log, unless somebody was here before


@pytest.mark.parametrize("launcher", ["ssh", "srun"])
def test_job_is_watched_from_outside(
    cluster: Cluster, terminal: Terminal, job: str, launcher: str, tmp_path: Path
) -> None:
    """SSH and srun both work, on an ordinary and on a bare node."""
    db = tmp_path / "job.duckdb"
    start(terminal, f"--job {job} --launcher {launcher} --db {db}")
    screen = terminal.wait_for("nodes 2/2")
    assert f"job {job} · gpu[02-03] · 2 nodes · 4 GPUs" in screen
    for name in ("gpu02", "gpu03"):
        [pid] = measuring(cluster[name])
        assert ("SLURM_STEP_ID" in variables(cluster[name], pid)) == (launcher == "srun")
    status, said = leave(terminal)
    assert status == 0, said
    granted = "SELECT node, gpu_index FROM nodes JOIN gpus USING (node_id) WHERE allocated ORDER BY ALL"
    assert ask(db, granted) == [("gpu02", 0), ("gpu02", 1), ("gpu03", 0), ("gpu03", 1)]


@pytest.mark.parametrize(
    ("allocation", "variables", "nodes", "gpus"),
    [
        ("-w gpu01,gpu02,gpu04 -N3 --gpus=20", "", 3, 20),
        ("-N1 --gres=gpu:1 : -N1 --gres=gpu:2", "", 2, 3),
        (
            "-N1 --gres=gpu:2",
            "SLURM_EXPORT_ENV=NONE SLURM_LABELIO=1 SLURM_EXCLUSIVE=1 SLURM_DEBUG=3 SLURM_MPI_TYPE=pmix "
            "SLURM_MEM_PER_CPU=10 SLURM_MEM_PER_NODE=10",
            1,
            2,
        ),
    ],
    ids=["gpus of the whole job", "heterogeneous job", "options for other steps"],
)
def test_variables_of_the_job_do_not_change_the_agents_steps(
    cluster: Cluster, allocation: str, variables: str, nodes: int, gpus: int
) -> None:
    """Another step uses all resources of the job meanwhile."""
    once = f"{Path(sys.executable).parent}/gswarm-tui once --launcher srun"
    busy = cluster.home / "busy"
    other = f"srun --quiet bash -c 'touch {busy}; exec sleep 60' & until [ -e {busy} ]; do :; done"
    said = cluster.run(f"salloc {allocation} bash -c {shlex.quote(f'{other}; {variables} {once}; kill $!')}")
    busy.unlink()
    assert said.stdout.startswith(f"{nodes} of {nodes} nodes send data: 0 of {gpus} GPUs busy"), said


def test_part_of_a_heterogeneous_job_is_watched_from_outside(cluster: Cluster) -> None:
    granted = cluster.run("salloc -N1 --gres=gpu:1 : -N1 --gres=gpu:2 --no-shell").stderr
    found = re.search(r"Granted job allocation (\d+)", granted)
    assert found is not None, granted
    once = f"{Path(sys.executable).parent}/gswarm-tui once --launcher srun"
    said = cluster.run(f"{once} --job {found[1]}+1")
    cluster.run(["scancel", found[1]])
    assert said.stdout.startswith("1 of 1 nodes send data: 0 of 2 GPUs busy"), said


def test_local_machine_is_watched(terminal: Terminal) -> None:
    start(terminal, "--launcher local --no-record")
    terminal.wait_for("nodes 1/1")
    assert re.search(r"^ login ", terminal.screen(), re.MULTILINE)
    assert leave(terminal) == (0, "")


def test_setup_environment_reaches_the_agent(cluster: Cluster, terminal: Terminal) -> None:
    start(terminal, "--nodes gpu01 gpu03 --no-record --setup 'module load cuda/12.4'")
    terminal.wait_for("nodes 2/2")
    for name in ("gpu01", "gpu03"):
        [pid] = measuring(cluster[name])
        assert variables(cluster[name], pid)["CUDA_VERSION"] == "12.4"
    assert leave(terminal) == (0, "")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            "--setup 'module load nosuch/1'",
            "the setup failed with exit status 1: ERROR: Unable to locate a modulefile for 'nosuch/1'",
        ),
        ("--user nobody", "it refuses the user nobody"),
        ("--agent-python /opt/nosuch/python", "the Python /opt/nosuch/python can't be run"),
        (
            "--jump bad02",
            "the jump host bad02 can't be used: its host key is not the one in ~/.ssh/known_hosts",
        ),
    ],
)
def test_wrong_agent_option_is_reported_on_the_node(terminal: Terminal, options: str, reason: str) -> None:
    start(terminal, f"--nodes gpu01 --no-record {options}")
    screen = terminal.wait_for("unreachable")
    assert reason in screen
    assert leave(terminal) == (0, "")


def test_ssh_options_are_used(cluster: Cluster, terminal: Terminal) -> None:
    """The node's name is only in the SSH configuration; a jump host and another Python are used."""
    config = cluster.home / "ssh-config"
    config.write_text("Host big\n  HostName gpu02\n")
    start(
        terminal,
        f"--nodes big --ssh-config {config} --jump gpu01 --agent-python /usr/bin/python3 --no-record",
    )
    terminal.wait_for("nodes 1/1")
    node = cluster["gpu02"]
    [pid] = measuring(node)
    assert variables(node, pid)["SSH_CONNECTION"].split()[0] == cluster["gpu01"].address
    assert node.run(["readlink", f"/proc/{pid}/exe"]).stdout.startswith("/usr/bin/python3")
    cluster["gpu01"].end_connections()
    terminal.wait_for("big connected again")
    assert leave(terminal) == (0, "")
    config.unlink()


def test_another_users_job_and_an_ended_job_are_refused(cluster: Cluster, terminal: Terminal) -> None:
    theirs = cluster.run(
        "sbatch --parsable --uid=nobody --chdir=/ --output=/dev/null --wrap 'sleep 60'"
    ).stdout.strip()
    assert told(terminal, f"--job {theirs}") == (
        2,
        f"gswarm-tui: job {theirs} belongs to nobody; if you can log in to its nodes, "
        "name them with --nodes.",
    )
    cluster.run(["scancel", theirs])
    over = re.search(r"allocation (\d+)", cluster.run("salloc -N1 true").stderr)
    assert over is not None
    assert told(terminal, f"--job {over[1]}") == (
        2,
        f"gswarm-tui: job {over[1]} is no longer running: it is completed.",
    )


def test_recording_on_a_read_only_file_system_can_be_replayed(cluster: Cluster, terminal: Terminal) -> None:
    """Replay doesn't try to write to the recording."""
    folder = cluster.home / "read-only"
    folder.mkdir()
    cluster.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)])
    db = folder / "run.duckdb"
    try:
        start(terminal, f"--nodes gpu01 --db {db}")
        terminal.wait_for("nodes 1/1")
        status, said = leave(terminal)
        assert status == 0, said
        cluster.run(["mount", "-o", "remount,ro", str(folder)])
        before = db.read_bytes()
        status, said = told(terminal, f"--nodes gpu01 --db {db}")
        sentence = "can't be written because its file system is read-only; name another file with --db"
        assert (status, said) == (1, f"gswarm-tui: {db} {sentence}.")
        assert told(terminal, f"recover --db {db}") == (
            0,
            f"nothing to recover in {db}; --db names another file",
        )
        assert db.read_bytes() == before
        assert ask(db, "SELECT count(*) > 0 FROM host_samples") == [(True,)]
    finally:
        cluster.run(["umount", str(folder)])
        folder.rmdir()
