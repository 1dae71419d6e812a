"""Writes reports that come from a node or a login node into a folder here."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gswarm_tui.common.quantities import file_size
from gswarm_tui.profiling.slurm_commands import ProfileError

LEAST_FREE_BYTES = 64 << 20
"""Room that is there before a run; how much its reports take is known only after it."""


class BrokenOffError(ProfileError):
    """Raised if less of a report arrived than it has."""


@dataclass(frozen=True)
class RemoteReport:
    """A report on a node, with its size and the Unix time of its last change, which its copy gets, too."""

    node: str
    path: str
    size: int
    changed_s: int

    @property
    def rank(self) -> int:
        """The rank that its name has."""
        return int(self.name.rpartition("-rank")[2].partition("-")[0])

    @property
    def name(self) -> str:
        """Its file name, which has node, rank and job."""
        return PurePosixPath(self.path).name


def check_room(folder: Path, size: int = LEAST_FREE_BYTES) -> None:
    """Raise ProfileError if a folder has no room for this many bytes."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise ProfileError(f"{folder}: {error.strerror}; name another folder with --output.") from None
    if free < size:
        raise ProfileError(
            f"{folder} has {file_size(free)} free, and the reports take {file_size(size)}; "
            "free some space, or name another folder with --output."
        )


async def receive(
    report: RemoteReport,
    folder: Path,
    read: Callable[[int], Awaitable[bytes]],
    progress: Callable[[int], None],
) -> Path:
    """Write a report into a folder, under its name or with a number after it; return its path.

    ``read`` returns its next bytes, at most as many as it gets, and nothing at the end. ``progress`` gets the
    size of each piece. Raises ProfileError, BrokenOffError.
    """
    part = folder / f".{report.name}.{secrets.token_hex(4)}.part"
    left = report.size
    try:
        with part.open("xb") as file:
            while left and (data := await read(left)):
                file.write(data)
                left -= len(data)
                progress(len(data))
        if left:
            raise BrokenOffError(f"{report.node}: fetching {report.name} broke off.")
        os.utime(part, (report.changed_s, report.changed_s))
        path, number = folder / report.name, 1
        while path.exists():
            number += 1
            path = folder / f"{Path(report.name).stem}-{number}{Path(report.name).suffix}"
        return part.rename(path)
    except OSError as error:
        raise ProfileError(
            f"{folder}: {os.strerror(error.errno or errno.EIO)} while fetching {report.name}; "
            "the partial copy was removed."
        ) from None
    finally:
        part.unlink(missing_ok=True)
