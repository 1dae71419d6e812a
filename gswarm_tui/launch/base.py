"""What a launcher is: the way to start an agent on a node and to talk with it; and how that fails."""

from __future__ import annotations

import enum
import re
import resource
import unicodedata
from collections.abc import Callable, Collection
from typing import Protocol, runtime_checkable

LONGEST_REASON = 240
_NODE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,254}")


class Retry(enum.Enum):
    """When it makes sense to try a failed launch again."""

    SOON = "soon"
    SLOWLY = "slowly"
    """Only a person can mend it: look again now and then."""
    NEVER = "never"


class LaunchError(Exception):
    """An agent could not be started. ``reason`` says why in one clause, ``remedy`` what the person can do."""

    def __init__(self, reason: str, remedy: str = "", retry: Retry = Retry.SOON) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.retry = retry


class Channel(Protocol):
    """The bytes of one running agent. Whoever opened it closes it."""

    async def read(self) -> bytes:
        """The next bytes of the agent's wire, empty at its end. Raises ConnectionError where it broke off."""

    def write(self, data: bytes) -> None:
        """Send bytes to the agent; nothing happens when it is gone."""

    def stderr(self) -> bytes:
        """The end of what was written to stderr on the way to the agent and by it."""

    async def explain_end(self) -> str:
        """After the end of ``read``: why the agent ended, in one clause."""

    async def close(self) -> None:
        """End the agent and let go of everything; may be called again."""


@runtime_checkable
class Eager(Protocol):
    """A channel that can hand over bytes as they come."""

    async def each(self, take: Callable[[bytes], bool]) -> bool:
        """See ``each``."""


async def each(channel: Channel, take: Callable[[bytes], bool]) -> bool:
    """Give ``take`` what comes on a channel, piece by piece, until it says True; False where it all ended.

    What it raises is raised, and ConnectionError where the channel broke off.
    """
    if isinstance(channel, Eager):
        return await channel.each(take)
    while data := await channel.read():
        if take(data):
            return True
    return False


class Launcher(Protocol):
    """Starts agents, each on its node; may share what they have in common."""

    async def open(self, node: str) -> Channel:
        """Start the agent on a node. Raises LaunchError."""

    async def close(self) -> None:
        """Let go of what is shared. Channels are closed before."""


@runtime_checkable
class Joining(Launcher, Protocol):
    """A launcher that can join an agent which serves already without a command on its node."""

    async def join(self, node: str, lives: Collection[str]) -> Channel:
        """Join the agent of a node if it is in one of these lives, else as ``open``. Raises LaunchError."""


async def reach(launcher: Launcher, node: str, lives: Collection[str]) -> Channel:
    """Join the agent of a node, of which these lives are known, or start it. Raises LaunchError."""
    if lives and isinstance(launcher, Joining):
        return await launcher.join(node, lives)
    return await launcher.open(node)


class Asking(Launcher, Protocol):
    """A launcher of real nodes, on which commands of the agent can be run that say the magic first."""

    async def open(self, node: str, *words: str) -> Channel:
        """Start the agent on a node, or run its command ``words``. Raises LaunchError."""


def check_name(node: str, option: str = "--nodes") -> None:
    """Refuse, with a LaunchError, a name that is none and could be taken for an option or a command."""
    if not _NODE_NAME.fullmatch(node):
        raise LaunchError(f"{clean(node, 60)!r} is no host name", f"correct {option}", Retry.NEVER)


def clean(text: str, longest: int = LONGEST_REASON) -> str:
    """Text from elsewhere as one bounded line without control or formatting characters."""
    spaced = "".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in text[: 8 * longest])
    line = " ".join(spaced.split())
    return line if len(line) <= longest else line[: longest - 1].rstrip() + "…"


def last_line(output: bytes) -> str:
    """The last line of a program's output that says something, cleaned."""
    for line in reversed(output.decode("utf-8", "replace").splitlines()):
        if said := clean(line):
            return said
    return ""


def allow_many_files() -> None:
    """Raise this process's soft limit of open files to its hard one: each node takes one to four."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
