"""Marks: moments that a job names, with values, and their delivery to the agents of this node.

Quick to import, because training loops make marks.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace

from gswarm_agent.attach import MARK, connect, send_request
from gswarm_agent.folder import SOCKET, folders, tops
from gswarm_agent.frame import INFO, STEP, Frame, Note
from gswarm_agent.probes.procfs import RANK_VARIABLES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from threading import Thread
    from typing import Any, Deque, Dict, List, Mapping, Optional, Tuple, TypeAlias, Union

Value: TypeAlias = "Union[int, float, str]"

MOST_NAME = 200
MOST_VALUES = 32
MOST_DETAIL = 4096
MOST_ON_A_FRAME = 256
"""With the longest names and values they fill a third of the largest message."""
MOST_WAITING = 4096
_TIMEOUT_S = 5.0
STEP_TIME = "step time"
"""Name of the marks of ``step``."""
STEPS_EVERY_S = 30.0
"""A rank sends the times of its steps this often, however short they are."""
_MOST_STEPS = 1000
"""A median is that of the newest steps, at most so many."""
_RANKS = tuple(name.decode() for name in RANK_VARIABLES)


class MarkError(Exception):
    """Raised for a mark that can't be made; the message gives the reason."""


@dataclass(frozen=True)
class Marked:
    """The uids of the recordings that took a mark, and one sentence for each problem with another."""

    recordings: List[str]
    problems: List[str]


def parse_value(text: str) -> Tuple[str, Value]:
    """Return name and value of ``KEY=VALUE``: a number if it reads as a finite one, else text."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise MarkError(f"{text!r} isn't of the form KEY=VALUE")
    with suppress(ValueError):
        if "_" not in value:
            number = float(value)
            if value.strip().lstrip("+-").isdigit():
                return key.strip(), int(value)
            if math.isfinite(number):
                return key.strip(), number
    return key.strip(), value


def values_of(pairs: List[str], environ: Mapping[str, str]) -> Dict[str, Value]:
    """Return the values of many ``KEY=VALUE``, and this process's rank if its launcher set one."""
    values = dict(map(parse_value, pairs))
    rank = next((environ[name] for name in _RANKS if environ.get(name, "").isdigit()), None)
    if rank is not None and len(values) < MOST_VALUES:
        values.setdefault("rank", int(rank))
    return values


def request(name: str, values: Mapping[str, Value]) -> bytes:
    """Return a mark as a request to an agent. Raises MarkError."""
    import json

    name, detail = checked(name, dict(values))
    return MARK + json.dumps({"name": name, "values": json.loads(detail)}).encode() + b"\n"


