"""Profiles on the screen: listed with the sessions, as tables by name, and across ranks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from datetime import UTC
from pathlib import Path

import pytest
from textual.pilot import Pilot

from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.profiling.importing import import_report
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.tui.app import GswarmApp
from tests.nsys_standin import CAPTURE, UUIDS, write_standin
from tests.recorded import recorded
from tests.tui.conftest import line_with, screen_text, shows
from tests.tui.scene import BEGINNING, Scene
from tests.tui.test_session import computed
from tests.tui.test_sql import job
from tests.unit.store_recording import query


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Scene]:
    """Return a recording with the profiles of two ranks on one node; the second one is slower."""
    folder = tmp_path_factory.mktemp("profile")
    path, made = folder / "run.duckdb", Scene(2, 4)
    recorded(path, made, job)
    uuids = query(
        path, "SELECT uuid FROM gpus JOIN nodes USING (node_id) WHERE node = 'gpu01' ORDER BY gpu_index"
    )
    for rank in (0, 1):
        start = round((BEGINNING + 5) * 1e9) - CAPTURE[0] + rank
        own = [uuid.removeprefix("GPU-") for (uuid,) in uuids[2 * rank :]]
        changes = [
            f"UPDATE TARGET_INFO_GPU SET uuid = '{own[at]}' WHERE uuid = '{uuid}'"
            for at, uuid in enumerate(UUIDS)
        ]
        slower = (
            "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start + 2 * (end - start) WHERE demangledName = 1"
        )
        sql = [
            f"UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = {start}",
            *changes,
            *([slower] * rank),
        ]
        report = write_standin(folder / f"gpu01_{rank}.sqlite", kernels=60, sql=sql)
        import_report(report, path, os.environ, rank=rank)
    return path, made


async def open_profile(app: GswarmApp, pilot: Pilot[str]) -> None:
    """Open the profile of the last row."""
    await pilot.press("S")
    await shows(app, pilot, "2 profiles")
    await pilot.press("end", "enter")
    await computed(app, pilot)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_profile_is_listed_with_the_sessions_and_opens_its_kernels(
    app: GswarmApp, size: tuple[int, int], matches_picture: Callable[[GswarmApp, str], None]
) -> None:
    name = f"{size[0]}x{size[1]}"
    async with app.run_test(size=size) as pilot:
        await pilot.press("S")
        await shows(app, pilot, "2 profiles")
        matches_picture(app, f"sessions-profiles-{name}")
        await pilot.press("end", "enter")
        await computed(app, pilot)
        matches_picture(app, f"profile-kernels-{name}")


async def test_views_of_a_profile_have_calls_copies_and_the_ranks_side_by_side(app: GswarmApp) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await open_profile(app, pilot)
        assert "relu(float*)" in screen_text(app)
        await pilot.press("tab")
        await pilot.pause()
        assert "CUDA runtime" in line_with(app, "cudaLaunchKernel")
        await pilot.press("tab")
        await pilot.pause()
        assert "4 MB" in line_with(app, "[CUDA memcpy Host-to-Device]")
        await pilot.press("tab")
        await pilot.pause()
        assert "no NVTX ranges in this profile" in screen_text(app)
        await pilot.press("tab", "tab")
        await pilot.pause()
        ranks = screen_text(app)
        assert "rank 0" in ranks
        assert "2.00 ×" in line_with(app, "void gemm")
        assert "1.00 ×" in line_with(app, "relu(float*)")
        await pilot.press("tab")
        await pilot.pause()
        assert "Events in run.py were lost." in screen_text(app)


async def test_a_profile_of_nsight_compute_shows_its_launches(tmp_path: Path) -> None:
    if shutil.which("ncu") is None:
        pytest.fail("ncu is missing; docs/contributing/testing.md has its packages")
    path = tmp_path / "run.duckdb"
    example = "/usr/share/doc/nsight-compute/examples/uncoalescedGlobalAccesses/addConstDouble.ncu-rep"
    import_report(Path(example), path, os.environ)
    with closing(FileSource(path)) as source:
        app = GswarmApp(
            Scene(1, 1).recording().client,
            timezone=UTC,
            open_queries=lambda: RecordingQueries(source.second_source()),
        )
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.press("S")
            await shows(app, pilot, "1 profile")
            await pilot.press("end", "enter")
            await computed(app, pilot)
            assert "239.0 µs" in line_with(app, "addConstDouble(int")
