"""Flight Recorder of PyTorch: which collectives each rank has called and completed, by process group.

A rank with a worker server is asked through it. Another rank writes a dump when a byte comes through its
pipe, which PyTorch makes if variables were set at its start (docs/decisions/013-arming.md).
"""

from __future__ import annotations

import io
import json
import os
import pickle
import stat
import time

from gswarm_agent.asking import ranks, worker_server
from gswarm_agent.asking.worker_server import NoAnswerError
from gswarm_agent.trace import FLIGHT_PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

    from gswarm_agent.asking.ranks import LocalRank

PIPE, DUMPS = (
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
)
"""Variables with the beginnings of pipes' and dumps' paths; PyTorch appends the rank."""
_HANDLERS = "dump_nccl_trace_json", "fr_trace_json"
"""Handlers for collectives of NCCL, and for those of other backends."""
_WORKERS = 8
_MIB = 1 << 20
_MOST = 64 * _MIB
_MOST_GROUPS, _MOST_SIZES, _MOST_TEXT = 64, 8, 100
_LEFT_S, _LOOK_S = 0.5, 0.05
_MALFORMED = (
    *(ArithmeticError, AttributeError, EOFError, ImportError, LookupError, pickle.UnpicklingError),
    *(RecursionError, TypeError, ValueError),
)


class _Plain(pickle.Unpickler):
    """Unpickler of numbers, text, lists and dictionaries: nothing that a dump names is imported or called."""

    def find_class(self, module: str, name: str) -> Any:
        raise NoAnswerError(f"its dump isn't plain data: it names {module[:40]}.{name[:40]}")


def ask(request: Dict[str, Any]) -> Dict[str, Any]:
    """Return for each rank of ``pids`` what its Flight Recorder has, or why there is nothing."""
    from concurrent.futures import ThreadPoolExecutor

    ends_at = time.monotonic() + float(request["seconds"]) - _LEFT_S
    found = ranks.read_ranks(request["pids"])
    with ThreadPoolExecutor(_WORKERS) as pool:
        return {"ranks": list(pool.map(lambda one: _ask_rank(one, ends_at), found))}


def _ask_rank(one: LocalRank, ends_at: float) -> Dict[str, Any]:
    try:
        now, records = _records(one, ends_at)
        groups = [group for record in records for group in summarise(record)]
    except NoAnswerError as error:
        return {"pid": one.pid, "why": str(error)}
    except _MALFORMED:
        return {"pid": one.pid, "why": "what its Flight Recorder has can't be understood"}
    if not groups:
        return {"pid": one.pid, "why": "its Flight Recorder has no collective yet"}
    groups.sort(
        key=lambda of: (of["transfer"] or of["scheduled"] > of["completed"], of["newest"]), reverse=True
    )
    return {"pid": one.pid, "now": now, "groups": groups[:_MOST_GROUPS]}


def _records(one: LocalRank, ends_at: float) -> Tuple[float, List[Any]]:
    """Return when a rank's records were written, Unix seconds, and the records."""
    port = worker_server.find_port(one.pid, one.environ, ends_at - time.monotonic())
    if port is None:
        return _dump(one, ends_at)
    now, records = time.time(), []
    failure = NoAnswerError()
    for name in _HANDLERS:
        try:
            records.append(json.loads(worker_server.post(port, name, ends_at - time.monotonic(), _MOST)))
        except NoAnswerError as error:  # PyTorch without NCCL has no handler for it
            failure = error
    if not records:
        raise failure
    return now, records


