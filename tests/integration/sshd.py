"""A real OpenSSH server on a high port of 127.0.0.1 for one test, as the user who runs the tests."""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")


def new_key(path: Path, passphrase: str = "", kind: str = "ed25519") -> None:
    """Write a new private key, and its public half beside it."""
    path.unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", str(path)], check=True)


def public(path: Path) -> str:
    """Return a public key as written in authorized_keys and known_hosts."""
    return Path(f"{path}.pub").read_text().strip()


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class SshServer:
    """A running server with keys for its clients; in ``config``, gpu01 and all other gpu names lead to it."""

    folder: Path
    pid: int = 0
    port: int = field(default_factory=free_port)

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def user_key(self) -> Path:
        return self.folder / "id_user"

    def sessions(self) -> list[int]:
        """Return the processes that serve its connections."""
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def trust(self, key: str | None = None) -> None:
        """Write a host key, by default the server's own, to known_hosts."""
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {key or public(self.folder / 'host')}\n")

    def config(self, *more: str) -> str:
        """Write a client configuration and return its path."""
        path = self.folder / "ssh_config"
        lines = [
            "Host gpu*",
            "  HostName 127.0.0.1",
            f"  Port {self.port}",
            f"  User {getpass.getuser()}",
            "Host *",
            f"  IdentityFile {self.user_key}",
            "  IdentityAgent none",
            f"  UserKnownHostsFile {self.known_hosts}",
            *more,
        ]
        path.write_text("\n".join(lines) + "\n")
        return str(path)


@contextmanager
def running(folder: Path, port: int = 0, **settings: str) -> Iterator[SshServer]:
    """Run sshd with additional ``settings``; it ends with its children at the end of the block."""
    assert SSHD is not None
    if Path("/run").exists():  # as root, sshd wants its empty folder, which a package's service makes
        with suppress(PermissionError):
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    server = SshServer(folder, port=port or free_port())
    new_key(folder / "host")
    new_key(server.user_key)
    (folder / "authorized_keys").write_text(public(server.user_key) + "\n")
    given = {
        "ListenAddress": "127.0.0.1",
        "Port": str(server.port),
        "HostKey": str(folder / "host"),
        "PidFile": "none",
        "AuthorizedKeysFile": str(folder / "authorized_keys"),
        "StrictModes": "no",
        "UsePAM": "no",
        "PermitRootLogin": "yes",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "AcceptEnv": "XDG_CACHE_HOME",
        **settings,
    }
    config = folder / "sshd_config"
    config.write_text("".join(f"{name} {value}\n" for name, value in given.items()))
    with (folder / "sshd.log").open("wb") as log:
        process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stderr=log
        )
    try:
        server.pid = process.pid
        _wait_until_it_listens(process, (given["ListenAddress"], server.port), folder / "sshd.log")
        yield server
    finally:
        process.terminate()
        process.wait()


def _wait_until_it_listens(process: subprocess.Popen[bytes], where: tuple[str, int], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(where) == 0:
                return
        time.sleep(0.02)
    raise AssertionError(f"sshd did not start: {log.read_text()}")
