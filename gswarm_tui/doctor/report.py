"""Reports of the nodes and of this machine, which the rules in ``checks`` judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gswarm_agent import __version__
from gswarm_tui.common.quantities import plural


@dataclass(frozen=True)
class NodeReport:
    """Results of the checks of a node; None where it wasn't reached or doesn't report a value.

    ``failed_step`` is the step that failed, such as "log in", with ``reason`` and ``remedy``; empty if its
    agent sends samples. ``answered_s`` is the time from the start to its first answer. ``health`` has for
    each GPU what is ``found`` wrong, errors ``counted``, and areas that are ``clear`` or ``unmeasured``.
    """

    node: str
    failed_step: str = ""
    reason: str = ""
    remedy: str = ""
    answered_s: float | None = None
    python: str | None = None
    python_version: str | None = None
    agent_version: str | None = None
    kernel: str | None = None
    cpu_model: str | None = None
    cpus: int | None = None
    memory_total_mib: int | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    gpus: tuple[str, ...] = ()
    unmeasured: Mapping[str, str] = field(default_factory=dict)
    health: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    clock_offset_ms: float | None = None
    round_trip_ms: float | None = None
    spool_folder: str | None = None
    spool_free_mib: int | None = None
    spool_problems: tuple[str, ...] = ()
    perf_event_paranoid: int | None = None
    gpu_counters_admin_only: bool | None = None
    likwid_lock_owner: str | None = None
    counter_privileges: tuple[str, ...] = ()
    counter_obstacle: str | None = None
    cpu_counters: str | None = None
    gpu_counters: str | None = None
    counter_tools: tuple[str, ...] = ()
    counters_in_use_by: str | None = None

    @property
    def ready(self) -> bool:
        """Whether its agent sends samples."""
        return not self.failed_step


@dataclass(frozen=True)
class LocalReport:
    """Results of the checks of this machine; ``problems`` are sentences on what hinders a run."""

    python_version: str
    duckdb_version: str
    textual_version: str
    terminal: str
    encoding: str
    state_folder: str
    folder_free_mib: int | None
    slurm_commands: tuple[str, ...]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """A sentence about some nodes, or about this machine if there are none; something to fix, or a note."""

    fix: bool
    nodes: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class DoctorReport:
    """The whole result. ``source`` is what the nodes belong to, such as "job 4711"."""

    source: str
    here: LocalReport
    nodes: tuple[NodeReport, ...]
    checks: tuple[Check, ...]

    @property
    def to_fix(self) -> tuple[Check, ...]:
        """Checks that somebody should fix."""
        return tuple(check for check in self.checks if check.fix)

    @property
    def verdict(self) -> str:
        """The last line: how many nodes are ready, and how much is to be fixed."""
        ready = sum(node.ready for node in self.nodes)
        what = plural(len(self.to_fix), "thing") if self.to_fix else "nothing"
        nodes = f"{ready:,} of {plural(len(self.nodes), 'node')} ready" if self.nodes else "no node checked"
        return f"{nodes}, {what} to fix."

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "gswarm_tui": __version__,
            "job": self.source or None,
            "verdict": self.verdict,
            "findings": [asdict(check) for check in self.checks],
            "here": asdict(self.here),
            "nodes": [asdict(node) for node in self.nodes],
        }
