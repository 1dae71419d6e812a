"""Connects to nodes over SSH and starts agents on them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import asyncssh

from gswarm_tui.launch.base import (
    Channel,
    Launcher,
    LaunchError,
    LaunchStep,
    allow_many_files,
    check_name,
    clean,
)
from gswarm_tui.launch.bootstrap import SHELL, Bootstrap, greet
from gswarm_tui.launch.ssh.attempt import DEFAULT_KEYS, Attempt
from gswarm_tui.launch.ssh.channel import CommandChannel
from gswarm_tui.launch.ssh.configuration import SshConfiguration
from gswarm_tui.launch.ssh.failures import explain, explain_refusal

HANDSHAKES_AT_ONCE = 64
CONNECT_S = 15.0
LOGIN_S = 30.0
KEEPALIVE_S = 15.0
# asyncssh prefers ChaCha20, which costs it five times as much CPU for each packet.
_CIPHERS = "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
_HAS_PORT = re.compile(r"(\]|^[^:]*):\d+$")

# Without a handler of its own, asyncssh's log would be printed over the screen.
logging.getLogger("asyncssh").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class SshSettings:
    """The SSH options of the command line; for an empty one, the SSH configuration applies.

    ``config`` replaces the user's and the system's configuration file; ``jump`` is as for ``ssh -J``.
    """

    user: str = ""
    config: str = ""
    jump: str = ""

    def command(self, host: str, *, jump_host: bool = False) -> str:
        """Return the ssh command that connects to a host in the same way, to suggest it."""
        return self._command(host) if jump_host else self._command(host, user=self.user, jump=self.jump)

    def jump_host_command(self, command: str) -> str:
        """Return the ssh command that runs a shell's command on the last jump host, to suggest it."""
        before, user, host, port = split_jump(self.jump)
        return self._command(host, command, user=user, jump=before, port=port)

    def _command(self, *words: str, user: str = "", jump: str = "", port: int = 0) -> str:
        options = {"-F": self.config, "-J": jump, "-p": str(port or ""), "-l": user}
        given = [word for option in options.items() if option[1] for word in option]
        return shlex.join(["ssh", *given, *words])


class SshLauncher(Launcher):
    """Launcher with one SSH connection for each node; nodes behind a jump host share its connection."""

    def __init__(self, settings: SshSettings | None = None, bootstrap: Bootstrap | None = None) -> None:
        allow_many_files()
        self._settings = settings or SshSettings()
        self._configuration = SshConfiguration(self._settings.config)
        self._bootstrap = bootstrap or Bootstrap()
        self._handshakes = asyncio.Semaphore(HANDSHAKES_AT_ONCE)
        self._jumps: dict[str, asyncio.Task[asyncssh.SSHClientConnection]] = {}

    async def open(self, node: str, *arguments: str) -> Channel:
        """Connect to a node and start the agent, or run it with these ``arguments``."""
        check_name(node)
        async with self._handshakes:
            connection = await self._connect(node, self._settings.user, self._settings.jump, ())
        return await self._run(connection, node, arguments or self._bootstrap.serving.arguments(node))

    async def _run(
        self, connection: asyncssh.SSHClientConnection, node: str, arguments: Sequence[str]
    ) -> CommandChannel:
        """Run the agent with these arguments."""
        channel = CommandChannel(connection)
        try:
            async with asyncio.timeout(LOGIN_S):
                await connection.create_session(
                    lambda: channel, f"exec {SHELL}", encoding=None, request_pty=False
                )
        except (asyncssh.Error, OSError) as error:
            connection.abort()
            why = str(error) or f"no answer within {LOGIN_S:.0f} s"
            raise LaunchError(
                clean(f"its SSH server ran no command: {why}"),
                f"try `{self._settings.command(node)} true`",
                step=LaunchStep.COMMAND,
            ) from None
        except BaseException:
            connection.abort()
            raise
        try:
            await greet(channel, self._bootstrap, arguments)
        except LaunchError as error:
            if error.step is LaunchStep.COMMAND:
                error.remedy = error.remedy or f"try `{self._settings.command(node)} true`"
            raise
        return channel

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
        """Connect to a host, through its jump hosts if it has any. Raises LaunchError.

        ``through`` holds the jump hosts on the way here, so that a jump host isn't its own jump host.
        """
        command = self._settings.command(host, jump_host=bool(through))
        attempt = Attempt(host, is_jump_host=bool(through), command=command)
        try:
            options, attempt.host_keys = await self._configuration.read(host, user, port)
            attempt.options = options
            jump = jump or (options.tunnel if isinstance(options.tunnel, str) else "")
            tunnel = None if jump in {"", *through} else await self._jump(jump, through)
            # As ssh does, skip keys that don't exist.
            keys = [path for path in attempt.files("IdentityFile", DEFAULT_KEYS) if path.exists()]
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
                encryption_algs=() if attempt.is_set("Ciphers") else _CIPHERS,
                compression_algs=None,  # one packet could unpack to 256 MB
                client_keys=attempt.key_pairs(keys),
                client_host_keysign=attempt.keysign(),
                client_certs=[],  # the key pairs include them
                agent_identities=[str(path) for path in keys] if attempt.is_set("IdentitiesOnly") else (),
                x509_trusted_certs=None,  # OpenSSH has none
                x509_trusted_cert_paths=[],
                agent_forwarding=False,  # even if configured: nothing on a node needs the keys
            )
        except asyncssh.PermissionDenied:
            raise explain_refusal(attempt) from None
        except (asyncssh.Error, OSError, ValueError) as error:
            raise explain(error, attempt) from None

    async def _jump(self, jump: str, through: tuple[str, ...]) -> asyncssh.SSHClientConnection:
        """Return the shared connection to the last of these jump hosts, ``[user@]host[:port],…``."""
        task = self._jumps.get(jump)
        if task is None or (
            task.done() and (task.cancelled() or task.exception() or task.result().is_closed())
        ):
            task = self._jumps[jump] = asyncio.create_task(self._open_jump(jump, through))
        return await asyncio.shield(task)

    async def _open_jump(self, jump: str, through: tuple[str, ...]) -> asyncssh.SSHClientConnection:
        before, user, host, port = split_jump(jump)
        try:
            check_name(host, "--jump")
            return await self._connect(host, user, before, (*through, jump), port)
        except LaunchError as error:
            reason = clean(f"the jump host {host} can't be used: {error.reason}")
            raise LaunchError(reason, error.remedy, error.retry, error.step) from None


def split_jump(jump: str) -> tuple[str, str, str, int]:
    """Return the jump hosts before the last of ``[user@]host[:port],…``, and its user, host and port or 0."""
    before, _, last = jump.rpartition(",")
    user, _, address = last.rpartition("@")
    host, _, port = address.rpartition(":") if _HAS_PORT.search(address) else (address, "", "0")
    return before, user, host.strip("[]"), int(port)