def _dump(one: LocalRank, ends_at: float) -> Tuple[float, List[Any]]:
    """Make a rank write its dump; return as ``_records`` does."""
    pipe = one.environ.get(PIPE, "")
    path = next((one.environ[name] for name in DUMPS if name in one.environ), "")
    if not (os.path.isabs(pipe) and os.path.isabs(path)):  # noqa: PTH117
        raise NoAnswerError("it has no worker server and no pipe; start the job with gswarm-tui record")
    # A container may have a /tmp of its own.
    root = f"/proc/{one.pid}/root"
    before = last = _read(f"{root}{path}{one.rank}")
    try:
        descriptor = _open(f"{root}{pipe}{one.rank}.pipe", os.O_WRONLY, stat.S_IFIFO)
        os.write(descriptor, b"1")
        os.close(descriptor)
    except OSError as error:
        raise NoAnswerError(
            f"it has no pipe, which PyTorch makes with its first NCCL communicator: {error.strerror}"
        ) from None
    while time.monotonic() < ends_at:
        time.sleep(_LOOK_S)
        now = _read(f"{root}{path}{one.rank}")
        # PyTorch writes the file in parts.
        if now != before and now == last and now[1].endswith(pickle.STOP):
            if path.startswith(FLIGHT_PREFIX):
                os.unlink(f"{root}{path}{one.rank}")  # noqa: PTH108
            return now[0] / 1e9, [_Plain(io.BytesIO(now[1])).load()]
        last = now
    raise NoAnswerError(
        "it wrote no dump in time; a thread of it may hold Python's lock, which the dump needs"
    )


def _open(path: str, flags: int, kind: int) -> int:
    """Open a file of this user and kind. Raises OSError and NoAnswerError."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)
    status = os.fstat(descriptor)
    if stat.S_IFMT(status.st_mode) != kind or status.st_uid != os.geteuid():
        os.close(descriptor)
        raise NoAnswerError(f"{os.path.basename(path)} isn't a file of yours, or not of the right kind")  # noqa: PTH119
    return descriptor


def _read(path: str) -> Tuple[int, bytes]:
    """Return when a dump was written, and its data; none if there is no file. Raises NoAnswerError."""
    try:
        with open(_open(path, os.O_RDONLY, stat.S_IFREG), "rb") as file:
            data = file.read(_MOST + 1)
            written = os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return 0, b""
    except OSError as error:
        raise NoAnswerError(f"its dump can't be read: {error.strerror}") from None
    if len(data) > _MOST:
        raise NoAnswerError(f"its dump has more than {_MOST // _MIB} MiB")
    return written, data


def summarise(record: Any) -> List[Dict[str, Any]]:
    """Return each process group's progress. Raises several errors if the record isn't Flight Recorder's."""
    groups: Dict[int, Dict[str, Any]] = {}
    for number, status in record["pg_status"].items():
        groups[int(number)] = {
            "name": "",
            "members": [],
            "newest": 0.0,
            "scheduled": max(0, int(status["last_enqueued_collective"])),
            "started": max(0, int(status["last_started_collective"])),
            "completed": max(0, int(status["last_completed_collective"])),
            "transfer": False,
        }
    for entry in record.get("entries", ()):
        group = groups.get(entry["pg_id"])
        if group is None:
            continue
        for kind in "created", "discovered_started", "discovered_completed":
            group["newest"] = max(group["newest"], (entry[f"time_{kind}_ns"] or 0) / 1e9)
        if not group["name"]:
            name, description = entry["process_group"]
            backend = str(entry["profiling_name"]).partition(":")[0]
            group.update(name=_clip(name), description=_clip(description), backend=_clip(backend))
            config = record["pg_config"].get(name)
            group["members"] = [int(rank) for rank in json.loads(config["ranks"])] if config else []
        if entry["is_p2p"]:
            # Gloo never says that an entry is completed, only that it has retired.
            group["transfer"] |= not (entry["state"] == "completed" or entry["retired"])
        elif entry["collective_seq_id"] == group["completed"] + 1:
            name = str(entry["profiling_name"]).rpartition(":")[2]
            sizes = ", ".join(str(size) for size in entry["input_sizes"][:_MOST_SIZES])
            dtype = next(iter(entry["input_dtypes"]), "")
            text = _clip(f"{name} {sizes} {dtype}".strip())
            group["pending"] = {"text": text, "since": entry["time_created_ns"] / 1e9}
    return [group for group in groups.values() if group["name"]]


def _clip(text: Any) -> str:
    return str(text)[:_MOST_TEXT]
