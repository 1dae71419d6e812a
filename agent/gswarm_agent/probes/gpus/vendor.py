"""The interface between the process that reads GPUs and a vendor's driver."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mmap import mmap
    from typing import Collection, Dict, FrozenSet, List, Optional, Protocol, Tuple, TypeAlias

    from gswarm_agent.frame import GpuFacts, GpuLink, Note, Number

    Values: TypeAlias = "Dict[str, Optional[Number]]"
    Place: TypeAlias = "Tuple[int, int]"

IDLE, DRIVER, PROCESS = -1, -2, -3
"""Places of the reading process that are no GPU: waiting, the driver as a whole, a process in /proc.

A place is a GPU's index or one of these, and a process's id or 0.
"""
UNUSED_MIB = 64
"""A GPU with less used memory runs no process: each process that computes needs more."""
_PLACE = struct.Struct("=qqq")


class VendorError(Exception):
    """Raised if a vendor's GPUs can't be read at all; the message gives the reason in one sentence."""


@dataclass(frozen=True)
class GpuUsage:
    """One process's use of one GPU: memory in MiB and percent of the SMs' time; None where unknown."""

    memory_mib: Optional[int]
    sm_pct: Optional[int]


class Whereabouts:
    """The call that the reading process is in, in shared memory, so that the agent can name a hanging one."""

    def __init__(self, shared: mmap) -> None:
        self._shared = shared
        self.enter(IDLE)

    def enter(self, place: int, number: int = 0) -> None:
        """Note a GPU or another place, with its number, before a call that may hang."""
        _PLACE.pack_into(self._shared, 0, time.monotonic_ns(), place, number)

    def seen(self) -> Tuple[int, Place]:
        """Return the monotonic time of the last entry [ns] and its place."""
        begun, place, number = _PLACE.unpack_from(self._shared, 0)
        return begun, (place, number)


if TYPE_CHECKING:

    class Vendor(Protocol):
        """All GPUs of one vendor on this node, by their indices 0 to count - 1.

        Only ``absence`` is called by the agent; all else by the process that reads GPUs, where a call may
        hang: ``whereabouts`` must know its GPU. ``notes`` collects events until they are taken. ``known`` are
        the GPUs that an earlier process found; a later one keeps their order.
        """

        name: str
        notes: List[Note]
        known: Tuple[GpuFacts, ...]
        driver_version: Optional[str]
        cuda_version: Optional[str]

        def absence(self) -> str:
            """Return why the node can't have such GPUs, empty if it may. Doesn't ask the driver."""

        def open(self, whereabouts: Whereabouts, left_out: Collection[int]) -> int:
            """Start the driver and return the number of GPUs and MIG instances. Raises VendorError.

            No call is made for those that are left out.
            """

        def facts(self, index: int, *, hanging: bool) -> GpuFacts:
            """Return a GPU's facts; if it is ``hanging``, without a call for it."""

        def read(
            self, index: int, now_ns: int, columns_off: FrozenSet[str], *, fresh: bool
        ) -> Optional[Values]:
            """Return a GPU's values by column, None if it doesn't answer; rates are since the last call.

            If ``fresh``, the energy counter is read even if it isn't due.
            """

        def reasons(self, index: int) -> Dict[str, str]:
            """Return why a GPU lacks values, by the metric's name; "" is the GPU as a whole."""

        def processes(self, index: int) -> Dict[int, GpuUsage]:
            """Return the processes on a GPU by pid, none if it doesn't answer."""

        def links(self, now_ns: int) -> Tuple[GpuLink, ...]:
            """Return how the GPUs that answer are connected; notes tell of faults."""
