"""The user's own nsys and ncu, which read reports of their formats; nsys exports its own to SQLite."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from gswarm_tui.common.errors import printable
from gswarm_tui.common.programs import run_program
from gswarm_tui.common.quantities import file_size
from gswarm_tui.profiling.report_text import ReportError

_VERSION = re.compile(rb"20\d\d[.@]\d{1,2}[.@]\d{1,3}[.@]\d{1,9}")
_LAST_BYTES = 1 << 20
"""Tools write their version near the end of a report, newer ones near its start."""

_EXPORT = ("export", "--type", "sqlite", "--force-overwrite", "true", "--output")
_FULL_BYTES = 1 << 20


def find_tool(name: str, path: Path, environ: Mapping[str, str], instead: str) -> str:
    """Return a tool's path. Raises ReportError, with what to do ``instead``, if PATH has none."""
    found = shutil.which(name, path=environ.get("PATH"))
    if found is None:
        raise ReportError(f"{path} needs {name} to be read, and PATH has none. Load its module{instead}.")
    return found


def run_tool(command: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a tool and return its output. Raises ReportError if it can't be started."""
    try:
        return run_program(command, environ)
    except OSError as error:  # a program for other processors, for example
        raise ReportError(f"{command[0]} can't be started: {error.strerror}. Load another module.") from None


def tool_version(tool: str, environ: Mapping[str, str]) -> str:
    """Return the version that a tool prints. Raises ReportError if it prints none."""
    found = re.findall(r"20[\d.]+\d", run_tool([tool, "--version"], environ).stdout)
    if not found:
        raise ReportError(f"{tool} doesn't work: {tool} --version prints no version. Load another module.")
    return str(found[-1])


def report_version(path: Path) -> str:
    """Return the version of the tool that wrote a report; empty if the file doesn't show it."""
    with path.open("rb") as file:
        head = file.read(_LAST_BYTES)
        file.seek(max(0, path.stat().st_size - _LAST_BYTES))
        tail = file.read()
    found = _VERSION.findall(tail) or _VERSION.findall(head)
    return found[-1].decode().replace("@", ".") if found else ""


def explain_failure(path: Path, tool: str, output: str, environ: Mapping[str, str]) -> ReportError:
    """Return why a tool couldn't read a report: a newer version made it, or what the tool printed last.

    Raises ReportError if the tool doesn't work at all.
    """
    name, made, here = Path(tool).name, report_version(path), tool_version(tool, environ)
    if made and _numbers(made) > _numbers(here):
        return ReportError(
            f"{path} was made by {name} {made}, which is newer than the one here, {here}. "
            f"Load a module with {name} {made} or later, and import it again."
        )
    lines = [line.strip() for line in re.split(r"[\r\n]+", output) if line.strip() and "%" not in line]
    why = f" ({printable(lines[-1].removeprefix('==ERROR== ')[:200].rstrip('.'))})" if lines else ""
    return ReportError(f"{path} can't be read by {name} {here}{why}. It may be cut short: copy it again.")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


@contextlib.contextmanager
def exported(path: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Export a report to a file in a private folder, which is removed afterwards. Raises ReportError."""
    instead = ", or import the file that nsys export --type sqlite makes of it elsewhere"
    nsys = find_tool("nsys", path, environ, instead)
    # Exports hold the environment: the folder has mode 0700.
    with tempfile.TemporaryDirectory(prefix="gswarm-tui-", ignore_cleanup_errors=True) as folder:
        out = Path(folder) / "report.sqlite"
        done = run_tool([nsys, *_EXPORT, str(out), str(path.absolute())], environ)
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
