"""The bundle: the agent and the two modules that it needs, as files named by what is in them.

A manifest has one line a file, ``SHA256 SIZE PATH``; the bundle's id is the manifest's own SHA-256, so a
node that has the id can tell by itself whether its copy is whole.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import stat
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = "gswarm_agent/"
# The compiled half of msgpack fits one Python only; it falls back to these.
_MSGPACK = ("__init__.py", "exceptions.py", "ext.py", "fallback.py")


@dataclass(frozen=True)
class Bundle:
    """Files by their path inside the bundle."""

    files: Mapping[str, bytes]

    @functools.cached_property
    def manifest(self) -> bytes:
        """One line a file, by path."""
        return _manifest(self.files)

    @functools.cached_property
    def bundle_id(self) -> str:
        """The SHA-256 of the manifest, in hex."""
        return hashlib.sha256(self.manifest).hexdigest()

    @functools.cached_property
    def package_id(self) -> str:
        """The same for the agent's own files, which an installed agent can be compared with."""
        own = {name: data for name, data in self.files.items() if name.startswith(_PACKAGE)}
        return hashlib.sha256(_manifest(own)).hexdigest()

    @functools.cached_property
    def payload(self) -> bytes:
        """What a node in need of it is sent: eight bytes of length, then manifest and files, packed."""
        contents = b"".join(self.files[name] for name in sorted(self.files))
        packed = zlib.compress(self.manifest + b"\0" + contents)
        return len(packed).to_bytes(8, "big") + packed


def _manifest(files: Mapping[str, bytes]) -> bytes:
    lines = (f"{hashlib.sha256(files[n]).hexdigest()} {len(files[n])} {n}\n" for n in sorted(files))
    return "".join(lines).encode()


@functools.cache
def own_bundle() -> Bundle:
    """The bundle of the agent that this head belongs to, from the files it is running from."""
    agent = _folder_of("gswarm_agent")
    msgpack = _folder_of("msgpack")
    files = {_PACKAGE + path.relative_to(agent).as_posix(): path.read_bytes() for path in agent.rglob("*.py")}
    files |= {f"msgpack/{name}": (msgpack / name).read_bytes() for name in _MSGPACK}
    files["pynvml.py"] = (_folder_of("pynvml") / "pynvml.py").read_bytes()
    return Bundle(files)


@functools.cache
def own_folders() -> tuple[str, ...]:
    """The folders from which this head imports what is in its bundle; none if others' may be there."""
    tops = (_folder_of("gswarm_agent").parent, _folder_of("msgpack").parent, _folder_of("pynvml"))
    return () if any(map(is_open_to_all, tops)) else tuple(dict.fromkeys(map(str, tops)))


def own_python() -> str:
    """The Python that this head runs in; empty if others' may be there."""
    return "" if is_open_to_all(Path(sys.executable)) else sys.executable


@functools.cache
def is_open_to_all(path: Path) -> bool:
    """Whether any user may have made the same path on another machine, as in ``/tmp``."""
    above = [parent for parent in path.absolute().parents if parent.exists()]
    return any(parent.stat().st_mode & stat.S_IWOTH for parent in above)


def _folder_of(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"the module {module} has no file to send to a node")
    return Path(spec.origin).parent
