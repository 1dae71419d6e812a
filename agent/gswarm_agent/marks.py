"""The marks that an agent has taken and that wait for its next frames."""

from __future__ import annotations

from collections import deque

from gswarm_agent.frame import INFO, Frame, Note
from gswarm_agent.frozen import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Deque

MOST_ON_A_FRAME = 256
"""With the longest names and values they fill a third of the largest message."""
MOST_WAITING = 4096


class Marks:
    """Marks in the order they were made."""

    def __init__(self) -> None:
        self._waiting: Deque[Note] = deque()

    def add(self, name: str, detail: str, ts_ns: int) -> None:
        """Take a mark of the node's time ``ts_ns``. Raises MarkError where too many wait."""
        if len(self._waiting) >= MOST_WAITING:
            from gswarm_agent.mark import MarkError

            raise MarkError(
                f"{MOST_WAITING} marks wait for the next sample; make fewer, or sample more often"
            )
        self._waiting.append(Note("mark", INFO, name, ts_ns=ts_ns, detail=detail))

    @property
    def frames(self) -> int:
        """How many frames those that wait need."""
        return -(-len(self._waiting) // MOST_ON_A_FRAME)

    def put_on(self, frame: Frame) -> Frame:
        """The frame with the oldest marks that wait, as many as it may carry."""
        count = min(len(self._waiting), MOST_ON_A_FRAME)
        if not count:
            return frame
        return replace(frame, notes=(*frame.notes, *(self._waiting.popleft() for _ in range(count))))
