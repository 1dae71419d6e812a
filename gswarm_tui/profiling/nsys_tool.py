"""Export of a report of Nsight Systems to SQLite, by the user's own nsys."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

from gswarm_tui.common.quantities import file_size
from gswarm_tui.profiling.errors import ReportError
from gswarm_tui.profiling.tools import explain_failure, find_tool, run_tool

_EXPORT = ("export", "--type", "sqlite", "--force-overwrite", "true", "--output")
_FULL_BYTES = 1 << 20


@contextlib.contextmanager
def exported(path: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Export a report to a file in a private folder, which is removed afterwards. Raises ReportError."""
    instead = ", or import the file that nsys export --type sqlite makes of it elsewhere"
    nsys = find_tool("nsys", path, environ, instead)
    # 0700, and gone after a signal: exports hold the environment.
    with _ending_by_exit(), tempfile.TemporaryDirectory(prefix="gswarm-tui-") as folder:
        out = Path(folder) / "report.sqlite"
        done = run_tool([nsys, *_EXPORT, str(out), str(path)], environ)
        if (free := shutil.disk_usage(folder).free) < _FULL_BYTES:
            place = Path(folder).parent
            raise ReportError(
                f"{place} has {file_size(free)} free, too little to export {path} there. "
                "Free some space, or set TMPDIR to another folder."
            )
        # nsys exits with 0 after some errors, without a file.
        if done.returncode != 0 or not out.exists():
            raise explain_failure(path, nsys, done.stdout + done.stderr, environ)
        yield out


@contextlib.contextmanager
def _ending_by_exit() -> Iterator[None]:
    """End this program by an exception on SIGTERM and SIGHUP, which ends nsys and removes its export."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _exit) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
