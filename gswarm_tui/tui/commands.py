"""The command palette: every action of the table, every metric and every node, found by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider

from gswarm_tui.tui.actions import actions_of

if TYPE_CHECKING:
    from gswarm_tui.tui.app import GswarmApp


class SwarmCommands(Provider):
    """What the palette finds in the place that it was opened from."""

    def _commands(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        app = cast("GswarmApp", self.app)
        place = app.place
        for action in actions_of(place.PLACE):
            if action.palette:
                owner = place if action.places else app

                async def run(name: str = action.name, owner: object = owner) -> None:
                    await app.run_action(name, owner)  # type: ignore[arg-type]

                yield action.label, action.help, run

    async def discover(self) -> Hits:
        """Everything, before a letter is typed."""
        for label, help_text, run in self._commands():
            yield DiscoveryHit(label, run, help=help_text)

    async def search(self, query: str) -> Hits:
        """What matches the letters."""
        matcher = self.matcher(query)
        for label, help_text, run in self._commands():
            score = max(matcher.match(label), matcher.match(help_text))
            if score > 0:
                yield Hit(score, matcher.highlight(label), run, help=help_text)
