"""XDG folders of the recorder: config file, state, cache and runtime folder; and portable file names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from gswarm_tui.common.errors import UserError, nearest, quote
from gswarm_tui.common.quantities import first_of

_NAME = "gswarm-tui"
MOST_NAMED = 3
"""Recordings that a message names."""
_LONGEST_NAME = 200
"""File systems take 255 bytes; a suffix follows, and more in the name of the file while it is written."""


def recordings_beside(path: Path) -> str:
    """Return a clause on the recordings in the folder of a missing one."""
    names = sorted(each.name for each in path.parent.glob("*.duckdb") if each.exists())
    if not names:
        return f"; {path.parent.absolute()} has no recording"
    # Without the suffix, which makes any two names alike.
    if close := nearest(path.stem, [name.removesuffix(".duckdb") for name in names]):
        return f"{close}.duckdb"
    return f"; its folder has {first_of(names, MOST_NAMED)}"


def is_pattern(path: Path) -> bool:
    """Return whether a path is a pattern, as in ``runs/*.duckdb``, or an exported dataset; not a file."""
    # Unlike Path.exists, this takes names that are too long.
    return (bool(re.search(r"[*?[]", str(path))) and not os.path.exists(path)) or holds_runs(path)  # noqa: PTH110


def holds_runs(path: Path) -> bool:
    """Return whether a folder has the runs of an exported dataset."""
    return os.path.isdir(path / "recordings")  # noqa: PTH112 (it takes names that are too long)


def matching(path: Path) -> list[Path]:
    """Return the files and the runs of datasets that match a pattern, else the path itself.

    A file that matches by several links is returned once. Raises UserError if none matches.
    """
    if not is_pattern(path):
        return [path]
    # ``**`` follows no links, which may form loops; what only a star matches isn't hidden.
    pattern = path.relative_to(path.anchor) / ("*" if path.name == "**" else "")
    found = [path] if holds_runs(path) else Path(path.anchor).glob(str(pattern))
    found = (one for one in found if not any(part[0] == "." for part in {*one.parts} - {*path.parts}))
    # The shortest path names a file best.
    once: dict[str, Path] = {}
    for one in sorted(found, key=lambda each: (len(each.parts), each.is_symlink(), each)):
        once.setdefault(os.path.realpath(one), one)
    runs = [
        run for one in sorted(once.values(), key=str) for run in sorted(one.glob("recordings/run=*")) or [one]
    ]
    if not runs:
        raise UserError(f"no file matches {quote(str(path))}; name others.")
    return runs


def working_folder() -> Path:
    """Return the current folder. Raises UserError if it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UserError("the current folder was deleted; change to another one.") from None


def config_file() -> Path:
    """Return ``~/.config/gswarm-tui/config.toml``, or where ``XDG_CONFIG_HOME`` puts it. Raises UserError."""
    return _user_folder("config") / "config.toml"


def state_folder() -> Path:
    """Return ``~/.local/state/gswarm-tui``, or where ``XDG_STATE_HOME`` puts it.

    Raises UserError if others could replace its files, for example by links to other files of this user.
    """
    return _closed_to_others("state")


def cache_folder() -> Path:
    """Return ``~/.cache/gswarm-tui``, or where ``XDG_CACHE_HOME`` puts it.

    Raises UserError if others could replace its files.
    """
    return _closed_to_others("cache")


def _closed_to_others(kind: str) -> Path:
    folder = _user_folder(kind)
    try:
        found = folder.stat()
    except OSError:  # it doesn't exist, or using it reports the reason
        return folder
    if found.st_uid != os.geteuid():
        raise UserError(
            f"{folder} belongs to another user; set XDG_{kind.upper()}_HOME to a folder of yours."
        )
    if found.st_mode & 0o022:
        raise UserError(f"others can write to {folder}; close it with chmod go-w, and check its files.")
    return folder


def runtime_folder(environ: Mapping[str, str]) -> Path | None:
    """Return ``$XDG_RUNTIME_DIR/gswarm-tui``, None where the login has no runtime folder.

    platformdirs would make up another one, and a recorder and its commands would no longer meet.
    """
    given = Path(environ.get("XDG_RUNTIME_DIR", ""))
    return given / _NAME if given.is_absolute() else None


def file_name(name: str) -> str:
    """Turn a session's name into a portable file name of at most ``_LONGEST_NAME`` bytes."""
    portable = re.sub(r"[^\w.+-]+", "-", name).strip("-.")
    return portable.encode()[:_LONGEST_NAME].decode(errors="ignore") or "session"


def _user_folder(kind: str) -> Path:
    """Return the user's folder for files of a kind: config, state or cache. Raises UserError."""
    import platformdirs  # late: --help and mark need no folder

    try:
        folder: Path = getattr(platformdirs, f"user_{kind}_path")(_NAME)
        return folder
    except RuntimeError:  # the user has no home folder
        raise UserError("you have no home folder on this machine; set HOME to a folder of yours") from None
