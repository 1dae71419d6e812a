"""Connects to nodes and starts agents on them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial

import asyncssh

from gswarm_tui.launch.base import LaunchError, allow_many_files, check_name, clean
from gswarm_tui.launch.bootstrap import Bootstrap, GreetedChannel, greet
from gswarm_tui.launch.joining import meet, sockets
from gswarm_tui.launch.ssh.attempt import Attempt, KnownHosts
from gswarm_tui.launch.ssh.channel import CommandChannel, SocketChannel
from gswarm_tui.launch.ssh.configuration import Configuration
from gswarm_tui.launch.ssh.failures import explain, explain_refusal
from gswarm_tui.launch.ssh.keys import Keys, default_keys
from gswarm_tui.launch.ssh.settings import SshSettings

HANDSHAKES_AT_ONCE = 64
CONNECT_S = 15.0
LOGIN_S = 30.0
KEEPALIVE_S = 15.0
SELDOM = 10
MOST_REFUSALS = 2
"""In a row; from then on a node is joined by its socket at every tenth connection only: its server forbids to
forward to sockets, or its agents aren't where they are looked for, or they had ended and others serve now."""
# asyncssh's own choice begins with ChaCha20, which costs it five times as much a packet.
_CIPHERS = "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
_HAS_PORT = re.compile(r"(\]|^[^:]*):\d+$")
_LOG = logging.getLogger(__name__)

# Without a handler of its own, asyncssh's log would be printed over the screen.
logging.getLogger("asyncssh").addHandler(logging.NullHandler())


