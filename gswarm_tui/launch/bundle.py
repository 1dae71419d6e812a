"""Bundle of the agent, pynvml and msgpack, as files that a node caches by their hash.

The manifest is what ``sha256sum`` prints for all files, and the bundle is named by the manifest's own hash.
So a node can check its copy with ``sha256sum --check``.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = "gswarm_agent/"
# The compiled half of msgpack fits one Python only; it falls back to these.
_MSGPACK = ("__init__.py", "exceptions.py", "ext.py", "fallback.py")
_HASH_DIGITS = 16


@dataclass(frozen=True)
class Bundle:
    """Files by their path inside the bundle."""

    files: Mapping[str, bytes]

    @functools.cached_property
    def manifest(self) -> bytes:
        """One line for each file, by path: its SHA-256, two spaces, its path."""
        hashes = ((hashlib.sha256(self.files[name]).hexdigest(), name) for name in sorted(self.files))
        return "".join(f"{digest}  {name}\n" for digest, name in hashes).encode()

    @functools.cached_property
    def manifest_hash(self) -> str:
        """The manifest's SHA-256, in hex."""
        return hashlib.sha256(self.manifest).hexdigest()

    @property
    def name(self) -> str:
        """The name of its folder on a node."""
        return f"agent-{self.manifest_hash[:_HASH_DIGITS]}"

    @functools.cached_property
    def payload(self) -> bytes:
        """The reply to a node that lacks the bundle: a line with a length, then a tar.gz of that length."""
        import tarfile  # only nodes without the bundle need it

        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz", format=tarfile.USTAR_FORMAT) as tar:
            for name, data in (*sorted(self.files.items()), ("MANIFEST", self.manifest)):
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(data), 0o600
                tar.addfile(entry, io.BytesIO(data))
        return b"%d\n" % len(packed.getvalue()) + packed.getvalue()


@functools.cache
def own_bundle() -> Bundle:
    """Return the bundle of the agent that belongs to this recorder."""
    agent = _folder_of("gswarm_agent")
    msgpack = _folder_of("msgpack")
    files = {_PACKAGE + path.relative_to(agent).as_posix(): path.read_bytes() for path in agent.rglob("*.py")}
    files[_PACKAGE + "run.sh"] = (agent / "run.sh").read_bytes()
    files |= {f"msgpack/{name}": (msgpack / name).read_bytes() for name in _MSGPACK}
    files["pynvml.py"] = (_folder_of("pynvml") / "pynvml.py").read_bytes()
    return Bundle(files)


def _folder_of(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"the module {module} has no file to send to a node")
    return Path(spec.origin).parent
