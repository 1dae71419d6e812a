"""Files and folders that appear whole or not at all, and take nothing's place unasked."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from gswarm_tui.common.errors import UserError, printable
from gswarm_tui.printing.formats import atomic_file
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.transfer.parquet import is_dataset


@contextlib.contextmanager
def new_file(path: Path, *, force: bool, unlike: Path) -> Iterator[TextIO]:
    """A file that is ``path`` once the block ends well; with ``force`` it replaces one that is there.

    ``unlike`` is the recording, which must not be overwritten.

    Raises:
        UserError: ``path`` is taken, or its folder isn't there.
        StoreError: it can't be written.
    """
    _check_folder(path)
    if path.exists() and not path.is_dir() and not force:
        raise UserError(f"{_said(path)} exists; name another file with -o, or replace it with --force.")
    with atomic_file(path, unlike) as part, part.open("w", encoding="utf-8", newline="") as out:
        yield out


@contextlib.contextmanager
def new_folder(path: Path, *, force: bool) -> Iterator[Path]:
    """An empty folder that is ``path`` once the block ends well; with ``force`` it replaces an older export.

    Raises:
        UserError: ``path`` is taken, or its folder isn't there, or ``force`` would delete what is no export.
        StoreError: it can't be written.
    """
    _check_folder(path)
    if path.exists() and not path.is_dir():
        raise UserError(f"{_said(path)} is a file, and Parquet is written to a folder; name one with -o.")
    full = path.is_dir() and any(path.iterdir())
    if full and not force:
        raise UserError(
            f"{_said(path)} isn't empty; name another folder with -o, or replace it with --force."
        )
    if full and not is_dataset(path):
        raise UserError(
            f"{_said(path)} holds more than an export, so it is left alone; name another with -o."
        )
    try:
        with tempfile.TemporaryDirectory(
            prefix=f".{path.name}.", suffix=".part", dir=path.parent, ignore_cleanup_errors=True
        ) as made:
            part = Path(made) / "new"
            part.mkdir()
            yield part
            if full:
                path.rename(Path(made) / "old")
            part.rename(path)
    except OSError as error:
        raise StoreError(f"{_said(path)} can't be written: {error.strerror or error}") from error


def file_name(name: str) -> str:
    """A session's name as that of a file, without what a shell or another system would mind."""
    return re.sub(r"[^\w.+-]+", "-", name).strip("-.")[:80] or "session"


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def _check_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {_said(path.parent)}; make it, or name another place with -o.")


def _said(path: Path) -> str:
    return printable(str(path))
