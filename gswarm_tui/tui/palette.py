"""Command palette: finds every action, metric and node by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from textual.app import App

from gswarm_agent.metrics import GPU_METRICS, HOST_METRICS
from gswarm_tui.common.colours import THEME_NAMES
from gswarm_tui.tui.actions import QUERY, actions_of
from gswarm_tui.tui.drawing.legend import meaning
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.screens.dialogs import PickDialog, ask
from gswarm_tui.tui.screens.node import NodeScreen


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


def open_palette(screen: ViewerScreen) -> None:
    """Let the user pick one of the commands of a screen, and run it."""
    entries = {f"{at}": entry for at, entry in enumerate(palette_entries(screen))}
    options = [(at, entry.title, entry.help) for at, entry in entries.items()]
    words = {at: entry.words for at, entry in entries.items()}
    listed = {at for at, entry in entries.items() if entry.listed}
    dialog = PickDialog("commands, metrics, nodes", options, words=words, listed=listed)

    def run(picked: str) -> None:
        screen.app.call_later(entries[picked].run)

    ask(screen.app, dialog, run)
