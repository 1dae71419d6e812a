"""The login node of a test cluster, with its network, slurmctld and munged."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.cluster import running
from tests.cluster.namespaces import ProcessId, entering, inside
from tests.cluster.running import words_of
from tests.terminal import PATIENCE_S

MARK = "GSWARM_TEST_CLUSTER"
"""Environment variable of all processes of a cluster; its value is the cluster's root folder."""

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


@dataclass(frozen=True)
class Login:
    """The login node: shares the machine's files and processes; has its own network, host name and /run."""

    root: Path

    @property
    def home(self) -> Path:
        """The user's home folder, shared with the nodes that have no home of their own."""
        return self.root / "home"

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return self.root / "login"

    @property
    def pid_file(self) -> Path:
        """The file with the pid of its init."""
        return self.root / "login.pid"

    @property
    def slurm_conf(self) -> Path:
        """The value of SLURM_CONF."""
        return self.root / "slurm" / "slurm.conf"

    @cached_property
    def init(self) -> ProcessId:
        """The process that the whole cluster ends with."""
        return ProcessId.of(int(self.pid_file.read_text()))

    def env(self) -> dict[str, str]:
        """Return the environment of a user after login, with the tests' virtual environment."""
        binaries = Path(sys.executable).parent
        return {
            "HOME": str(self.home),
            "USER": "root",
            "LOGNAME": "root",
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "PATH": f"{binaries}:{SYSTEM_PATH}",
            "SLURM_CONF": str(self.slurm_conf),
            MARK: str(self.root),
        }

    def words(self, command: str | Sequence[str], *, daemon: bool = False) -> list[str]:
        """Return the argument list that runs a command here; text is a bash command.

        A daemon is a process of the cluster's own and ends with it; anything else is one of the machine's.
        """
        folder = str(self.root) if daemon else str(Path.cwd())
        return [*entering(self.init.pid, self.env(), folder, as_process_of=daemon), *words_of(command)]

    def run(
        self, command: str | Sequence[str], *, check: bool = True, timeout: float = PATIENCE_S, text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command here to its end; ClusterError if it fails and `check` is on."""
        return running.run(self.words(command), check=check, timeout=timeout, text=text)

    def log(self, daemon: str) -> Path:
        """The log of one of its daemons ("init", "munged", "slurmctld")."""
        return self.root / "logs" / f"login-{daemon}.log"

    def start_slurmctld(self) -> None:
        """Start slurmctld; returns when it answers."""
        log = self.log("slurmctld")
        pid_file = self.seen_from_outside("/run/slurm/slurmctld.pid")
        running.start_daemon(self.words("slurmctld", daemon=True), "slurmctld", log, pid_file)
        running.wait_until(self._slurm_answers, "an answer from slurmctld", log)

    def _slurm_answers(self) -> bool:
        return self.run("scontrol ping", check=False).returncode == 0

    def idle_nodes(self) -> set[str]:
        """Return the idle nodes."""
        return set(self.run(["sinfo", "--noheader", "--Node", "--states=idle", "--format=%N"]).stdout.split())

    def seen_from_outside(self, path: str) -> Path:
        """Return the path by which this process reaches a file of the node, such as in /run."""
        return Path(f"/proc/{self.init.pid}/root{path}")

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Move this thread and its child processes to the login node."""
        with inside(self.init.pid):
            yield
