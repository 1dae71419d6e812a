"""Bootstrap: starts the agent on a node that has only a shell and Python 3.9 or later.

``Bootstrap.script`` runs there; ``Greeting`` is the recorder's half of the exchange until the agent speaks.
The choices here are explained in docs/decisions/001-zero-install-agent.md.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gswarm_agent.redact import redact
from gswarm_agent.wire import MAGIC
from gswarm_tui.launch.base import LaunchError, LaunchStep, Retry, clean, last_line
from gswarm_tui.launch.bundle import Bundle, own_bundle
from gswarm_tui.launch.inbox import Inbox

GREETING_S = 120.0
MAX_NOISE = 64 * 1024
SHELL = "/bin/sh"
"""Program that runs the script on a node; it reads the script from standard input, past the login shell."""
_PYTHON_REMEDY = "load one with --setup 'module load python', or name one with --agent-python"

_RUN = Path(__file__).with_name("bootstrap.sh").read_text()
# The setup is no argument, because every user of a node sees all arguments: standard output requests it.
_SETUP = """exec 3>&1 1>&2; echo GSWARM"-SETUP" >&3; IFS= read -r setup
failed() { s=$?; echo GSWARM"-FAIL" setup $s >&3; exit $s; }; trap failed EXIT
eval "$(printf %s "$setup" | base64 -d)" </dev/null; s=$?; set +eu; [ $s = 0 ] || exit $s
trap - EXIT; exec 1>&3 3>&-
"""
_OTHER_PYTHONS = tuple(f"python3.{minor}" for minor in range(14, 8, -1))
_LINE = re.compile(rb"GSWARM-(SETUP|NEED|FOUND|OLD|FAIL)(?: ([^\n]*))?\n")


@dataclass(frozen=True)
class Serving:
    """Task of an agent: to serve the recording with this uid, or without one a single connection.

    It continues for ``linger_s`` without a recorder and keeps ``spool_mib`` on disk, None for its own
    defaults. With ``only_left`` it measures nothing: it delivers earlier agents' frames. If the job is
    ``armed``, its processes can be traced on request.
    """

    recording: str = ""
    linger_s: int | None = None
    spool_mib: int | None = None
    only_left: bool = False
    armed: bool = False

    def arguments(self, node: str) -> tuple[str, ...]:
        """Return the arguments that start the agent of a node."""
        if not self.recording:
            return ("stream",)
        linger = () if self.linger_s is None else ("--linger", str(self.linger_s))
        spool = () if self.spool_mib is None else ("--spool-mib", str(self.spool_mib))
        only_left = ("--only-left",) if self.only_left else ()
        armed = ("--armed",) if self.armed else ()
        return ("attach", "--recording", self.recording, "--node", node, *linger, *spool, *only_left, *armed)


@dataclass(frozen=True)
class Bootstrap:
    """Recipe for starting agents: shell commands to run first, the Python to use, and the agents' task."""

    setup: str = ""
    agent_python: str = ""
    serving: Serving = Serving()

    def script(self, *arguments: str) -> bytes:
        """Return the command for ``SHELL`` that finds or fetches the agent on a node and runs it there.

        It is one command, so that the shell has read it whole before it runs, and leaves what follows to the
        agent. Nothing may follow before a line came back.
        """
        # The "?": a neighbour may own this path on a node.
        names = self.agent_python or ":".join((f"?{sys.executable}", "python3", *_OTHER_PYTHONS))
        shell = ["bash", "-l", "-c", _SETUP + _RUN] if self.setup else ["sh", "-c", _RUN]
        bundle = own_bundle()
        words = [*shell, "gswarm-agent", bundle.name, bundle.manifest_hash, names, *arguments]
        return os.fsencode(f"exec {shlex.join(words)}\n")

    def explain(self, kind: str, text: str, stderr: bytes, old_version: str) -> LaunchError:
        """Return the error for a ``GSWARM-FAIL`` line."""
        line = f": {message}" if (message := last_line(stderr)) else ""
        remedy, step = "", LaunchStep.UNPACK
        match kind:
            case "setup":
                # A shell quotes the line of the setup that failed, and the event with it is recorded.
                line = redact([line])[0]
                reason, remedy = f"the setup failed with exit status {text}{line}", "correct --setup"
                step = LaunchStep.SETUP
            case "broken" | "python":
                remedy = "correct --agent-python" if self.agent_python else _PYTHON_REMEDY
                step = LaunchStep.PYTHON
                reason = f"the Python {self.agent_python}" if self.agent_python else "its python3"
                if kind == "broken":
                    reason = f"{text} can't be run as Python 3.9 or later{line}"
                elif old_version:
                    reason += f" is {old_version}; 3.9 or later with _ctypes is needed"
                else:
                    reason = f"{reason} can't be run" if self.agent_python else "it has no working python3"
                if kind == "python" and text:
                    reason += f"; the recorder's own Python isn't used there: others can change {text}"
            case "cache":
                reason = f"the agent can't be unpacked in {text}"
                remedy = "free some space there, or set XDG_CACHE_HOME to a folder of yours on the node"
            case "tool":
                reason = f"it lacks the program {text}"
                remedy = f"install {text} on the node, or add its folder to PATH with --setup"
            case "noise":
                reason, step = f"no agent answered, only other output: {text}", LaunchStep.COMMAND
            case _:
                reason = "the agent arrived damaged"
        return LaunchError(clean(reason), remedy, Retry.SLOWLY if remedy else Retry.SOON, step)


