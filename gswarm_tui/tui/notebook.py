"""What was asked of the recording, kept while other places are in front."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gswarm_tui.common.query_history import Asked

if TYPE_CHECKING:
    from gswarm_tui.tui.answer import Laid

HISTORY_KEPT = 200


@dataclass
class Notebook:
    """What was asked, oldest first, also at the prompt and in other runs; what the place showed when left."""

    kept: Asked
    asked: list[str] = field(default_factory=list)
    draft: str = ""
    answer: Laid | None = None
    problem: str = ""

    def open(self) -> None:
        """Learn what was asked before this run."""
        self.asked = self.asked or self.kept.read()[-HISTORY_KEPT:]

    def remember(self, sql: str) -> None:
        """Put a query behind those that were asked before."""
        if self.asked[-1:] != [sql]:
            self.asked = [*self.asked, sql][-HISTORY_KEPT:]
            self.kept.add(sql)
