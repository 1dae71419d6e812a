"""Command palette: finds every action, metric and node by name."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from textual.app import App

from gswarm_agent.metrics import GPU_METRICS, HOST_METRICS
from gswarm_tui.common.colours import THEME_NAMES
from gswarm_tui.tui.actions import QUERY, actions_of
from gswarm_tui.tui.drawing.numbers import meaning
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.screens.dialogs import Choice
from gswarm_tui.tui.screens.node import NodeScreen


def palette_entries(screen: ViewerScreen) -> Iterator[Choice]:
    """Yield the commands that make sense on a screen; the values are functions that run them."""
    app: App[object] = screen.app
    viewer = screen.viewer
    for action in actions_of(screen.SCREEN, viewer.mode):
        if action.palette and not (viewer.read_only and action.changes):
            run = partial(app.run_action, action.name, screen if action.screens else app)
            yield Choice(run, action.help, f"key {action.keys_shown}", action.words)
    if viewer.mode == QUERY:
        return
    for metric in (*GPU_METRICS, *HOST_METRICS):
        of = "" if metric in GPU_METRICS else "node "
        show = partial(app.run_action, f"show_metric('{metric.name}')")
        yield Choice(show, f"Show {of}{metric.label}", meaning(metric), f"{metric.short} {metric.name}")
    for theme in THEME_NAMES:
        show = partial(app.run_action, f"theme('{theme}')")
        yield Choice(show, f"Switch to {theme}", "theme", "theme colours colors", listed=False)
    for node in viewer.fleet.nodes:
        show_node = partial(lambda name: viewer.show(NodeScreen(name)), node)
        yield Choice(show_node, f"Open {node}", "node", "go", listed=False)