class Greeting:
    """The exchange with a node before its agent's first message, without I/O.

    The node gets the setup once, and the bundle at most twice: for its cache, and for /tmp if that fails.
    ``heard`` is whether the login shell got as far as to run the script.
    """

    def __init__(self, bundle: Bundle, setup: str = "") -> None:
        self._bundle = bundle
        self._setup = setup
        self._replies_left = {b"SETUP": 1, b"NEED": 2}
        self._buffer = b""
        self._received = 0
        self.noise = b""
        self.heard = False
        self.old_version = ""
        self.failure: tuple[str, str] | None = None
        self.wire: bytes | None = None

    def feed(self, data: bytes) -> bytes:
        """Take in bytes; return the reply.

        Sets ``wire``, the bytes from the magic on, when the agent speaks, or ``failure``, a kind and a text.
        """
        self._buffer += data
        self._received += len(data)
        reply = b""
        while self.wire is None and self.failure is None:
            at = self._buffer.find(MAGIC)
            line = _LINE.search(self._buffer, 0, at if at >= 0 else len(self._buffer))
            if line is None:
                if at >= 0:
                    self.noise, self.wire = self.noise + self._buffer[:at], self._buffer[at:]
                break
            self.noise += self._buffer[: line.start()]
            self._buffer = self._buffer[line.end() :]
            self.heard = True
            word, text = line[1], (line[2] or b"").decode("utf-8", "replace")
            if word in self._replies_left:
                reply += self._reply(word)
            elif word == b"OLD":
                self.old_version = self.old_version or clean(text, 40)
            elif word == b"FAIL":
                kind, _, rest = text.partition(" ")
                self.failure = kind, rest
        if self.wire is None and self._received > MAX_NOISE:
            self.failure = self.failure or ("noise", self.last_noise())
        return reply

    def last_noise(self) -> str:
        """Return the last line of other output."""
        return last_line(self.noise + self._buffer)

    def _reply(self, word: bytes) -> bytes:
        if not self._replies_left[word]:
            return b""
        self._replies_left[word] -= 1
        if word == b"SETUP":
            return base64.b64encode(self._setup.encode()) + b"\n"
        return self._bundle.payload  # packed only if some node lacks it


async def greet(
    channel: Inbox, bootstrap: Bootstrap, arguments: Sequence[str], starter: str = "its login shell"
) -> None:
    """Run the agent with these arguments by a channel to ``SHELL``, until it speaks.

    ``starter`` is what runs the shell there. Raises LaunchError; the channel is closed then.
    """
    greeting = Greeting(own_bundle(), bootstrap.setup)
    channel.write(bootstrap.script(*arguments))
    try:
        async with asyncio.timeout(GREETING_S):
            while greeting.wire is None:
                data = await channel.read()
                if not data:
                    raise _explain_end(await channel.explain_end(), greeting, starter, channel.stderr())
                if reply := greeting.feed(data):
                    channel.write(reply)
                if greeting.failure is not None:
                    await channel.explain_end()
                    kind, text = greeting.failure
                    raise bootstrap.explain(kind, text, channel.stderr(), greeting.old_version)
    except TimeoutError:
        await channel.close()
        reason = f"the agent didn't answer within {GREETING_S:.0f} s"
        raise _explain_end(reason, greeting, starter, channel.stderr()) from None
    except ConnectionError as error:
        await channel.close()
        raise LaunchError(clean(f"the connection broke: {error}")) from None
    except BaseException:
        await channel.close()
        raise
    channel.unread(greeting.wire)


def _explain_end(reason: str, greeting: Greeting, starter: str, stderr: bytes) -> LaunchError:
    """Return the error for an end of which the agent, the subject of ``reason``, gave no explanation."""
    if greeting.heard:
        return LaunchError(reason)
    reason = reason.replace("the agent", starter, 1)
    line = "" if last_line(stderr) else greeting.last_noise()
    return LaunchError(clean(f"{reason}: {line}" if line else reason), step=LaunchStep.COMMAND)
