"""One profile: nodes, a check of each, the command below the profiler, and the reports brought home."""

from __future__ import annotations

import asyncio
import base64
import secrets
import shlex
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gswarm_agent.redact import redact
from gswarm_tui.common.errors import printable
from gswarm_tui.common.quantities import file_size, plural
from gswarm_tui.options.profile_options import ProfileOptions
from gswarm_tui.profiling.allocation import Allocation, allocated, find_job
from gswarm_tui.profiling.fetching import LEAST_FREE_BYTES, BrokenOffError, RemoteReport, check_room, receive
from gswarm_tui.profiling.node_scripts import HOLD, LIST, RUN, setup_line
from gswarm_tui.profiling.slurm_commands import ProfileError, kept, last_line, output, with_errors
from gswarm_tui.slurm.hosts import fold
from gswarm_tui.slurm.jobs import Job

FETCH_TRIES = 3
_PERMISSION = "ERR_NVGPUCTRPERM"
_COUNTERS_REMEDY = (
    "ask your cluster's administrators to open them for your jobs "
    "(NVreg_RestrictProfilingToAdminUsers=0, or a --constraint such as hwperf)"
)


@dataclass
class ProfileResult:
    """Result of a run: the command's exit status, the job, and the fetched reports with their paths here."""

    status: int
    job: str
    reports: list[tuple[Path, RemoteReport]] = field(default_factory=list)


@dataclass
class _NodeFacts:
    """Facts that a node reported in its check."""

    gpus: tuple[str, ...] = ()
    traces_graphs: bool = False


