"""A mark: a name and values that a job gives to a moment, and its way to the agents of this node.

Quick to import, because it is made in training loops.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress

from gswarm_agent.calling import ASKING, connect
from gswarm_agent.folder import SOCKET, Folder, folders, tops
from gswarm_agent.frozen import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Tuple, TypeAlias, Union

Value: TypeAlias = "Union[int, float, str]"

MOST_NAME = 200
MOST_VALUES = 32
MOST_DETAIL = 4096
_PATIENCE_S = 5.0
# A launcher inside a Slurm step (torchrun, mpirun) knows better than Slurm which rank a process has.
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


class MarkError(Exception):
    """A mark that can't be made; the message says why."""


@dataclass(frozen=True)
class Marked:
    """The uids of the recordings that took a mark, and sentences on those that didn't, each once."""

    recordings: List[str]
    problems: List[str]


def parse_value(word: str) -> Tuple[str, Value]:
    """Name and value of ``KEY=VALUE``: a number where it reads as a finite one, else text."""
    key, equals, text = word.partition("=")
    if not equals or not key.strip():
        raise MarkError(f"{word!r} isn't of the form KEY=VALUE")
    with suppress(ValueError):
        if "_" not in text:
            number = float(text)
            if text.strip().lstrip("+-").isdigit():
                return key.strip(), int(text)
            if math.isfinite(number):
                return key.strip(), number
    return key.strip(), text


def values_of(words: List[str], environ: Mapping[str, str]) -> Dict[str, Value]:
    """The values of many words, with the rank of this process where its launcher tells it."""
    values = dict(map(parse_value, words))
    rank = next((environ[name] for name in _RANKS if environ.get(name, "").isdigit()), None)
    if rank is not None and len(values) < MOST_VALUES:
        values.setdefault("rank", int(rank))
    return values


def request(name: str, values: Mapping[str, Value]) -> bytes:
    """A mark as it is sent to an agent. Raises MarkError."""
    name, detail = checked(name, dict(values))
    return ASKING + json.dumps({"name": name, "values": json.loads(detail)}).encode() + b"\n"


def read_request(data: bytes) -> Tuple[str, str]:
    """Name and values, these as a JSON object, of what was sent. Raises MarkError."""
    try:
        said = json.loads(data[len(ASKING) :])
        return checked(said["name"], said["values"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise MarkError("the mark can't be understood") from None


def checked(name: Any, values: Any) -> Tuple[str, str]:
    """A mark's name and its values as a JSON object, printable and within the bounds. Raises MarkError."""
    if not isinstance(name, str) or not isinstance(values, dict):
        raise MarkError("a mark is a name and values")
    name = _printable(name).strip()
    if not name:
        raise MarkError("a mark needs a name")
    if len(name) > MOST_NAME:
        raise MarkError(f"a mark's name may have {MOST_NAME} characters, and this one has {len(name)}")
    if len(values) > MOST_VALUES:
        raise MarkError(f"a mark may have {MOST_VALUES} values, and this one has {len(values)}")
    kept = {_printable(str(key)): _plain(value) for key, value in values.items()}
    detail = json.dumps(kept, allow_nan=False)
    if len(detail) > MOST_DETAIL:
        raise MarkError(f"a mark's values may have {MOST_DETAIL} characters, and these have {len(detail)}")
    return name, detail


def _plain(value: Any) -> Value:
    if isinstance(value, str):
        return _printable(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise MarkError(f"a mark's values are numbers and text, not {value!r}")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise MarkError("a mark's whole numbers are below 2 to the power of 63")
    return value if math.isfinite(value) else str(value)


def _printable(text: str) -> str:
    clean = text.encode("utf-8", "replace").decode()
    return clean if clean.isprintable() else "".join(c if c.isprintable() else " " for c in clean)


def send(name: str, values: Mapping[str, Value], recording: str = "", top: str = "") -> Marked:
    """Make a mark in every recording that has an agent of this user here, or in those that begin so.

    Returns when the agents have taken it. Raises MarkError.
    """
    asked = request(name, values)
    marked = Marked([], [])
    for folder in folders(tops(top)):
        uid = folder.name.partition("@")[0]
        if not uid.startswith(recording) or SOCKET not in folder.names():
            continue
        problem = _ask(folder, asked)
        if problem is None:
            continue
        if problem:
            sentence = f"recording {uid[:8]} didn't take the mark: {problem}"
            if sentence not in marked.problems:
                marked.problems.append(sentence)
        elif uid not in marked.recordings:
            marked.recordings.append(uid)
    return marked


def _ask(folder: Folder, asked: bytes) -> Optional[str]:
    """Why the agent of a folder didn't take it; empty where it did, None where none is there."""
    try:
        connection = connect(folder)
    except OSError:
        return None
    with connection:
        connection.settimeout(_PATIENCE_S)
        said = b""
        try:
            connection.sendall(asked)
            while True:
                data = connection.recv(65536)
                if not data:
                    break
                said += data
            _, _, answer = said.partition(b"\n")
            return str(json.loads(answer).get("error", ""))
        except OSError as error:
            return f"its agent doesn't answer ({error})"
        except ValueError:
            return "its agent is of another version"
