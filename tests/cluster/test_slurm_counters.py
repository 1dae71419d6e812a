"""``contrib/slurm-counters`` lends hardware counters: real Slurm runs it, real LIKWID is refused or let in.

The lock is the one in each node's own /run. ``perf_event_paranoid``, which all nodes share with this
machine, is a file there.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.kinds import REPOSITORY
from tests.cluster.node import ClusterNode
from tests.cluster.running import wait_until
from tests.cluster.state import PREFIX
from tests.docs.generated import DOCS

KIT = REPOSITORY / "contrib" / "slurm-counters"
MONITORING, ADA, BOB = "daemon", "games", "news"  # users that every Debian has
LOCK = "/run/likwid.lock"
PARANOID = "/run/perf_event_paranoid"
KERNEL = Path("/proc/sys/kernel/perf_event_paranoid")
LOG = "/run/log"
OTHER = "/run/other"
TARGET = f"{OTHER}/target"
LIKWID = "likwid-perfctr -C 0 -g INSTR_RETIRED_ANY:FIXC0 true 2>&1"
LOOK = f"echo $(stat -c %U {LOCK}) $(cat {PARANOID})"
LOCKED = "Access to performance monitoring registers locked"
REFUSED = """\
srun: error: --constraint=hwperf needs whole nodes: add --exclusive
srun: error: Unable to allocate resources: Invalid feature specification
"""
WITH = ("--exclusive", "--constraint=hwperf")
MEANWHILE = f"echo >{OTHER}/begin; cat {OTHER}/end"
"""What a job runs to let the command of `meanwhile` run."""
SETTINGS = {
    "MONITORING_USER": MONITORING,
    "PARANOID": PARANOID,
    "LOG": "/run/logger",
    "DCGM_PAUSE": '"/run/dcgmi profile --pause"',
    "DCGM_RESUME": '"/run/dcgmi profile --resume"',
}
LOGGER = f"""\
#!/bin/bash
cat >>{LOG}
[ "$(wc -l <{LOG})" != "$(cat /run/kill-after 2>/dev/null)" ] || kill -KILL $PPID
exit 1
"""
"""Keeps the log. With a number in /run/kill-after, it kills the script that logs that many lines.

It fails, which changes nothing."""
DCGMI = f'#!/bin/bash\necho "$@" >>{LOG}\n'


@pytest.fixture(scope="module")
def site(machine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run two nodes with the scripts, installed as the page for administrators says."""
    files = tmp_path_factory.mktemp("site")
    before = KERNEL.read_text()
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}-") as folder:  # pytest's folders are closed to users
        root = Path(folder)
        for readable in (root, files):
            readable.chmod(0o755)
        install(files, root / "slurm")
        with Cluster.up(2, 1, root, slurm_site=files) as up:
            for node in up:
                for name, script in (("logger", LOGGER), ("dcgmi", DCGMI)):
                    node.run(["install", "-m", "755", "/dev/stdin", f"/run/{name}"], text=script)
            yield up
    assert KERNEL.read_text() == before


def install(folder: Path, place: Path) -> None:
    """Write the files that stand beside slurm.conf, which is going to be in `place`."""
    shutil.copytree(KIT, folder / "counters")
    (folder / "counters" / "job_submit.lua").rename(folder / "job_submit.lua")
    settings = folder / "counters" / "counters.conf"
    text = settings.read_text()
    for name, value in SETTINGS.items():
        text, count = re.subn(f"^{name}=.*$", f"{name}={value}", text, flags=re.MULTILINE)
        assert count == 1, name
    settings.write_text(text)
    page = (DOCS / "guide" / "slurm-counters.md").read_text()
    (lines,) = re.findall(r"^```ini\n(JobSubmitPlugins=.*?)^```$", page, re.MULTILINE | re.DOTALL)
    lines = lines.replace("/etc/slurm", str(place))
    (folder / "site.conf").write_text(f"{lines}NodeName=DEFAULT Feature=hwperf,no-hwperf\n")


@pytest.fixture(autouse=True)
def fresh(site: Cluster) -> None:
    """Give each test nodes as they are after a reboot, with the kernel's default of 2."""
    for node in site:
        node.run(f"rm -rf {LOCK} {OTHER} /run/slurm-counters /run/kill-after; : >{LOG}; echo 2 >{PARANOID}")
    if drained(site):
        resumed(site)


