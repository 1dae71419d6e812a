"""What a probe is: the contract between what is measured on a node and the loop that asks for it."""

from __future__ import annotations

from gswarm_agent.frame import GpuFacts, HostFacts, Note, ProcessSample, Row
from gswarm_agent.frozen import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional, Protocol, Tuple


@dataclass(frozen=True)
class TickSamples:
    """What one tick measured on a node; the fields are those of ``Frame``.

    ``gpus`` has one entry for each GPU of the facts, None for one that didn't answer in time. ``processes``
    is None on ticks that don't look at processes.
    """

    gpus: Tuple[Optional[Row], ...]
    host: Optional[Row]
    processes: Optional[Tuple[ProcessSample, ...]] = None
    notes: Tuple[Note, ...] = ()


if TYPE_CHECKING:

    class Probe(Protocol):
        """A node that can be measured. All methods are called from one thread."""

        def facts(self) -> Tuple[HostFacts, Tuple[GpuFacts, ...], Dict[str, str]]:
            """What doesn't change, and what can't be measured, as in ``Hello.capabilities``."""

        def read(self, now_ns: int) -> TickSamples:
            """Measure everything once, rates since the last time. ``now_ns`` is a monotonic time."""

        def close(self) -> None:
            """Let go of threads, descriptors and the driver."""