class ProfileRun:
    """Runs one profile, in the job ``options.job``, or in an allocation if it is None.

    ``say`` gets lines for the user, ``progress`` the share fetched. The command runs in the context of
    ``observing``.
    """

    def __init__(
        self,
        options: ProfileOptions,
        say: Callable[[str], None],
        progress: Callable[[float], None],
        observing: Callable[[Job], AbstractContextManager[None]],
    ) -> None:
        self._options = options
        self._setup = options.run.setup or ""
        self._say = say
        self._progress = progress
        self._observing = observing
        self._token = secrets.token_hex(8)

    async def run(self) -> ProfileResult:
        """Run the profile. Raises ProfileError."""
        folder = self._options.output
        check_room(folder)
        async with AsyncExitStack() as nodes:
            allocation = await nodes.enter_async_context(self._allocation())
            facts = await nodes.enter_async_context(self._held(allocation))
            self._say(f"Using {self._describe(allocation, facts)}")
            with self._observing(allocation.job):
                status = await self._command(allocation, facts)
            reports = await self._list(allocation)
            result = ProfileResult(status, allocation.job.label)
            progress = share_of(reports, self._progress)
            try:
                if reports:
                    check_room(folder, sum(report.size for report in reports))
                for report in reports:
                    # srun may lose the output of a step that ends at once, so a report is fetched again.
                    # A step that ends before it has read its input loses it more often, so it gets none.
                    step = allocation.step(
                        "--nodes=1",
                        "--ntasks=1",
                        f"--nodelist={report.node}",
                        "--unbuffered",
                        "--input=none",
                    )
                    for tries_left in reversed(range(FETCH_TRIES)):
                        async with kept([*step, "cat", report.path]) as command:
                            try:
                                path = await receive(report, folder, command.read, progress)
                                break
                            except BrokenOffError:
                                if not tries_left:
                                    raise
                    self._say(f"fetched {path} ({file_size(report.size)})")
                    result.reports.append((path, report))
            except ProfileError as error:
                raise ProfileError(f"{error} {await self._keep(allocation, reports)}") from None
            except asyncio.CancelledError:
                left = plural(len(reports) - len(result.reports), "report")
                self._say(
                    f"{left} on {fold(allocation.job.nodes)} won't be fetched, and will be removed there."
                )
                raise
        return result

    @asynccontextmanager
    async def _allocation(self) -> AsyncIterator[Allocation]:
        if self._options.job is not None:
            yield await find_job(self._options.job)
            return
        async with allocated(self._options.salloc, self._waiting) as allocation:
            yield allocation

    def _waiting(self, job_id: str, reason: str) -> None:
        self._say(f"job {job_id} is waiting: {reason}")

    @asynccontextmanager
    async def _held(self, allocation: Allocation) -> AsyncIterator[dict[str, _NodeFacts]]:
        """Check all nodes, and hold their folders for reports for the time of the context."""
        nodes = allocation.job.nodes
        step = allocation.step(
            f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1", "--unbuffered"
        )
        words = [*step, *self._shell(HOLD), self._token, self._options.tool]
        async with kept(with_errors(words), setup_line(self._setup)) as command:
            facts: dict[str, _NodeFacts] = {}
            ready: set[str] = set()
            text, noise = "", ""
            while len(ready) < len(nodes):
                data = await command.read()
                if not data:
                    raise ProfileError(f"{fold(nodes)}: no step can be started{last_line(noise + text)}.")
                *lines, text = (text + data.decode("utf-8", "replace")).split("\n")
                for line in lines:
                    if not line.startswith("GSWARM "):
                        noise = line
                        continue
                    _, kind, node, value = line.split(" ", 3)
                    self._take(kind, node, value, facts.setdefault(node, _NodeFacts()))
                    if kind == "ready":
                        ready.add(node)
            yield facts

    def _take(self, kind: str, node: str, value: str, facts: _NodeFacts) -> None:
        """Take in one fact of a node. Raises ProfileError if nothing can be profiled there."""
        tool = self._options.tool
        match kind:
            case "nofolder":
                raise ProfileError(
                    f"{node}: the folder {value} can't be created; set TMPDIR to a folder of yours."
                )
            case "setup":
                status, _, said = value.partition(" ")
                said = f": {printable(redact([said])[0])}" if said else ""
                raise ProfileError(
                    f"{node}: the setup failed with exit status {status}{said.rstrip('.')}; correct --setup."
                )
            case "notool":
                after = "after --setup" if self._setup else "on the PATH of its login shell"
                raise ProfileError(
                    f"{node}: there is no {tool} {after}; load its module with --setup 'module load ...'."
                )
            case "space":
                free, _, folder = value.partition(" ")
                if free.isdecimal() and int(free) * 1024 < LEAST_FREE_BYTES:
                    raise ProfileError(
                        f"{node}: {folder} has {file_size(int(free) * 1024)} free, too little for a report; "
                        "free some space, or set TMPDIR to another folder of the node."
                    )
            case "profiler":
                name, pid, user = [*value.split(" "), "", ""][:3]
                self._say(
                    f"{node}: {user or 'somebody'} runs {name} there already (process {pid}); both slow "
                    "each other down, and only one of them can read the counters."
                )
            case "admin" if value == "1" and tool == "ncu":
                raise ProfileError(
                    f"{node}: its driver gives performance counters to administrators only ({_PERMISSION}); "
                    f"{_COUNTERS_REMEDY}."
                )
            case "graphs":
                facts.traces_graphs = True
            case "gpus":
                facts.gpus = tuple(filter(None, value.split(";")))

    def _shell(self, script: str) -> list[str]:
        login = ["-l"] if self._setup else []
        return ["bash", *login, "-c", script, "gswarm-profile"]

    def _describe(self, allocation: Allocation, facts: dict[str, _NodeFacts]) -> str:
        where = f"{fold(allocation.job.nodes)} (job {allocation.job.label})"
        names = sorted({name for each in facts.values() for name in each.gpus})
        if not allocation.gpus:
            return where
        name = " and ".join(names) or allocation.gpu_type
        return (
            f"{allocation.gpus} × {printable(name)} on {where}"
            if name
            else (f"{plural(allocation.gpus, 'GPU')} on {where}")
        )

    async def _command(self, allocation: Allocation, facts: dict[str, _NodeFacts]) -> int:
        """Run the command below the profiler; return its exit status."""
        options = self._options
        tool = self._tool_words(all(each.traces_graphs for each in facts.values()))
        ntasks = [] if options.ntasks is None else [f"--ntasks={options.ntasks}"]
        ranks = ",".join(["", *map(str, options.ranks), ""]) if options.ranks else "all"
        words = [
            *allocation.step(*ntasks, "--unbuffered"),
            *self._shell(RUN),
            self._token,
            ranks,
            str(len(tool)),
            *tool,
            *options.command,
        ]
        async with kept(words, setup_line(self._setup), passes_output=True) as command:
            return await command.wait()

    def _tool_words(self, traces_graphs: bool) -> list[str]:
        """Return the profiler's command; the name of a rank's report follows."""
        options = self._options
        if options.tool == "ncu":
            return ["ncu", "--target-processes=all", "--force-overwrite", *options.tool_options, "--export"]
        return [
            *("nsys", "profile", "--trace=cuda,nvtx,osrt", "--sample=none", "--cpuctxsw=none"),
            *("--kill=none", "--force-overwrite=true"),
            *(["--cuda-graph-trace=node"] if traces_graphs else []),
            *([] if options.delay_s is None else [f"--delay={options.delay_s:g}"]),
            *([] if options.duration_s is None else [f"--duration={options.duration_s:g}"]),
            *options.tool_options,
            "--output",
        ]

    async def _list(self, allocation: Allocation) -> list[RemoteReport]:
        """Return the reports on the nodes, and say why a rank has none."""
        nodes = allocation.job.nodes
        step = allocation.step(
            f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1", "--input=none"
        )
        _, text = await output([*step, *self._shell(LIST), self._token])
        reports, pieces = [], defaultdict[tuple[str, str], str](str)
        for line in text.splitlines():
            match line.split(" "):
                case ["GSWARM", "report", node, size, changed, *path]:
                    reports.append(RemoteReport(node, " ".join(path), int(size), int(changed)))
                case ["GSWARM", "log", node, rank, piece]:
                    pieces[rank, node] += piece
        ranks_with_log = {rank for rank, _ in pieces}
        by_rank = {report.name.partition(".")[0]: report for report in reports}
        for (rank, node), log in sorted(pieces.items()):
            self._explain(rank, node, base64.b64decode(log).decode("utf-8", "replace"), by_rank.get(rank))
        for number in self._options.ranks:
            if not any(f"-rank{number}-" in name for name in (*by_rank, *ranks_with_log)):
                self._say(f"the command has no rank {number}, so there is no report of it; ranks start at 0.")
        return sorted(reports, key=lambda report: report.name)

    def _explain(self, rank: str, node: str, log: str, report: RemoteReport | None) -> None:
        tool = self._options.tool
        if _PERMISSION in log:
            self._say(
                f"{node}: the driver refused the performance counters ({_PERMISSION}); {_COUNTERS_REMEDY}."
            )
        elif report is None:
            self._say(f"{node}: {tool} wrote no report for {rank}{last_line(log)}.")
        elif report.path.endswith(".qdstrm"):
            self._say(
                f"{node}: this installation of nsys has no importer, so {report.name} is raw; convert it "
                "with QdstrmImporter where Nsight Systems is installed as a whole."
            )

    async def _keep(self, allocation: Allocation, reports: Sequence[RemoteReport]) -> str:
        """Let the nodes keep the reports that can't be fetched; return where they are, as a sentence."""
        nodes = allocation.job.nodes
        folders = {str(Path(report.path).parent) for report in reports}
        step = allocation.step(f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1")
        await output([*step, "touch", *(f"{folder}/keep" for folder in folders)])
        return f"The reports stay on {fold(nodes)} in {', '.join(sorted(folders))}."


def share_of(reports: Sequence[RemoteReport], progress: Callable[[float], None]) -> Callable[[int], None]:
    """Return a function that takes sizes of pieces, and reports which share of the reports has come."""
    total, done = max(1, sum(report.size for report in reports)), 0

    def add(size: int) -> None:
        nonlocal done
        done += size
        progress(done / total)

    return add


def command_line(command: Sequence[str]) -> str:
    """Return a command as one line without secrets, for events and session notes."""
    return printable(shlex.join(redact(command)))
