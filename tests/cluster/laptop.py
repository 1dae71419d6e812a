"""A laptop that reaches only the login node of a test cluster, by SSH."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import ssh
from tests.cluster.cluster import Cluster
from tests.cluster.running import start_daemon

_CABLE = """\
netns add laptop
link add laptop0 type veth peer name eth0 netns laptop
address add 10.74.0.1/24 dev laptop0
link set laptop0 up
"""
_LAPTOP = """\
address add 10.74.0.2/24 dev eth0
link set eth0 up
route add {login}/32 via 10.74.0.1
"""
_SSHD_CONFIG = """\
ListenAddress {login}
HostKey {folder}/host_key
AuthorizedKeysFile {home}/.ssh/authorized_keys
PidFile /run/sshd-login.pid
UsePAM no
SetEnv SLURM_CONF={slurm_conf} PATH={path}
"""
LOGIN_ADDRESS = "10.73.0.1"


@dataclass(frozen=True)
class Laptop:
    """A network of its own, with a home folder; ``words`` runs a command there."""

    cluster: Cluster
    home: Path

    def words(self, *command: str) -> list[str]:
        """Return the argument list of a command that runs on the laptop, in its home folder."""
        env = {**self.cluster.env(), "HOME": str(self.home)}
        del env["SLURM_CONF"]
        variables = [f"{name}={value}" for name, value in env.items()]
        network = ["nsenter", "--net=/run/netns/laptop"]
        return self.cluster.login.words(
            [*network, "env", "--ignore-environment", f"--chdir={self.home}", *variables, *command]
        )


@contextmanager
def laptop(cluster: Cluster) -> Iterator[Laptop]:
    """Start an sshd on the login node, and connect a laptop to it alone."""
    folder = cluster.root / "laptop"
    home = folder / "home"
    (home / ".ssh").mkdir(mode=0o700, parents=True)
    shutil.copy(cluster.home / ".ssh" / "id_ed25519", home / ".ssh")
    shutil.copy(cluster.home / ".ssh" / "id_ed25519.pub", home / ".ssh")
    public = ssh.new_key(folder / "host_key", "login")
    (home / ".ssh" / "known_hosts").write_text(f"login,{LOGIN_ADDRESS} {public}\n")
    (folder / "sshd_config").write_text(
        _SSHD_CONFIG.format(
            login=LOGIN_ADDRESS,
            folder=folder,
            home=cluster.home,
            slurm_conf=cluster.login.slurm_conf,
            path=cluster.env()["PATH"],
        )
    )
    pid_file = cluster.login.seen_from_outside("/run/sshd-login.pid")
    sshd = ["/usr/sbin/sshd", "-f", str(folder / "sshd_config"), "-E", str(cluster.login.log("sshd"))]
    cluster.login.run("mkdir -p /run/sshd")
    start_daemon(cluster.login.words(sshd), "sshd on the login node", cluster.login.log("sshd"), pid_file)
    try:
        cluster.run(["ip", "-batch", "-"], text=_CABLE)
        cluster.run(["ip", "-n", "laptop", "-batch", "-"], text=_LAPTOP.format(login=LOGIN_ADDRESS))
        yield Laptop(cluster, home)
    finally:
        os.kill(int(pid_file.read_text()), signal.SIGTERM)
        cluster.run("ip netns delete laptop; ip link delete laptop0", check=False)
        shutil.rmtree(folder)
