"""``gswarm-tui doctor`` on nodes with faults: the failing step, and what differs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.standin import Scenario

DOCTOR = f"{sys.executable} -m gswarm_tui doctor"


@pytest.fixture
def faulty(cluster: Cluster) -> Iterator[None]:
    """Give gpu02 an older driver and one GPU less."""
    node = cluster["gpu02"]
    scenario = Scenario.of(node.name, node.gpus - 1)
    scenario.driver_version = "535.104.05"
    scenario.write(node.scenario)
    yield
    Scenario.of(node.name, node.gpus).write(node.scenario)


def test_doctor_says_what_to_fix(cluster: Cluster, faulty: None) -> None:
    done = cluster.run(f"{DOCTOR} --nodes 'gpu[01-04]' 'bad[01-04]' --json", check=False)
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    nodes = {node["node"]: node for node in report["nodes"]}
    assert {name: node["failed_step"] for name, node in nodes.items()} == {
        "gpu01": "",
        "gpu02": "",
        "gpu03": "",
        "gpu04": "",
        "bad01": "log in",
        "bad02": "check its host key",
        "bad03": "",
        "bad04": "check its host key",
    }
    assert nodes["gpu01"]["driver_version"] != "535.104.05"
    fix = {tuple(each["nodes"]): each["text"] for each in report["findings"] if each["fix"]}
    texts = [(tuple(each["nodes"]), each["text"]) for each in report["findings"] if each["fix"]]
    assert (
        ("gpu02",),
        "GPUs: 7, but 8 on 3 other nodes; a GPU may have fallen off the bus; run nvidia-smi there.",
    ) in texts
    assert any(names == ("gpu02",) and "the driver is 535.104.05" in text for names, text in texts), texts
    assert "no GPU can be measured" in fix["bad03",]
    assert report["verdict"].startswith("5 of 8 nodes ready, "), report["verdict"]
