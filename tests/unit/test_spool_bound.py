"""Capacity of the spool with its default size."""

from __future__ import annotations

from gswarm_agent.frame import TABLES
from gswarm_agent.server import SPOOL_MIB
from gswarm_agent.simulated import SimulatedNode
from gswarm_agent.spool import Record, pack
from gswarm_agent.wire import encode
from tests.unit.test_simulated import fleet

DAY_S = 86_400
SECOND_NS = 10**9


def test_a_day_of_eight_gpus_at_1_hz_fits_into_the_spool() -> None:
    (simulation,) = fleet(1)
    node = SimulatedNode(simulation)
    assert len(node.facts()[1]) == 8
    size, seconds = 0, 600
    for second in range(1, seconds + 1):
        reading = node.read(second * SECOND_NS)
        frame = TABLES.frame(
            second,
            second * SECOND_NS,
            0.1,
            0,
            gpus=reading.gpus,
            host=reading.host,
            processes=reading.processes,
        )
        size += len(pack(Record(second, second * SECOND_NS, encode(frame))))
    assert size / seconds * DAY_S < SPOOL_MIB * 1024 * 1024
