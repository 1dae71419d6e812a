"""The interface between the sampler and the probe that measures a node."""

from __future__ import annotations

from dataclasses import dataclass, field

from gswarm_agent.frame import GpuFacts, GpuLink, HostFacts, NamedRow, Note, ProcessSample, Row

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Mapping, Optional, Protocol, Sequence, Tuple


@dataclass(frozen=True)
class TickSamples:
    """All samples that a probe takes at one tick; the fields are those of ``Frame``.

    ``gpus`` has one row for each GPU of the facts, None for one that didn't answer in time. ``processes`` is
    None on ticks that don't read processes.
    """

    gpus: Tuple[Optional[Row], ...]
    host: Optional[Row]
    processes: Optional[Tuple[ProcessSample, ...]] = None
    notes: Tuple[Note, ...] = ()
    listings: Mapping[str, Sequence[NamedRow]] = field(default_factory=dict, hash=False)


if TYPE_CHECKING:

    class Probe(Protocol):
        """Measures one node, which may be ``simulated``. All methods are called from one thread.

        The agent sets ``patient`` for the last reading, which no deadline follows.
        """

        simulated: bool
        patient: bool

        def facts(self) -> Tuple[HostFacts, Tuple[GpuFacts, ...], Dict[str, str]]:
            """Return constant properties, and why metrics are missing, as in ``Hello.capabilities``."""

        def links(self) -> Tuple[GpuLink, ...]:
            """Return how the GPUs are connected, as in ``Hello.links``; a note tells of each change."""

        def switch(self, groups: Sequence[str]) -> None:
            """Measure only these groups of metrics from now on; rates of a group begin again with it."""

        def read(self, now_ns: int, *, fresh: bool = False) -> TickSamples:
            """Measure everything that is due; rates are since the last call. ``now_ns`` is a monotonic time.

            The energy counters are due if ``fresh``, whenever they were read last.
            """

        def close(self) -> None:
            """Release threads, descriptors and the driver."""
