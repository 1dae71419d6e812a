"""Checks of this machine: versions, terminal, locale, state folder, Slurm's commands."""

from __future__ import annotations

import locale
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from gswarm_tui.common.errors import UserError
from gswarm_tui.common.paths import state_folder
from gswarm_tui.common.quantities import mebibytes
from gswarm_tui.doctor.report import LocalReport

SLURM_COMMANDS = ("scontrol", "srun")
MIN_FOLDER_MIB = 1024


def check_here(environ: Mapping[str, str], folder: Path) -> LocalReport:
    """Check this machine for a run that records into ``folder``. Changes nothing."""
    encoding = locale.getencoding()
    commands = tuple(name for name in SLURM_COMMANDS if shutil.which(name, path=environ.get("PATH")))
    free_mib = _free_mib(folder)
    problems, notes = [], []
    state, problem = _state_folder()
    if problem:
        problems.append(problem)
    if not os.access(folder, os.W_OK | os.X_OK):
        problems.append(f"recordings can't be written to {folder}; change the folder, or use --db.")
    elif free_mib is not None and free_mib < MIN_FOLDER_MIB:
        problems.append(f"only {mebibytes(free_mib)} are free in {folder}; free some space, or use --db.")
    if environ.get("SLURM_JOB_ID") and (missing := [name for name in SLURM_COMMANDS if name not in commands]):
        be = "isn't" if len(missing) == 1 else "aren't"
        problems.append(f"this shell is in a Slurm job, but {', '.join(missing)} {be} on your PATH.")
    if encoding.upper() not in ("UTF-8", "UTF8"):
        notes.append(f"the locale's encoding is {encoding}, but gswarm-tui prints UTF-8; set LC_ALL=C.UTF-8.")
    return LocalReport(
        python_version=platform.python_version(),
        duckdb_version=version("duckdb"),
        textual_version=version("textual"),
        terminal=_terminal(environ),
        encoding=encoding,
        state_folder=state,
        folder_free_mib=free_mib,
        slurm_commands=commands,
        problems=tuple(problems),
        notes=tuple(notes),
    )


def _terminal(environ: Mapping[str, str]) -> str:
    if not sys.stdout.isatty():
        return "none"
    columns, lines = shutil.get_terminal_size()
    colours = environ.get("COLORTERM", "")
    return f"{environ.get('TERM') or 'unknown'}{' ' if colours else ''}{colours} {columns}×{lines}"


def _state_folder() -> tuple[str, str]:
    """Return the state folder, and a sentence if it can't be used."""
    try:
        folder = state_folder()
    except UserError as error:
        return "unusable", f"{str(error).rstrip('.')}."
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        return str(folder), f"the state folder {folder} can't be written; set XDG_STATE_HOME to one of yours."
    return str(folder), ""


def _free_mib(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free // 1024**2
    except OSError:
        return None