def job(
    site: Cluster, user: str, options: Sequence[str], command: str = "true"
) -> subprocess.CompletedProcess[str]:
    """Run a job to its end, with the epilog."""
    words = shlex.join(["srun", *options, "bash", "-c", command])
    done = site.run(f"cd /; {as_user(user, words)}", check=False)
    settled(site, drained=True)
    return done


def settled(site: Cluster, *, drained: bool = False) -> None:
    states = {"idle", "drained"} if drained else {"idle"}
    words = ["sinfo", "--noheader", "--Node", "--format=%T"]
    wait_until(lambda: set(site.run(words).stdout.split()) <= states, "the end of all epilogs")


def resumed(site: Cluster) -> None:
    site.run("scontrol update NodeName=gpu01 State=resume")
    settled(site)


def drained(site: Cluster) -> bool:
    return "drained" in site.run(["sinfo", "--noheader", "--format=%T"]).stdout


def log(node: ClusterNode) -> list[str]:
    return node.run(["cat", LOG]).stdout.splitlines()


def as_user(user: str, command: str) -> str:
    return f"setpriv --reuid={user} --regid={user} --clear-groups {command}"


@contextmanager
def meanwhile(node: ClusterNode, command: str) -> Iterator[None]:
    """Run a command as root on a node when a job there runs MEANWHILE; its output goes to a file in OTHER."""
    node.run(f"mkdir {OTHER} && mkfifo -m 666 {OTHER}/{{begin,end}}")
    with node.spawn(f"cat {OTHER}/begin; {{ {command}; }} >{OTHER}/output; echo >{OTHER}/end"):
        yield


def counted(output: str) -> bool:
    """Return whether LIKWID got past its lock; what it needs then depends on the machine."""
    assert "CPU name:" in output
    return LOCKED not in output


@pytest.mark.parametrize("constraint", ["hwperf", "hwperf*1", "no-hwperf&hwperf", "[hwperf|no-hwperf]"])
def test_submit_refuses_the_constraint_on_shared_nodes(site: Cluster, constraint: str) -> None:
    done = job(site, ADA, [f"--constraint={constraint}"])
    assert (done.returncode, done.stderr) == (1, REFUSED)


def test_submit_and_prolog_take_no_other_feature_for_the_constraint(site: Cluster) -> None:
    done = job(site, ADA, ["--constraint=no-hwperf", "--nodelist=gpu01"], LOOK)
    assert done.stdout == f"{MONITORING} 2\n"


def test_constraint_can_not_be_added_to_a_waiting_job(site: Cluster) -> None:
    held = site.run("cd / && sbatch --hold --parsable --output=/dev/null --wrap=true").stdout.strip()
    done = site.run(f"scontrol update JobId={held} Features=hwperf", check=False)
    site.run(f"scontrol update JobId={held} TimeLimit=5 && scancel {held}")
    assert (done.returncode, done.stderr) == (1, f"Invalid feature specification for job {held}\n")


def test_job_with_the_constraint_may_count_and_others_may_not(site: Cluster) -> None:
    node = site["gpu01"]
    with meanwhile(node, as_user(MONITORING, LIKWID)):
        done = job(site, ADA, [*WITH, "--nodelist=gpu01"], f"{MEANWHILE}; {LIKWID}")
    assert counted(done.stdout)
    assert not counted(node.run(f"cat {OTHER}/output").stdout)
    assert counted(node.run(as_user(MONITORING, LIKWID), check=False).stdout)
    assert not counted(job(site, ADA, ["--nodelist=gpu01"], LIKWID).stdout)


def test_counters_go_from_user_to_user_and_each_action_is_a_line(site: Cluster) -> None:
    node, other = site
    job(site, BOB, ["--nodes=2"])
    for user in (ADA, BOB):
        node.run(f": >{LOG}")
        assert job(site, user, [*WITH, "--nodes=2"], LOOK).stdout == f"{user} 0\n" * 2
        assert node.run(LOOK).stdout == other.run(LOOK).stdout == f"{MONITORING} 2\n"
        assert [line.partition(" of ")[2] or line for line in log(node)] == [
            f"{user}, prolog: owner of /var{LOCK}: {MONITORING}, now {user}",
            f"{user}, prolog: {PARANOID}: 2, now 0",
            "profile --pause",
            f"{user}, prolog: /run/dcgmi profile --pause: done",
            f"{user}, epilog: {PARANOID}: 0, now 2",
            "profile --resume",
            f"{user}, epilog: /run/dcgmi profile --resume: done",
            f"{user}, epilog: owner of /var{LOCK}: {user}, now {MONITORING}",
        ]


