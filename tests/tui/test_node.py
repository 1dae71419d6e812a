"""Node screen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gswarm_agent.frame import TABLES, Hello, ProcessSample
from gswarm_agent.metrics import GPU_COLUMNS
from gswarm_tui.fleet.events import FrameArrived, LinkMeasured, NodeIntroduced
from gswarm_tui.tui.app import GswarmApp
from gswarm_tui.tui.screens.node import NodeScreen
from tests.tui.conftest import app_on, line_with, screen_text, shows
from tests.tui.scene import Scene, scene
from tests.unit.store_recording import host_row, process_row

SIZES = [(80, 24), (120, 40), (200, 60)]


def hello_of(made: Scene, node: str) -> Hello:
    hello = made.fleet.nodes[node].hello
    assert hello is not None
    return hello


@pytest.mark.parametrize("size", SIZES)
async def test_node_matches_picture(
    size: tuple[int, int], matches_picture: Callable[[GswarmApp, str], None]
) -> None:
    app = app_on(scene(nodes=2, gpus=8, seconds=120).recording())
    async with app.run_test(size=size) as pilot:
        app.show(NodeScreen("gpu02", 3))
        await pilot.pause()
        await pilot.pause()
        matches_picture(app, f"node-{size[0]}x{size[1]}")


async def test_arrows_select_and_reveal_the_plotted_metric() -> None:
    app = app_on(scene(nodes=1, gpus=4, seconds=20))
    async with app.run_test(size=(80, 24)) as pilot:
        app.show(NodeScreen("gpu01"))
        await pilot.pause()
        assert "GPU util 0 to 100 %" in screen_text(app)
        await pilot.press(*["right"] * 5)
        assert "memory used 0 to 80 GiB" in screen_text(app)
        assert "eccbad" not in screen_text(app)
        await pilot.press(*["right"] * 16)
        assert "eccbad" in line_with(app, "GPU")
        assert "ECC uncorrected" in screen_text(app)
        await pilot.press("3")
        assert "power 0 to 700 W" in screen_text(app)


async def test_metric_list_plots_gpu_metrics_and_shows_the_host() -> None:
    app = app_on(scene(nodes=1, gpus=2, seconds=5))
    async with app.run_test(size=(100, 30)) as pilot:
        app.show(NodeScreen("gpu01"))
        await pilot.press("m", "down", "down", "down", "enter")
        await pilot.pause()
        assert "power 0 to 700 W" in screen_text(app)
        await pilot.press("0")
        assert line_with(app, "busiest core")
        assert "memutil" not in screen_text(app)


async def test_enter_opens_the_gpu_and_escape_returns() -> None:
    app = app_on(scene(nodes=1, gpus=4, seconds=5))
    async with app.run_test(size=(100, 30)) as pilot:
        app.show(NodeScreen("gpu01"))
        await pilot.press("down", "down", "enter")
        assert "gpu01:2" in screen_text(app)
        await pilot.press("escape")
        assert app.front.SCREEN == "node"
        assert line_with(app, "▸   2")


async def test_click_selects_and_second_click_opens_a_gpu() -> None:
    app = app_on(scene(nodes=1, gpus=4, seconds=5))
    async with app.run_test(size=(100, 30)) as pilot:
        app.show(NodeScreen("gpu01"))
        await pilot.pause()
        await pilot.click("#gpus", offset=(50, 4))
        assert line_with(app, "▸   2")
        assert "power 0 to 700 W" in screen_text(app)
        await pilot.click("#gpus", offset=(50, 4), times=2)
        await pilot.pause()
        assert "gpu01:2" in screen_text(app)


async def test_unmeasured_metrics_show_a_dash_and_a_reason() -> None:
    made = scene(nodes=1, gpus=2, seconds=3)
    hello = hello_of(made, "gpu01")
    reasons = {
        "gpu1.power_w": "Not Supported",
        "ib_rx_mb_s": "no InfiniBand \x1b[31mport",
        "cpu_counters": "held by ada (owner of /var/run/likwid.lock)",
    }
    made.hub.publish(NodeIntroduced("gpu01", made.time, replace(hello, capabilities=reasons)))
    made.forget_gpu("gpu01", 1).advance(1)
    app = app_on(made)
    async with app.run_test(size=(100, 30)) as pilot:
        app.show(NodeScreen("gpu01"))
        await shows(app, pilot, "▸   0")
        lines = screen_text(app).splitlines()
        assert any(line.split()[:5] == ["1", "1", "–", "–", "–"] for line in lines)
        await pilot.press("shift+tab")
        await shows(app, pilot, "▸counters")
        assert line_with(app, "Not Supported").split() == ["power", "gpu1", "Not", "Supported"]
        assert "▸counters" in line_with(app, "switched off")
        assert line_with(app, "held by ada").split()[:3] == ["CPU", "counters", "host"]
        assert "host" in line_with(app, "no InfiniBand")
        assert "\x1b" not in screen_text(app)


async def test_lost_node_shows_reason_age_and_remedy() -> None:
    made = scene(nodes=2, gpus=2, seconds=10)
    made.lose("gpu02", "connection reset by peer", "is the job over? squeue tells", retry_in=30).advance(5)
    app = app_on(made)
    async with app.run_test(size=(80, 24)) as pilot:
        app.show(NodeScreen("gpu02"))
        await pilot.pause()
        assert "╳ lost 5 s" in line_with(app, "gpu02")
        assert line_with(app, "connection reset by peer")
        assert "retry in 25 s · is the job over? squeue tells" in screen_text(app)
        made.bring_back("gpu02").advance(1)
        await pilot.pause()
        assert "● live" in line_with(app, "gpu02")


async def test_unconnected_nodes_and_nodes_without_gpus_are_shown() -> None:
    made = Scene(nodes=2, gpus=0)
    made.connect("gpu01").advance(3)
    app = app_on(made)
    async with app.run_test(size=(100, 30)) as pilot:
        app.show(NodeScreen("gpu01"))
        await pilot.pause()
        assert "no GPUs" in screen_text(app)
        assert "%" in line_with(app, "busiest core")
        app.show(NodeScreen("gpu02"))
        await pilot.pause()
        assert "… connecting" in screen_text(app)


async def test_link_line_shows_clock_and_round_trip() -> None:
    made = scene(nodes=1, gpus=1, seconds=2)
    made.hub.publish(LinkMeasured("gpu01", made.time, -0.0123, 0.0008))
    app = app_on(made)
    async with app.run_test(size=(120, 30)) as pilot:
        app.show(NodeScreen("gpu01"))
        await pilot.pause()
        assert "clock −12.3 ms · round trip 0.8 ms" in screen_text(app)


async def test_a_job_s_memory_stands_beside_the_node_s() -> None:
    made = scene(nodes=1, gpus=1, seconds=3)
    app = app_on(made)
    async with app.run_test(size=(120, 40)) as pilot:
        app.show(NodeScreen("gpu01"))
        await pilot.pause()
        assert "1.97 TiB · job 0.0" in screen_text(app)
        assert line_with(app, "job I/O PSI")
        host = host_row(job_memory_mib=212 << 10, job_memory_limit_mib=480 << 10, job_oom_kills=2)
        frame = TABLES.frame(99, round(made.time * 1e9), 0.0, 0, gpus=(None,), host=host)
        reasons = {"job_psi_io_pct": "the job has ended, or its cgroup has no io.pressure"}
        hello = replace(hello_of(made, "gpu01"), capabilities=reasons)
        made.hub.publish(NodeIntroduced("gpu01", made.time, hello))
        made.hub.publish(FrameArrived("gpu01", made.time, made.time, hello.life, frame))
        made.hub.flush()
        await shows(app, pilot, "1.97 TiB · job 212 of 480 GiB · 2 OOM kills · Linux")
        assert "job I/O PSI" not in screen_text(app)
        assert line_with(app, "job CPU PSI")


async def test_processes_are_sorted_by_gpu_and_cleaned() -> None:
    made = scene(nodes=1, gpus=2, seconds=1)
    row = process_row(
        gpu_memory_mib=1024, sm_pct=50, cpu_pct=210.0, memory_mib=2048, write_mb_s=1500.0, numa_node=1
    )
    texts = "0-7", "D", "nfs_wait\x1b[1m"
    evil = ProcessSample(1, 4242, "eve\u202e", "python\n[red]x.py\x1b]0;title\x07", 3, None, row, *texts)
    hello = hello_of(made, "gpu01")
    frame = TABLES.frame(99, round(made.time * 1e9), 0.0, 0, gpus=(None, None), host=None, processes=(evil,))
    made.hub.publish(FrameArrived("gpu01", made.time, made.time, hello.life, frame))
    made.hub.flush()
    app = app_on(made)
    async with app.run_test(size=(200, 40)) as pilot:
        app.show(NodeScreen("gpu01"))
        await pilot.pause()
        line = line_with(app, "4242")
        assert line.split() == [
            "1",
            "3",
            "4242",
            "eve�",
            "1.0",
            "50",
            "210",
            "2.0",
            *line.split()[8:],
        ]
        assert "[red]x.py" in line
        assert line.split()[8] == "D"
        after = line.partition("title�")[2].split()
        assert after[:2] == ["–", "1.5"]
        assert after[-4] == "1≠0"
        assert after[-2:] == ["nfs_wait�[1m", "0-7"]


async def test_views_fill_the_screen_with_one_part() -> None:
    app = app_on(scene(nodes=1, gpus=8, seconds=30))
    async with app.run_test(size=(80, 24)) as pilot:
        app.show(NodeScreen("gpu01"))
        await pilot.pause()
        assert "busiest core" not in screen_text(app)
        await pilot.press("tab", "tab")
        assert "busiest core" in screen_text(app)
        await pilot.press("tab")
        assert " train.py" in screen_text(app)
        await pilot.press("z", "z", "shift+tab", "shift+tab")
        assert "−15 min" in screen_text(app)


async def test_links_view_shows_the_way_to_each_peer_and_the_share_of_traffic() -> None:
    app = app_on(scene(2, 4))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("enter", "shift+tab", "shift+tab")
        await pilot.pause()
        lines = screen_text(app).splitlines()
        (heading,) = (line for line in lines if "NVSwitch" in line)
        assert heading.split() == [
            "GPU", "NVLink", "tx", "rx", "PCIe", "tx", "rx", "GPU0", "GPU1", "GPU2", "GPU3", "NVSwitch",
            "mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3",
        ]  # fmt: skip
        row = line_with(app, "▸").replace("▸", "").split()
        assert row[7:] == ["X", "NV18", "NV18", "NV18", "NV18", "PIX", "NODE", "SYS", "SYS"]
        assert (row[1], row[4]) == ("478", "63")
        values = dict(zip(GPU_COLUMNS, app.live.fleet.nodes["gpu01"].gpus[0], strict=True))
        assert int(row[2]) == round(values["nvlink_tx_mb_s"] / 4781.16)
