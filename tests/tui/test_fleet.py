"""Fleet screen."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gswarm_agent.frame import ERROR, INFO, WARNING, Note
from gswarm_agent.metrics import GPU_COLUMNS, REASON_HW_THERMAL, REASON_POWER_BRAKE
from gswarm_tui.fleet.events import EventLogged, LinkChanged, Phase, RecorderStatus, SessionStarted
from gswarm_tui.tui.app import GswarmApp
from gswarm_tui.tui.drawing.layout import Zoom
from gswarm_tui.tui.drawing.themes import palette
from tests.tui.conftest import app_on, screen_text
from tests.tui.scene import Scene, scene

Matches = Callable[[GswarmApp, str], None]
SIZES = [(80, 24), (120, 40), (200, 60)]


def line_with(text: str, app: GswarmApp) -> str:
    """Return the first line of the screen that contains a text."""
    return next((line for line in screen_text(app).splitlines() if text in line), "")


def troubled() -> Scene:
    """Return six nodes: healthy, with a lost GPU, stale, lost, waiting for disks, connecting."""
    made = Scene(6, 8).connect("gpu01", "gpu02", "gpu03", "gpu04", "gpu05").advance(90)
    made.forget_gpu("gpu02", 3).silence("gpu03").advance(5)
    made.lose("gpu04", "connection reset by peer", "check that the node is up", retry_in=5).advance(1)
    made.hub.start_session("full_training", started_at=made.time - 60)
    return made.recording()


@pytest.mark.parametrize("size", SIZES)
async def test_fleet_matches_picture(size: tuple[int, int], matches_picture: Matches) -> None:
    app = app_on(troubled())
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        matches_picture(app, f"fleet-{size[0]}x{size[1]}")


@pytest.mark.parametrize(
    ("nodes", "size", "zoom"),
    [(64, (120, 40), Zoom.NUMBERS), (64, (80, 24), Zoom.BLOCKS), (1024, (200, 60), Zoom.PLAIN)],
)
async def test_many_gpus_fit_without_scrolling(nodes: int, size: tuple[int, int], zoom: Zoom) -> None:
    app = app_on(scene(nodes, 8, 2))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        assert app.fleet_screen.heatmap.layout_plan.zoom is zoom
        assert app.fleet_screen.heatmap.max_scroll_y == 0


@pytest.mark.parametrize(("nodes", "size"), [(1, (200, 60)), (1, (120, 40)), (4, (200, 60))])
async def test_few_nodes_get_plots_of_each_gpu(
    nodes: int, size: tuple[int, int], matches_picture: Matches
) -> None:
    app = app_on(scene(nodes, 8, 90, seed=3).recording())
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        matches_picture(app, f"minutes-{nodes}-{size[0]}x{size[1]}")
        assert app.fleet_screen.heatmap.max_scroll_y == 0
        shown = {1: ["gpu01"], 4: ["all nodes", "gpu01"]}[nodes]
        assert [f"{name}: GPU util, last 2 min" in screen_text(app) for name in shown] == [True] * len(shown)
        await pilot.press("0")
        await pilot.pause()
        assert "all nodes: CPU, last 2 min" in screen_text(app)


@pytest.mark.parametrize("size", [*SIZES, (100, 30)])
async def test_plots_of_the_cursors_node_follow_it(size: tuple[int, int]) -> None:
    app = app_on(scene(8 if size[1] in (30, 60) else 4, 8, 110))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        assert "gpu01: GPU util, last 2 min" in screen_text(app)
        await pilot.press("down", "right", "right")
        await pilot.pause()
        assert "gpu01: GPU util" not in screen_text(app)
        assert "gpu02: GPU util, last 2 min" in screen_text(app)
        assert app.fleet_screen.heatmap.max_scroll_y == 0
        assert line_with("now", app).rstrip().endswith("now")


async def test_plots_fit_after_a_resize() -> None:
    app = app_on(scene(1, 8, 90, seed=3))
    async with app.run_test(size=(200, 60)) as pilot:
        await pilot.pause()
        first = screen_text(app)
        for size in ((120, 40), (120, 31), (80, 24), (200, 60)):
            await pilot.resize_terminal(*size)
            for _ in range(3):
                await pilot.pause()
            assert app.screen.max_scroll_y == app.fleet_screen.heatmap.max_scroll_y == 0
        assert screen_text(app) == first


async def test_node_states_are_shown_as_text() -> None:
    app = app_on(troubled())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        assert "≈ stale 6 s" in line_with("gpu03", app)
        lost = "╳ lost 1 s ago: connection reset by peer · check that the node is up · retry in 4 s"
        assert lost in line_with("gpu04", app)
        assert "… connecting" in line_with("gpu06", app)
        assert line_with(" gpu02  ", app).split()[5] == "–"
        assert "nodes 3/6" in screen_text(app)
        assert "SIMULATED" in line_with("gswarm", app)


NO_PYTHON = (
    "its python3 is 3.6; 3.9 or later with _ctypes is needed",
    "load one with --setup 'module load python', or name one with --agent-python PATH",
)


@pytest.mark.parametrize("size", SIZES)
async def test_reason_and_remedy_of_a_lost_node_wrap_completely(
    size: tuple[int, int],
) -> None:
    made = Scene(4, 8).connect().advance(90)
    made.lose("gpu03", *NO_PYTHON, retry_in=30).advance(1)
    app = app_on(made)
    async with app.run_test(size=size) as pilot:
        await pilot.press("n")
        await pilot.pause()
        assert f"{' · '.join(NO_PYTHON)} · retry in 29 s" in " ".join(screen_text(app).split())
        assert "q quit" in screen_text(app).splitlines()[-1]
        rows = [line[:30] for line in screen_text(app).splitlines() if line.startswith(" gpu0")][:4]
        await pilot.press("up")
        await pilot.pause()
        shown = screen_text(app).splitlines()
        assert rows == [line[:30] for line in shown if line.startswith(" gpu0")][:4], "nodes stay in place"


async def test_throttle_reason_comes_before_the_clock() -> None:
    made = Scene(2, 8, seed=3).connect().advance(30)
    hot = made.fleet.nodes["gpu01"]
    hot.gpus[3, GPU_COLUMNS.index("clock_reasons")] = REASON_HW_THERMAL
    app = app_on(made)
    async with app.run_test(size=(80, 24)) as pilot:
        app.fleet_screen.heatmap.point_at("gpu01", 3)
        await pilot.pause()
        assert "°C  ▲ thermal" in line_with("gpu01:3  util", app)
        hot.gpus[3, GPU_COLUMNS.index("clock_reasons")] = REASON_HW_THERMAL | REASON_POWER_BRAKE
        app.update_view()
        assert "°C  ▲ thermal (hardware)…" in line_with("gpu01:3  util", app)


def one_idle() -> Scene:
    """Return four nodes of which gpu02:2 does nothing now."""
    made = scene(4, 8, 30)
    made.fleet.nodes["gpu02"].gpus[2, GPU_COLUMNS.index("util_pct")] = 0
    return made


async def test_cursor_shows_the_gpu_and_opens_the_node() -> None:
    app = app_on(one_idle())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("down", "l", "l")
        await pilot.pause()
        assert "util 0 %" in line_with(" gpu02:2  util", app)
        await pilot.press("enter")
        await pilot.pause()
        assert app.front.SCREEN == "node"
        await pilot.press("escape")
        await pilot.pause()
        assert app.front.SCREEN == "fleet"
        assert app.fleet_screen.heatmap.at == ("gpu02", 2)


async def test_mouse_selects_and_opens() -> None:
    app = app_on(scene(4, 8, 30))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        heatmap = app.fleet_screen.heatmap
        layout = heatmap.layout_plan
        spot = (layout.margin + layout.cells_at + 2 * layout.cell + 1, 1)
        await pilot.click(heatmap, offset=spot)
        assert heatmap.at == ("gpu02", 2)
        assert line_with(" gpu02:2  ", app)
        await pilot.click(heatmap, offset=spot)
        await pilot.pause()
        assert app.front.SCREEN == "node"


async def test_metric_is_chosen_by_number_step_and_list() -> None:
    app = app_on(scene(4, 8, 30))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("3")
        await pilot.pause()
        assert line_with("unmeasured", app).split()[:4] == ["power", "W", "0", "700"]
        await pilot.press("right_square_bracket")
        await pilot.pause()
        assert line_with("unmeasured", app).startswith(" temperature °C")
        await pilot.press("0")
        await pilot.pause()
        assert line_with("unmeasured", app).startswith(" CPU %")
        await pilot.press("m", "home")
        await pilot.pause()
        assert "Energy used since the recording began" in line_with("energy since start", app)
        await pilot.press("end", "enter")
        await pilot.pause()
        assert line_with("unmeasured", app).startswith(" job I/O PSI %")


async def test_legend_says_that_the_group_of_a_metric_is_switched_off() -> None:
    made = scene(2, 8, 5).set_metrics("core", "host").advance(5)
    app = app_on(made)
    async with app.run_test(size=(120, 40)) as pilot:
        app.action_show_metric("pcie_tx_mb_s")
        await pilot.pause()
        assert line_with(" PCIe tx", app).endswith("switched off")
        app.action_show_metric("cpu_pct")
        await pilot.pause()
        assert line_with("unmeasured", app).startswith(" CPU %")
        made.set_metrics("core", "pcie").advance(5)
        await pilot.pause()
        app.update_view()
        await pilot.pause()
        assert line_with(" CPU %", app).endswith("switched off")


async def test_sort_by_metric_puts_the_lowest_first() -> None:
    app = app_on(one_idle())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("o", "o", "o")
        await pilot.pause()
        assert "by rank" in screen_text(app)
        await pilot.press("z", "z")
        await pilot.pause()
        assert line_with(" 8–15", app).split()[0] in {"0–7", "8–15"}
        await pilot.press("o")
        await pilot.pause()
        order = [line.split()[0] for line in screen_text(app).splitlines() if line.startswith(" gpu0")][:4]
        assert order[0] == "gpu02"
        assert "lowest first" in screen_text(app)


async def test_filter_applies_while_typing_and_marks_errors() -> None:
    app = app_on(one_idle())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("slash", *"util<5 | x")
        await pilot.press("left_parenthesis")
        await pilot.pause()
        lines = screen_text(app).splitlines()
        typed = next(i for i, line in enumerate(lines) if "util<5 | x(" in line)
        assert "the filter ends too early" in lines[typed + 1]
        await pilot.press(*["backspace"] * 4, "enter")
        await pilot.pause()
        assert "filter util<5: 1 GPU on 1 of 4 nodes" in screen_text(app)
        assert "\n gpu01 " not in screen_text(app)
        assert "\n gpu02 " in screen_text(app)
        await pilot.press("escape")
        await pilot.pause()
        assert "\n gpu01 " in screen_text(app)


async def test_typing_a_filter_leaves_every_node_in_its_place() -> None:
    app = app_on(scene(64, 8, 10).recording())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        before = screen_text(app).splitlines()[3:20]
        assert "gpu64" in "".join(before)
        await pilot.press("slash")
        await pilot.pause()
        assert screen_text(app).splitlines()[3:20] == before
        await pilot.press("escape")
        await pilot.pause()
        assert "? help" in screen_text(app).splitlines()[-1]


async def test_mistyped_metric_is_corrected_while_it_is_typed() -> None:
    app = app_on(scene(4, 8, 30))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("slash", *"powr")
        await pilot.pause()
        assert "nothing matches: no node's name contains 'powr'; perhaps you meant power" in screen_text(app)
        await pilot.press("space", "greater_than_sign")
        await pilot.pause()
        assert "unknown metric 'powr'; perhaps you meant power" in screen_text(app)
        assert "filter powr" not in screen_text(app)
        assert "\n gpu01 " in screen_text(app), "a text that isn't a filter filters nothing"
        await pilot.press(*["backspace"] * 6, *"power")
        await pilot.pause()
        assert "for the metric, write power>5" in screen_text(app)
        await pilot.press(*">5000")
        await pilot.pause()
        assert line_with("nothing matches", app).strip() == "nothing matches"


async def test_filter_puts_the_cursor_on_a_match_and_n_goes_to_the_next() -> None:
    app = app_on(scene(4, 8, 30))
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await pilot.press("slash", *"gpu03:2 | gpu04:5", "enter")
        await pilot.pause()
        assert line_with(" gpu03:2  ", app)
        await pilot.press("n")
        await pilot.pause()
        assert line_with(" gpu04:5  ", app)
        await pilot.press("n")
        await pilot.pause()
        assert line_with(" gpu03:2  ", app), "the first follows the last"
        await pilot.press("escape")
        await pilot.pause()
        assert line_with(" gpu03:2  ", app)
        await pilot.press("slash", *"gpu03", "enter", "right", "n")
        await pilot.pause()
        assert line_with(" gpu03:4  ", app), "a cursor on a match stays there"
        await pilot.press("slash", *["backspace"] * 5, *"util>200", "enter", "n")
        await pilot.pause()
        assert "nothing matches the filter" in screen_text(app)
        assert line_with(" No node or GPU matches the filter; / changes it, esc clears it.", app)


async def test_n_visits_lost_nodes_and_silent_gpus() -> None:
    made = scene(4, 8, 30)
    made.forget_gpu("gpu03", 6).advance(2)
    made.lose("gpu04", "connection reset").advance(1)
    app = app_on(made)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        seen = []
        for _ in range(3):
            await pilot.press("n")
            seen.append(app.fleet_screen.heatmap.at)
        assert seen == [("gpu04", 0), ("gpu03", 6), ("gpu04", 0)], "a node that isn't live comes first"
        await pilot.pause()
        assert "connection reset" in line_with(" gpu04:0 ", app)
        made.remember_gpu("gpu03", 6).bring_back("gpu04").advance(2)
        await pilot.press("n")
        await pilot.pause()
        assert "no finding, and every node and GPU sends data" in screen_text(app)


async def test_many_events_of_one_kind_take_one_line_and_an_error_stays() -> None:
    made = Scene(64, 8).connect().advance(2)
    made.hub.publish(EventLogged(made.time, "link_lost", ERROR, "connection reset", "gpu64"))
    for minute in range(1, 10):
        for gpu in range(38):
            at = made.time + 60 * minute
            words = "throttled: power cap"
            made.hub.publish(EventLogged(at, "throttle", INFO, words, f"gpu{gpu % 21 + 1:02}", gpu % 8))
    made.hub.flush()
    app = app_on(made)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        shown = screen_text(app)
        assert "gpu64 lost: connection reset" in shown
        assert shown.count("power cap: 38 GPUs on 21 nodes") >= 2


async def test_gpus_of_others_are_faint_and_not_counted() -> None:
    made = Scene(2, 4)
    made.fleet.allocation = {"gpu01": frozenset({0, 1})}
    made.connect().advance(30)
    app = app_on(made)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("right", "right")
        await pilot.pause()
        assert "6 GPUs" in line_with("gswarm", app)
        assert "not in your job" in line_with(" gpu01:2  ", app)
        styles = [
            segment.style for segment in app.fleet_screen.heatmap.render_line(0) if segment.text.strip()
        ]
        faint = palette(app.theme)["faint"]
        assert faint in styles


async def test_header_shows_the_recorder_state() -> None:
    made = scene(2, 2, 5)
    app = app_on(made)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        assert "○ not recording" in line_with("gswarm", app)
        made.recording(rows=1_200_000, file_bytes=14_000_000).advance(1)
        await pilot.pause()
        assert "● rec 6 s · 1.20 M rows · 14 MB" in line_with("gswarm", app)
        made.hub.recorded(RecorderStatus("run.duckdb", 1, 1, 0, {}, "the disk that holds run.duckdb is full"))
        made.advance(1)
        await pilot.pause()
        assert "╳ the disk that holds run.duckdb is full" in line_with("gswarm", app)


async def test_totals_stay_after_the_end_of_the_recording() -> None:
    made = scene(2, 2, 5)
    app = app_on(made)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        before = line_with(" busy ", app)
        for name in made.names:
            made.hub.publish(LinkChanged(name, made.time, Phase.ENDED))
        made.client.ended = True
        app.update_view()
        await pilot.pause()
        assert screen_text(app).count("■ ended") >= 2
        assert line_with(" busy ", app) == before


async def test_hostile_names_and_messages_stay_text() -> None:
    made = Scene(1, 2, names=["gpu\x1b[2J01"]).connect().advance(3)
    made.note("gpu\x1b[2J01", Note("xid", WARNING, "[red]\x1b[31mboom\nnext", 0)).advance(1)
    made.hub.publish(SessionStarted("s", made.time, "[bold]\x1b]0;pwned\x07", made.time))
    made.hub.flush()
    app = app_on(made)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        seen = screen_text(app)
        assert "\x1b" not in seen
        assert "\x07" not in seen
        assert "[red]" in seen
        assert "[bold]" in seen


async def test_every_theme_shows_the_same_text() -> None:
    shown = []
    for theme in ("dark", "light", "ansi"):
        app = app_on(troubled(), theme=theme)
        async with app.run_test(size=(100, 30)) as pilot:
            await pilot.pause()
            shown.append(screen_text(app))
    assert shown[1:] == shown[:1] * 2


async def test_zoom_key_changes_the_size_of_gpus() -> None:
    app = app_on(scene(20, 8, 2))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        heatmap = app.fleet_screen.heatmap
        assert heatmap.layout_plan.zoom is Zoom.ROWS
        for zoom in (Zoom.NUMBERS, Zoom.BLOCKS, Zoom.PLAIN, Zoom.ROWS):
            await pilot.press("z")
            await pilot.pause()
            assert heatmap.layout_plan.zoom is zoom
        assert heatmap.zoom_wanted is None
        assert heatmap.max_scroll_y == 0


async def test_fleet_of_more_nodes_than_lines_below_the_heatmap_is_drawn() -> None:
    app = app_on(scene(40, 8, 3))
    async with app.run_test(size=(200, 60)) as pilot:
        for _ in Zoom:
            await pilot.press("z")
            for height in range(24, 61, 2):
                await pilot.resize_terminal(200, height)
                assert "nodes 40/40" in screen_text(app)


@pytest.mark.parametrize(("nodes", "size"), [(8, (80, 24)), (40, (120, 40)), (64, (200, 60))])
async def test_lines_that_are_free_show_the_mean_of_all_nodes(nodes: int, size: tuple[int, int]) -> None:
    app = app_on(scene(nodes, 8, 90, seed=3).recording())
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        lines = screen_text(app).splitlines()
        assert sum(not line.strip() for line in lines) <= 1
        heading = next(at for at, line in enumerate(lines) if "all nodes: GPU util" in line)
        assert any(line.split()[:1] == ["mean"] for line in lines[heading:])
