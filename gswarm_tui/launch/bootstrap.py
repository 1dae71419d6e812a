"""How an agent gets to run on a node that has nothing but a shell and some Python 3.9 or later.

``command`` is what runs there; ``Greeting`` is the head's half of what is said until the agent speaks.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gswarm_agent.wire import MAGIC, MAX_NOISE
from gswarm_tui.launch.base import Channel, LaunchError, Retry, clean, each, last_line
from gswarm_tui.launch.bundle import Bundle, own_bundle, own_folders, own_python

GREETING_S = 120.0
_PYTHON_REMEDY = "load one with --setup 'module load python', or name one with --agent-python"

# What the shell runs. It must hold no single quote, backslash pair, exclamation mark or line break, so that
# it means the same inside single quotes of every login shell: sh, bash, zsh, csh and fish.
# Arguments: the Pythons to try, after "=" in base64 if they hold unusual characters; the first stage in hex,
# which Python decodes before another program would have started; then the first stage's own. The setup isn't
# among them, because every user of a node sees all arguments: it is asked for.
_SETUP = (
    "exec 3>&1 1>&2; echo GSWARM-SETUP >&3; IFS= read -r setup; "
    "failed() { s=$?; echo GSWARM-FAIL setup $s >&3; exit $s; }; trap failed EXIT; "
    'eval "$(printf %s "$setup" | base64 -d)" </dev/null; s=$?; set +eu; [ $s = 0 ] || exit $s; '
    "trap - EXIT; exec 1>&3 3>&-; "
)
_RUN = (
    'case $1 in =*) pythons=$(printf %s "${1#=}" | base64 -d);; *) pythons=$1;; esac; shift; '
    "set -f; IFS=:; "
    'for python in $pythons; do command -v "$python" >/dev/null 2>&1 || continue; '
    's=0; "$python" -IS -c "import sys; exec(bytes.fromhex(sys.argv.pop(1)))  # gswarm-agent" "$@" || s=$?; '
    "case $s in 64|126|127) ;; *) exit $s;; esac; done; "
    "echo GSWARM-FAIL python; exit 3"
)
_OTHER_PYTHONS = tuple(f"python3.{minor}" for minor in range(14, 8, -1))
_USUAL = re.compile(r"[\w./:+-]+", re.ASCII)
_PLAIN_PATH = re.compile(r"/[\w./+-]{1,80}", re.ASCII)
_SAID = re.compile(rb"GSWARM-(SETUP|NEED|OLD|FAIL|AT)(?: ([^\n]*))?\n")


@dataclass(frozen=True)
class Serving:
    """What an agent is for: the recording with this uid; with an empty one it ends with its connection.

    ``linger_s`` and ``spool_mib`` are how long it goes on alone and what it keeps on disk meanwhile, None for
    its own defaults. With ``only_left`` it measures nothing, and gives what earlier ones left.
    """

    recording: str = ""
    linger_s: int | None = None
    spool_mib: int | None = None
    only_left: bool = False

    def words(self, node: str) -> tuple[str, ...]:
        """The arguments that start the agent of a node."""
        if not self.recording:
            return ("stream",)
        linger = () if self.linger_s is None else ("--linger", str(self.linger_s))
        spool = () if self.spool_mib is None else ("--spool-mib", str(self.spool_mib))
        only_left = ("--only-left",) if self.only_left else ()
        return ("attach", "--recording", self.recording, "--node", node, *linger, *spool, *only_left)

    def end(self, node: str) -> tuple[str, ...]:
        """The arguments that tell how the agent of a node ended."""
        return "ended", "--recording", self.recording, "--node", node


@dataclass(frozen=True)
class Bootstrap:
    """What the user asks of the agent's start: shell commands to run first, a Python; and what it is for."""

    setup: str = ""
    agent_python: str = ""
    serving: Serving = Serving()

    def command(self, *arguments: str) -> list[str]:
        """The argument list that finds or fetches the agent on a node and runs it there."""
        return [*self._program, *arguments]

    def command_line(self, *arguments: str) -> str:
        """The same for a login shell of any kind: each word in single quotes."""
        return f"exec {self._quoted} {_quote(arguments)}"

    @functools.cached_property
    def _program(self) -> list[str]:
        """What is the same on all nodes."""
        bundle = own_bundle()
        script = ["bash", "-l", "-c", _SETUP + _RUN] if self.setup else ["sh", "-c", _RUN]
        stage = bundle.files["gswarm_agent/stage0.py"]
        pythons = [self.agent_python] if self.agent_python else [own_python(), "python3", *_OTHER_PYTHONS]
        named = ":".join(filter(None, pythons))
        if not _USUAL.fullmatch(named):
            named = "=" + base64.b64encode(os.fsencode(named)).decode()
        # Who names a Python may want another than the head's environment.
        folders = "" if self.agent_python else os.fsencode("\0".join(own_folders())).hex()
        told = (bundle.bundle_id, bundle.package_id, folders)
        return [*script, "gswarm-agent", named, stage.hex(), *told]

    @functools.cached_property
    def _quoted(self) -> str:
        return _quote(self._program)

    def explain(self, kind: str, text: str, stderr: bytes, old_version: str) -> LaunchError:
        """The error behind a ``GSWARM-FAIL``."""
        said = last_line(stderr)
        if kind == "setup":
            reason = f"the setup failed with exit status {text}" + (f": {said}" if said else "")
            return LaunchError(clean(reason), "correct --setup", Retry.SLOWLY)
        if kind == "python":
            if self.agent_python:
                is_old = f" is {old_version}, and 3.9 or later is needed" if old_version else " can't be run"
                reason = f"the Python {self.agent_python}{is_old}"
                return LaunchError(clean(reason), "correct --agent-python", Retry.SLOWLY)
            reason = "it has no python3 that runs"
            if old_version:
                reason = f"its python3 is {old_version}, and 3.9 or later is needed"
            return LaunchError(clean(reason), _PYTHON_REMEDY, Retry.SLOWLY)
        if kind == "cache":
            remedy = "make room in, or set XDG_CACHE_HOME to, a folder that can be written there"
            return LaunchError(clean(f"there is no place for the agent: {text}"), remedy, Retry.SLOWLY)
        if kind == "noise":
            return LaunchError(clean(f"no agent answered, only other output: {text}"))
        return LaunchError(clean(f"the agent arrived damaged: {text}"))


