"""A report's description of itself in its SQLite export: node, rank, times, GPUs, messages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from gswarm_tui.profiling.nsys_export import NsysExport
from gswarm_tui.profiling.report_text import clean_text
from gswarm_tui.store.recording.profiles import UNKNOWN, ProfiledGpu, ProfileFacts

MOST_MESSAGES = 50
_LATEST_NS = 4 * 10**18
_LONGEST_NS = 10**17
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


def read_facts(export: NsysExport, file: str) -> ProfileFacts:
    """Return the description of a report with the name ``file``. Raises ReportError, UNREADABLE."""
    system: dict[str, object] = {}
    if export.has("TARGET_INFO_SYSTEM_ENV", "name", "value"):
        system = dict(export.rows("SELECT name, value FROM TARGET_INFO_SYSTEM_ENV"))
    started = export.first("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
    if not isinstance(started, int) or not 0 < started < _LATEST_NS:
        raise export.invalid("TARGET_INFO_SESSION_START_TIME", "has no start in UTC")
    first, last = (_capture_ns(export, name) for name in ("startTime", "stopTime"))
    node = clean_text(str(system.get("Hostname") or UNKNOWN))
    identity = f"{node} {started} {first} {last}"
    return ProfileFacts(
        file=file,
        tool="nsys",
        tool_version=clean_text(export.metadata.get("EXPORT_PRODUCT_VERSION", "")),
        digest=hashlib.sha256(identity.encode()).hexdigest(),
        node=node,
        rank=_rank(str(system.get("DeviceEnvironment") or "")),
        zero_ns=started,
        started_ns=started + (first or 0),
        ended_ns=started + (last or first or 0),
        messages=tuple(_messages(export)),
        gpus=tuple(_gpus(export)),
    )


def plain_uuid(uuid: object) -> str:
    """Return a GPU's UUID as ``ProfiledGpu`` has it."""
    return str(uuid).lower().removeprefix("gpu-")


def _capture_ns(export: NsysExport, name: str) -> int | None:
    """Return the report's time at the start or end of the capture, None if it has none."""
    at = export.first("ANALYSIS_DETAILS", name)
    return at if isinstance(at, int) and 0 <= at < _LONGEST_NS else None


def _messages(export: NsysExport) -> Iterator[str]:
    """Yield warnings and errors of the report, each once; exports before 2023 have none."""
    if not export.has("DIAGNOSTIC_EVENT", "severity", "text"):
        return
    levels = export.labels("ENUM_DIAGNOSTIC_SEVERITY_LEVEL")
    found = export.rows("SELECT DISTINCT severity, text FROM DIAGNOSTIC_EVENT")
    texts = [str(text) for level, text in found if "info" not in levels.get(level, "").lower()]
    yield from dict.fromkeys(clean_text(text)[:500] for text in texts[:MOST_MESSAGES])


def _gpus(export: NsysExport) -> Iterator[ProfiledGpu]:
    if not export.has("TARGET_INFO_GPU", "id", "uuid"):
        return
    wanted = ("id", "uuid", "name", "busLocation", "totalMemory")
    columns = ", ".join(name if export.has("TARGET_INFO_GPU", name) else "NULL" for name in wanted)
    rows = export.rows(f"SELECT {columns} FROM TARGET_INFO_GPU ORDER BY id")  # noqa: S608 (own names)
    known = set()
    for index, uuid, name, bus, memory in rows:
        if isinstance(index, int) and 0 <= index < 1000 and uuid and plain_uuid(uuid) not in known:
            known.add(plain_uuid(uuid))
            mib = memory >> 20 if isinstance(memory, int) and 0 <= memory < 1 << 50 else None
            place = clean_text(str(bus or ""))
            yield ProfiledGpu(index, clean_text(plain_uuid(uuid)), clean_text(str(name or "")), place, mib)


def _rank(environment: str) -> int | None:
    """Return the rank that the environment of the profiled job names."""
    found = {}
    for entry in environment.split("\0"):
        name, _, value = entry.partition("=")
        if name in _RANK_VARIABLES and value.isascii() and value.isdecimal() and len(value) < 10:
            found[name] = int(value)
    return next((found[name] for name in _RANK_VARIABLES if name in found), None)
