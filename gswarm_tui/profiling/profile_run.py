"""One profile: nodes, the command below the profiler there, and the reports in a folder that nodes share."""

from __future__ import annotations

import re
import secrets
import shlex
import shutil
import stat
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from gswarm_agent.redact import redact
from gswarm_tui.common.errors import print_notice, printable
from gswarm_tui.common.quantities import plural
from gswarm_tui.options.profile_options import ProfileOptions
from gswarm_tui.profiling.allocation import Allocation, allocated, find_job
from gswarm_tui.profiling.importing import SUFFIXES
from gswarm_tui.profiling.node_scripts import RUN, setup_line
from gswarm_tui.profiling.slurm_commands import ProfileError, kept, last_line
from gswarm_tui.slurm.hosts import fold
from gswarm_tui.slurm.jobs import Job

_NAME = re.compile(r"(.*)-rank(\d{1,6})-job")
_MOST_LOG = 1 << 20
"""Bytes of a log that are read, its last ones."""


@dataclass
class ProfileResult:
    """Result of a run: the command's exit status, the job, and the reports."""

    status: int
    job: str
    reports: list[Path]


def node_and_rank(name: str) -> tuple[str, int]:
    """Return the node and the rank that the name of a report or log has."""
    found = _NAME.match(name)
    return (found[1], int(found[2])) if found else ("", 0)


def is_of_step(path: Path, nodes: Collection[str]) -> bool:
    """Return whether the file is a report or log of these nodes, and no link to another file."""
    return stat.S_ISREG(path.lstat().st_mode) and node_and_rank(path.name)[0] in nodes


def free_path(folder: Path, name: str) -> Path:
    """Return a path in the folder that doesn't exist: the name, or the name with a number."""
    path, number = folder / name, 1
    while path.exists():
        number += 1
        path = folder / f"{Path(name).stem}-{number}{Path(name).suffix}"
    return path


async def run_profile(
    options: ProfileOptions,
    observing: Callable[[Job], AbstractContextManager[None]],
    take: Callable[[bytes], None] | None = None,
) -> ProfileResult:
    """Run one profile, in the job ``options.job``, or in an allocation if it is None.

    The command runs in the context of ``observing``; ``take`` gets what it
    writes to standard output, which is else that of this program. Raises ProfileError.
    """
    token = secrets.token_hex(8)
    # Nodes write here; the reports leave it at the end, and nothing of a run that is stopped stays.
    made = options.output.absolute() / f".gswarm-profile-{token}"
    try:
        made.mkdir(mode=0o700)
    except OSError as error:
        raise ProfileError(
            f"{options.output}: {error.strerror}; name another folder with --output."
        ) from None
    try:
        async with AsyncExitStack() as nodes:
            if options.job is not None:
                allocation = await find_job(options.job)
            else:
                allocation = await nodes.enter_async_context(allocated(options.salloc))
            job = allocation.job
            count = sum(map(len, job.gpus.values()))  # 0 where Slurm doesn't count GPUs
            gpus = f"{plural(count, 'GPU')} on " if count else ""
            print_notice(f"Using {gpus}{fold(job.nodes)} (job {job.label})")
            words = _words(options, allocation, token, made)
            with observing(job):
                setup = setup_line(options.run.setup or "")
                async with kept(words, setup, passes_output=take is None) as command:
                    while take is not None and (data := await command.read()):
                        take(data)
                    status = await command.wait()
        written = sorted(path for path in made.iterdir() if is_of_step(path, job.nodes))
        _explain(options, written)
        reports = [path for path in written if path.suffix in SUFFIXES]
        moved = [report.rename(free_path(options.output, report.name)) for report in reports]
        return ProfileResult(status, job.label, moved)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _words(options: ProfileOptions, allocation: Allocation, token: str, folder: Path) -> list[str]:
    """Return the command that runs the profiler on all nodes."""
    if options.tool == "ncu":
        tool = ["ncu", "--target-processes=all", "--force-overwrite", *options.tool_options, "--export"]
    else:
        tool = [
            *("nsys", "profile", "--trace=cuda,nvtx,osrt", "--sample=none", "--cpuctxsw=none"),
            *("--kill=none", "--force-overwrite=true"),
            *([] if options.delay_s is None else [f"--delay={options.delay_s:g}"]),
            *([] if options.duration_s is None else [f"--duration={options.duration_s:g}"]),
            *options.tool_options,
            "--output",
        ]
    ntasks = [] if options.ntasks is None else [f"--ntasks={options.ntasks}"]
    ranks = ",".join(["", *map(str, options.ranks), ""]) if options.ranks else "all"
    return [
        *allocation.step(*ntasks, "--unbuffered"),
        *shell(RUN, options.run.setup),
        *(token, str(folder), ranks, str(len(tool)), *tool),
        *options.command,
    ]


def shell(script: str, setup: str | None) -> list[str]:
    """Return the words that run a script, in a login shell for the setup."""
    return ["bash", *(["-l"] if setup else []), "-c", script, "gswarm-profile"]


def _explain(options: ProfileOptions, written: Sequence[Path]) -> None:
    """Say why a rank has no report."""
    logs = [path for path in written if path.suffix == ".log"]
    for log in logs:
        node, rank = node_and_rank(log.name)
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _MOST_LOG))
            text = file.read(_MOST_LOG).decode(errors="replace")
        if "ERR_NVGPUCTRPERM" in text:
            print_notice(
                f"{node}: the driver refused the performance counters (ERR_NVGPUCTRPERM); ask your cluster's "
                "administrators to open them for your jobs."
            )
        elif not any(path.suffix in SUFFIXES and path.name.startswith(f"{log.stem}.") for path in written):
            print_notice(f"{node}: {options.tool} wrote no report for rank {rank}{last_line(text)}.")
    profiled = {node_and_rank(log.name)[1] for log in logs}
    for number in options.ranks:
        if logs and number not in profiled:
            print_notice(f"the command has no rank {number}, so there is no report of it; ranks start at 0.")


def command_line(command: Sequence[str]) -> str:
    """Return a command as one line without secrets, for events and session notes."""
    return printable(shlex.join(redact(command)))
