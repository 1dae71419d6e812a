"""Files in an open private folder: written whole, and read only if they belong to this user."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress


def write_part(above: int, content: bytes) -> str:
    """Write a file under an unused name, and return the name. Raises OSError."""
    part = f".{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(part, flags, 0o600, dir_fd=above), "wb") as file:
        file.write(content)
    return part


def read_own(above: int, name: str) -> bytes:
    """Return the content of a file of this user. Raises OSError."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(f"{name} belongs to another user")
        return file.read()


def read_or_create(above: int, name: str, content: bytes) -> bytes:
    """Return the content of a file, which the first process creates with ``content``. Raises OSError."""
    try:
        return read_own(above, name)
    except FileNotFoundError:
        part = write_part(above, content)
        with suppress(FileExistsError):  # another process was quicker
            os.link(part, name, src_dir_fd=above, dst_dir_fd=above)
        os.unlink(part, dir_fd=above)
        return read_own(above, name)
