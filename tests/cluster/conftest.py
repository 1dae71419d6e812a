"""The shared test cluster, started for the first test that uses it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.kinds import Kind
from tests.cluster.requirements import missing
from tests.cluster.running import first_in_line

KINDS = {
    "gpu03": Kind.BARE,
    "bad01": Kind.REFUSING,
    "bad02": Kind.CHANGED_KEY,
    "bad03": Kind.DRIVERLESS,
    "bad04": Kind.UNKNOWN_KEY,
}


@pytest.fixture(scope="session")
def machine() -> None:
    """Skip the test if this machine can't run a cluster."""
    lack = missing()
    if lack:
        pytest.skip(lack)


@pytest.fixture(scope="package")
def cluster(machine: None) -> Iterator[Cluster]:
    """Run nodes gpu01 to gpu04 in Slurm (gpu03 is bare) and bad01 to bad04; tests run at the login node.

    Each test restores it. A process left running at the login node is an error at the end.
    """
    with first_in_line(), Cluster.up(4, kinds=KINDS) as up, up.entered():
        yield up
