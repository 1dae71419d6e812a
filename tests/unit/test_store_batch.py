from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gswarm_tui.store.batch import Batch
from gswarm_tui.store.ledger import Ledger
from tests.unit.store_recording import arrived, gpu_row, introduced

_SEQS = st.lists(st.integers(min_value=1, max_value=30), max_size=40)


@given(batches=st.lists(_SEQS, min_size=1, max_size=5))
def test_however_frames_repeat_and_fail_each_is_written_once_in_order(batches: list[list[int]]) -> None:
    ledger = Batch(Ledger(1, 1, 1, 1), [introduced(gpus=1)]).ledger
    written: list[int] = []
    for seqs in batches:
        batch = Batch(ledger, [arrived(seq, [gpu_row(util_pct=seq)]) for seq in seqs])
        again = Batch(ledger, [arrived(seq, [gpu_row(util_pct=seq)]) for seq in seqs])
        assert again.rows == batch.rows, "a batch that is not committed must change nothing"
        for table, columns in batch.columns():
            if table.name == "host_samples":
                written += [int(seq) for seq in columns["seq"]]
        ledger = batch.ledger
    arrivals = [seq for seqs in batches for seq in seqs]
    newest = [seq for i, seq in enumerate(arrivals) if seq > max(arrivals[:i], default=0)]
    assert written == newest
    link = ledger.lives["n1", "life1"].link
    assert link["frames"] == len(newest)
    if newest:
        assert link["frames"] + link["lost_frames"] == newest[-1]
