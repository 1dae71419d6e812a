"""Writing a profile into a recording file: where it belongs, its names, and its events by millions.

The profile is placed beside the samples of the same node and GPUs: in the recording that ran at its time,
with its times on the recorder's clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import duckdb
import numpy as np
import numpy.typing as npt

from gswarm_tui.store.errors import StoreError, explain
from gswarm_tui.store.sql import schema
from gswarm_tui.store.sql.schema import SCHEMA_VERSION, TableSchema

Columns = Mapping[str, npt.NDArray[Any]]

_SAME_PROFILE = "SELECT profile_id FROM profiles WHERE digest = $1"
_RECORDING = """
SELECT recording_id,
       started_at <= make_timestamp($2)
         AND coalesce(ended_at, started_at + INTERVAL 100 YEAR) >= make_timestamp($1) AS at_its_time
FROM recordings
WHERE recording_id = coalesce($3, recording_id)
ORDER BY at_its_time DESC, recording_id DESC
LIMIT 1
"""
_OF_PROFILES_ALONE = """
SELECT EXISTS (FROM recordings WHERE recording_id = $1 AND options LIKE '%"imported_from"%')
   AND NOT EXISTS (FROM host_samples JOIN nodes USING (node_id) WHERE recording_id = $1)
   AND NOT EXISTS (FROM gpu_samples WHERE gpu_id IN (
     SELECT gpu_id FROM gpus JOIN nodes USING (node_id) WHERE recording_id = $1))
"""
_EXTENDED = """
UPDATE {table} SET started_at = least(started_at, make_timestamp($2)),
                   ended_at = greatest(ended_at, make_timestamp($3))
WHERE recording_id = $1
"""
_NODE = """
SELECT n.node_id, n.node,
       (SELECT max_by(clock_offset_s, last_ts) FROM links WHERE links.node_id = n.node_id) AS clock_offset_s,
       n.node_id IN (SELECT node_id FROM gpus WHERE replace(lower(uuid), 'gpu-', '') IN $3) AS has_gpus
FROM nodes n
WHERE n.recording_id = $1
  AND (has_gpus OR split_part($2, '.', 1) IN (split_part(n.node, '.', 1), split_part(n.hostname, '.', 1)))
ORDER BY has_gpus DESC, node_id DESC LIMIT 1
"""
_GPUS = "SELECT replace(lower(uuid), 'gpu-', ''), gpu_id FROM gpus WHERE node_id = $1 AND uuid IS NOT NULL"

UNKNOWN = "unknown"
"""Node of a profile whose report doesn't name it."""


class RepeatedProfileError(StoreError):
    """The recording has this report already."""


@dataclass(frozen=True)
class ProfiledGpu:
    """A GPU of a report: its index there, and its UUID as NVML has it but without ``GPU-``."""

    index: int
    uuid: str
    name: str
    pci_bus_id: str
    memory_total_mib: int | None


@dataclass(frozen=True)
class ProfileFacts:
    """A report's own description of itself.

    Times are Unix nanoseconds on the clock of its node: of the report's time 0, and of the capture.
    ``unread`` names tables of events on GPUs that the importer doesn't know.
    """

    file: str
    tool: str
    tool_version: str
    digest: str
    node: str
    rank: int | None
    zero_ns: int
    started_ns: int
    ended_ns: int
    messages: tuple[str, ...] = ()
    gpus: tuple[ProfiledGpu, ...] = ()
    unread: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProfilePlace:
    """Recording and node of a profile in a file, and the ids of its GPUs there by UUID."""

    recording_id: int
    node_id: int | None
    node: str
    clock_offset_s: float | None
    gpu_ids: Mapping[str, int]
    at_its_time: bool = True


class RowTarget(Protocol):
    """Takes names and rows of one profile."""

    gpu_ids: Mapping[str, int]

    def name_ids(self, names: Sequence[str]) -> list[int]:
        """Return the ids of names, which are added if they are new. Raises StoreError."""

    def add(self, table: TableSchema, columns: Columns) -> None:
        """Add rows of the profile; columns that are left out are NULL, as is -1. Raises StoreError."""


class ProfileWriter(RowTarget, Protocol):
    """Takes the rows of one profile, and then the profile."""

    profile_id: int
    on_known_node: bool
    at_its_time: bool

    def finish(self, facts: ProfileFacts) -> None:
        """Add the profile itself, which makes its rows visible. Raises StoreError."""


