"""GPU screen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from gswarm_agent.frame import MIG_INDEX, TABLES, GpuFacts
from gswarm_agent.metrics import GPU_COLUMNS
from gswarm_tui.fleet.events import FrameArrived, NodeIntroduced
from gswarm_tui.tui.app import GswarmApp
from gswarm_tui.tui.screens.gpu import GpuScreen
from tests.tui.conftest import app_on, line_with, screen_text
from tests.tui.scene import Scene, scene

SIZES = [(80, 24), (120, 40), (200, 60)]


def report(made: Scene, seq: int = 999, **values: float) -> None:
    """Send a frame of gpu01's only GPU with just these metrics."""
    hello = made.fleet.nodes["gpu01"].hello
    assert hello is not None
    ts = made.time + seq - 999
    row = tuple(values.get(name) for name in GPU_COLUMNS)
    frame = TABLES.frame(seq, round(ts * 1e9), 0.0, 0, gpus=(row,), host=None)
    made.hub.publish(FrameArrived("gpu01", made.time, ts, hello.life, frame))
    made.hub.flush()


@pytest.mark.parametrize("size", SIZES)
async def test_gpu_matches_picture(
    size: tuple[int, int], matches_picture: Callable[[GswarmApp, str], None]
) -> None:
    app = app_on(scene(nodes=2, gpus=8, seconds=120).recording())
    async with app.run_test(size=size) as pilot:
        app.show(GpuScreen("gpu02", 3))
        await pilot.pause()
        await pilot.pause()
        matches_picture(app, f"gpu-{size[0]}x{size[1]}")


@pytest.mark.parametrize("size", SIZES)
async def test_faults_of_a_gpu_are_on_its_screen(size: tuple[int, int]) -> None:
    made = scene(nodes=1, gpus=1, seconds=0)
    report(made, util_pct=50, remap_failed=1, recovery_action=0, nvlink_recoveries=2)
    app = app_on(made)
    async with app.run_test(size=size) as pilot:
        app.show(GpuScreen("gpu01", 0))
        await pilot.pause()
        assert "! a memory row could not be replaced" in screen_text(app)
        await pilot.press("tab", "tab")
        await pilot.press(*["down"] * 60)
        await pilot.pause()
        assert "2 NVLink recovery events since the driver was loaded" in screen_text(app)
        assert "nothing found in: recovery action" in screen_text(app)
        assert "not measured: memory errors, PCIe link, fabric" in screen_text(app)


async def test_arrows_cycle_through_all_gpus() -> None:
    app = app_on(scene(nodes=2, gpus=2, seconds=2))
    async with app.run_test(size=(80, 24)) as pilot:
        app.show(GpuScreen("gpu01", 0))
        await pilot.pause()
        seen = []
        for _ in range(5):
            seen.append(screen_text(app).split()[0])
            await pilot.press("right")
        assert seen == ["gpu01:0", "gpu01:1", "gpu02:0", "gpu02:1", "gpu01:0"]
        await pilot.press("left", "left")
        assert screen_text(app).split()[0] == "gpu02:1"


async def test_metrics_show_value_unit_and_meaning() -> None:
    made = scene(nodes=1, gpus=1, seconds=0)
    report(made, seq=998, energy_mj=0)
    report(made, util_pct=50, mem_used_mib=40_960, power_w=350.4, energy_mj=7.2e9, ecc_corrected=3, pstate=2)
    app = app_on(made)
    async with app.run_test(size=(120, 40)) as pilot:
        app.show(GpuScreen("gpu01", 0))
        await pilot.press("tab", "tab")
        await pilot.pause()
        assert line_with(app, "GPU util").split()[2:4] == ["50", "%"]
        assert "███████ " in line_with(app, "GPU util")
        assert line_with(app, "GPU util").endswith(
            "Share of time in which any kernel ran; copies may count, too"
        )
        assert "40 GiB" in line_with(app, "memory used")
        assert "350 W" in line_with(app, "power ")
        assert "2 kWh" in line_with(app, "energy")
        assert "P2" in line_with(app, "performance state")


