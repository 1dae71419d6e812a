"""Import of fetched traces into the running recording, by a process of its own at low priority."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

FAILED = "the import failed"


async def import_trace(db: Path, file: Path, node: str) -> str:
    """Import a file into a recording through its recorder; return why it failed, empty if it didn't."""
    command = ("nice", sys.executable, "-P", "-m", "gswarm_tui", "import", str(file), "--db", str(db))
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            f"--node={node}",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        return f"{FAILED}: {error.strerror}"
    try:
        _, errors = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode == 0:
        return ""
    lines = errors.decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("gswarm-tui: ").rstrip(".") if lines else FAILED
