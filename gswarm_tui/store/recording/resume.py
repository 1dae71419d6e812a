"""Finding interrupted recordings in a file and resuming them.

A recording without an end was interrupted: its head was killed, or nodes weren't reachable when it ended.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gswarm_agent.frame import GpuFacts
from gswarm_agent.wire import ENDED_BY, FRAMES_REMAIN, JOB_ENDED, SENT_ALL
from gswarm_tui.fleet import events
from gswarm_tui.fleet.energy import GpuEnergy
from gswarm_tui.fleet.findings import Finding
from gswarm_tui.fleet.sessions import Session
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.store.querying.running_query import LocalSource
from gswarm_tui.store.reading.fleet_builder import FleetBuilder
from gswarm_tui.store.reading.recording_reader import RecordingReader
from gswarm_tui.store.recording.known_ids import KnownIds, KnownLife, KnownNode, Row
from gswarm_tui.store.sql.schema import LISTING_TABLES, micros

MILLISECOND = 1e-3
_UID = re.compile(r"[^\W_][\w-]{0,99}", re.ASCII)  # an argument and a folder's name on nodes


@dataclass(frozen=True)
class Interrupted:
    """A recording without an end. Times are Unix seconds.

    ``last_at`` is the last sign of it: a sample, mark, gap, session, or its start.
    ``uid`` is empty and ``options`` too if the recording's version couldn't resume one. ``uid`` is empty as
    well if it can't be one of gswarm-tui's.
    ``answered`` are the nodes that answered at least once. ``awaited`` are nodes that may hold frames, for
    which it was left open; None if its head was killed, as then every node may. ``interval_ms`` is the last
    interval that was set while it ran, None if the first one was kept. ``metrics`` are the groups of metrics
    that were on, None if they were never switched.
    """

    recording_id: int
    uid: str
    started_at: float
    last_at: float
    host: str
    command: str
    options: Mapping[str, Any]
    nodes: tuple[str, ...]
    sessions: tuple[str, ...]
    answered: tuple[str, ...]
    awaited: tuple[str, ...] | None
    interval_ms: int | None = None
    metrics: tuple[str, ...] | None = None


@dataclass(frozen=True)
class LifeOnDisk:
    """The state on disk of an agent run: its last frame, that frame's time on the node in ns, its clock.

    The round trip in which the clock's offset was measured is infinite where it wasn't. ``at`` is the time
    that the frame has in the recording, None where it is lost.
    """

    node: str
    life: str
    seq: int
    ts_ns: int
    offset_s: float
    round_trip_s: float
    at: float | None

    @property
    def last_at(self) -> float:
        """The time of its last frame on the recorder's clock, in Unix seconds."""
        return self.ts_ns / 1e9 - self.offset_s


@dataclass(frozen=True)
class Resumed:
    """The state of a resumed recording that the rest of the head needs.

    ``accounted`` are the nodes whose last agent ended and kept nothing, or was reported as gone.
    ``energy_j`` is the energy that the job's GPUs had used, ``gpus`` that of each GPU. ``last_at`` is the
    time of the newest sample: findings that held then have ended.
    """

    started_at: float
    lives: tuple[LifeOnDisk, ...]
    accounted: frozenset[str]
    sessions: tuple[Session, ...]
    energy_j: float
    gpus: Mapping[events.GpuKey, GpuEnergy]
    rows: int
    findings: tuple[Finding, ...]
    last_at: float


