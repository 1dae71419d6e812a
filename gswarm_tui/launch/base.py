"""Contracts of launchers, which start agents on nodes, and of the channels to these agents."""

from __future__ import annotations

import enum
import re
import resource
import unicodedata
from typing import Protocol

LONGEST_REASON = 240
_NODE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,254}")


class Retry(enum.Enum):
    """Urgency of retrying a failed launch."""

    SOON = "soon"
    SLOWLY = "slowly"
    """Only a person can solve the problem: retry now and then."""
    NEVER = "never"


class LaunchStep(enum.Enum):
    """Step of a launch, in the order in which they are taken."""

    NAME = "resolve its name"
    CONNECT = "connect"
    HOST_KEY = "check its host key"
    LOGIN = "log in"
    COMMAND = "run a command"
    SETUP = "run --setup"
    PYTHON = "find Python"
    UNPACK = "unpack the agent"
    AGENT = "start the agent"


class LaunchError(Exception):
    """Raised if an agent can't be started: the reason in a clause, a remedy for the user, the step."""

    def __init__(
        self, reason: str, remedy: str = "", retry: Retry = Retry.SOON, step: LaunchStep = LaunchStep.AGENT
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.retry = retry
        self.step = step


class Channel(Protocol):
    """The connection to one running agent; its opener closes it."""

    async def read(self) -> bytes:
        """Return the agent's next bytes, empty at their end. Raises ConnectionError."""

    def write(self, data: bytes) -> None:
        """Send bytes to the agent; ignored if it has ended."""

    async def explain_end(self) -> str:
        """Return why the agent ended, in one clause; call it after the end of ``read``."""

    async def close(self) -> None:
        """Close the connection and end its processes; may be called again."""


class Launcher(Protocol):
    """Starts agents on nodes."""

    async def open(self, node: str, *arguments: str) -> Channel:
        """Start the agent on a node, or run a command of it there, such as ``status``. Raises LaunchError."""

    async def close(self) -> None:
        """Close what channels share, if anything; called after the channels are closed."""
        return


def check_name(node: str, option: str = "--nodes") -> None:
    """Raise LaunchError for an invalid host name, which might pass for an option or a command."""
    if not _NODE_NAME.fullmatch(node):
        raise LaunchError(
            f"{clean(node, 60)!r} isn't a host name", f"correct {option}", Retry.NEVER, LaunchStep.NAME
        )


def clean(text: str, longest: int = LONGEST_REASON) -> str:
    """Return untrusted text as one short line without control characters."""
    spaced = "".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in text[: 8 * longest])
    line = " ".join(spaced.split())
    return line if len(line) <= longest else line[: longest - 1].rstrip() + "…"


def last_line(output: bytes) -> str:
    """Return the last line of a program's output that isn't empty, cleaned."""
    for line in reversed(output.decode("utf-8", "replace").splitlines()):
        if text := clean(line):
            return text
    return ""


def allow_many_files() -> None:
    """Raise the soft limit of open files to the hard one: each node needs one to four."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
