"""One node of a test cluster: runs commands on it and makes it fail."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.cluster import running
from tests.cluster.kinds import Kind
from tests.cluster.login import SYSTEM_PATH, Login
from tests.cluster.namespaces import ProcessId, entering
from tests.cluster.running import words_of
from tests.terminal import PATIENCE_S

_SSHD_PID = "/run/sshd.pid"
_SLURMD_PID = "/run/slurm/slurmd.pid"


@dataclass(frozen=True)
class ClusterNode:
    """A real node: network, host name, processes and files of its own, with sshd and maybe slurmd."""

    name: str
    kind: Kind
    index: int
    home: Path
    login: Login
    gpus: int

    @property
    def address(self) -> str:
        """Its IPv4 address on the cluster's network."""
        return address_of(self.index)

    @property
    def scenario(self) -> Path:
        """The scenario file that this node's NVML stand-in reads."""
        return self.login.root / "scenarios" / f"{self.name}.scenario"

    @property
    def folder(self) -> Path:
        """The folder of its configuration."""
        return self.login.root / "nodes" / self.name

    def log(self, daemon: str) -> Path:
        """The log of one of its daemons ("init", "sshd", "slurmd")."""
        return self.login.root / "logs" / f"{self.name}-{daemon}.log"

    @cached_property
    def init(self) -> ProcessId:
        """The process that the node ends with."""
        return ProcessId.of(int((self.folder / "init.pid").read_text()))

    def env(self) -> dict[str, str]:
        """Return the environment of commands run here without SSH or Slurm."""
        paths = "/usr/bin:/bin" if self.kind is Kind.BARE else SYSTEM_PATH
        return {"HOME": str(self.home), "USER": "root", "LANG": "C.UTF-8", "PATH": paths}

    def words(self, command: str | Sequence[str]) -> list[str]:
        """Return the argument list that runs a command on this node; text is a bash command."""
        prefix = entering(self.init.pid, self.env(), str(self.home), as_process_of=True)
        return [*prefix, *words_of(command)]

    def run(
        self, command: str | Sequence[str], *, check: bool = True, timeout: float = PATIENCE_S, text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on this node, without SSH. Raises ClusterError if it fails and `check` is on."""
        return running.run(self.words(command), check=check, timeout=timeout, text=text)

    @contextmanager
    def spawn(self, command: str | Sequence[str]) -> Iterator[int]:
        """Run a command on this node while the context lasts; yield its pid there, as NVML reports it."""
        words = self.words(["bash", "-c", 'echo $$; exec "$@" >/dev/null', "spawned", *words_of(command)])
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as popen:
            assert popen.stdout is not None
            pid = int(popen.stdout.readline())
            try:
                yield pid
            finally:
                self.run(f"kill -KILL {pid}", check=False)

    def partition(self) -> None:
        """Disconnect the node from the network like a pulled cable: packets are lost."""
        self.login.run(["ip", "link", "set", "dev", interface_of(self.index), "down"])

    def heal(self) -> None:
        """Reconnect it to the network."""
        self.login.run(["ip", "link", "set", "dev", interface_of(self.index), "up"])

    def start_sshd(self) -> None:
        """Start sshd; returns when it accepts connections."""
        words = ["/usr/sbin/sshd", "-f", str(self.folder / "sshd_config"), "-E", str(self.log("sshd"))]
        self._start("sshd", words, _SSHD_PID)

    def stop_sshd(self) -> None:
        """Stop sshd and end its connections; new ones are refused."""
        self.end_connections()
        self._stop(_SSHD_PID)

    def end_connections(self) -> None:
        """End the open SSH connections; new ones are accepted."""
        self.run(f'pkill -KILL --parent "$(cat {_SSHD_PID})"', check=False)

    def start_slurmd(self) -> None:
        """Start slurmd; it registers with slurmctld by itself."""
        variables = [f"PATH={SYSTEM_PATH}", f"SLURM_CONF={self.login.slurm_conf}"]
        self._start("slurmd", ["env", *variables, "slurmd", "-N", self.name], _SLURMD_PID)

    def _start(self, daemon: str, words: Sequence[str], pid_file: str) -> None:
        path = Path(f"/proc/{self.init.pid}/root{pid_file}")  # in this node's own /run
        running.start_daemon(self.words(words), f"{daemon} on {self.name}", self.log(daemon), path)

    def _stop(self, pid_file: str) -> None:
        gone = 'while kill -0 "$pid" 2>/dev/null; do sleep 0.02; done'
        self.run(f'pid=$(cat {pid_file}) && kill "$pid" && {gone}; rm -f {pid_file}')


def address_of(index: int) -> str:
    """Return the address of a node by index; the login node has index 0."""
    return f"10.73.{(index + 1) // 256}.{(index + 1) % 256}"


def interface_of(index: int) -> str:
    """Return the login node's network interface for a node."""
    return f"node{index}"