_INTERRUPTED = f"""
SELECT r.*, epoch_us(r.started_at) AS began_us,
       greatest(
         (SELECT max(epoch_us(h.ts)) FROM host_samples h JOIN nodes n USING (node_id)
          WHERE n.recording_id = r.recording_id),
         (SELECT max(epoch_us(e.ts)) FROM events e
          WHERE e.recording_id = r.recording_id AND e.kind IN {events.KINDS_DURING_RUN}),
         (SELECT max(epoch_us(coalesce(s.ended_at, s.started_at))) FROM sessions s
          WHERE s.recording_id = r.recording_id)) AS last_at,
       (SELECT list(DISTINCT n.node ORDER BY n.node) FROM nodes n
        WHERE n.recording_id = r.recording_id) AS nodes,
       (SELECT list(DISTINCT n.node ORDER BY n.node) FROM nodes n
        WHERE n.recording_id = r.recording_id AND n.hostname IS NOT NULL) AS answered,
       (SELECT list(DISTINCT n.node ORDER BY n.node) FROM events e JOIN nodes n USING (node_id)
        WHERE n.recording_id = r.recording_id AND e.kind = '{events.WAITING}'
          AND e.ts >= ALL (SELECT h.ts FROM host_samples h JOIN nodes m USING (node_id)
                           WHERE m.recording_id = r.recording_id)) AS awaited,
       (SELECT arg_max(e.detail, e.ts) FROM events e
        WHERE e.recording_id = r.recording_id AND e.kind = '{events.INTERVAL_CHANGED}') AS interval_detail,
       (SELECT arg_max(e.detail, e.ts) FROM events e
        WHERE e.recording_id = r.recording_id AND e.kind = '{events.METRICS_CHANGED}') AS metrics_detail,
       (SELECT list(s.name ORDER BY s.session_id) FROM sessions s
        WHERE s.recording_id = r.recording_id) AS sessions
FROM recordings r
WHERE r.ended_at IS NULL
ORDER BY r.recording_id
"""  # noqa: S608 (a name of this project only)

_SESSIONS = """
SELECT session_id, recording_id, name, epoch_us(started_at) AS started_at, epoch_us(ended_at) AS ended_at,
       status, note
FROM sessions
WHERE recording_id = ?
"""

_LINKS = """
SELECT links.* REPLACE (epoch_us(last_ts) AS last_ts)
FROM links JOIN nodes USING (node_id)
WHERE recording_id = ?
ORDER BY last_ts NULLS FIRST
"""

_ACCOUNTS = """
SELECT node, max(epoch_us(ts)) / 1e6 AS at FROM events e JOIN nodes n USING (node_id)
WHERE n.recording_id = $1
  AND (kind = 'gap' AND starts_with(message, $2)
       OR kind = 'link_lost' AND NOT suffix(message, $3)
          AND (starts_with(message, $4) OR starts_with(message, $5) OR starts_with(message, $6)))
GROUP BY node
"""

# Each life of a machine counts its frames from 1 on.
_PLACED = """
WITH frames AS (SELECT node_id, seq AS last_seq, epoch_us(ts) / 1e6 AS placed FROM host_samples),
     lives AS (SELECT *, epoch_us(last_ts) / 1e6 - coalesce(clock_offset_s, 0) AS expected FROM links)
SELECT node_id, life, arg_min(placed, abs(placed - expected)) AS placed
FROM lives JOIN nodes USING (node_id) JOIN frames USING (node_id, last_seq)
WHERE recording_id = ? AND last_ts IS NOT NULL
GROUP BY ALL
"""

_BY_NODE, _BY_GPU = "JOIN nodes USING (node_id)", "JOIN gpus USING (gpu_id) JOIN nodes USING (node_id)"
_COUNTED = (
    f"gpu_samples {_BY_GPU}",
    f"process_samples {_BY_GPU}",
    f"host_samples {_BY_NODE}",
    *(f"{table.name} {_BY_NODE}" for table in LISTING_TABLES.values()),
    "events",
)
_ROWS = " + ".join(f"(SELECT count(*) FROM {rows} WHERE recording_id = $1)" for rows in _COUNTED)  # noqa: S608