def read_request(data: bytes) -> Tuple[str, str]:
    """Return a request's name, and its values as a JSON object. Raises MarkError."""
    import json

    try:
        mark = json.loads(data[len(MARK) :])
        return checked(mark["name"], mark["values"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise MarkError("the mark can't be understood") from None


def checked(name: Any, values: Any) -> Tuple[str, str]:
    """Return a mark's printable name, and its values as a JSON object. Raises MarkError if out of bounds."""
    import json

    if not isinstance(name, str) or not isinstance(values, dict):
        raise MarkError("a mark has a name and values")
    name = _printable(name).strip()
    if not name:
        raise MarkError("a mark needs a name")
    if len(name) > MOST_NAME:
        raise MarkError(f"a mark's name can have {MOST_NAME} characters; this one has {len(name)}")
    if len(values) > MOST_VALUES:
        raise MarkError(f"a mark can have {MOST_VALUES} values; this one has {len(values)}")
    printable = {_printable(str(key)): _checked_value(value) for key, value in values.items()}
    detail = json.dumps(printable, allow_nan=False)
    if len(detail) > MOST_DETAIL:
        raise MarkError(f"a mark's values can have {MOST_DETAIL} characters; these have {len(detail)}")
    return name, detail


def _checked_value(value: Any) -> Value:
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
    """Set a mark in each recording that has an agent of this user here and whose uid begins with this text.

    Returns when the agents have taken it. Raises MarkError.
    """
    data = request(name, values)
    marked = Marked([], [])
    for folder in folders(tops(top)):
        uid = folder.name.partition("@")[0]
        if not uid.startswith(recording) or SOCKET not in folder.names():
            continue
        try:
            with connect(folder) as connection:
                problem = str(send_request(connection, data, _TIMEOUT_S).get("error", ""))
        except (FileNotFoundError, ConnectionRefusedError):
            continue
        except (OSError, ValueError, AttributeError) as error:
            problem = f"its agent doesn't answer ({error})"
        if problem:
            sentence = f"recording {uid[:8]} didn't take the mark: {problem}"
            if sentence not in marked.problems:
                marked.problems.append(sentence)
        elif uid not in marked.recordings:
            marked.recordings.append(uid)
    return marked


def step(number: Optional[int] = None, *, compute: Optional[float] = None) -> None:
    """Note that this process has ended a step of its training loop; call it in every rank.

    Every 30 s, a thread sends the median time of a step to this node's agents, so the loop never waits. It
    never raises: what fails is warned of once. ``number`` is the step's, counted from 1 without one.
    ``compute`` is how many seconds of the step this rank itself computed, without waiting for other ranks.
    """
    global _steps
    try:
        _steps = _steps or Steps()
        _steps.take(time.monotonic(), number, compute)
    except Exception as error:
        if _steps is not None:
            _steps.warn(f"a step can't be counted: {error}")


class Steps:
    """The newest steps of this process, of which the median is sent."""

    def __init__(self, top: str = "") -> None:
        self._top, self._rank = top, values_of([], os.environ)
        self._number = 0
        self._ended: Optional[float] = None
        self._sent = 0.0
        self._took: Deque[float] = deque(maxlen=_MOST_STEPS)
        self._computed: Deque[float] = deque(maxlen=_MOST_STEPS)
        self.sender: Optional[Thread] = None
        self._warned = False

    def take(self, now: float, number: Optional[int], compute: Optional[float]) -> None:
        """Add a step that ends at a monotonic time, and send the median if it is time to."""
        self._number = self._number + 1 if number is None else int(number)
        before, self._ended = self._ended, now
        if before is None:
            # The first step includes the start.
            self._sent = now
            return
        self._took.append(now - before)
        if compute is not None:
            self._computed.append(float(compute))
        if now - self._sent >= STEPS_EVERY_S and (self.sender is None or not self.sender.is_alive()):
            from threading import Thread

            values = {**self._rank, "step": self._number, "seconds": _median(self._took)}
            if self._computed:
                values["compute"] = _median(self._computed)
            self._sent = now
            self._took.clear()
            self._computed.clear()
            self.sender = Thread(target=self._send, args=(values,), daemon=True)
            self.sender.start()

    def _send(self, values: Dict[str, Value]) -> None:
        try:
            marked = send(STEP_TIME, values, top=self._top)
            if not marked.recordings:
                self.warn(next(iter(marked.problems), "no gswarm-tui has an agent of yours on this node"))
        except Exception as error:
            self.warn(f"its marks can't be sent: {error}")

    def warn(self, reason: str) -> None:
        """Warn once, and of a job's ranks only in rank 0."""
        from warnings import warn

        if not self._warned and self._rank.get("rank", 0) == 0:
            self._warned = True
            with suppress(Warning):
                warn(f"gswarm_agent.mark.step: {reason}; further failures are not reported", stacklevel=3)


_steps: Optional[Steps] = None


def _median(values: Deque[float]) -> float:
    return round(sorted(values)[len(values) // 2], 6)


class Marks:
    """The marks that an agent has taken and that wait for its next frames, oldest first."""

    def __init__(self) -> None:
        self._waiting: Deque[Note] = deque()

    def add(self, name: str, detail: str, ts_ns: int) -> None:
        """Take a mark of the node's time ``ts_ns``. Raises MarkError if too many wait."""
        if len(self._waiting) >= MOST_WAITING:
            raise MarkError(
                f"{MOST_WAITING} marks wait for the next sample; make fewer, or sample more often"
            )
        kind = STEP if name == STEP_TIME else "mark"
        self.add_note(Note(kind, INFO, name, ts_ns=ts_ns, detail=detail))

    def add_note(self, note: Note) -> None:
        """Take a note of the agent itself."""
        self._waiting.append(note)

    @property
    def frames_needed(self) -> int:
        """How many frames the waiting marks need."""
        return -(-len(self._waiting) // MOST_ON_A_FRAME)

    def put_on(self, frame: Frame) -> Frame:
        """Return the frame with the oldest waiting marks, as many as it may carry."""
        count = min(len(self._waiting), MOST_ON_A_FRAME)
        if not count:
            return frame
        return replace(frame, notes=(*frame.notes, *(self._waiting.popleft() for _ in range(count))))
