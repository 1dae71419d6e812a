"""A recording's private folder on a node, with its lock, socket, log and spool.

Everything is opened by descriptor, relative to a checked folder, and no symbolic link is followed, so that
nobody who can write to the folder above can lead the agent elsewhere. The path doesn't depend on the
environment, because SSH and srun must find the same agent. Imports are few: they delay the first frame.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PARENTS = ("/var/tmp", "/tmp")  # noqa: S108  # the first may outlive a reboot; folders made there are private
LOCK, SOCKET, LOG = "lock", "serve", "log"


class FolderError(Exception):
    """Raised if no folder can be private to this user; the message gives the reason."""


def tops(path: str = "") -> tuple[str, ...]:
    """Return the folders that hold the recordings' folders, the preferred one first."""
    if path:
        return (path,)
    return tuple(f"{parent}/gswarm-tui-{os.geteuid()}" for parent in PARENTS)


def name_of(recording: str, node: str) -> str:
    """Return the name of a recording's folder; ``node`` is the recorder's name for this machine."""
    return f"{recording}@{node}"[:200]


def is_plain(name: str) -> bool:
    """Return whether a name has letters, digits and ``._:-`` only, and begins with a letter, digit or _."""
    return name.isascii() and name[:1] not in (*".:-", "") and all(c.isalnum() or c in "._:-" for c in name)


def open_private(path: str, above: int | None = None, create: bool = False) -> int:
    """Open a folder that belongs to this user and is closed to all others. Raises OSError."""
    if create:
        try:
            os.mkdir(path, 0o700, dir_fd=above)
        except FileExistsError:
            pass
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, dir_fd=above)
    except (NotADirectoryError, PermissionError):
        status = os.stat(path, dir_fd=above, follow_symlinks=False)
        problem = _problem_of(status)
        if problem:
            raise OSError(errno.EPERM, problem) from None
        raise
    problem = _problem_of(os.fstat(descriptor))
    if problem:
        os.close(descriptor)
        raise OSError(errno.EPERM, problem)
    return descriptor


def _problem_of(status: os.stat_result) -> str:
    """Return why a folder isn't private to this user, empty if it is."""
    if status.st_uid != os.geteuid():
        from gswarm_agent.probes.procfs import user_name  # rarely needed

        return f"it belongs to {user_name(status.st_uid)}"
    if not stat.S_ISDIR(status.st_mode):
        return "it isn't a folder"
    return "others may enter it" if stat.S_IMODE(status.st_mode) & 0o077 else ""


def problems_of(tops: Sequence[str]) -> list[str]:
    """Return a clause for each of these folders that exists and can't be used: its owner or the problem."""
    problems = []
    for top in tops:
        try:
            os.close(open_private(top))
        except FileNotFoundError:
            pass
        except OSError as error:
            problems.append(f"{top}: {error.strerror}")
    return problems


class Folder:
    """The folder called ``name`` in ``top``, open until ``close``."""

    on_disk = True

    def __init__(self, top: str, name: str, create: bool = False) -> None:
        self.top = top
        self.name = name
        self.path = f"{top}/{name}"
        self._above = open_private(top, create=create)
        try:
            self._own = open_private(name, self._above, create)
        except OSError:
            os.close(self._above)
            raise

    @classmethod
    def find(cls, tops: Sequence[str], name: str) -> Folder:
        """Open the folder if it exists, else create it in the first of ``tops`` that allows it."""
        problems: list[str] = []
        for create in (False, True):
            for top in tops:
                try:
                    return cls(top, name, create)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    problem = f"{top}: {error.strerror}"
                    if problem not in problems:
                        problems.append(problem)
        raise FolderError("no private folder can be opened: " + "; ".join(problems))

    @property
    def descriptors(self) -> tuple[int, int]:
        """The descriptors that must stay open."""
        return self._above, self._own

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self._own)
        os.close(self._above)

    def names(self) -> list[str]:
        """Return the names of its files, sorted."""
        return sorted(os.listdir(self._own))

    def open(self, name: str, flags: int) -> int:
        """Open a file in it; a new file is private to this user."""
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._own)

    def read(self, name: str) -> bytes:
        """Return a file's content; empty if it can't be read."""
        try:
            descriptor = self.open(name, os.O_RDONLY)
        except OSError:
            return b""
        with open(descriptor, "rb") as file:
            return file.read()

    def size(self, name: str) -> int:
        """Return a file's size in bytes; 0 if it can't be read."""
        try:
            return os.stat(name, dir_fd=self._own, follow_symlinks=False).st_size
        except OSError:
            return 0

    def unlink(self, name: str) -> None:
        """Remove a file if it exists."""
        try:
            os.unlink(name, dir_fd=self._own)
        except FileNotFoundError:
            pass

    def address(self) -> str:
        """Return the socket's address, short enough whatever the folder's name is."""
        return f"/proc/self/fd/{self._own}/{SOCKET}"

    def lock(self, wait: bool = False, create: bool = True) -> int | None:
        """Lock the folder until the returned descriptor is closed; None if another process holds the lock.

        Only an agent may ``create`` the lock file: another process could keep a folder that is being removed.
        Raises FileNotFoundError if the file or the folder has been removed.
        """
        descriptor = self.open(LOCK, os.O_RDWR | (os.O_CREAT if create else 0))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if os.stat(LOCK, dir_fd=self._own).st_ino != os.fstat(descriptor).st_ino:
                raise FileNotFoundError(errno.ENOENT, "the lock was replaced")
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def remove(self) -> None:
        """Remove it with all its files; call this with the lock held."""
        for name in self.names():
            self.unlink(name)
        try:
            os.rmdir(self.name, dir_fd=self._above)
        except OSError:
            pass


class NoFolder(Folder):
    """Stand-in for the folder of an agent without one: empty and read-only."""

    on_disk = False

    def __init__(self) -> None:
        self.top = self.name = self.path = ""

    def names(self) -> list[str]:
        """Return no names."""
        return []

    def open(self, name: str, flags: int) -> int:
        """Raise OSError."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def folders(tops: Sequence[str]) -> Iterator[Folder]:
    """Yield the folders of all recordings; each is closed before the next."""
    for top in tops:
        try:
            descriptor = open_private(top)
        except OSError:
            continue
        try:
            names = sorted(os.listdir(descriptor))
        finally:
            os.close(descriptor)
        for name in names:
            try:
                folder = Folder(top, name)
            except OSError:
                continue
            try:
                yield folder
            finally:
                folder.close()
