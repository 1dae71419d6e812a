"""The fault suite in its short form; `python -m tests.cluster.faults --long` is the long one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.faults.suite import NODES, PARTS, SHORT, Suite, table
from tests.cluster.running import first_in_line

SEED = 3
IN_LONG_ALONE = ("random", "srun")  # "nodes" and "head" inject the same; test_ways_out kills a head of steps


@pytest.fixture(scope="module")
def suite(machine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    """The fault suite on its own cluster."""
    folder: Path = tmp_path_factory.mktemp("faults")
    with first_in_line(), Cluster.up(len(NODES), 2) as up, up.entered():
        yield Suite(up, folder, SHORT, SEED)


@pytest.mark.timeout(400)  # a part tells what it waits for in vain
@pytest.mark.parametrize("part", [part for part in PARTS if part not in IN_LONG_ALONE])
def test_no_frame_is_lost_or_duplicated(suite: Suite, part: str) -> None:
    rows = list(PARTS[part](suite))
    print(table(rows))
    assert all(row.count.sampled for row in rows)
    assert not [row for row in rows if row.problems], table(rows)
