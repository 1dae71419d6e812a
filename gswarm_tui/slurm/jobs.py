"""A job's nodes, GPUs and times, queried with Slurm's own commands."""

from __future__ import annotations

import math
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from gswarm_tui.common.errors import UserError, printable
from gswarm_tui.common.processes import run_program
from gswarm_tui.slurm.hosts import expand

_TIMEOUT_S = 5.0
_SHORT_TIMEOUT_S = 3.0
_RUNNING = ("RUNNING", "COMPLETING")
_NOT_STARTED = ("PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED")

# `scontrol show job` prints one block for each job, with these fields at fixed places of their lines. Anchors
# keep free text (names, comments, commands) from being taken for a field.
_ID = re.compile(r"JobId=(\d+) (?:ArrayJobId=(\d+) ArrayTaskId=(\S+) |HetJobId=(\d+) HetJobOffset=(\d+) )?")
_NAME = re.compile(r"\A.*?\bJobName=(.*)")
_USER = re.compile(r"^ +UserId=(.*?)\((\d+)\) GroupId=", re.MULTILINE)
_STATE = re.compile(r"^ +JobState=(\S+) Reason=(.*?) Dependency=", re.MULTILINE)
_TIMES = re.compile(r"^ +StartTime=(\S+) EndTime=(\S+)", re.MULTILINE)
_SHARING = re.compile(r"^ +OverSubscribe=(\S+) Contiguous=", re.MULTILINE)
_RESTARTS = re.compile(r"^ +Requeue=\d+ Restarts=(\d+) ", re.MULTILINE)
_NODE_LIST = re.compile(r"^ +NodeList=(\S+)", re.MULTILINE)
_NODE_GRES = re.compile(r"^ +Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES(?:_IDX)?=(\S*)", re.MULTILINE)
_GPUS_IN_TOTAL = re.compile(r"^ +TresPerJob=\S*\bgpu\b", re.MULTILINE)
_CLUSTER = re.compile(r"^ClusterName\s*=\s*(\S+)", re.MULTILINE)

# gpu:h100:4(IDX:0-3), gpu(IDX:0,5) before 20.02, and gpu:2(CNT:2) where Slurm doesn't track which.
_GPU_GRES = re.compile(r"(?:\A|,)gpu(?::[^,()]*)?(?:\((IDX):([0-9]+(?:[,-][0-9]+)*)\))?")

_SHARED_GRES = re.compile(r"(?:\A|,)(?:shard|mps)[:(]")


class SlurmError(UserError):
    """Raised when Slurm fails or a job has no nodes to watch; its message is safe to print."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))


class SlurmCommandError(SlurmError):
    """Raised when a Slurm command is missing, fails or times out."""


@dataclass(frozen=True)
class Job:
    """A running job. Times are Unix seconds, None if Slurm doesn't report them.

    ``job_id`` is the number for ``srun --jobid``, ``label`` the usual name (``4711_3`` for an array task).
    ``het_groups`` holds each node's component of a heterogeneous job, for ``srun --het-group``.
    ``gpus_in_total`` is whether it requested GPUs by ``--gpus``, of which each step requests all by default.
    ``gpus`` holds Slurm's indices of the job's GPUs on each node where it tracks them. ``exclusive`` is
    whether no other job can be on its nodes, None if unknown.
    """

    job_id: str
    label: str
    nodes: tuple[str, ...]
    name: str = ""
    cluster: str | None = None
    started_at: float | None = None
    ends_at: float | None = None
    gpus: Mapping[str, frozenset[int]] = field(default_factory=dict)
    exclusive: bool | None = None
    het_groups: Mapping[str, int] = field(default_factory=dict)
    gpus_in_total: bool = False


@dataclass(frozen=True)
class JobRecord:
    """One block of ``scontrol show job -d``; the job may be in any state."""

    job: Job
    array_task: bool
    user: str
    uid: int
    state: str
    reason: str


@dataclass(frozen=True)
class JobEnd:
    """End of a job (Unix seconds, infinite without a limit), and whether the job still runs."""

    at: float
    running: bool


JOB_REQUEUED, NODE_FAILED = "the job was requeued", "a node of the job failed"
_ENDINGS = {
    "TIMEOUT": "the job reached its time limit",
    "TimeLimit": "the job reached its time limit",
    "CANCELLED": "the job was cancelled",
    "PREEMPTED": "the job was preempted",
    "NODE_FAIL": NODE_FAILED,
    "NodeDown": NODE_FAILED,
    "OUT_OF_MEMORY": "the job ran out of memory",
    "OutOfMemory": "the job ran out of memory",
}
"""States and reasons of ending jobs. While its processes get SIGTERM, a job's state is COMPLETING."""