def profile_row(profile_id: int, facts: ProfileFacts, placed: ProfilePlace) -> dict[str, Any]:
    """Return a profile's row in ``profiles``, with times as Unix microseconds."""
    offset_us = round((placed.clock_offset_s or 0) * 1e6)
    as_reported = ("rank", "tool", "tool_version", "file", "digest")
    as_placed = ("recording_id", "node_id", "node", "clock_offset_s")
    return {
        "profile_id": profile_id,
        **{name: getattr(placed, name) for name in as_placed},
        **{name: getattr(facts, name) for name in as_reported},
        "zero_at": facts.zero_ns // 1000 - offset_us,
        "started_at": facts.started_ns // 1000 - offset_us,
        "ended_at": facts.ended_ns // 1000 - offset_us,
        "messages": json.dumps(facts.messages, ensure_ascii=False),
        "unread": ", ".join(facts.unread) or None,
    }


class StoredProfile:
    """Writes one profile into a recording file.

    Each batch is committed. Its rows are invisible until ``finish``, as the views join them with the profile.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        path: Path,
        facts: ProfileFacts,
        recording_id: int | None = None,
        profile_id: int | None = None,
    ) -> None:
        """Find the place of the profile: in this recording, else in that of its time.

        Raises RepeatedProfileError, StoreError.
        """
        self._connection = connection
        self._path = path
        self._refuse_repeated(facts)
        placed = self._place(facts, recording_id)
        self._into_empty = placed is None
        self._beside_profiles = (
            placed is not None
            and recording_id is None
            and self._rows(_OF_PROFILES_ALONE, placed.recording_id)[0][0]
        )
        self._on_new_node = placed is None or (self._beside_profiles and placed.node_id is None)
        if placed is None or self._on_new_node:
            free = self._next_free
            number = free("recording_id", schema.RECORDINGS) if placed is None else placed.recording_id
            gpu_ids = {gpu.uuid: gpu_id for gpu_id, gpu in enumerate(facts.gpus, free("gpu_id", schema.GPUS))}
            placed = ProfilePlace(number, free("node_id", schema.NODES), facts.node, None, gpu_ids)
        self.placement = placed
        self.gpu_ids = placed.gpu_ids
        self.on_known_node = placed.node_id is not None
        self.at_its_time = placed.at_its_time or self._beside_profiles
        self.profile_id = profile_id or self._next_free("profile_id", schema.PROFILES)
        self._first_name = self._next_free("name_id", schema.PROFILE_NAMES)

    def _place(self, facts: ProfileFacts, recording_id: int | None) -> ProfilePlace | None:
        """Return where the profile belongs: in this recording or that of its time, None in an empty file."""
        span = facts.started_ns // 1000, facts.ended_ns // 1000
        if not (found := self._rows(_RECORDING, *span, recording_id)):
            return None
        ((recording_id, at_its_time),) = found
        if not (nodes := self._rows(_NODE, recording_id, facts.node, [gpu.uuid for gpu in facts.gpus])):
            return ProfilePlace(recording_id, None, facts.node, None, {}, at_its_time)
        node_id, node, offset, _ = nodes[0]
        gpu_ids = dict(self._rows(_GPUS, node_id))
        return ProfilePlace(recording_id, node_id, node, offset, gpu_ids, at_its_time)

    def _refuse_repeated(self, facts: ProfileFacts) -> None:
        if found := self._rows(_SAME_PROFILE, facts.digest):
            raise RepeatedProfileError(
                f"{facts.file} is in {self._path} already, as profile {found[0][0]}; "
                "name another file with --db"
            )

    def abandon(self) -> None:
        """Remove the rows and names that were added while nothing else wrote. Raises StoreError."""
        for table in schema.PROFILE_EVENTS:
            self._rows(f"DELETE FROM {table.name} WHERE profile_id = {self.profile_id}")  # noqa: S608
        self._rows(f"DELETE FROM profile_names WHERE name_id >= {self._first_name}")  # noqa: S608

    def finish(self, facts: ProfileFacts) -> None:
        """Add the profile; to an empty file, a recording with its node and GPUs, too. Raises StoreError."""
        self._refuse_repeated(facts)  # it may have been imported meanwhile
        self._rows("BEGIN")
        try:
            if self._into_empty:
                self._add_recording(facts)
            # A recording that has only profiles is extended, so that it covers the time of this one, too.
            elif self._beside_profiles:
                span = self.placement.recording_id, facts.started_ns // 1000, facts.ended_ns // 1000
                for table in (schema.RECORDINGS, schema.SESSIONS):
                    self._rows(_EXTENDED.format(table=table.name), *span)
            if self._on_new_node:
                self._add_node(facts)
            self._insert(schema.PROFILES, profile_row(self.profile_id, facts, self.placement))
            self._rows("COMMIT")
        except StoreError:
            with suppress(duckdb.Error):
                self._connection.execute("ROLLBACK")
            raise

    def name_ids(self, names: Sequence[str]) -> list[int]:
        """Return the ids of names, which are added if they are new. Raises StoreError."""
        first = self._next_free("name_id", schema.PROFILE_NAMES)
        wanted = np.array([*names, ""], dtype=object)  # the last one keeps NumPy's type
        self._connection.register("wanted", {"name": wanted})
        self._rows(
            f"INSERT INTO profile_names SELECT {first - 1} + row_number() OVER (), name FROM "  # noqa: S608
            "(SELECT DISTINCT name FROM wanted WHERE name NOT IN (SELECT name FROM profile_names))"
        )
        found = dict(self._rows("SELECT name, name_id FROM profile_names JOIN wanted USING (name)"))
        return [found[name] for name in names]

    def add(self, table: TableSchema, columns: Columns) -> None:
        """Add rows of the profile; columns that are left out are NULL, as is -1. Raises StoreError."""
        values = ", ".join(
            name if array.dtype.kind in "Of" else f"nullif({name}, -1)" for name, array in columns.items()
        )
        self._connection.register("incoming", dict(columns))
        self._rows(
            f"INSERT INTO {table.name} (profile_id, {', '.join(columns)}) "  # noqa: S608 (own names)
            f"SELECT {self.profile_id}, {values} FROM incoming"
        )
        self._connection.unregister("incoming")

    def _add_recording(self, facts: ProfileFacts) -> None:
        """Add a recording that holds nothing but the profile, and a session of its time."""
        own = {"recording_id": self.placement.recording_id}
        span = {"started_at": facts.started_ns // 1000, "ended_at": facts.ended_ns // 1000}
        imported = json.dumps({"imported_from": facts.file, "imported_run": facts.digest[:16]})
        origin = {"options": imported, "schema_version": SCHEMA_VERSION}
        self._insert(schema.RECORDINGS, {**own, **span, **origin})
        session = {"name": Path(facts.file).stem, "status": "stopped"}
        session_id = self._next_free("session_id", schema.SESSIONS)
        self._insert(schema.SESSIONS, {**own, **span, **session, "session_id": session_id})

    def _add_node(self, facts: ProfileFacts) -> None:
        """Add the profile's node and GPUs."""
        own, node = {"recording_id": self.placement.recording_id}, {"node_id": self.placement.node_id}
        self._insert(schema.NODES, {**own, **node, "node": facts.node, "hostname": facts.node})
        for gpu in facts.gpus:
            row = {"gpu_index": gpu.index, "uuid": f"GPU-{gpu.uuid}", "name": gpu.name}
            more = {"pci_bus_id": gpu.pci_bus_id, "memory_total_mib": gpu.memory_total_mib}
            self._insert(schema.GPUS, {**node, "gpu_id": self.gpu_ids[gpu.uuid], **row, **more})

    def _insert(self, table: TableSchema, row: Mapping[str, Any]) -> None:
        marks = ", ".join(
            f"make_timestamp(${at})" if table[name].type == "TIMESTAMP" else f"${at}"
            for at, name in enumerate(row, 1)
        )
        self._rows(f"INSERT INTO {table.name} ({', '.join(row)}) VALUES ({marks})", *row.values())  # noqa: S608

    def _next_free(self, column: str, table: TableSchema) -> int:
        return int(self._rows(f"SELECT coalesce(max({column}), 0) + 1 FROM {table.name}")[0][0])  # noqa: S608

    def _rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(sql, list(values)).fetchall()
        except duckdb.Error as error:
            raise StoreError(explain(error, self._path)) from error


def remove_unfinished() -> Iterator[str]:
    """Return the statements that remove rows of profiles whose import a killed recorder didn't finish."""
    for table in schema.PROFILE_EVENTS:
        yield f"DELETE FROM {table.name} WHERE profile_id NOT IN (SELECT profile_id FROM profiles)"  # noqa: S608
