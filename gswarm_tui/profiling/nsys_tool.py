"""Export of a report of Nsight Systems to SQLite, by the user's own nsys."""

from __future__ import annotations

import contextlib
import os
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
# Runs the tool; when the lifeline, its input, ends, the tool is killed and its folder removed.
_WATCHED = """
folder=$1; shift; exec 3<&0 </dev/null
"$@" 3<&- & tool=$!
{ cat <&3; [ -e "$folder/ended" ] || kill -KILL $tool; rm -rf "$folder"; } >/dev/null 2>&1 &
wait $tool; status=$?; : >"$folder/ended"; exit $status
"""
_FULL_BYTES = 1 << 20


@contextlib.contextmanager
def exported(path: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Export a report to a file in a private folder, which is removed afterwards. Raises ReportError."""
    instead = ", or import the file that nsys export --type sqlite makes of it elsewhere"
    nsys = find_tool("nsys", path, environ, instead)
    # Exports hold the environment: the folder has mode 0700.
    with (
        tempfile.TemporaryDirectory(prefix="gswarm-tui-", ignore_cleanup_errors=True) as folder,
        _lifeline() as lifeline,
    ):
        out = Path(folder) / "report.sqlite"
        watched = ["sh", "-c", _WATCHED, "gswarm-tui-export", folder]
        done = run_tool([*watched, nsys, *_EXPORT, str(out), str(path.absolute())], environ, lifeline)
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
def _lifeline() -> Iterator[int]:
    """Open the end of a pipe at which a process notices that this program has ended or left the block."""
    there, here = os.pipe()
    try:
        yield there
    finally:
        os.close(there)
        os.close(here)


@contextlib.contextmanager
def ending_by_exit() -> Iterator[None]:
    """End this program by an exception on SIGTERM and SIGHUP, so that it removes what it began."""
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