def _quote(words: Iterable[str]) -> str:
    return " ".join(f"'{word}'" for word in words)


class Greeting:
    """What a node says before its agent speaks, without I/O. Setup and bundle are given to it once each.

    ``top`` is where it has the folders of recordings, empty where it doesn't say so.
    """

    def __init__(self, bundle: Bundle, setup: str = "") -> None:
        self._answers: dict[bytes, Callable[[], bytes]] = {
            b"SETUP": lambda: base64.b64encode(setup.encode()) + b"\n",
            b"NEED": lambda: bundle.payload,  # packed only if some node lacks it
        }
        self._buffer = b""
        self._heard = 0
        self.noise = b""
        self.old_version = ""
        self.top = ""
        self.failure: tuple[str, str] | None = None
        self.wire: bytes | None = None

    def feed(self, data: bytes) -> bytes:
        """Take in bytes; returns what to answer.

        Sets ``wire``, the bytes from the magic on, when the agent speaks, or ``failure``, a kind and a text.
        """
        self._buffer += data
        self._heard += len(data)
        answer = b""
        while self.wire is None and self.failure is None:
            at = self._buffer.find(MAGIC)
            said = _SAID.search(self._buffer, 0, at if at >= 0 else len(self._buffer))
            if said is None:
                if at >= 0:
                    self.noise, self.wire = self.noise + self._buffer[:at], self._buffer[at:]
                break
            self.noise += self._buffer[: said.start()]
            self._buffer = self._buffer[said.end() :]
            what, text = said[1], (said[2] or b"").decode("utf-8", "replace")
            if what in (b"SETUP", b"NEED"):
                answer += self._answers.pop(what, bytes)()
            elif what == b"OLD":
                self.old_version = self.old_version or clean(text, 20)
            elif what == b"AT":
                self.top = text if _PLAIN_PATH.fullmatch(text) else ""
            else:
                kind, _, rest = text.partition(" ")
                self.failure = kind, rest
        if self.wire is None and self._heard > MAX_NOISE:
            self.failure = self.failure or ("noise", last_line(self.noise + self._buffer))
        return answer


class GreetedChannel:
    """A channel whose agent speaks already; see ``Channel``. ``top`` is as of ``Greeting``."""

    def __init__(self, channel: Channel, first: bytes, top: str = "") -> None:
        self._channel = channel
        self._first = first
        self.top = top
        self.write = channel.write
        self.stderr = channel.stderr
        self.explain_end = channel.explain_end
        self.close = channel.close

    async def read(self) -> bytes:
        """What came with the greeting, then what follows."""
        first, self._first = self._first, b""
        return first or await self._channel.read()

    async def each(self, take: Callable[[bytes], bool]) -> bool:
        """The same, as it comes."""
        first, self._first = self._first, b""
        return (first != b"" and take(first)) or await each(self._channel, take)


async def greet(channel: Channel, bootstrap: Bootstrap) -> GreetedChannel:
    """Bring a channel that runs ``bootstrap.command`` to where its agent speaks.

    Raises LaunchError; the channel is closed then.
    """
    greeting = Greeting(own_bundle(), bootstrap.setup)
    try:
        async with asyncio.timeout(GREETING_S):
            while greeting.wire is None:
                data = await channel.read()
                if not data:
                    raise LaunchError(await channel.explain_end())
                if answer := greeting.feed(data):
                    channel.write(answer)
                if greeting.failure is not None:
                    await channel.explain_end()
                    kind, text = greeting.failure
                    raise bootstrap.explain(kind, text, channel.stderr(), greeting.old_version)
    except TimeoutError:
        await channel.close()
        raise LaunchError(f"no agent answered within {GREETING_S:.0f} s") from None
    except ConnectionError as error:
        await channel.close()
        raise LaunchError(clean(f"the connection broke: {error}")) from None
    except BaseException:
        await channel.close()
        raise
    return GreetedChannel(channel, greeting.wire, greeting.top)
