"""What an agent answers those who ask something of it, ``status`` and ``mark``."""

from __future__ import annotations

import json

from gswarm_agent.mark import MarkError, read_request
from gswarm_agent.visitor import STATUS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from gswarm_agent.marks import Marks
    from gswarm_agent.spool import Spool


def answer(question: bytes, spool: Spool, marks: Optional[Marks], now_ns: int) -> str:
    """The answer, as JSON; there are no ``marks`` where nothing is measured."""
    if question == STATUS:
        return json.dumps([vars(waiting) for waiting in spool.waiting()])
    try:
        if marks is None:
            raise MarkError("it doesn't measure now")
        marks.add(*read_request(question), now_ns)
    except MarkError as error:
        return json.dumps({"error": str(error)})
    return "{}"
