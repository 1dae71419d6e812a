"""Process that renders metric families as text, so that a scrape of thousands of GPUs delays nothing else.

``python -m gswarm_tui.server.rendering`` reads requests from standard input and writes texts to standard
output, each after its length, until its parent is gone.
"""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from gswarm_tui.control.messages import LENGTH, decode, encode
from gswarm_tui.server.exposition import FamilyTable, MetricFamily
from gswarm_tui.server.exposition_text import exposition_text

_FASTEST = 1
_GZIP = 16 + zlib.MAX_WBITS
"""zlib writes a gzip header for this window."""


class RenderingError(Exception):
    """Raised if the process ended or can't be started."""


class RenderingProcess:
    """The process, seen from its parent: it starts with the first text."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def text(self, tables: Sequence[FamilyTable], content_type: str, *, compress: bool) -> bytes:
        """Return the text of these families, compressed with gzip if ``compress``. Raises RenderingError."""
        request = {"tables": [_packed(table) for table in tables], "type": content_type, "gzip": compress}
        async with self._lock:
            try:
                process = self._process = await self._started()
                assert process.stdin is not None  # noqa: S101 - both are pipes
                assert process.stdout is not None  # noqa: S101
                process.stdin.write(encode(request))
                await process.stdin.drain()
                (size,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
                return await process.stdout.readexactly(size)
            except (OSError, asyncio.IncompleteReadError):
                raise RenderingError("the process that renders them ended or can't be started") from None
            except BaseException:  # what it still sends belongs to no request
                await self.close()
                raise

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-P", "-m", __name__),
            stdin=pipe,
            stdout=pipe,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )


def _packed(table: FamilyTable) -> dict[str, Any]:
    return {"families": table.families, "labels": table.labels, "values": table.values.tobytes()}


def _unpacked(values: dict[str, Any]) -> FamilyTable:
    families = tuple(MetricFamily(*family) for family in values["families"])
    table = np.frombuffer(values["values"]).reshape(len(values["labels"]), len(families))
    return FamilyTable(families, values["labels"], table)


def _serve(requests: BinaryIO, texts: BinaryIO) -> None:
    while len(prefix := requests.read(LENGTH.size)) == LENGTH.size:
        request = decode(requests.read(*LENGTH.unpack(prefix)))
        text = exposition_text([_unpacked(table) for table in request["tables"]], request["type"])
        if request["gzip"]:
            text = zlib.compress(text, _FASTEST, _GZIP)
        texts.write(LENGTH.pack(len(text)))
        texts.write(text)
        texts.flush()


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
