"""Stand-in for an export of Nsight Systems with CUDA tables, where no GPU can be had to make a real one.

The tables have the shapes that Nsight Systems documents for its schemas 2 and 3: from 2023 on, schema 3 has
the kinds of copies, the report's messages and the devices of each process in tables of their own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

START_NS = 1_800_000_000 * 10**9
"""Unix time of the report's zero."""
CAPTURE = (1_000_000_000, 11_000_000_000)
"""Start and end of the capture after it."""
PID, TID = 4242, 4243
GLOBAL_PID = PID << 24
NODE, UUIDS = "gpu01", ("11111111-aaaa-bbbb-cccc-000000000000", "11111111-aaaa-bbbb-cccc-000000000001")
SECRET = "HF_TOKEN=hf_notarealtoken0000000000000000000"
KERNELS = ("void gemm<float, 128>(float const*, int)", "gemm", "relu(float*)", "relu")

_TABLES = {
    "StringIds": "id value",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName name nameEnum value",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime localTime",
    "ANALYSIS_DETAILS": "globalVid duration startTime stopTime",
    "TARGET_INFO_GPU": "vmId id name busLocation totalMemory uuid",
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start end eventClass globalTid correlationId nameId returnValue callchainId"
    ),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start end deviceId contextId streamId correlationId globalPid demangledName shortName mangledName "
        "launchType cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ staticSharedMemory "
        "dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId sharedMemoryExecuted graphNodeId "
        "sharedMemoryLimitConfig"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start end deviceId contextId streamId correlationId globalPid bytes copyKind srcKind dstKind"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (
        "start end deviceId contextId streamId correlationId globalPid value bytes graphNodeId memKind"
    ),
}
_SINCE_2023 = {
    "ENUM_CUDA_MEMCPY_OPER": "id name label",
    "ENUM_DIAGNOSTIC_SEVERITY_LEVEL": "id name label",
    "DIAGNOSTIC_EVENT": "timestamp timestampType source severity text globalPid",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid uuid numMultiprocessors",
}
_TEXTS = {"value", "devStateName", "name", "utcTime", "localTime", "busLocation", "uuid", "label", "text"}


def write_standin(path: Path, schema: str = "3.15.1", kernels: int = 6, *, sql: Iterable[str] = ()) -> Path:
    """Write an export of one process that launches kernels on its CUDA device 0, then run ``sql`` on it."""
    newer = schema.startswith("3")
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA journal_mode = OFF")
        file.execute("PRAGMA synchronous = OFF")
        metadata = "META_DATA_EXPORT" if newer else "EXPORT_META_DATA"
        tables = _TABLES | (_SINCE_2023 if newer else {}) | {metadata: "name value"}
        for table, names in tables.items():
            columns = ", ".join(f"{name} {'TEXT' if name in _TEXTS else 'INTEGER'}" for name in names.split())
            file.execute(f"CREATE TABLE {table} ({columns})")
        add = file.executemany
        add(
            f"INSERT INTO {metadata} VALUES (?, ?)",
            [("EXPORT_PRODUCT_VERSION", "2024.5.1"), ("EXPORT_SCHEMA_VERSION", schema)],
        )
        add(
            "INSERT INTO StringIds VALUES (?, ?)",
            [*enumerate(KERNELS, 1), (5, "cudaLaunchKernel_v7000"), (6, f"{SECRET}\0HOME=/home/ada")],
        )
        add(
            "INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (0, 'Local (CLI)', ?, 0, ?)",
            [("Hostname", NODE), ("DeviceEnvironment", f"{SECRET}\0RANK=3\0PWD=/home/ada")],
        )
        file.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, '', '')", (START_NS,))
        file.execute("INSERT INTO ANALYSIS_DETAILS VALUES (0, ?, ?, ?)", (CAPTURE[1] - CAPTURE[0], *CAPTURE))
        add(
            "INSERT INTO TARGET_INFO_GPU VALUES (0, ?, 'NVIDIA H100', ?, ?, ?)",
            [(at, f"0000:0{at}:00.0", 81_559 << 20, uuid) for at, uuid in enumerate(UUIDS)],
        )
        begin, step = CAPTURE[0], (CAPTURE[1] - CAPTURE[0]) // max(kernels, 1)
        add(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES "
            "(?, ?, 0, 1, 7, ?, ?, ?, ?, NULL, 1, 1, 32, ?, 1, 1, 256, 1, 1, 0, 0, 0, 0, ?, 0, NULL, 0)",
            (
                (
                    at := begin + i * step,
                    at + step // 2 + i % 7,
                    i,
                    GLOBAL_PID,
                    1 + i % 2 * 2,
                    2 + i % 2 * 2,
                    8,
                    i,
                )
                for i in range(kernels)
            ),
        )
        add(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, 5, 0, NULL)",
            (
                (begin + i * step, begin + i * step + 900, GLOBAL_PID | TID, i)
                for i in range(min(kernels, 1000))
            ),
        )
        add(
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, 0, 1, 7, ?, ?, ?, ?, 0, 2)",
            [
                (begin + 5, begin + 505, 90, GLOBAL_PID, 4_000_000, 1),
                (begin + 600, begin + 900, 91, GLOBAL_PID, 8, 2),
            ],
        )
        file.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (?, ?, 0, 1, 7, 92, ?, 0, 1024, NULL, 2)",
            (begin + 1000, begin + 1100, GLOBAL_PID),
        )
        if newer:
            add(
                "INSERT INTO ENUM_CUDA_MEMCPY_OPER VALUES (?, '', ?)",
                [(1, "Host-to-Device"), (2, "Device-to-Host")],
            )
            add(
                "INSERT INTO ENUM_DIAGNOSTIC_SEVERITY_LEVEL VALUES (?, '', ?)",
                [(1, "Information"), (2, "Warning")],
            )
            add(
                "INSERT INTO DIAGNOSTIC_EVENT VALUES (0, 0, 0, ?, ?, NULL)",
                [(1, "Profiling has started."), (2, "Events in /home/ada/run.py were lost.")],
            )
            # The process sees only the second GPU, as its device 0.
            file.execute(f"INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (1, 0, {PID}, '', 132)")
        for statement in sql:
            file.execute(statement)
    return path
