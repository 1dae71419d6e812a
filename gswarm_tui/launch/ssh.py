"""Starts agents over SSH, as the user's own ``ssh`` would: their configuration, agent, keys and known hosts.

Nothing is ever asked for or accepted silently: what ssh would ask about is an error with its remedy.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import asyncssh

from gswarm_tui.launch.base import LaunchError, Retry, allow_many_files, check_name, clean
from gswarm_tui.launch.bootstrap import Bootstrap, GreetedChannel, greet
from gswarm_tui.launch.process import describe_end, describe_status

HANDSHAKES_AT_ONCE = 64
CONNECT_S = 15.0
LOGIN_S = 30.0
KEEPALIVE_S = 15.0
SYSTEM_CONFIG = "/etc/ssh/ssh_config"
_USER_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_SYSTEM_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_HOST_KEY_TYPES = [
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
]
_DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_CHUNK = 256 * 1024
_STDERR_KEPT = 8 * 1024
_PATIENCE_S = 2.0
_SSH_PORT = 22
_ERRNO = re.compile(r"\[Errno (\d+)\]")
_HAS_PORT = re.compile(r"(\]|^[^:]*):\d+$")

TrustedKeys = tuple[Sequence[asyncssh.SSHKey], Sequence[asyncssh.SSHKey], Sequence[asyncssh.SSHKey]]

# Without a handler of its own, asyncssh's log would be printed over the screen.
logging.getLogger("asyncssh").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class SshSettings:
    """What the command line says about SSH; empty is what ``ssh`` would do.

    ``config`` is a file in place of the user's and the system's, ``jump`` hosts as for ``ssh -J``.
    """

    user: str = ""
    config: str = ""
    jump: str = ""
    system_config: str = SYSTEM_CONFIG

    def config_files(self) -> list[str]:
        """The configuration files to read; the first that sets an option wins."""
        if self.config:
            return [self.config]
        usual = [Path("~/.ssh/config").expanduser(), Path(self.system_config)]
        return [str(path) for path in usual if os.access(path, os.R_OK)]


class KnownHosts:
    """Known-hosts files, each parsed once and again when it changes; shared by all connections."""

    def __init__(self) -> None:
        self._parsed: dict[tuple[object, ...], asyncssh.SSHKnownHosts] = {}

    def read(self, paths: Sequence[Path]) -> asyncssh.SSHKnownHosts:
        """What these files say together; files that aren't there and lines that can't be read say nothing."""
        stamps = []
        for path in paths:
            with contextlib.suppress(OSError):
                found = path.stat()
                stamps.append((path, found.st_mtime_ns, found.st_size, found.st_ino))
        key = tuple(stamps)
        if key not in self._parsed:
            known = asyncssh.SSHKnownHosts()
            for path, *_ in stamps:
                for line in path.read_text("utf-8", "replace").splitlines():
                    with contextlib.suppress(ValueError):
                        known.load(line)
            self._parsed[key] = known
        return self._parsed[key]


@dataclass
class _Attempt(asyncssh.SSHClient):
    """What is learned on the way into one host, to explain a failure."""

    host: str
    known: KnownHosts
    options: asyncssh.SSHClientConnectionOptions | None = None
    banner: list[str] = field(default_factory=list)
    host_is_known: bool = False

    def auth_banner_received(self, msg: str, lang: str) -> None:
        """Keep what the server says before it lets anybody in, which is often why it doesn't."""
        self.banner.append(msg)

    def configured(self, name: str, default: Sequence[str]) -> list[Path]:
        """The files that an option of the SSH configuration names."""
        named = self.options.config.get(name, default) if self.options else default
        return [Path(str(one)).expanduser() for one in cast("Sequence[object]", named)]

    @property
    def agent_path(self) -> str:
        """The socket of the ssh-agent; empty where there is none."""
        named = (
            self.options.config.get("IdentityAgent", os.environ.get("SSH_AUTH_SOCK")) if self.options else ""
        )
        return str(named or "")

    @property
    def known_hosts_files(self) -> list[Path]:
        """The files in which ssh would look for the host's key."""
        return [
            *self.configured("UserKnownHostsFile", _USER_KNOWN_HOSTS),
            *self.configured("GlobalKnownHostsFile", _SYSTEM_KNOWN_HOSTS),
        ]

    def host_key_algorithms(self) -> list[str]:
        """What to ask the server for: the types of the keys that are known of it, then all others.

        With the known ones alone, a host whose only key is of another type would just hang up.
        """
        if self.options is None or self.options.config.get("HostKeyAlgorithms"):
            return []
        host = self.options.host_key_alias or self.options.host
        port = self.options.port if self.options.port != _SSH_PORT else None
        keys, authorities, _ = self.trusted_keys(host, "", port)
        if authorities or not keys:
            return []
        return list(dict.fromkeys([a.decode() for key in keys for a in key.sig_algorithms] + _HOST_KEY_TYPES))

    def trusted_keys(self, host: str, _address: str, port: int | None) -> TrustedKeys:
        """For asyncssh: the host's keys, those of authorities, and revoked ones."""
        found = self.known.read(self.known_hosts_files).match(host, "", port)
        self.host_is_known = bool(found[0] or found[1])
        return found[0], found[1], found[2]