class Slurm:
    """Queries the Slurm cluster of this machine with ``scontrol``."""

    def __init__(self, environ: Mapping[str, str] | None = None, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._environ = dict(os.environ if environ is None else environ)
        self._environ["SLURM_TIME_FORMAT"] = "standard"

    def job(self, job_id: str) -> Job:
        """Return the calling user's running job ``job_id``; the components of a heterogeneous job as one.

        Raises:
            SlurmError: scontrol or the job is missing, it isn't running, or it is another user's.
        """
        records = parse_jobs(self._run("scontrol", "show", "job", "-d", job_id))
        if not records:
            raise SlurmError(f"Slurm has no job {job_id}.")
        first = records[0]
        if first.uid != os.getuid():
            raise SlurmError(
                f"job {job_id} belongs to {first.user}; if you can log in to its nodes, name them "
                "with --nodes."
            )
        running = [record for record in records if record.state == "RUNNING"]
        if not running:
            waiting = (record for record in records if record.state in _NOT_STARTED)
            raise SlurmError(_not_running(job_id, next(waiting, first)))
        if len(running) > 1 and first.array_task:
            raise SlurmError(
                f"{len(running)} tasks of job array {job_id} are running; name one, such as --job "
                f"{running[0].job.label}."
            )
        return _combine([record.job for record in running], self._cluster())

    def end_of(self, job_id: str) -> JobEnd | None:
        """Return when a job ends or ended; None before it starts. Raises SlurmError."""
        records = parse_jobs(self._run("scontrol", "show", "job", "-d", job_id))
        if not records or any(record.state in _NOT_STARTED for record in records):
            return None
        times = [record.job.ends_at for record in records]
        return JobEnd(
            at=max(math.inf if at is None else at for at in times),
            running=any(record.state in _RUNNING for record in records),
        )

    def why_ending(self, job_id: str) -> str:
        """Return why a job that gets SIGTERM ends, as a clause; empty if Slurm is slow or doesn't say."""
        try:
            text = self._run("scontrol", "show", "job", job_id, timeout=_SHORT_TIMEOUT_S)
        except SlurmError:
            return ""
        records = parse_jobs(text)
        words = [word for record in records for word in (record.state, record.reason)]
        if why := next((_ENDINGS[word] for word in words if word in _ENDINGS), ""):
            return why
        if "RUNNING" in words:
            return ""
        restarts = max(map(int, _RESTARTS.findall(text)), default=0)
        if restarts > int(self._environ.get("SLURM_RESTART_COUNT", "0")):
            return JOB_REQUEUED  # it may be pending again
        return "the job was cancelled or preempted" if "COMPLETING" in words else ""

    def _cluster(self) -> str | None:
        if name := self._environ.get("SLURM_CLUSTER_NAME"):
            return name
        try:
            match = _CLUSTER.search(self._run("scontrol", "show", "config"))
        except SlurmError:  # the cluster's name is optional
            return None
        return match[1] if match else None

    def _run(self, *command: str, timeout: float | None = None) -> str:
        """Run a command and return its standard output. Raises SlurmError."""
        timeout = timeout or self._timeout_s
        try:
            done = run_program(command, self._environ, timeout_s=timeout)
        except FileNotFoundError:
            raise SlurmCommandError(f"{command[0]} isn't on your PATH, so Slurm can't be queried.") from None
        except OSError as error:
            raise SlurmCommandError(f"{command[0]} can't be run: {error.strerror}.") from None
        except subprocess.TimeoutExpired:
            raise SlurmCommandError(f"{command[0]} got no reply from Slurm within {timeout:.0f} s.") from None
        if done.returncode != 0:
            if "Invalid job id" in done.stderr or done.stdout.rstrip().endswith("not found"):
                raise SlurmError(f"Slurm has no job {command[-1]}.")
            message = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
            message = message.removeprefix(f"{command[0]}: ").rstrip(".")
            raise SlurmCommandError(f"{' '.join(command[:3])} failed: {message}.")
        return done.stdout


def label_of_shell(environ: Mapping[str, str]) -> str:
    """Return the label of the job of this shell; empty outside a job."""
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environ.get("SLURM_JOB_ID", "")


def allocation(environ: Mapping[str, str]) -> Job | None:
    """Return the job of this shell from its environment; None outside a job."""
    job_id = environ.get("SLURM_JOB_ID")
    if not job_id:
        return None
    het_groups: dict[str, int] = {}
    for group in range(int(environ.get("SLURM_HET_SIZE", "0"))):
        variable = f"SLURM_JOB_NODELIST_HET_GROUP_{group}"
        for node in expand([environ.get(variable, "")], variable):
            het_groups.setdefault(node, group)
    return Job(
        job_id=job_id,
        label=label_of_shell(environ),
        nodes=tuple(het_groups) or expand([environ.get("SLURM_JOB_NODELIST", "")], "SLURM_JOB_NODELIST"),
        name=environ.get("SLURM_JOB_NAME", ""),
        cluster=environ.get("SLURM_CLUSTER_NAME"),
        het_groups=het_groups,
    )


def parse_jobs(text: str) -> list[JobRecord]:
    """Parse the output of ``scontrol show job -d``."""
    blocks = (block.strip("\n") for block in re.split(r"\n\s*\n", text))
    return [record for block in blocks if (record := _parse_job(block))]


def _parse_job(block: str) -> JobRecord | None:
    ids, user, state = _ID.match(block), _USER.search(block), _STATE.search(block)
    if not (ids and user and state):
        return None
    job_id, array_job, array_task, het_job, het_offset = ids.groups()
    sharing = _SHARING.search(block)
    name, times, node_list = _NAME.search(block), _TIMES.search(block), _NODE_LIST.search(block)
    label = f"{array_job}_{array_task}" if array_job else f"{het_job}+{het_offset}" if het_job else job_id
    listed = node_list[1] if node_list and node_list[1] != "(null)" else ""
    nodes = expand([listed], f"the nodes of job {label}")
    return JobRecord(
        job=Job(
            job_id=het_job or job_id,  # srun refuses the ID of a component
            label=label,
            nodes=nodes,
            name=name[1] if name else "",
            started_at=_unix_time(times[1]) if times else None,
            ends_at=_unix_time(times[2]) if times else None,
            gpus=parse_gpus(block),
            exclusive=sharing[1] == "NO" if sharing else None,
            het_groups=dict.fromkeys(nodes, int(het_offset)) if het_job else {},
            gpus_in_total=bool(_GPUS_IN_TOTAL.search(block)),
        ),
        array_task=array_job is not None,
        user=user[1],
        uid=int(user[2]),
        state=state[1],
        reason=state[2],
    )


def parse_gpus(block: str) -> dict[str, frozenset[int]]:
    """Parse Slurm's indices of each node's allocated GPUs from a job's ``Nodes=... GRES=`` lines.

    MIG instances have indices, too. A node whose GPUs are only counted, or on which the job has shards, is
    left out. Without any GPU the result is empty: the cluster doesn't allocate single GPUs.
    """
    gpus: dict[str, frozenset[int]] = {}
    for node_list, gres in _NODE_GRES.findall(block):
        items = _GPU_GRES.findall(gres)
        shares = _SHARED_GRES.search(gres) and not items
        if not shares and all(kind == "IDX" for kind, _ in items):
            numbers = frozenset(number for _, indices in items for number in _indices(indices))
            for node in expand([node_list], "the nodes of the job"):
                gpus[node] = gpus.get(node, frozenset()) | numbers
    return gpus if any(gpus.values()) else {}


def _indices(text: str) -> list[int]:
    """Expand ``0-2,5`` into numbers."""
    bounds = (item.partition("-") for item in text.split(","))
    return [number for first, _, last in bounds for number in range(int(first), int(last or first) + 1)]


def _combine(jobs: list[Job], cluster: str | None) -> Job:
    """Combine the components of a heterogeneous job."""
    first = jobs[0]
    gpus: dict[str, frozenset[int]] = {}
    for job in jobs:
        for node, minors in job.gpus.items():
            gpus[node] = gpus.get(node, frozenset()) | minors
    return replace(
        first,
        label=first.label if len(jobs) == 1 else first.job_id,
        nodes=tuple(dict.fromkeys(node for job in jobs for node in job.nodes)),
        cluster=cluster,
        gpus=gpus,
        exclusive=None if any(j.exclusive is None for j in jobs) else all(j.exclusive for j in jobs),
        het_groups={node: group for job in reversed(jobs) for node, group in job.het_groups.items()},
        gpus_in_total=any(job.gpus_in_total for job in jobs),
    )


def _not_running(job_id: str, record: JobRecord) -> str:
    state = record.state.lower().replace("_", " ")
    reason = f" ({record.reason})" if record.reason not in {"None", "(null)", ""} else ""
    if record.state in _NOT_STARTED:
        return f"job {job_id} is {state}{reason}; try again when it runs."
    return f"job {job_id} is no longer running: it is {state}{reason}."


def _unix_time(text: str) -> float | None:
    """Convert Slurm's local time to Unix seconds; None for Unknown and N/A."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
