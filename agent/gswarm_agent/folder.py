"""A recording's private folder on a node: who may enter it, and how what is in it is opened.

Everything is opened by descriptor, relative to a folder that was checked, and no symbolic link is followed,
so that nobody who can write to the folder above can lead the agent elsewhere. Which folder it is doesn't
depend on the environment: every way in to a node has to end at the same agent. It is in the way of the first
frame, so nothing is imported that takes long.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PLACES = ("/var/tmp", "/tmp")  # noqa: S108  # the first may outlive a reboot; what is made there is private
LOCK, SOCKET, LOG = "lock", "serve", "log"
FORGOTTEN_S = 7 * 86_400
_MOST_LOG = 256 * 1024


class FolderError(Exception):
    """There is no folder that only this user can enter; the message says why."""


def tops(given: str = "") -> tuple[str, ...]:
    """The folders that hold those of recordings, the preferred one first."""
    return (given,) if given else tuple(f"{place}/gswarm-tui-{os.geteuid()}" for place in PLACES)


def name_of(recording: str, node: str) -> str:
    """What the folder of a recording is called, on a node of which the head speaks by this name."""
    return f"{recording}@{node}"[:200]


def is_plain(name: str) -> bool:
    """Whether a name is made of letters, digits and ``._:-`` alone, and begins like a name."""
    return name.isascii() and name[:1] not in (*".:-", "") and all(c.isalnum() or c in "._:-" for c in name)


def open_private(path: str, above: int | None = None, create: bool = False) -> int:
    """A descriptor of a folder that is this user's own and closed to all others. Raises OSError."""
    if create:
        try:
            os.mkdir(path, 0o700, dir_fd=above)
        except FileExistsError:
            pass
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, dir_fd=above)
    found = os.fstat(descriptor)
    problem = ""
    if found.st_uid != os.geteuid():
        problem = "it belongs to another user"
    elif stat.S_IMODE(found.st_mode) & 0o077:
        problem = "others may enter it"
    if problem:
        os.close(descriptor)
        raise OSError(errno.EPERM, problem)
    return descriptor


class Folder:
    """The folder called ``name`` in ``top``, open until ``close``."""

    def __init__(self, top: str, name: str, create: bool = False) -> None:
        self.top = top
        self.name = name
        self.path = f"{top}/{name}"
        self._above = open_private(top, create=create)
        try:
            self._here = open_private(name, self._above, create)
        except OSError:
            os.close(self._above)
            raise

    @classmethod
    def find(cls, places: Sequence[str], name: str) -> Folder:
        """The folder where there is one, else a new one in the first place that allows it."""
        problems: list[str] = []
        for create in (False, True):
            for top in places:
                try:
                    return cls(top, name, create)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    problem = f"{top}: {error.strerror}"
                    if problem not in problems:
                        problems.append(problem)
        raise FolderError("there is no private folder for the agent: " + "; ".join(problems))

    @property
    def descriptors(self) -> tuple[int, int]:
        """What has to stay open while this is used."""
        return self._above, self._here

    def close(self) -> None:
        """Let go of the descriptors."""
        os.close(self._here)
        os.close(self._above)

    def names(self) -> list[str]:
        """What is in it, sorted."""
        return sorted(os.listdir(self._here))

    def open(self, name: str, flags: int) -> int:
        """A descriptor of a file in it; a new file is for this user alone."""
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._here)

    def read(self, name: str) -> bytes:
        """A whole file; empty where there is none that can be read."""
        try:
            descriptor = self.open(name, os.O_RDONLY)
        except OSError:
            return b""
        with open(descriptor, "rb") as file:
            return file.read()

    def unlink(self, name: str) -> None:
        """Remove a file that may be gone already."""
        try:
            os.unlink(name, dir_fd=self._here)
        except FileNotFoundError:
            pass

    def address(self) -> str:
        """The address of the socket, short enough for one whatever the folder is called."""
        return f"/proc/self/fd/{self._here}/{SOCKET}"

    def open_log(self) -> int:
        """A descriptor that what went wrong is appended to; a long log begins anew."""
        descriptor = self.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        if os.fstat(descriptor).st_size > _MOST_LOG:
            os.ftruncate(descriptor, 0)
        return descriptor

    def lock(self, wait: bool = False, create: bool = True) -> int | None:
        """Be the only agent here until the descriptor is closed; None where another one is.

        Who only looks may not ``create`` the file: a folder that is being removed would stay.
        Raises FileNotFoundError where it or the folder has been removed.
        """
        descriptor = self.open(LOCK, os.O_RDWR | (os.O_CREAT if create else 0))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if os.stat(LOCK, dir_fd=self._here).st_ino != os.fstat(descriptor).st_ino:
                raise FileNotFoundError(errno.ENOENT, "the lock was replaced")
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def remove(self) -> None:
        """Remove it with everything in it; only its only agent may."""
        for name in self.names():
            self.unlink(name)
        try:
            os.rmdir(self.name, dir_fd=self._above)
        except OSError:
            pass

    def untouched_s(self) -> float:
        """Seconds since anything in it changed."""
        found = [os.stat(name, dir_fd=self._here, follow_symlinks=False) for name in self.names()]
        return time.time() - max(each.st_mtime for each in (os.fstat(self._here), *found))


def folders(places: Sequence[str]) -> Iterator[Folder]:
    """The folders of all recordings, each closed when the next is asked for."""
    for top in places:
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


def remove_forgotten(places: Sequence[str]) -> None:
    """Remove what recordings left behind for which nobody came back in a week."""
    for folder in folders(places):
        if LOCK in folder.names() and folder.untouched_s() > FORGOTTEN_S:
            try:
                lock = folder.lock(create=False)
                if lock is not None:
                    folder.remove()
                    os.close(lock)
            except OSError:  # another one was quicker
                pass
