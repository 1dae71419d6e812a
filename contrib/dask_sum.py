"""Sum a large random array that Dask workers make, and print how long it takes.

With --scheduler or --scheduler-file, it uses workers that run. Under srun, the ranks of the step become the
workers, one for each rank, and rank 0 also runs the scheduler. Otherwise it starts --workers on this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import dask.array
from distributed import Client, LocalCluster


def gpu_of(environ: dict[str, str], local: int) -> dict[str, str]:
    """Return an environment in which a rank sees its own GPU only, the one with its local number."""
    seen = [one for one in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
    return environ | ({"CUDA_VISIBLE_DEVICES": seen[local % len(seen)]} if seen else {})


@contextlib.contextmanager
def step(environ: dict[str, str]) -> Iterator[Client | None]:
    """Make the ranks of a Slurm step a cluster; yield its client in rank 0, and None in others."""
    file = Path(f"dask-{environ['SLURM_JOB_ID']}-{environ['SLURM_STEP_ID']}.json")
    dask_command = [sys.executable, "-m", "dask"]
    first = environ["SLURM_PROCID"] == "0"
    scheduler = None
    if first:
        words = [*dask_command, "scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
        if importlib.util.find_spec("gswarm_tui"):
            words += ["--preload", "gswarm_tui.runs.dask_marks"]
        scheduler = subprocess.Popen(words)
    words = ["worker", "--scheduler-file", str(file), "--nthreads", "1", "--no-dashboard", "--no-nanny"]
    worker = subprocess.Popen(
        [*dask_command, *words], env=gpu_of(environ, int(environ.get("SLURM_LOCALID", 0)))
    )
    if not first:
        yield None
    else:
        with Client(scheduler_file=str(file)) as client:
            client.wait_for_workers(int(environ["SLURM_NTASKS"]), timeout=300)
            yield client
            client.shutdown()
    worker.wait()
    if scheduler is not None:
        scheduler.wait()
        file.unlink(missing_ok=True)


@contextlib.contextmanager
def connected(arguments: argparse.Namespace) -> Iterator[Client | None]:
    """Yield a client of the chosen workers."""
    if arguments.scheduler or arguments.scheduler_file:
        with Client(arguments.scheduler, scheduler_file=arguments.scheduler_file) as client:
            client.wait_for_workers(arguments.workers, timeout=300)
            yield client
            if arguments.close:
                client.shutdown()
    elif "SLURM_PROCID" in os.environ:
        with step(dict(os.environ)) as client:
            yield client
    else:
        workers = arguments.workers
        local = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
        with local as cluster, Client(cluster) as client:
            yield client


def has_cupy() -> bool:
    """Return whether this worker has CuPy and a GPU."""
    try:
        import cupy

        return bool(cupy.cuda.runtime.getDeviceCount())
    except Exception:
        return False


def total(client: Client, size: int, chunk: int, array: str) -> tuple[float, str]:
    """Make the array on the workers and return its sum, and which library made it."""
    if array == "auto":
        array = "cupy" if all(client.run(has_cupy).values()) else "numpy"
    if array == "cupy":
        import cupy

        random = dask.array.random.default_rng(cupy.random.default_rng(1))
    else:
        random = dask.array.random.default_rng(1)
    numbers = random.standard_normal((size, size), chunks=(chunk, chunk))
    return float((numbers * numbers).sum().compute()), array


def main() -> int:
    """Read the options, compute, and print the time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scheduler", metavar="ADDRESS", help="as tcp://gpu01:8786")
    parser.add_argument("--scheduler-file", metavar="FILE", help="file that dask scheduler has written")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="wait for, or start, this many")
    parser.add_argument("--close", action="store_true", help="end scheduler and workers afterwards")
    parser.add_argument("--size", type=int, default=20_000, help="rows and columns (default: %(default)s)")
    parser.add_argument("--chunk", type=int, default=2_000, help="those of a chunk (default: %(default)s)")
    parser.add_argument("--array", choices=("auto", "cupy", "numpy"), default="auto")
    arguments = parser.parse_args()
    with connected(arguments) as client:
        if client is not None:
            began = time.perf_counter()
            summed, made_by = total(client, arguments.size, arguments.chunk, arguments.array)
            took = time.perf_counter() - began
            threads = sum(client.nthreads().values())
            rate = 8e-9 * arguments.size**2 / took
            what = f"sum {summed:.6g}, made by {made_by} on {threads} threads"
            print(f"{what}: {took:.2f} s, {rate:.4g} GB/s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
