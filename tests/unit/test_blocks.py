"""Blocks: any bits decode to rows of numbers or None, for one block and for many at once."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gswarm_agent.block import Block, BlockLayout, Row
from gswarm_agent.frame import TABLES, Frame
from gswarm_agent.metrics import GPU_COLUMNS, GPU_METRICS, HOST_METRICS, Metric
from gswarm_tui.fleet.blocks import numbers, packed
from gswarm_tui.fleet.frame_values import frame_values
from gswarm_tui.store.recording.batch import Samples
from gswarm_tui.store.sql.schema import GPU_SAMPLES, HOST_SAMPLES
from tests.block_rows import rows_of

names = st.lists(st.sampled_from(GPU_COLUMNS), max_size=8, unique=True).map(tuple)
layouts = st.builds(BlockLayout, names, st.frozensets(st.sampled_from(GPU_COLUMNS), max_size=4))
singles = st.none() | st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def blocks(draw: st.DrawFn, layout: BlockLayout, count: int | None = None) -> Block:
    """Generate a block of any bits, as a compromised node may send."""
    count = draw(st.integers(0, 3)) if count is None else count
    size = layout.row_size * count
    return Block(layout, count, draw(st.binary(min_size=size, max_size=size)))


@given(layouts, st.data())
def test_rows_survive_packing(layout: BlockLayout, data: st.DataObject) -> None:
    width = len(layout.columns)
    row = st.lists(singles, min_size=width, max_size=width).map(tuple)
    rows: list[Row | None] = data.draw(st.lists(st.none() | row, max_size=4))
    block = layout.pack_rows(rows)
    assert len(block.data) == layout.row_size * block.count
    assert rows_of(block) == tuple((None,) * width if row is None else row for row in rows)
    assert layout.pack_rows(rows_of(block)) == block


def plausible(metrics: tuple[Metric, ...], row: dict[str, float | None]) -> list[float | None]:
    """Return a row's values as recordings have them: None out of range."""
    return [_plausible(metric, row.get(metric.name)) for metric in metrics]


def _plausible(metric: Metric, number: float | None) -> float | None:
    if number is None or not abs(number) <= 1e15:
        return None
    if metric.sql == "FLOAT" or metric.unit == "°C":
        return number
    return number if 0 <= number <= (100 if metric.unit == "%" else 1e15) else None


def shown(block: Block, metrics: tuple[Metric, ...]) -> list[list[float | None]]:
    """Return the block's rows as screens show them: throttling and pressure are at most 100."""
    rows = [plausible(metrics, dict(zip(block.layout.columns, row, strict=True))) for row in rows_of(block)]
    clipped = [metric.name.startswith(("throttle_", "psi_")) for metric in metrics]
    return [
        [n if n is None or not clip else min(n, 100.0) for n, clip in zip(row, clipped, strict=True)]
        for row in rows
    ]


@given(st.lists(st.tuples(blocks(TABLES.gpus), blocks(TABLES.host, 1)), max_size=5))
def test_decoding_many_frames_equals_decoding_each(pairs: list[tuple[Block, Block]]) -> None:
    frames = [Frame(1, 1, 0.0, 0, gpus, host) for gpus, host in pairs]
    found = list(frame_values(frames))
    for (gpus, host), reading in zip(pairs, found, strict=True):
        assert reading.gpus.shape == (gpus.count, len(GPU_COLUMNS))
        np.testing.assert_array_equal(
            reading.gpus, np.array(shown(gpus, GPU_METRICS), float).reshape(reading.gpus.shape)
        )
        np.testing.assert_array_equal(reading.host, np.array(shown(host, HOST_METRICS)[0], float))


@given(st.lists(blocks(TABLES.gpus), max_size=5))
def test_rows_with_a_value_are_recorded_with_their_keys(of_frames: list[Block]) -> None:
    samples = Samples(GPU_SAMPLES, ("ts",), ("gpu_id",), if_measured=True)
    expected = set()
    for ts, block in enumerate(of_frames):
        samples.add(block, (ts,), (range(block.count),))
        for gpu, row in enumerate(rows_of(block)):
            taken = plausible(GPU_METRICS, dict(zip(GPU_COLUMNS, row, strict=True)))
            if any(n is not None for n in taken):
                expected.add((ts, gpu, *taken))
    kept = []
    for columns in samples.columns():
        assert len({len(values) for values in columns.values()}) == 1
        keys = columns["ts"].astype(int).tolist(), columns["gpu_id"].astype(int).tolist()
        numbers = (columns[name].tolist() for name in GPU_COLUMNS)
        rows = zip(*keys, *numbers, strict=True)
        kept += [tuple(None if math.isnan(n) else n for n in row) for row in rows]
    assert len(kept) == len(expected)
    assert set(kept) == expected


def test_a_host_row_without_values_is_recorded() -> None:
    samples = Samples(HOST_SAMPLES, ("ts", "seq"))
    samples.add(TABLES.host.pack_rows([None]), (7, 1))
    assert [columns["seq"].tolist() for columns in samples.columns()] == [[1]]


@given(layouts, st.integers(0, 3), st.integers(0, 3), st.data())
def test_columns_survive_packing(layout: BlockLayout, many: int, count: int, data: st.DataObject) -> None:
    size = layout.row_size * count
    given_blocks = [
        Block(layout, count, data.draw(st.binary(min_size=size, max_size=size))) for _ in range(many)
    ]
    columns = numbers(layout, count, [block.data for block in given_blocks])
    assert packed(layout, *columns) == given_blocks
