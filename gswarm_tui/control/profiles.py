"""Import of a profile into a running recording: the command reads the report, the recorder writes the rows.

After the first request, each message is one step: names, rows, or the end. Each gets a reply. So a report
costs the recorder no more than copying its columns. If the command goes before the end, the rows that were
written are removed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from gswarm_tui.control.client import Connection, Head
from gswarm_tui.control.messages import MessageError, encode, read_message
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.arrays import pack_arrays, unpack_arrays
from gswarm_tui.store.sql.schema import PROFILE_EVENTS, TableSchema

if TYPE_CHECKING:
    from gswarm_tui.store.recording.profiles import ProfileFacts
    from gswarm_tui.store.recording.recorder import FileWriter

MAX_STEP = 16 * 1024 * 1024
"""Bytes of a message; rows come in batches of about 4 MB."""
PATIENCE_S = 120.0
"""Seconds that the command waits for a reply: the disk may be slow."""
_TABLES = {table.name: table for table in PROFILE_EVENTS}


# The recorder's side


async def serve_import(
    recorder: FileWriter,
    request: Mapping[str, Any],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Take a profile from a client. Raises OSError, IncompleteReadError, MessageError when it leaves."""

    async def send(message: dict[str, Any]) -> None:
        writer.write(encode(message))
        await writer.drain()

    profile = None
    try:
        profile = await asyncio.wrap_future(recorder.begin_profile(_facts(request.get("facts"))))
        await send(
            {
                "profile_id": profile.profile_id,
                "gpu_ids": dict(profile.gpu_ids),
                "on_known_node": profile.on_known_node,
                "at_its_time": profile.at_its_time,
            }
        )
        while profile is not None:
            step = await read_message(reader, MAX_STEP)
            match step:
                case {"names": names}:
                    call: Callable[[], Any] = partial(profile.name_ids, names)
                case {"table": table, "columns": columns}:
                    call = partial(profile.add, _TABLES[table], unpack_arrays(columns))
                case {"finish": facts}:
                    call = partial(profile.finish, _facts(facts))
                case _:
                    raise MessageError("an import has no such step")
            result = await asyncio.wrap_future(recorder.in_thread(call))
            profile = None if "finish" in step else profile
            await send({"result": result})
    except StoreError as error:
        await send({"error": str(error)})
    finally:
        if profile is not None:
            with contextlib.suppress(StoreError):
                await asyncio.shield(asyncio.wrap_future(recorder.in_thread(profile.abandon)))


def _facts(values: Any) -> ProfileFacts:
    # With DuckDB, which a run without a recording doesn't load.
    from gswarm_tui.store.recording.profiles import ProfiledGpu, ProfileFacts

    gpus = tuple(ProfiledGpu(**gpu) for gpu in values["gpus"])
    texts = {name: tuple(values[name]) for name in ("messages", "unread")}
    return ProfileFacts(**{**values, "gpus": gpus, **texts})


# The command's side


class SentProfile:
    """Sends the rows of one profile to a running recorder; ``close`` it afterwards."""

    def __init__(self, head: Head, facts: ProfileFacts) -> None:
        """Begin the import. Raises RecorderError, StoreError."""
        self._connection = Connection(head, PATIENCE_S)
        try:
            begun = self._request({"want": "import", "facts": asdict(facts)})
        except BaseException:
            self.close()
            raise
        self.profile_id: int = begun["profile_id"]
        self.gpu_ids: Mapping[str, int] = begun["gpu_ids"]
        self.on_known_node: bool = begun["on_known_node"]
        self.at_its_time: bool = begun["at_its_time"]

    def name_ids(self, names: Sequence[str]) -> list[int]:
        """Return the ids of names, which are added if they are new. Raises RecorderError, StoreError."""
        found: list[int] = self._request({"names": list(names)})["result"]
        return found

    def add(self, table: TableSchema, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Send rows, and wait until they are written. Raises RecorderError, StoreError."""
        self._request({"table": table.name, "columns": pack_arrays(columns)})

    def finish(self, facts: ProfileFacts) -> None:
        """Add the profile itself, which makes its rows visible. Raises RecorderError, StoreError."""
        self._request({"finish": asdict(facts)})

    def close(self) -> None:
        """Close the connection; without ``finish`` the recorder removes the rows."""
        self._connection.close()

    def _request(self, message: dict[str, Any]) -> dict[str, Any]:
        self._connection.send(message, MAX_STEP)
        reply = self._connection.receive()
        if "error" in reply:
            raise StoreError(str(reply["error"]))
        return reply
