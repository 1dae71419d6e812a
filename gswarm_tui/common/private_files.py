"""Private folders of this user's state, whose files are written whole."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from gswarm_agent.folder import is_plain, open_private
from gswarm_tui.common.paths import state_folder

_LONGEST_NAME = 120


class PrivateFolder:
    """Folder in the state folder that is closed to all others; its files are named after IDs.

    All methods raise OSError if the folder isn't private, and for a name that could lead elsewhere, and
    UserError without a usable state folder.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def path(self) -> Path:
        """Path of the folder. Raises UserError."""
        return state_folder() / self._name

    def check(self, *, create: bool = False) -> None:
        """Raise FileNotFoundError if the folder doesn't exist, another OSError if it isn't private."""
        if create:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(open_private(str(self.path), create=create))

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        self.check()
        return self._file(name).read_bytes()

    def read_or_create(self, name: str, content: bytes) -> bytes:
        """Return the content of a file, which the first process creates with ``content``."""
        file = self._file(name)
        if not file.exists():
            part = self._write_part(content)
            with suppress(FileExistsError):  # another process was quicker
                os.link(part, file)
            part.unlink()
        return self.read(name)

    def write(self, name: str, content: bytes) -> None:
        """Write a file, or replace it."""
        file = self._file(name)
        self._write_part(content).replace(file)

    def remove(self, name: str) -> None:
        """Remove a file, if there is one."""
        self._file(name).unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        """Return the path of a file. Raises OSError for a name that could lead to another folder."""
        if not is_plain(name) or len(name) > _LONGEST_NAME:
            raise OSError(errno.EINVAL, f"{name!r} has characters that an ID doesn't have, or too many")
        return self.path / name

    def _write_part(self, content: bytes) -> Path:
        """Write a file under an unused name, and return its path."""
        self.check(create=True)
        with NamedTemporaryFile(prefix=".", dir=self.path, delete=False) as part:
            part.write(content)
        return Path(part.name)