async def test_missing_metric_shows_its_reason() -> None:
    made = scene(nodes=1, gpus=1, seconds=0)
    hello = made.fleet.nodes["gpu01"].hello
    assert hello is not None
    reasons = {"gpu0.mem_temp_c": "this GPU has no such sensor"}
    made.hub.publish(NodeIntroduced("gpu01", made.time, replace(hello, capabilities=reasons)))
    report(made, util_pct=50)
    app = app_on(made)
    async with app.run_test(size=(120, 40)) as pilot:
        app.show(GpuScreen("gpu01", 0))
        await pilot.press("tab", "tab")
        await pilot.pause()
        line = line_with(app, "memory temp")
        assert "–" in line
        assert "this GPU has no such sensor" in line


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x4, "power cap"),
        (0x48, "hardware slowdown, thermal (hardware)"),
        (0x1, "idle"),
        (0x0, "not throttled"),
    ],
)
async def test_clock_reasons_are_shown_as_text(bits: int, words: str) -> None:
    made = scene(nodes=1, gpus=1, seconds=0)
    report(made, clock_reasons=bits)
    app = app_on(made)
    async with app.run_test(size=(120, 40)) as pilot:
        app.show(GpuScreen("gpu01", 0))

        def shown() -> str:
            lines = screen_text(app).splitlines()
            at = next((at for at, line in enumerate(lines) if "clock reasons" in line), len(lines))
            return " ".join(line[19:46].strip() for line in lines[at : at + 2])

        async with asyncio.timeout(30):
            while words not in shown():
                await pilot.pause(0.01)


async def test_gpu_shows_only_its_processes() -> None:
    made = scene(nodes=1, gpus=4, seconds=10)
    (gpu, pid), (_, other) = [(p.gpu, str(p.pid)) for p in made.fleet.nodes["gpu01"].processes][:2]
    app = app_on(made)
    async with app.run_test(size=(120, 40)) as pilot:
        app.show(GpuScreen("gpu01", gpu))
        await pilot.pause()
        assert pid in screen_text(app)
        assert other not in screen_text(app)


async def test_key_changes_the_plotted_time() -> None:
    app = app_on(scene(nodes=1, gpus=1, seconds=30))
    async with app.run_test(size=(120, 40)) as pilot:
        app.show(GpuScreen("gpu01", 0))
        await pilot.pause()
        assert "last 1 min" in screen_text(app)
        assert "−50 s" in screen_text(app)
        await pilot.press("z")
        assert "−5 min" in screen_text(app)
        await pilot.press("z")
        assert "−15 min" in screen_text(app)
        await pilot.press("z", "z")
        assert "last 1 min" in screen_text(app)


async def test_a_mig_instance_stands_below_its_gpu_and_names_it() -> None:
    made = scene(nodes=1, gpus=2, seconds=5)
    hello = made.fleet.nodes["gpu01"].hello
    assert hello is not None
    first, second = hello.gpus
    instance = GpuFacts(
        MIG_INDEX, "MIG-0", "H100 MIG 1g.10gb", memory_total_mib=9_856, parent_index=0, mig_profile="1g.10gb"
    )
    why = {"mig": "power is that of the GPU"}
    gpus = (replace(first, mig=True), instance, second)
    made.hub.publish(NodeIntroduced("gpu01", made.time, replace(hello, gpus=gpus, capabilities=why)))
    rows = [tuple({"mem_used_mib": used}.get(name) for name in GPU_COLUMNS) for used in (9_000, 2_048, 512)]
    frame = TABLES.frame(6, round(made.time * 1e9), 0.0, 0, gpus=rows, host=None)
    made.hub.publish(FrameArrived("gpu01", made.time, made.time, hello.life, frame))
    made.hub.flush()
    app = app_on(made)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("right")
        await pilot.pause()
        assert "gpu01:0.0  MIG 1g.10gb of GPU 0  SM –  mem 2/9.62 GiB" in screen_text(app)
        assert "busy 0/2" in screen_text(app)
        await pilot.press("enter")
        await pilot.pause()
        assert "2 × NVIDIA H100 80GB HBM3 (simulated), 1 MIG instance" in screen_text(app)
        assert " 2.0 " in line_with(app, "▸ 0.0 ")
        await pilot.press("enter")
        await pilot.pause()
        assert "gpu01:0.0  ● live  H100 MIG 1g.10gb" in screen_text(app)
        assert "MIG 1g.10gb of GPU 0" in screen_text(app)
        await pilot.press("tab", "tab")
        await pilot.pause()
        assert "power is that of the GPU" in line_with(app, "temperature")
