"""Writes a test cluster's SSH files: the user's key and known_hosts, each node's host key and sshd_config."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.cluster.kinds import Kind

_SSHD_CONFIG = """\
ListenAddress {address}
HostKey {folder}/ssh_host_ed25519_key
AuthorizedKeysFile {authorized_keys}
PidFile /run/sshd.pid
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PrintMotd no
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
"""


def write_user(home: Path) -> None:
    """Write a key pair that nodes with this home folder accept, and an empty known_hosts."""
    folder = home / ".ssh"
    folder.mkdir(mode=0o700)
    public = new_key(folder / "id_ed25519", "user@login")
    (folder / "authorized_keys").write_text(public + "\n")
    (folder / "known_hosts").touch()


def write_own_home(home: Path, user_home: Path) -> None:
    """Make a node's own home folder accept the user's key."""
    folder = home / ".ssh"
    folder.mkdir(mode=0o700, parents=True)
    shutil.copy(user_home / ".ssh" / "authorized_keys", folder)


def write_node(folder: Path, name: str, address: str, kind: Kind, home: Path) -> None:
    """Write a node's host key and sshd_config, and its entry in the user's known_hosts."""
    public = new_key(folder / "ssh_host_ed25519_key", name)
    known = public if kind is not Kind.CHANGED_KEY else new_key(folder / "former_host_key", name)
    if kind is not Kind.UNKNOWN_KEY:
        with (home / ".ssh" / "known_hosts").open("a") as file:
            file.write(f"{name},{address} {known}\n")
    accepted = "none" if kind is Kind.REFUSING else ".ssh/authorized_keys"
    text = _SSHD_CONFIG.format(address=address, folder=folder, authorized_keys=accepted)
    if kind is Kind.BARE:
        text += "SetEnv PATH=/usr/bin:/bin\n"
    (folder / "sshd_config").write_text(text)


def new_key(path: Path, comment: str) -> str:
    """Make a key pair without passphrase; the public key, without its comment."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path], check=True)
    return " ".join(path.with_suffix(".pub").read_text().split()[:2])
