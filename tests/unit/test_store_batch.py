from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_agent.frame import tables
from gswarm_agent.metrics import EXACT_COLUMNS, GPU_COLUMNS, HOST_COLUMNS, PROCESS_COLUMNS
from gswarm_tui.store.recording.batch import Batch
from gswarm_tui.store.recording.known_ids import KnownIds
from tests.unit.store_recording import arrived, gpu_row, introduced

_SEQS = st.lists(st.integers(min_value=1, max_value=30), max_size=40)


@given(batches=st.lists(_SEQS, min_size=1, max_size=5))
def test_repeated_and_failed_frames_are_written_once_in_order(batches: list[list[int]]) -> None:
    known_ids = Batch(KnownIds(1, 1, 1, 1), [introduced(gpus=1)]).known_ids
    written: list[int] = []
    for seqs in batches:
        batch = Batch(known_ids, [arrived(seq, [gpu_row(util_pct=seq)]) for seq in seqs])
        again = Batch(known_ids, [arrived(seq, [gpu_row(util_pct=seq)]) for seq in seqs])
        assert again.rows == batch.rows, "a batch that is not committed must change nothing"
        for table, columns in batch.columns():
            if table.name == "host_samples":
                written += [int(seq) for seq in columns["seq"]]
        known_ids = batch.known_ids
    arrivals = [seq for seqs in batches for seq in seqs]
    newest = [seq for i, seq in enumerate(arrivals) if seq > max(arrivals[:i], default=0)]
    assert written == newest
    link = known_ids.lives["n1", "life1"].link
    assert link["frames"] == len(newest)
    if newest:
        assert link["frames"] + link["lost_frames"] == newest[-1]


@pytest.mark.parametrize("column", ["gpu_id", "ts", "interval_ms", "util_pct"])
@pytest.mark.parametrize("exact", [frozenset[str](), EXACT_COLUMNS, frozenset({"gpu_id", "ts", "util_pct"})])
def test_node_columns_cannot_overwrite_key_columns(column: str, exact: frozenset[str]) -> None:
    """Of two columns with one name the first counts; columns in double precision come last."""
    columns = (*GPU_COLUMNS, column)
    layouts = tables(columns, HOST_COLUMNS, PROCESS_COLUMNS, exact)
    row = (*gpu_row(util_pct=50), 1)
    batch = Batch(
        KnownIds(1, 1, 1, 1),
        [
            introduced("n1", gpus=1),
            introduced("n2", gpus=1, life="life2", gpu_columns=columns),
            arrived(1, [row], node="n2", life="life2", tables=layouts),
        ],
    )
    (made,) = (columns for table, columns in batch.columns() if table.name == "gpu_samples")
    assert made["gpu_id"].tolist() == [2]
    assert made["util_pct"].tolist() == [50]
    assert str(made["ts"].dtype) == "datetime64[us]"