class SshLauncher:
    """Starts each agent over a connection of its own; jump hosts are connected to once. See ``Launcher``."""

    def __init__(self, settings: SshSettings | None = None, bootstrap: Bootstrap | None = None) -> None:
        allow_many_files()
        self._settings = settings or SshSettings()
        self._bootstrap = bootstrap or Bootstrap()
        self._configuration = Configuration()
        self._known = KnownHosts()
        self._keys = Keys()
        self._handshakes = asyncio.Semaphore(HANDSHAKES_AT_ONCE)
        self._refusals = Counter[str]()
        self._tops: dict[str, str] = {}
        self._jumps: dict[str, asyncio.Task[asyncssh.SSHClientConnection]] = {}

    async def open(self, node: str, *words: str) -> GreetedChannel:
        """Connect to a node and start the agent on it; see ``Asking`` for ``words``."""
        connection = await self._reach(node)
        return await self._run(connection, node, words or self._bootstrap.serving.words(node))

    async def join(self, node: str, lives: Collection[str]) -> GreetedChannel:
        """Connect to a node and join its agent by its socket; see ``Joining``."""
        connection = await self._reach(node)
        try:
            joined = await self._join(connection, node, lives)
        except BaseException:
            connection.abort()
            raise
        return joined or await self._run(connection, node, self._bootstrap.serving.words(node))

    async def _reach(self, node: str) -> asyncssh.SSHClientConnection:
        check_name(node)
        async with self._handshakes:
            return await self._connect(node, self._settings.user, self._settings.jump, ())

    async def _join(
        self, connection: asyncssh.SSHClientConnection, node: str, lives: Collection[str]
    ) -> GreetedChannel | None:
        """The agent that listens on a node, if it is in one of these lives."""
        recording = self._bootstrap.serving.recording
        refusals = self._refusals[node]
        if not recording:
            return None
        if refusals >= MOST_REFUSALS and refusals % SELDOM:  # this connection counts, too
            self._refusals[node] += 1
            return None
        for path in sockets(recording, node, self._tops.get(node, "")):
            channel = SocketChannel(connection, partial(self._how_it_ended, connection, node))
            try:
                await channel.open(path)
            except asyncssh.ChannelOpenError as error:
                _LOG.debug("%s: %s can't be reached: %s", node, path, error.reason)
                continue
            if joined := await meet(channel, lives):
                del self._refusals[node]
                return joined
            _LOG.debug("%s: at %s is no agent of this recording", node, path)
            channel.leave()
        if not connection.is_closed():
            self._refusals[node] += 1
        return None

    async def _how_it_ended(self, connection: asyncssh.SSHClientConnection, node: str) -> str:
        try:
            told = await self._run(connection, node, self._bootstrap.serving.end(node))
            return await told.explain_end()
        except LaunchError as error:
            return error.reason

    async def _run(
        self, connection: asyncssh.SSHClientConnection, node: str, words: Sequence[str]
    ) -> GreetedChannel:
        """Run the agent with these arguments."""
        channel = CommandChannel(connection)
        line = self._bootstrap.command_line(*words)
        try:
            await connection.create_session(lambda: channel, line, encoding=None, request_pty=False)
        except (asyncssh.Error, OSError) as error:
            if connection.is_closed():
                raise LaunchError("the connection broke off") from None
            connection.abort()
            raise LaunchError(
                clean(f"it lets nobody run a command: {error}"), f"try `ssh {node} true`"
            ) from None
        except BaseException:
            connection.abort()
            raise
        greeted = await greet(channel, self._bootstrap)
        if greeted.top:
            self._tops[node] = greeted.top
        return greeted

    async def close(self) -> None:
        """Disconnect from the jump hosts."""
        tasks, self._jumps = list(self._jumps.values()), {}
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, LaunchError):
                connection = await task
                connection.close()
                await connection.wait_closed()

    async def _connect(
        self, host: str, user: str, jump: str, through: tuple[str, ...], port: int = 0
    ) -> asyncssh.SSHClientConnection:
        """Connect to a host by its name, its configuration's jump hosts first. Raises LaunchError.

        ``through`` are the jump hosts that led here, which are not gone through again.
        """
        attempt = Attempt(host, self._known)
        try:
            paths = self._settings.config_files()
            options = attempt.options = await self._configuration.options(host, paths, user, port)
            jump = jump or (options.tunnel if isinstance(options.tunnel, str) else "")
            tunnel = None if jump in {"", *through} else await self._jump(jump, through)
            # ssh passes over keys that aren't there.
            named = [path for path in attempt.configured("IdentityFile", ()) if path.exists()]
            only_named = bool(options.config.get("IdentitiesOnly"))
            keys = await self._keys.pairs(
                named or default_keys(),
                attempt.configured("CertificateFile", ()),
                only_private=only_named,
            )
            return await asyncssh.connect(
                host,
                options.port,
                options=options,
                config=None,
                client_factory=lambda: attempt,
                known_hosts=attempt.trusted_keys,
                tunnel=tunnel,
                login_timeout=LOGIN_S,
                connect_timeout=options.connect_timeout or CONNECT_S,
                keepalive_interval=options.keepalive_interval or KEEPALIVE_S,
                encryption_algs=() if options.config.get("Ciphers") else _CIPHERS,
                server_host_key_algs=attempt.host_key_algorithms() or (),
                client_keys=keys,
                client_certs=[],  # the keys have theirs
                agent_identities=[str(path) for path in named] if only_named else (),
                x509_trusted_certs=None,  # ssh knows no such, and asyncssh would look for files of them
                x509_trusted_cert_paths=[],
                agent_forwarding=False,  # whatever the configuration says: nothing on a node needs the keys
            )
        except asyncssh.PermissionDenied:
            raise await explain_refusal(attempt) from None
        except (asyncssh.Error, OSError, ValueError) as error:
            raise explain(error, attempt) from None

    async def _jump(self, jump: str, through: tuple[str, ...]) -> asyncssh.SSHClientConnection:
        """The shared connection to the last of some jump hosts, ``[user@]host[:port],…``."""
        task = self._jumps.get(jump)
        if task is None or (
            task.done() and (task.cancelled() or task.exception() or task.result().is_closed())
        ):
            task = self._jumps[jump] = asyncio.create_task(self._open_jump(jump, through))
        return await asyncio.shield(task)

    async def _open_jump(self, jump: str, through: tuple[str, ...]) -> asyncssh.SSHClientConnection:
        before, _, last = jump.rpartition(",")
        user, _, address = last.rpartition("@")
        host, _, port = address.rpartition(":") if _HAS_PORT.search(address) else (address, "", "0")
        host = host.strip("[]")
        try:
            check_name(host, "--jump")
            return await self._connect(host, user, before, (*through, jump), int(port))
        except LaunchError as error:
            reason = clean(f"the jump host {host} can't be used: {error.reason}")
            raise LaunchError(reason, error.remedy, error.retry) from None
