"""Command palette: finds every action, metric and node by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, cast

from rich.text import Text
from textual.app import App
from textual.binding import Binding, BindingType
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider

from gswarm_agent.metrics import GPU_METRICS, HOST_METRICS
from gswarm_tui.common.colours import THEME_NAMES
from gswarm_tui.tui.actions import QUERY, actions_of
from gswarm_tui.tui.drawing.legend import meaning
from gswarm_tui.tui.drawing.matching import match_score
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.screens.node import NodeScreen

TITLE_WIDTH = 36
"""Cells of a command's title before its key or meaning."""


@dataclass(frozen=True)
class PaletteEntry:
    """Command of the palette; ``words`` find it, too. It is ``listed`` before a letter is typed."""

    title: str
    help: str
    run: Callable[[], object]
    words: str = ""
    listed: bool = True


def palette_entries(screen: ViewerScreen) -> Iterator[PaletteEntry]:
    """Yield the commands that make sense on a screen."""
    app: App[object] = screen.app
    viewer = screen.viewer
    for action in actions_of(screen.SCREEN, viewer.mode):
        if action.palette and not (viewer.read_only and action.changes):
            run = partial(app.run_action, action.name, screen if action.screens else app)
            yield PaletteEntry(action.help, f"key {action.keys_shown}", run, action.words)
    if viewer.mode == QUERY:
        return
    for metric in (*GPU_METRICS, *HOST_METRICS):
        of = "" if metric in GPU_METRICS else "node "
        show = partial(app.run_action, f"show_metric('{metric.name}')")
        yield PaletteEntry(f"Show {of}{metric.label}", meaning(metric), show, f"{metric.short} {metric.name}")
    for theme in THEME_NAMES:
        show = partial(app.run_action, f"theme('{theme}')")
        yield PaletteEntry(f"Switch to {theme}", "theme", show, "theme colours colors", False)
    for node in viewer.fleet.nodes:
        show_node = partial(lambda name: viewer.show(NodeScreen(name)), node)
        yield PaletteEntry(f"Open {clean(node)}", "node", show_node, "go", False)


def one_line(entry: PaletteEntry, query: str = "") -> Text:
    """Return a command with its key or meaning beside it; words of the query are underlined."""
    title = Text(entry.title)
    title.highlight_words(query.split(), "bold underline", case_sensitive=False)
    title.pad_right(max(0, TITLE_WIDTH - len(title)))
    return title.append(f"  {entry.help}", "dim not bold")


class ActionPalette(CommandPalette):
    """Textual's palette with a command a line, in which Ctrl-Z suspends the program as on all screens."""

    DEFAULT_CSS = "ActionPalette CommandList { text-wrap: nowrap; text-overflow: ellipsis; }"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+z", "app.suspend_process")]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Refuse to page on four lines or fewer: the list has none, and Textual fails."""
        possible = action != "command_list" or self.size.height > 4
        return possible and super().check_action(action, parameters)


class ActionProvider(Provider):
    """Search in the commands of the screen that the palette was opened from."""

    async def startup(self) -> None:
        """Collect the commands once for each time that the palette opens."""
        self._entries = list(palette_entries(cast("ViewerScreen", self.screen)))

    async def discover(self) -> Hits:
        """Yield the listed commands before a letter is typed."""
        for entry in self._entries:
            if entry.listed:
                yield DiscoveryHit(one_line(entry), entry.run, entry.title)

    async def search(self, query: str) -> Hits:
        """Yield the commands that match the words."""
        for entry in self._entries:
            if score := match_score(query, entry.title, entry.words):
                yield Hit(score, one_line(entry, query), entry.run, entry.title)
