"""py-spy as the recorder lends it: kept by its hash beside the agent, in a folder private to this user."""

from __future__ import annotations

import base64
import hashlib
import os
import zlib

from gswarm_agent.folder import open_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

MOST_BYTES = 64 << 20


def folder() -> str:
    """Return the folder of the agents' bundles, which the bootstrap made private."""
    bundle = os.path.abspath(f"{__file__}/../../..")  # noqa: PTH100
    is_bundle = os.path.basename(bundle).startswith("agent-")  # noqa: PTH119
    return os.path.dirname(bundle) if is_bundle else f"/tmp/gswarm-tui-{os.geteuid()}"  # noqa: PTH120, S108


def kept(digest: str) -> str:
    """Return the path of the program with this SHA-256, empty if it isn't here."""
    path = f"{folder()}/tool-{digest[:16]}"
    try:
        os.close(open_private(folder()))
        with open(path, "rb") as file:  # noqa: PTH123
            return path if hashlib.sha256(file.read(MOST_BYTES)).hexdigest() == digest else ""
    except OSError:
        return ""


def ask(request: Dict[str, Any]) -> Dict[str, Any]:
    """Keep the program ``data`` if its SHA-256 is ``digest``; return ``{}``, or why it can't be kept."""
    try:
        content = zlib.decompressobj().decompress(base64.b64decode(request["data"]), MOST_BYTES)
        digest = hashlib.sha256(content).hexdigest()
        if digest != request["digest"]:
            return {"why": "py-spy arrived damaged"}
        place = open_private(folder(), create=True)
        # Nodes and recorders may share the folder, so the file gets its name when it is whole.
        new = f"new-{os.urandom(8).hex()}"
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700, dir_fd=place), "wb") as file:
            file.write(content)
        os.rename(new, f"tool-{digest[:16]}", src_dir_fd=place, dst_dir_fd=place)
    except (OSError, zlib.error) as error:
        return {"why": f"py-spy can't be kept in {folder()}: {getattr(error, 'strerror', None) or error}"}
    return {}
