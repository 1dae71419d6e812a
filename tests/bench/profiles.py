"""Import of a report with millions of kernels: rows a second, memory, and the views of statistics.

The report is a stand-in's, in the documented shape of an export of Nsight Systems.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

from gswarm_tui.store.querying.file_source import FileSource
from tests.bench.figures import BenchOptions, Figure
from tests.nsys_standin import write_standin

KERNELS = 10_000_000
_IMPORT = """
import resource, sys, time
from gswarm_tui.cli import main
began = time.monotonic()
status = main(["import", *sys.argv[1:]])
used = resource.getrusage(resource.RUSAGE_SELF)
cpu_s = used.ru_utime + used.ru_stime
print(status, time.monotonic() - began, cpu_s, used.ru_maxrss / 1024, file=sys.stderr)
"""


def run(options: BenchOptions) -> Iterator[Figure]:
    """Import the stand-in's report into a new recording, and sum up its kernels."""
    kernels = options.count(KERNELS, 20_000)
    report = write_standin(options.folder / "standin.sqlite", kernels=kernels)
    db = options.folder / "profile.duckdb"
    command = [sys.executable, "-c", _IMPORT, str(report), "--db", str(db)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    _, seconds, cpu_s, peak_mib = map(float, printed.splitlines()[-1].split())
    millions = f"{kernels / 1e6:g} million kernels of a stand-in"
    yield Figure(
        f"import of a .sqlite report, {millions}", kernels / seconds, "rows/s", 300_000, at_least=True
    )
    yield Figure("the same, start of the command included", kernels / cpu_s, "rows/CPU s")
    yield Figure("memory of that import", peak_mib, "MiB", 1024)
    yield Figure("disk, a kernel", db.stat().st_size / kernels, "bytes")
    source = FileSource(db, for_people=True)
    for view in ("profile_kernel_sum", "profile_gpus"):
        began = time.monotonic()
        source.query(f"SELECT * FROM {view}").rows()
        yield Figure(f"{view} of that profile", time.monotonic() - began, "s")
    source.close()
