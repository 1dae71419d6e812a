"""Export of a report of Nsight Systems to SQLite, by the user's own nsys."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from gswarm_tui.profiling.tools import explain_failure, find_tool, run_tool

_EXPORT = ("export", "--type", "sqlite", "--force-overwrite", "true", "--output")


@contextlib.contextmanager
def exported(path: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Export a report to a file in a private folder, which is removed afterwards. Raises ReportError."""
    instead = ", or import the file that nsys export --type sqlite makes of it elsewhere"
    nsys = find_tool("nsys", path, environ, instead)
    with tempfile.TemporaryDirectory(prefix="gswarm-tui-") as folder:  # 0700: exports hold the environment
        out = Path(folder) / "report.sqlite"
        done = run_tool([nsys, *_EXPORT, str(out), str(path)], environ)
        # nsys exits with 0 after some errors, without a file.
        if done.returncode != 0 or not out.exists():
            raise explain_failure(path, nsys, done.stdout + done.stderr, environ)
        yield out