def interrupted(source: QuerySource) -> list[Interrupted]:
    """Return a file's recordings without an end. Raises StoreError."""
    return [
        Interrupted(
            recording_id=row["recording_id"],
            uid=uid if _UID.fullmatch(uid := row.get("uid") or "") else "",
            started_at=row["began_us"] / 1e6,
            last_at=max(row["began_us"], row["last_at"] or 0) / 1e6,
            host=row["host"],
            command=row["command"],
            options=events.json_object(row.get("options")),
            nodes=tuple(row["nodes"] or ()),
            sessions=tuple(row["sessions"] or ()),
            answered=tuple(row["answered"] or ()),
            awaited=None if row["awaited"] is None else tuple(row["awaited"]),
            interval_ms=events.new_interval_ms(row["interval_detail"]),
            metrics=events.new_groups(row["metrics_detail"]),
        )
        for row in _rows(source, _INTERRUPTED)
    ]


def load(source: LocalSource, known_ids: KnownIds) -> Resumed:
    """Fill the known ids from the file and return the state to resume. Raises StoreError."""
    number = known_ids.recording_id
    machines: dict[int, KnownNode] = {}
    for row in _rows(source, "SELECT * FROM nodes WHERE recording_id = ? ORDER BY node_id", number):
        gpus = _rows(source, "SELECT * FROM gpus WHERE node_id = ? ORDER BY gpu_id", row["node_id"])
        facts = tuple(GpuFacts(gpu["gpu_index"], gpu["uuid"], gpu["name"]) for gpu in gpus)
        node = machines[row["node_id"]] = KnownNode(row, facts, tuple(gpu["gpu_id"] for gpu in gpus))
        known_ids.nodes[row["node"]] = node
        if row["boot_id"] is not None:
            known_ids.machines[node.key] = node
    on_disk = []
    placed = {(row["node_id"], row["life"]): row["placed"] for row in _rows(source, _PLACED, number)}
    for link in _rows(source, _LINKS, number):
        node = machines[link["node_id"]]
        name, life = str(node.row["node"]), str(link["life"])
        known_ids.lives[name, life] = KnownLife(link, node.node_id, node.gpu_ids)
        known_ids.nodes[name] = replace(known_ids.nodes[name], life=life, was_live=True)
        if link["last_seq"] is not None:
            ns, offset_s = (link["last_ts"] or 0) * 1000, link["clock_offset_s"]
            round_trip_s = math.inf if offset_s is None else link["round_trip_s"] or 0.0
            at = placed.get((link["node_id"], life))
            on_disk.append(LifeOnDisk(name, life, link["last_seq"], ns, offset_s or 0.0, round_trip_s, at))
    known_ids.sessions |= {str(row["session_id"]): row for row in _rows(source, _SESSIONS, number)}
    reader = RecordingReader(source, number)
    session_times = [
        row[name] or 0 for row in known_ids.sessions.values() for name in ("started_at", "ended_at")
    ]
    sessions, energy_j, energies = FleetBuilder(reader).sums(max(micros(reader.end), *session_times, 0) / 1e6)
    return Resumed(
        started_at=reader.start,
        lives=tuple(on_disk),
        accounted=_accounted(source, number, on_disk),
        sessions=tuple(sessions),
        energy_j=energy_j,
        gpus=energies,
        rows=_rows(source, f"SELECT {_ROWS} AS rows", number)[0]["rows"],
        findings=tuple(reader.findings()),
        last_at=reader.end,
    )


def _accounted(source: QuerySource, number: int, lives: Sequence[LifeOnDisk]) -> frozenset[str]:
    """Return the nodes whose last agent can't hold any frames."""
    newest = {life.node: life.last_at for life in lives}
    ends = _rows(
        source, _ACCOUNTS, number, events.AGENT_DATA_LOST, FRAMES_REMAIN, JOB_ENDED, ENDED_BY, SENT_ALL
    )
    nodes = {row["node"] for row in ends if row["at"] > newest.get(row["node"], 0.0) - MILLISECOND}
    for one in interrupted(source):
        if one.recording_id == number and one.awaited is not None:
            nodes |= set(one.nodes) - set(one.awaited)
    return frozenset(nodes)


def _rows(source: QuerySource, sql: str, *values: object) -> list[Row]:
    return source.query(sql, *values).dicts()
