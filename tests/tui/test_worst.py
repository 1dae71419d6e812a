"""Screen of the worst GPUs."""

from __future__ import annotations

from gswarm_tui.tui.app import GswarmApp
from tests.tui.conftest import app_on, line_with, screen_text, shows
from tests.tui.scene import Scene


def listed(app: GswarmApp, column: int) -> list[str]:
    """Return the texts of a column of the table, from the top."""
    rows = [line.replace("▸", " ").split() for line in screen_text(app).splitlines()]
    return [row[column] for row in rows if len(row) > column and row[0].isdigit() and ":" in row[1]]


async def test_worst_gpus_are_ranked_and_enter_opens_one() -> None:
    made = Scene(64, 8).connect().advance(70)
    app = app_on(made)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await pilot.press("W")
        await pilot.pause()
        assert "first 500 of 512 GPUs" in line_with(app, "lowest GPU util first")
        means = [int(text) for text in listed(app, 3)]
        assert len(means) > 30
        assert means == sorted(means)
        second = listed(app, 1)[1]
        await pilot.press("down", "enter")
        await pilot.pause()
        assert app.front.SCREEN == "gpu"
        assert f" {second}  ● live" in screen_text(app)
        await pilot.press("escape")
        await pilot.pause()
        assert second in line_with(app, "▸"), "the cursor stays on its GPU"


async def test_worst_gpus_of_another_metric_and_in_reverse() -> None:
    made = Scene(4, 8).connect().advance(70)
    app = app_on(made)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await pilot.press("4", "W")
        await pilot.pause()
        assert "highest temperature first" in screen_text(app)
        temperatures = [int(text) for text in listed(app, 3)]
        assert temperatures == sorted(temperatures, reverse=True)
        await pilot.press("o")
        await pilot.pause()
        assert "lowest temperature first" in screen_text(app)
        assert [int(text) for text in listed(app, 3)] == sorted(temperatures)
        await pilot.press("3")
        await pilot.pause()
        assert "lowest power first" in screen_text(app)
        await pilot.press("0")
        await pilot.pause()
        await shows(app, pilot, "CPU is measured for nodes, not for GPUs")


async def test_worst_gpus_list_says_which_nodes_are_lost_and_which_gpus_are_silent() -> None:
    made = Scene(2, 2).connect().advance(70)
    made.forget_gpu("gpu01", 1).lose("gpu02", "connection reset by peer").advance(70)
    app = app_on(made)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("W")
        await pilot.pause()
        assert "GPU does not respond" in line_with(app, "gpu01:1")
        assert "lost" in line_with(app, "gpu02:0")
        assert listed(app, 1)[0] == "gpu01:0", "unmeasured ones come last"


async def test_worst_gpus_of_a_node_metric_are_ranked_by_utilisation() -> None:
    app = app_on(Scene(2, 2).connect().advance(70))
    async with app.run_test(size=(120, 40)) as pilot:
        app.action_show_metric("cpu_iowait_pct")
        await pilot.press("W")
        await pilot.pause()
        assert line_with(app, "lowest GPU util first")
        await pilot.press("4")
        await pilot.pause()
        assert "mean of the last minute" in line_with(app, "highest temperature first")
