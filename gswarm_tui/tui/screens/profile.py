"""Profile screen: a profiler's report as tables."""

from __future__ import annotations

from typing import ClassVar

from gswarm_tui.analysis.profiles import ProfileDetails, profile_details
from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.common.quantities import brief_time, percent
from gswarm_tui.tui.actions import PROFILE
from gswarm_tui.tui.screens.trace import TablesScreen


class ProfileScreen(TablesScreen):
    """One report of Nsight Systems or Nsight Compute, as tables.

    They have its kernels, calls, memory operations and ranges by name, and the same kernels on all ranks.
    """

    SCREEN = PROFILE
    EMPTY: ClassVar = {
        "kernels": "no kernels in this profile",
        "API": "no CUDA calls in this profile",
        "memory": "no copies or memory sets in this profile",
        "ranges": "no NVTX ranges in this profile",
        "OS": "no calls of the operating system's libraries in this profile",
        "ranks": "no other rank has a profile of this time",
        "messages": "the profiler reported nothing",
    }
    VIEWS: ClassVar = tuple(EMPTY)

    def compute(self, queries: RecordingQueries) -> ProfileDetails:
        """Query all tables at once."""
        return queries.load(profile_details, self._profile)

    def facts(self) -> str:
        """Return the share without a kernel, and the length of the capture."""
        if self.result is None:
            return ""
        idle, length = self.result.no_kernel_pct, brief_time(self._profile.seconds * 1e9)
        return f"no kernel {percent(sum(idle) / len(idle))} of {length}" if idle else length
