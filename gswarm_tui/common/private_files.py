"""Private folders of this user's state: files written whole, and read only if they belong to this user."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gswarm_agent.folder import is_plain, open_private
from gswarm_tui.common.paths import state_folder

_LONGEST_NAME = 120


class PrivateFolder:
    """Folder in the state folder that is closed to all others; its files are named after IDs.

    All methods raise OSError if the folder or a file isn't private, and for a name that could lead elsewhere,
    and UserError without a usable state folder.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def path(self) -> Path:
        """Path of the folder. Raises UserError."""
        return state_folder() / self._name

    def check(self) -> None:
        """Raise FileNotFoundError if the folder doesn't exist, another OSError if it isn't private."""
        with self._opened():
            pass

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        with self._opened() as above:
            return _read_own(above, _checked(name))

    def read_or_create(self, name: str, content: bytes) -> bytes:
        """Return the content of a file, which the first process creates with ``content``."""
        with self._opened(create=True) as above:
            try:
                return _read_own(above, _checked(name))
            except FileNotFoundError:
                part = _write_part(above, content)
                with suppress(FileExistsError):  # another process was quicker
                    os.link(part, name, src_dir_fd=above, dst_dir_fd=above)
                os.unlink(part, dir_fd=above)
                return _read_own(above, name)

    def write(self, name: str, content: bytes) -> None:
        """Write a file, or replace it."""
        with self._opened(create=True) as above:
            os.rename(_write_part(above, content), _checked(name), src_dir_fd=above, dst_dir_fd=above)

    def remove(self, name: str) -> None:
        """Remove a file, if there is one."""
        (self.path / _checked(name)).unlink(missing_ok=True)

    @contextmanager
    def _opened(self, *, create: bool = False) -> Iterator[int]:
        """Open the folder; its descriptor is closed at the end."""
        if create:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        above = open_private(str(self.path), create=create)
        try:
            yield above
        finally:
            os.close(above)


def _checked(name: str) -> str:
    """Return a name. Raises OSError for one that could lead to another folder."""
    if not is_plain(name) or len(name) > _LONGEST_NAME:
        raise OSError(errno.EINVAL, f"{name!r} has characters that an ID doesn't have, or too many")
    return name


def _write_part(above: int, content: bytes) -> str:
    """Write a file under an unused name, and return the name. Raises OSError."""
    part = f".{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(part, flags, 0o600, dir_fd=above), "wb") as file:
        file.write(content)
    return part


def _read_own(above: int, name: str) -> bytes:
    """Return the content of a file of this user. Raises OSError."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(f"{name} belongs to another user")
        return file.read()
