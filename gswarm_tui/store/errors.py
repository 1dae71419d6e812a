"""Errors of recording files: sentences with a remedy. Imports quickly."""

from __future__ import annotations

import pwd
from pathlib import Path

from gswarm_tui.common.errors import UserError
from gswarm_tui.store.duckdb_internals import FileProblem, file_problem, lock_holder


class StoreError(UserError):
    """The file can't be read or written; the message is one sentence with the reason and what to do."""

    exit_status = 1


class MissingFileError(StoreError):
    """The named file doesn't exist."""

    exit_status = 2


class NotARecordingError(StoreError):
    """The file is another program's database, or an empty one."""

    exit_status = 2


class FileInUseError(StoreError):
    """Another program has the file open."""


class RunExistsError(StoreError):
    """The dataset has the run already."""


_SENTENCES = {
    FileProblem.NO_LOCKS: (
        "can't be used because its file system has no file locks; use or copy it on another one, such as /tmp"
    ),
    FileProblem.LOCKED: "is in use by another program; end that program, or name another file with --db",
    FileProblem.ALREADY_ATTACHED: "is already open in this program",
    FileProblem.NOT_A_DATABASE: "is not a DuckDB file; name another file with --db",
    FileProblem.DAMAGED: "is damaged or incomplete; use another copy, or name another file with --db",
    FileProblem.NEWER_VERSION: "was made by a newer DuckDB; update duckdb, or name another file with --db",
    FileProblem.DISK_FULL: "can't be written because its disk is full; free some space",
    FileProblem.FILE_SIZE_LIMIT: "can't grow because of a limit on file sizes (ulimit -f)",
    FileProblem.READ_ONLY_FILE_SYSTEM: (
        "can't be written because its file system is read-only; name another file with --db"
    ),
    FileProblem.NOT_WRITABLE: (
        "can't be opened because you have no permission; ask its owner for a copy, or name another file "
        "with --db"
    ),
}


QUERYABLE = "if it is gswarm-tui, `gswarm-tui sql` queries the file"


def open_error(error: Exception, path: Path) -> StoreError:
    """Return the error for a file that DuckDB didn't open."""
    kind = FileInUseError if file_problem(error) is FileProblem.LOCKED else StoreError
    return kind(explain(error, path))


def explain(error: Exception, path: Path) -> str:
    """Return DuckDB's error as one sentence about the file."""
    if holder := lock_holder(error):
        program, pid = holder
        return (
            f"{path} is in use by {program}, process {pid}; {QUERYABLE}; "
            "end that process, or name another file with --db"
        )
    problem = file_problem(error)
    if problem:
        return f"{path} {_SENTENCES[problem]}"
    try:
        str(path).encode()
    except UnicodeEncodeError:  # DuckDB takes no bytes
        return f"{path} can't be used because its path isn't text in UTF-8; rename the file or its folder"
    return f"{path} can't be used: {str(error).strip().splitlines()[0]}"


def owner_name(uid: int) -> str:
    """Return the name of a file's owner, or the number where it has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
