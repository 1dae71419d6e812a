"""The user's own nsys and ncu, which read reports of their formats; nsys exports its own to SQLite."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gswarm_tui.common.errors import printable
from gswarm_tui.common.processes import run_program
from gswarm_tui.profiling.report_text import ReportError

_EXPORT = ("export", "--type", "sqlite", "--force-overwrite", "true", "--output")


def find_tool(name: str, path: Path, environ: Mapping[str, str], instead: str) -> str:
    """Return a tool's path. Raises ReportError, with what to do ``instead``, if PATH has none."""
    found = shutil.which(name, path=environ.get("PATH"))
    if found is None:
        raise ReportError(f"{path} needs {name} to be read, and PATH has none. Load its module{instead}.")
    return found


def run_tool(command: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a tool and return its output. Raises ReportError if it can't be started, MemoryError."""
    try:
        done = run_program(command, environ)
    except OSError as error:  # a program for other processors, for example
        raise ReportError(f"{command[0]} can't be started: {error.strerror}. Load another module.") from None
    if "bad_alloc" in done.stderr:  # the text of C++'s error without memory
        raise MemoryError
    return done


def tool_version(tool: str, environ: Mapping[str, str]) -> str:
    """Return the version that a tool prints. Raises ReportError if it prints none."""
    found = re.findall(r"20[\d.]+\d", run_tool([tool, "--version"], environ).stdout)
    if not found:
        raise ReportError(f"{tool} doesn't work: {tool} --version prints no version. Load another module.")
    return str(found[-1])


def explain_failure(path: Path, tool: str, output: str, environ: Mapping[str, str]) -> ReportError:
    """Return why a tool couldn't read a report, with what the tool printed last.

    Raises ReportError if the tool doesn't work at all.
    """
    here = f"{Path(tool).name} {tool_version(tool, environ)}"
    lines = [line.strip() for line in re.split(r"[\r\n]+", output) if line.strip() and "%" not in line]
    why = f" ({printable(lines[-1].removeprefix('==ERROR== ')[:200].rstrip('.'))})" if lines else ""
    return ReportError(
        f"{path} can't be read by {here}{why}. Load the module of a newer version, if that made it; it may "
        "also be cut short: copy it again."
    )


@contextlib.contextmanager
def exported(path: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Export a report to a file in a private folder, which is removed afterwards. Raises ReportError."""
    instead = ", or import the file that nsys export --type sqlite makes of it elsewhere"
    nsys = find_tool("nsys", path, environ, instead)
    # Exports hold the environment: the folder has mode 0700.
    with tempfile.TemporaryDirectory(prefix="gswarm-tui-", ignore_cleanup_errors=True) as folder:
        out = Path(folder) / "report.sqlite"
        done = run_tool([nsys, *_EXPORT, str(out), str(path.absolute())], environ)
        # nsys exits with 0 after some errors, without a file.
        if done.returncode != 0 or not out.exists():
            raise explain_failure(path, nsys, done.stdout + done.stderr, environ)
        yield out
