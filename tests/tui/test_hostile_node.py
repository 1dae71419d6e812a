"""A hostile node can spoil its own row and nothing else."""

from __future__ import annotations

import random

from tests.hostile import HostileNode
from tests.tui.conftest import app_on, line_with, screen_text
from tests.tui.scene import Scene

WALK = (
    "enter",
    "escape",
    "down",
    "up",
    "right",
    "tab",
    "z",
    "m",
    "e",
    "S",
    "f",
    "o",
    "n",
    "5",
    "question_mark",
)


async def test_hostile_node_breaks_no_screen() -> None:
    scene = Scene(2, 4, names=("evil", "good")).connect("good").advance(5)
    node, walk = HostileNode("evil", seed=1), random.Random(1)
    app = app_on(scene)
    async with app.run_test(size=(120, 40)) as pilot:
        for step in range(40):
            for event in node.connection(scene.time):
                scene.hub.publish(event)
            if step == 5:
                scene.hub.start_session("run")
            scene.advance(2)
            await pilot.press(walk.choice(WALK))
            await pilot.pause()
            assert all(c.isprintable() for c in screen_text(app).replace("\n", ""))
        await pilot.press("escape", "escape", "escape", "f")
        await pilot.pause()
        assert "good" in line_with(app, "good")
