"""Files and folders that appear whole or not at all: written under a temporary name, then renamed."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from gswarm_tui.errors import UserError
from gswarm_tui.store.database import StoreError
from gswarm_tui.store.dataset import is_dataset


@contextlib.contextmanager
def new_file(path: Path, *, force: bool) -> Iterator[TextIO]:
    """A file that is ``path`` once the block ends well; with ``force`` it replaces one that is there.

    Raises:
        UserError: ``path`` is taken or its folder isn't there.
        StoreError: it can't be written.
    """
    _check_folder(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file with -o.")
    if path.exists() and not force:
        raise UserError(f"{path} exists; name another file with -o, or replace it with --force.")
    part = _part(path)
    try:
        with part.open("x", encoding="utf-8", newline="") as out:
            yield out
        part.replace(path)
    except OSError as error:
        raise StoreError(_sentence(path, error)) from error
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path, *, force: bool) -> Iterator[Path]:
    """An empty folder that is ``path`` once the block ends well; with ``force`` it replaces an older export.

    Raises:
        UserError: ``path`` is taken, or its folder isn't there, or ``force`` would delete what is no export.
        StoreError: it can't be written.
    """
    _check_folder(path)
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; name a folder with -o.")
    full = path.is_dir() and any(path.iterdir())
    if full and not force:
        raise UserError(f"{path} isn't empty; name another folder with -o, or replace it with --force.")
    if full and not is_dataset(path):
        raise UserError(f"{path} holds more than an export, so --force leaves it alone; name another folder.")
    part = _part(path)
    try:
        part.mkdir()
        yield part
        if full:
            old = _part(path, "old")
            path.rename(old)
            part.rename(path)
            shutil.rmtree(old)
        else:
            part.rename(path)
    except OSError as error:
        raise StoreError(_sentence(path, error)) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _check_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent}; make it, or name another place with -o.")


def _part(path: Path, ending: str = "part") -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{ending}")


def _sentence(path: Path, error: OSError) -> str:
    return f"{path} can't be written: {error.strerror or error}"