def test_job_without_the_constraint_changes_nothing(site: Cluster) -> None:
    node = site["gpu01"]
    job(site, BOB, ["--nodelist=gpu01"])
    before = node.run(f"stat {LOCK} {PARANOID} && : >{LOG}").stdout
    job(site, ADA, ["--nodelist=gpu01"])
    assert node.run(f"stat {LOCK} {PARANOID}").stdout == before
    assert log(node) == []


def test_former_value_comes_back_and_a_changed_lock_is_reset(site: Cluster) -> None:
    node = site["gpu01"]
    node.run(f"echo 4 >{PARANOID}")
    script = f"echo mine >{LOCK}; chmod 000 {LOCK}; {LOOK}"
    assert job(site, ADA, [*WITH, "--nodelist=gpu01"], script).stdout == f"{ADA} 0\n"
    assert node.run(LOOK).stdout == f"{MONITORING} 4\n"
    assert node.run(f"stat -c '%a %s' {LOCK}").stdout == "644 0\n"


@pytest.mark.parametrize("lines", [2, 3, 6], ids=["lock is lent", "all is lent", "half is back"])
def test_next_job_completes_a_killed_script(site: Cluster, lines: int) -> None:
    node = site["gpu01"]
    node.run(f"echo {lines} >/run/kill-after; echo 4 >{PARANOID}")
    job(site, ADA, [*WITH, "--nodelist=gpu01"])
    assert drained(site)
    node.run("rm /run/kill-after")
    resumed(site)
    assert job(site, BOB, ["--nodelist=gpu01"], LOOK).stdout == f"{MONITORING} 4\n"
    assert not drained(site)


def test_counters_go_back_while_a_process_of_the_job_still_runs(site: Cluster) -> None:
    node = site["gpu01"]
    job(site, BOB, ["--nodelist=gpu01"])
    with node.spawn(as_user(ADA, f"bash -c 'exec 5<{LOCK}; exec sleep infinity'")) as pid:
        job(site, ADA, [*WITH, "--nodelist=gpu01"])
        assert node.run(f"kill -0 {pid} && {LOOK}").stdout == f"{MONITORING} 2\n"


@pytest.mark.parametrize(
    ("made", "lent"),
    [
        (f"ln -s {TARGET} {LOCK}", True),
        (f"ln {TARGET} {LOCK}", True),
        (f"mkfifo {LOCK}", True),
        (f"mkdir {LOCK}", False),
        ("chmod 777 /run", False),
    ],
    ids=["symbolic link", "hard link", "FIFO", "folder", "folder of users"],
)
def test_other_files_are_not_touched_and_the_node_goes_on(site: Cluster, made: str, lent: bool) -> None:
    node = site["gpu01"]
    node.run(f"mkdir {OTHER} && install -m 640 /dev/null {TARGET} && {made}")
    look = f"stat -c '%F %U %a' {TARGET}"
    before = node.run(look).stdout
    done = job(site, ADA, [*WITH, "--nodelist=gpu01"], f"cat {PARANOID}")
    node.run("chmod 755 /run")
    assert done.stdout == ("0\n" if lent else "2\n")
    assert ("the hardware counters of gpu01 are not available to this job" in done.stderr) is not lent
    assert node.run(look).stdout == before
    assert not drained(site)


def test_a_user_s_second_name_of_the_lock_neither_keeps_counters_nor_drains_the_node(
    site: Cluster,
) -> None:
    node = site["gpu01"]
    node.run(f"mkdir -m 1777 {OTHER}")
    job(site, ADA, [*WITH, "--nodelist=gpu01"], f"ln {LOCK} {OTHER}/mine")
    assert node.run(LOOK).stdout == f"{MONITORING} 2\n"
    assert not drained(site)
