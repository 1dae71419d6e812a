"""The command palette: every action of the table, every metric, order, theme and node, found by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.widgets import OptionList

from gswarm_agent.metrics import GPU_METRICS, HOST_METRICS
from gswarm_tui.common.colours import THEME_NAMES
from gswarm_tui.fleet.order import Order
from gswarm_tui.tui.actions import actions_of
from gswarm_tui.tui.drawing.legend import meaning
from gswarm_tui.tui.drawing.text import clean

if TYPE_CHECKING:
    from gswarm_tui.tui.viewer import Viewer


class PaletteEntry(NamedTuple):
    """An entry of the palette; ``listed`` tells whether it is shown before a letter is typed."""

    name: str
    help: str
    run: Callable[[], object]
    listed: bool = True


def palette_entries(app: Viewer) -> Iterator[PaletteEntry]:
    """What can be commanded in the place in front."""
    place = app.place
    for action in actions_of(place.PLACE, app.mode):
        if action.palette:
            run = partial(app.run_action, action.name, place if action.places else app)
            yield PaletteEntry(action.help, f"key {action.keys_shown}", run)
    for metric in (*GPU_METRICS, *HOST_METRICS):
        of = "" if metric in GPU_METRICS else "node "
        show = partial(app.show_metric, metric.name)
        yield PaletteEntry(f"Show {of}{metric.label}", meaning(metric), show)
    for order in Order:
        yield PaletteEntry(
            f"Sort nodes {order.value}", "order of the fleet", partial(app.show_order, order), False
        )
    for theme in THEME_NAMES:
        yield PaletteEntry(f"Theme {theme}", "colours", partial(setattr, app, "theme", theme), False)
    for node in app.feed.fleet.nodes:
        yield PaletteEntry(f"Open {clean(node)}", "node", partial(app.show_node, node), False)


class ActionPalette(CommandPalette):
    """Textual's palette, which stays alive where the terminal leaves its list no room."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """No pages in a list without a line: the highlighted one has no place in it."""
        if (
            parameters in (("page_down",), ("page_up",))
            and not self.query_one(OptionList).scrollable_content_region
        ):
            return False
        return super().check_action(action, parameters)


class ActionProvider(Provider):
    """What the palette finds in the place that it was opened from."""

    async def startup(self) -> None:
        """Collect the commands once for each time that the palette opens."""
        self._commands = list(palette_entries(cast("Viewer", self.app)))

    async def discover(self) -> Hits:
        """Most of it, before a letter is typed."""
        for command in self._commands:
            if command.listed:
                yield DiscoveryHit(command.name, command.run, help=command.help)

    async def search(self, query: str) -> Hits:
        """What matches the letters."""
        matcher = self.matcher(query)
        for command in self._commands:
            score = matcher.match(command.name)
            if score > 0:
                yield Hit(score, matcher.highlight(command.name), command.run, help=command.help)