class SshChannel:
    """One agent over one SSH connection; see ``Channel``."""

    def __init__(
        self, connection: asyncssh.SSHClientConnection, process: asyncssh.SSHClientProcess[bytes]
    ) -> None:
        self._connection = connection
        self._process = process
        self._stderr = bytearray()
        self._reading_stderr = asyncio.create_task(self._read_stderr())

    async def read(self) -> bytes:
        """The next bytes of the agent's stdout, empty at the end."""
        try:
            return await self._process.stdout.read(_CHUNK)
        except (asyncssh.Error, OSError) as error:
            raise ConnectionError(str(error)) from None

    def write(self, data: bytes) -> None:
        """Send bytes to the agent's stdin."""
        with contextlib.suppress(OSError):
            self._process.stdin.write(data)

    def stderr(self) -> bytes:
        """The end of what was written to stderr so far."""
        return bytes(self._stderr)

    async def explain_end(self) -> str:
        """How the agent or the connection ended."""
        with contextlib.suppress(TimeoutError, asyncssh.Error, OSError):
            async with asyncio.timeout(_PATIENCE_S):
                await self._process.wait_closed()
                await asyncio.shield(self._reading_stderr)
        if self._process.exit_signal:
            return describe_end(f"was ended by SIG{self._process.exit_signal[0]}", self.stderr())
        if self._process.exit_status is None:
            return describe_end("broke off with the connection", self.stderr())
        return describe_end(describe_status(self._process.exit_status), self.stderr())

    async def close(self) -> None:
        """Close the connection; the agent sees the end of its input."""
        self._reading_stderr.cancel()
        self._connection.close()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._connection.wait_closed()
        except TimeoutError:
            self._connection.abort()
        await asyncio.wait([self._reading_stderr])

    async def _read_stderr(self) -> None:
        with contextlib.suppress(asyncssh.Error, OSError):
            while data := await self._process.stderr.read(_CHUNK):
                self._stderr += data
                del self._stderr[:-_STDERR_KEPT]


class SshLauncher:
    """Starts each agent over a connection of its own; jump hosts are connected to once. See ``Launcher``."""

    def __init__(self, settings: SshSettings | None = None, bootstrap: Bootstrap | None = None) -> None:
        allow_many_files()
        self._settings = settings or SshSettings()
        self._bootstrap = bootstrap or Bootstrap()
        self._known = KnownHosts()
        self._handshakes = asyncio.Semaphore(HANDSHAKES_AT_ONCE)
        self._jumps: dict[str, asyncio.Task[asyncssh.SSHClientConnection]] = {}

    async def open(self, node: str) -> GreetedChannel:
        """Connect to a node and start the agent on it."""
        check_name(node)
        async with self._handshakes:
            connection = await self._connect(node, self._settings.user, self._settings.jump, ())
        try:
            process = await connection.create_process(
                self._bootstrap.command_line("stream"), encoding=None, request_pty=False
            )
        except (asyncssh.Error, OSError) as error:
            connection.abort()
            raise LaunchError(
                clean(f"it lets nobody run a command: {error}"), f"try `ssh {node} true`"
            ) from None
        except BaseException:
            connection.abort()
            raise
        return await greet(SshChannel(connection, process), self._bootstrap)

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
        attempt = _Attempt(host, self._known)
        given: dict[str, object] = {"username": user} if user else {}
        if port:
            given["port"] = port
        try:
            options = attempt.options = await asyncssh.SSHClientConnectionOptions.construct(
                host=host,
                config=self._settings.config_files(),
                client_factory=lambda: attempt,
                known_hosts=attempt.trusted_keys,
                login_timeout=LOGIN_S,
                client_keys=None,
                **given,
            )
            jump = jump or (options.tunnel if isinstance(options.tunnel, str) else "")
            tunnel = None if jump in {"", *through} else await self._jump(jump, through)
            return await asyncssh.connect(
                host,
                options.port,
                options=options,
                config=None,
                tunnel=tunnel,
                connect_timeout=options.connect_timeout or CONNECT_S,
                keepalive_interval=options.keepalive_interval or KEEPALIVE_S,
                server_host_key_algs=attempt.host_key_algorithms() or (),
                # ssh passes over keys that aren't there or that it can't open; asyncssh does so when told to.
                client_keys=[str(path) for path in attempt.configured("IdentityFile", ()) if path.exists()],
                ignore_encrypted=True,
            )
        except asyncssh.PermissionDenied:
            raise await _explain_refusal(attempt) from None
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
        check_name(host)
        try:
            return await self._connect(host, user, before, (*through, jump), int(port))
        except LaunchError as error:
            reason = clean(f"the jump host {host} can't be used: {error.reason}")
            raise LaunchError(reason, error.remedy, error.retry) from None


