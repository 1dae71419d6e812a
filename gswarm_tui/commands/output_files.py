"""Output files and folders: they appear complete or not at all, and replace others only with ``force``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from gswarm_tui.common.errors import UserError
from gswarm_tui.store.errors import StoreError


def check_output_file(
    path: Path | None, *, force: bool, recording: Path | None = None, option: str = "-o"
) -> None:
    """Refuse an output file before the work begins; None is standard output. ``option`` names the file.

    Raises UserError for a folder, the recording, a file without ``force``, and where the folder is missing.
    """
    if path is None:
        return
    _check_folder(path, option)
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file in it with {option}.")
    if not path.exists():
        return
    if recording is not None and recording.exists() and path.samefile(recording):
        raise UserError(f"{path} is the recording itself; name another file with {option}.")
    if not force:
        raise UserError(f"{path} exists; name another file with {option}, or replace it with --force.")


@contextlib.contextmanager
def new_folder(path: Path, *, force: bool, append: bool = False) -> Iterator[Path]:
    """Make a folder that becomes ``path`` when the block succeeds; with ``force`` it replaces an export.

    With ``append``, its runs move into the dataset ``path``, which may be new.

    Raises UserError, also if ``force`` would delete other files, and StoreError.
    """
    # These modules load asyncio and NumPy, which commands without an output folder don't need.
    from gswarm_tui.common.processes import cleaning_up
    from gswarm_tui.exchange.tracked_run import ENTRIES
    from gswarm_tui.store.transfer.parquet import append_runs, has_only_exports, is_dataset

    _check_folder(path, "--append" if append else "-o")
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file, but this format is a folder; name another path.")
    full = path.is_dir() and any(path.iterdir())
    if append and full and not has_only_exports(path):
        raise UserError(f"{path} isn't a dataset that gswarm-tui exported; name one, or a new folder.")
    if full and not append:
        of_tracker = [each.name for each in path.iterdir()] == [ENTRIES.get(path.suffix)]
        if not is_dataset(path) and not (of_tracker and len(list(path.glob("wandb/offline-run-*"))) < 2):
            raise UserError(f"{path} may hold more than an export; name another folder with -o.")
        if not force:
            raise UserError(f"{path} isn't empty; name another folder with -o, or replace it with --force.")
    # Nothing can be renamed to another disk, to which a link may lead.
    beside = Path(os.path.realpath(path) if append else path).parent
    names = {"prefix": f".{path.name}.", "suffix": ".part"}
    try:
        with cleaning_up(), TemporaryDirectory(**names, dir=beside, ignore_cleanup_errors=True) as made:
            part = Path(made) / "new"
            part.mkdir()
            yield part
            if append:
                append_runs(part, path)
                return
            if full:
                path.rename(Path(made) / "old")
            part.rename(path)
    except OSError as error:
        raise StoreError(f"{path} can't be written: {error.strerror or error}") from error


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def _check_folder(path: Path, option: str) -> None:
    if not path.parent.is_dir():
        raise UserError(f"no folder {path.parent}; create it, or name another one with {option}.")
