"""The kinds of test cluster nodes, and what each has and lacks."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
_SCRATCH = tuple(map(Path, ("/tmp", "/var/tmp", "/dev/shm")))
_SYSTEM_PACKAGES = ("/usr/lib/python3/dist-packages", "/usr/local/lib", "/usr/local/bin")


class Kind(StrEnum):
    """A kind of node."""

    ORDINARY = "ordinary"
    """GPUs, and the head's own environment at the same path, as on a shared home."""
    BARE = "bare"
    """GPUs and a system python3 without packages; neither this repository nor its environment."""
    DRIVERLESS = "driverless"
    """As ordinary, without the NVIDIA library and GPU devices; not in Slurm."""
    REFUSING = "refusing"
    """An sshd that refuses the user's key; not in Slurm."""
    CHANGED_KEY = "changed-key"
    """An sshd whose host key is not the one in known_hosts; not in Slurm."""
    UNKNOWN_KEY = "unknown-key"
    """An sshd whose host key is not in known_hosts at all; not in Slurm."""

    @property
    def in_slurm(self) -> bool:
        """Whether Slurm runs jobs on it."""
        return self in {Kind.ORDINARY, Kind.BARE}

    @property
    def has_driver(self) -> bool:
        """Whether it has libnvidia-ml.so.1 and GPU device files."""
        return self is not Kind.DRIVERLESS


@dataclass(frozen=True)
class Folders:
    """Private folders of a node, which are empty at first, and the shared folders inside them."""

    own: tuple[Path, ...]
    shared: tuple[Path, ...]

    @classmethod
    def of(cls, kind: Kind, root: Path) -> Folders:
        """Return the folders of a node of this kind in the cluster at `root`."""
        head = {REPOSITORY, Path(sys.prefix), Path(sys.base_prefix)}
        mine = _outermost(head - {Path("/usr")})
        if kind is Kind.BARE:
            packages = (Path(sysconfig.get_path("purelib")), *map(Path, _SYSTEM_PACKAGES))
            own = _outermost(path for path in (*mine, *_SCRATCH, *packages) if path.is_dir())
            shared = [root]
        else:
            own = list(_SCRATCH)
            shared = [root, *mine]
        return cls(tuple(own), tuple(path for path in shared if any(map(path.is_relative_to, own))))


def _outermost(paths: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for path in sorted(set(paths)):  # a folder sorts before what is in it
        if not any(map(path.is_relative_to, found)):
            found.append(path)
    return found