def explain(error: Exception, attempt: _Attempt) -> LaunchError:
    """What an error on the way into a host means, and what to do about it."""
    host = attempt.host
    files = attempt.known_hosts_files
    known = _short(files[0]) if files else "known_hosts"
    match error:
        case asyncssh.HostKeyNotVerifiable() if "revoked" in error.reason:
            return LaunchError(
                f"its host key is revoked in {known}", "ask who runs the cluster", Retry.SLOWLY
            )
        case asyncssh.HostKeyNotVerifiable() if not attempt.host_is_known:
            remedy = f"run `ssh {host}` once to look at it and accept it"
            return LaunchError(f"its host key is not in {known}", remedy, Retry.SLOWLY)
        case asyncssh.HostKeyNotVerifiable() | asyncssh.KeyExchangeFailed() if (
            "host key" in error.reason.lower()
        ):
            remedy = f"if you know why it changed, run `ssh-keygen -R {host}` and then `ssh {host}` once"
            return LaunchError(f"its host key is not the one in {known}", remedy, Retry.SLOWLY)
        case socket.gaierror():
            return LaunchError("its name does not resolve", "look for a typo in --nodes", Retry.SLOWLY)
        case TimeoutError():
            return LaunchError("it does not answer in time", f"try `ssh {host}`")
        case asyncssh.ChannelOpenError():
            return LaunchError(clean(f"the jump host can't reach it: {error.reason}"))
        case asyncssh.Error():
            said = clean(" ".join(attempt.banner)) or error.reason
            return LaunchError(clean(f"the connection broke: {said}"), f"try `ssh {host}`")
        case OSError():
            return LaunchError(_explain_os(error), f"try `ssh {host}`")
        case _:
            remedy = "correct the SSH configuration or key that it names"
            return LaunchError(clean(f"SSH can't be set up: {error}"), remedy, Retry.SLOWLY)


async def _explain_refusal(attempt: _Attempt) -> LaunchError:
    user = attempt.options.username if attempt.options else ""
    reason = f"it refuses the user {user}"
    if banner := clean(" ".join(attempt.banner)):
        reason += f": {banner}"
    keys = attempt.configured("IdentityFile", _DEFAULT_KEYS)
    locked = [path for path in keys if _is_encrypted(path)]
    if locked and not await _has_one_of(attempt.agent_path, locked):
        reason += f" (the key {_short(locked[0])} has a passphrase and no ssh-agent offered it)"
        return LaunchError(clean(reason), "run `ssh-add` first", Retry.SLOWLY)
    remedy = (
        f"see whether `ssh {attempt.host}` gets in; many clusters let you in only while your job runs there"
    )
    return LaunchError(clean(reason), remedy, Retry.SLOWLY)


async def _has_one_of(agent_path: str, keys: Sequence[Path]) -> bool:
    """Whether an ssh-agent holds one of these keys, as told by the public halves beside them."""
    if not agent_path:
        return False
    try:
        async with asyncssh.connect_agent(agent_path) as agent:
            held = {key.public_data for key in await agent.get_keys()}
    except (asyncssh.Error, OSError, ValueError):
        return False
    for key in keys:
        with contextlib.suppress(OSError, ValueError):
            if asyncssh.read_public_key(f"{key}.pub").public_data in held:
                return True
    return False


def _short(path: Path) -> str:
    """A path as people write it."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _is_encrypted(path: Path) -> bool:
    try:
        asyncssh.read_private_key(path)
    except asyncssh.KeyEncryptionError:
        return True
    except asyncssh.KeyImportError as error:
        return "passphrase" in str(error).lower()
    except (OSError, ValueError):
        return False
    return False


def _explain_os(error: OSError) -> str:
    """One clause; where several addresses were tried, only asyncio's text has the reasons."""
    if error.filename:
        return clean(f"SSH can't be set up: {error.filename}: {error.strerror}")
    numbers = [error.errno] if error.errno else [int(n) for n in _ERRNO.findall(str(error))]
    if errno.ECONNREFUSED in numbers:
        return "it refuses connections: nothing listens on its SSH port"
    return clean(f"it can't be reached: {os.strerror(numbers[0]) if numbers else error}")
