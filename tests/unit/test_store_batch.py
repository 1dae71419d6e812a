from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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
