"""Traces on the screen: requested by a key whose dialog says the cost, and shown across ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.control.intents import Intent, StartTrace
from gswarm_tui.profiling.importing import import_report
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.tui.app import GswarmApp
from tests.kineto_standin import write_trace
from tests.tui.conftest import line_with, screen_text, shows
from tests.tui.scene import Scene
from tests.tui.test_session import computed

TRACES = Path(__file__).parents[1] / "data" / "traces"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recording with the traces of two ranks; the second one joins each collective late."""
    folder = tmp_path_factory.mktemp("trace")
    for rank in (0, 1):
        trace = write_trace(folder / f"t-rank{rank}.json.gz", rank, late_us=100.0 * rank)
        import_report(trace, folder / "run.duckdb", os.environ)
    return folder / "run.duckdb"


@pytest.fixture
def app(path: Path) -> Iterator[GswarmApp]:
    with closing(FileSource(path)) as source:
        yield GswarmApp(
            Scene(1, 1).recording().client,
            timezone=UTC,
            open_queries=lambda: RecordingQueries(source.second_source()),
        )


async def test_a_trace_shows_the_time_of_all_ranks_and_for_whom_they_waited(app: GswarmApp) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("S")
        await shows(app, pilot, "2 profiles")
        await pilot.press("end", "enter")
        await computed(app, pilot)
        assert "pytorch, gpu01, rank 1" in screen_text(app)
        assert line_with(app, "overlapped").split() == (
            ["rank", "node", "iteration", "time", "compute", "communication", "copy", "idle", "overlapped"]
        )
        assert "400 µs" in line_with(app, "150 µs")
        await pilot.press("tab")
        await pilot.pause()
        assert "200 µs" in line_with(app, "allreduce")
        assert "2 of 2" in line_with(app, "allreduce")
        await pilot.press("tab")
        await pilot.pause()
        assert "communication" in line_with(app, "ncclDevKernel_AllReduce")
        await pilot.press("tab")
        await pilot.pause()
        assert "python_function" in line_with(app, "train.py(12): step")


async def test_the_key_says_what_a_trace_costs_and_requests_what_was_typed(
    app: GswarmApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[Intent] = []
    monkeypatch.setattr(app.live, "carry_out", AsyncMock(side_effect=requested.append))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("K")
        await shows(app, pilot, "ranks slow down, and pause while they write files")
        await pilot.press("x", "enter")
        await shows(app, pilot, "isn't a number of seconds, such as 0.5")
        await pilot.press("backspace", *".3", "tab", "1", "tab", *"yes", "enter")
        await pilot.pause()
    assert requested == [StartTrace(300, (1,), stacks=True)]


async def test_simulated_nodes_are_refused_in_one_sentence(app: GswarmApp) -> None:
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await pilot.press("K", "enter")
        await shows(app, pilot, "simulated nodes have no processes to trace")


async def test_a_long_name_of_a_kernel_is_whole_below_the_table(tmp_path: Path) -> None:
    db = tmp_path / "run.duckdb"
    import_report(TRACES / "h200-iterations.json.gz", db, os.environ, node="gpu01", rank=0)
    with closing(FileSource(db)) as source:
        app = GswarmApp(
            Scene(1, 1).recording().client,
            timezone=UTC,
            open_queries=lambda: RecordingQueries(source.second_source()),
        )
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("S")
            await shows(app, pilot, "1 profile")
            await pilot.press("end", "enter")
            await computed(app, pilot)
            assert "pytorch, gpu01, rank 0" in screen_text(app)
            await pilot.press("tab", "tab")
            await pilot.pause()
            lines = screen_text(app).splitlines()
            assert "compute sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_…" in lines[3]
            below = "".join(line.strip() for line in lines[-3:-1])
            assert below == (
                "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_"
                "alignc4_execute_kernel__5x_cublas"
            )
            await pilot.press("down", "down", "down", "down")
            await pilot.pause()
            assert "multi_tensor_apply_kernel<TensorListMe…" in screen_text(app).splitlines()[7]
            below = " ".join(line.strip() for line in screen_text(app).splitlines()[-3:-1])
            functor = "BinaryOpScalarFunctor<float, 1, 1, 0>, multiplies<float>, float"
            assert below == f"multi_tensor_apply_kernel<TensorListMetadata<1>, {functor}>"
            await pilot.press("up")
            await pilot.pause()
            assert "Memcpy HtoD (Pinned -> Device)" in screen_text(app)
            assert "multiplies" not in screen_text(app)
