"""Work on many recordings by Dask workers, each on the files that its host sees."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from gswarm_tui.common.errors import UserError, printable, quote
from gswarm_tui.common.paths import cache_folder

T = TypeVar("T")
_Identity = tuple[int, ...]

SLURM = "slurm"
"""Instead of a scheduler's address: workers are started as Slurm jobs."""
_START_S, _JOBS_S = 10.0, 300.0
_LOST_S = 60.0
"""Time in which a worker may come back before the files that only its host sees are given up."""


class WantedRun(NamedTuple):
    """A recording and the session in it that is wanted, empty if the function doesn't need one."""

    path: Path
    session: str = ""


@dataclass(frozen=True)
class RunAnswer(Generic[T]):
    """Result of the function for one run, or the reason why there is none."""

    run: WantedRun
    value: T | None
    why: str = ""


@contextlib.contextmanager
def connected(where: str, slurm_options: Mapping[str, Any]) -> Iterator[Any]:
    """Connect to a scheduler by its address, or start workers as Slurm jobs; yield a client with workers.

    Raises UserError.
    """
    try:
        from distributed import Client
    except ImportError:
        raise UserError("--dask needs Dask: install gswarm-tui[dask].") from None
    # What Dask logs about lost workers is no news: their tasks run again.
    for name in ("distributed", "tornado"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with warnings.catch_warnings(action="ignore"), contextlib.ExitStack() as stack:
        jobs, patience_s, target = 1, _START_S, where
        try:
            if where == SLURM:
                options = dict(slurm_options)
                jobs, patience_s = int(options.pop("jobs", 1)), _JOBS_S
                target = stack.enter_context(_slurm_cluster(options))
                _check_job(target.job_script())
                target.scale(jobs=jobs)
            client = stack.enter_context(Client(target, timeout=_START_S))
        except (OSError, ValueError, TypeError, RuntimeError, subprocess.TimeoutExpired) as error:
            what = f"no Dask scheduler answers at {quote(where)}"
            if where == SLURM:
                what = "Dask can't start workers as Slurm jobs; see [dask] in the config file"
            reason = printable(str(error).strip().partition("\n")[0])
            raise UserError(f"{what}: {reason or type(error).__name__}.") from None
        with contextlib.suppress(TimeoutError):
            client.wait_for_workers(jobs, timeout=patience_s)
        if not _hosts(client):
            raise UserError("Dask has no workers; start some with dask worker, or look at squeue.")
        yield client


def _check_job(script: str) -> None:
    """Raise OSError with sbatch's words if it refuses a job; Dask would only log them and try again."""
    done = subprocess.run(
        ["sbatch", "--test-only"], input=script, capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode:
        raise OSError(done.stderr.strip().rpartition("\n")[2] or "sbatch failed")


def _slurm_cluster(options: dict[str, Any]) -> Any:
    """Return a cluster whose ports take only those who have this user's temporary certificates."""
    import dask
    from dask_jobqueue import SLURMCluster

    if "log_directory" not in options:
        options["job_extra_directives"] = [*options.get("job_extra_directives", ()), "--output=/dev/null"]
    # Dask always starts a web server; this one has no pages, and others on the network can't reach it.
    web = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    options["scheduler_options"] = web | options.get("scheduler_options", {})
    options["worker_extra_args"] = ["--no-dashboard", *options.get("worker_extra_args", ())]
    if "shared_temp_directory" not in options:
        (folder := cache_folder()).mkdir(mode=0o700, parents=True, exist_ok=True)
        options["shared_temp_directory"] = str(folder)
    defaults = {"job_name": "gswarm-tui", "cores": 1, "processes": 1, "memory": "4GB", "security": True}
    with dask.config.set({"distributed.scheduler.http.routes": []}):
        return SLURMCluster(**defaults | options)


def _hosts(client: Any) -> dict[str, str]:
    """Return a worker's address for each host that has workers."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return {worker["host"]: address for address, worker in workers.items()}


def _seen(client: Any, listed: Callable[[], Iterable[WantedRun]]) -> list[tuple[WantedRun, tuple[str, ...]]]:
    """Return the runs that a function lists on each host, with these hosts, or none of them if all see it.

    Files of one path are the same if number, size and time are; local disks may have different ones.
    Raises UserError if the function fails on all hosts.
    """
    hosts = _hosts(client)
    answers = client.run(_identified, listed, workers=list(hosts.values()), on_error="return")
    seen: dict[WantedRun, dict[_Identity, list[str]]] = {}
    why = ""
    for host, address in hosts.items():
        answer = answers.get(address)
        if not isinstance(answer, dict):
            why = why or _reason(answer)
            continue
        for run, identity in answer.items():
            seen.setdefault(run, {}).setdefault(identity, []).append(host)
    if not seen and why:
        raise UserError(why)
    folders = {folder for run in seen for folder in run.path.parents}
    found: list[tuple[WantedRun, tuple[str, ...]]] = []
    for run, there in seen.items():
        there.pop((), None)
        if not there and run.path not in folders:
            # Reading a file that nobody sees says what is wrong.
            found.append((run, ()))
        found += [(run, () if len(of) == len(hosts) else tuple(of)) for of in there.values()]
    return found


def _identified(listed: Callable[[], Iterable[WantedRun]]) -> dict[WantedRun, _Identity]:
    """Return the listed runs with what tells their files from others. Runs on a worker."""
    found: dict[WantedRun, _Identity] = {}
    for run in listed():
        found[run] = ()
        with contextlib.suppress(OSError):
            now = run.path.stat()
            found[run] = (now.st_ino, now.st_size, now.st_mtime_ns)
    return found


def work_on(
    client: Any,
    function: Callable[[WantedRun], T],
    listed: Callable[[], Iterable[WantedRun]],
    report: Callable[[float], None] = lambda _share: None,
) -> list[RunAnswer[T]]:
    """Return what a function makes of each listed run, in their order. ``report`` gets the share done.

    A run whose worker is lost is read again by another one, or by a new one on a host that sees it.
    Raises UserError.
    """
    from distributed import wait

    found = _seen(client, listed)
    answers: dict[int, RunAnswer[T]] = {}
    waiting: dict[Any, int] = {}
    for hosts in dict.fromkeys(hosts for _, hosts in found):
        numbers = [at for at, (_, its) in enumerate(found) if its == hosts]
        runs = [found[at][0] for at in numbers]
        futures = client.map(partial(_attempt, function), runs, workers=list(hosts) or None, pure=False)
        waiting |= dict(zip(futures, numbers, strict=True))
    seen_at = dict.fromkeys(waiting.values(), time.monotonic())
    while waiting:
        done: Iterable[Any] = ()
        with contextlib.suppress(TimeoutError):
            done = wait(list(waiting), timeout=1, return_when="FIRST_COMPLETED").done
        for future in done:
            at = waiting.pop(future)
            error = future.exception()
            run = found[at][0]
            value, why = (None, f"{run.path}: {_reason(error)}") if error is not None else future.result()
            answers[at] = RunAnswer(run, value, why)
        report(len(answers) / len(found))
        if not done:
            now, present = time.monotonic(), _hosts(client).keys()
            for future, at in list(waiting.items()):
                run, hosts = found[at]
                if present & set(hosts or present):
                    seen_at[at] = now
                elif now - seen_at[at] > _LOST_S:
                    del waiting[future]
                    answers[at] = RunAnswer(run, None, f"{run.path}: all Dask workers that see it have ended")
    return [answers[at] for at in range(len(found))]


def _attempt(function: Callable[[WantedRun], T], run: WantedRun) -> tuple[T | None, str]:
    """Return what a function makes of a run, or why it can't. Runs on a worker."""
    try:
        return function(run), ""
    except UserError as error:
        return None, str(error)
    except OSError as error:
        return None, f"{run.path}: {error.strerror or error}"


def _reason(error: object) -> str:
    if isinstance(error, UserError):
        return str(error)
    name = type(error).__name__
    if name == "KilledWorker":
        return "it ended several Dask workers; do they have enough memory?"
    if isinstance(error, ModuleNotFoundError):
        return f"a Dask worker has no {error.name}; install the same gswarm-tui[dask] there"
    return f"a Dask worker failed: {name}: {printable(str(error))[:200]}"
