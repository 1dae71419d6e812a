"""Rules of ``doctor``: checks about this machine and the nodes, one sentence each. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from gswarm_agent.frame import gpu_label
from gswarm_agent.metrics import COUNTER_RIGHTS, COUNTERS, OWN_PROCESSES
from gswarm_tui.common.quantities import mebibytes, plural
from gswarm_tui.doctor.report import Check, LocalReport, NodeReport
from gswarm_tui.slurm import hosts

MIN_SPOOL_MIB = 512
MAX_CLOCK_MS = 1000.0


def checks(here: LocalReport, nodes: Sequence[NodeReport]) -> tuple[Check, ...]:
    """Return what to fix first, then notes."""
    found = [
        *(Check(True, (), text) for text in here.problems),
        *_unreachable(nodes),
        *_gpus(nodes),
        *_health(nodes, "found", fix=True),
        *_differences(nodes),
        *_spools(nodes),
        *_clocks(nodes),
        *_health(nodes, "counted", fix=False),
        *(Check(False, (), text) for text in here.notes),
        *counter_checks(nodes),
        *_unmeasured(nodes),
    ]
    return tuple(sorted(found, key=lambda check: not check.fix))


def _grouped(
    fix: bool, nodes: Sequence[NodeReport], texts: Callable[[NodeReport], Iterable[str]]
) -> Iterator[Check]:
    """Return a check for each text on nodes, with all nodes that it is about."""
    groups: dict[str, list[str]] = {}
    for node in nodes:
        for text in texts(node):
            groups.setdefault(text, []).append(node.node)
    for text, names in groups.items():
        yield Check(fix, tuple(names), text)


def _unreachable(nodes: Sequence[NodeReport]) -> Iterator[Check]:
    failed: dict[tuple[str, str], list[NodeReport]] = {}
    for node in nodes:
        if not node.ready:
            failed.setdefault((node.failed_step, node.reason), []).append(node)
    for (step, reason), alike in failed.items():
        remedy = f"; {alike[0].remedy}" if alike[0].remedy else ""
        yield Check(True, tuple(node.node for node in alike), f"failed to {step}: {reason}{remedy}.")


def _gpus(nodes: Sequence[NodeReport]) -> Iterator[Check]:
    def texts(node: NodeReport) -> Iterator[str]:
        for name, reason in node.unmeasured.items():
            if name == "gpu":
                yield f"no GPU can be measured: {reason.rstrip('.')}."
            elif name.removeprefix("gpu").isdigit():
                gpu, why = gpu_label(int(name[3:])), reason.rstrip(".")
                yield f"GPU {gpu} doesn't answer: {why}; ask the administrators to reset it."

    return _grouped(True, nodes, texts)


def _health(nodes: Sequence[NodeReport], what: str, *, fix: bool) -> Iterator[Check]:
    """Return a check for each GPU with faults, or with errors that were counted; none for the others."""

    def texts(node: NodeReport) -> Iterator[str]:
        for gpu, health in node.health.items():
            if health[what]:
                yield f"GPU {gpu}: {'; '.join(health[what])}."

    return _grouped(fix, nodes, texts)


def _differences(nodes: Sequence[NodeReport]) -> Iterator[Check]:
    ready = [node for node in nodes if node.ready]
    with_gpus = [node for node in ready if node.gpus]
    same = "ask the administrators for one version, as jobs over all of them may fail"
    yield from _difference(with_gpus, True, "the driver is", lambda node: node.driver_version, same)
    yield from _difference(
        with_gpus, False, "the GPUs are", lambda node: " and ".join(dict.fromkeys(node.gpus)), ""
    )
    models = {tuple(dict.fromkeys(node.gpus)) for node in with_gpus}
    if len(models) == 1:
        lost = "a GPU may have fallen off the bus; run nvidia-smi there"
        yield from _difference(with_gpus, True, "GPUs:", lambda node: str(len(node.gpus)), lost)
    yield from _difference(ready, False, "the kernel is", lambda node: node.kernel, "")
    yield from _difference(ready, False, "CPUs:", lambda node: node.cpus and str(node.cpus), "")
    yield from _difference(ready, False, "the agent's Python is", lambda node: node.python_version, "")


def _difference(
    nodes: Sequence[NodeReport],
    fix: bool,
    what: str,
    value: Callable[[NodeReport], str | int | None],
    remedy: str,
) -> Iterator[Check]:
    """Return a check for each value that differs from that of most nodes."""
    values = {node.node: str(found) for node in nodes if (found := value(node)) is not None}
    if len(set(values.values())) < 2:
        return
    usual, count = Counter(values.values()).most_common(1)[0]
    and_remedy = f"; {remedy}" if remedy else ""

    def texts(node: NodeReport) -> Iterator[str]:
        if (each := values.get(node.node, usual)) != usual:
            yield f"{what} {each}, but {usual} on {plural(count, 'other node')}{and_remedy}."

    yield from _grouped(fix, nodes, texts)


def _spools(nodes: Sequence[NodeReport]) -> Iterator[Check]:
    def texts(node: NodeReport) -> Iterator[str]:
        if not node.python_version:  # it wasn't reached
            return
        if node.spool_folder is None:
            yield f"no private folder for waiting samples: {'; '.join(node.spool_problems)}."
        elif node.spool_free_mib is not None and node.spool_free_mib < MIN_SPOOL_MIB:
            free = mebibytes(node.spool_free_mib)
            yield f"only {free} free for waiting samples in {node.spool_folder}; free some space."

    return _grouped(True, nodes, texts)


def _clocks(nodes: Sequence[NodeReport]) -> Iterator[Check]:
    for node in nodes:
        if node.clock_offset_ms is not None and abs(node.clock_offset_ms) > MAX_CLOCK_MS:
            way = "ahead of" if node.clock_offset_ms > 0 else "behind"
            off = f"its clock is {abs(node.clock_offset_ms) / 1000:.1f} s {way} this machine's"
            yield Check(
                True,
                (node.node,),
                f"{off}; samples are corrected, logs of jobs aren't: check its time service.",
            )


def counter_checks(nodes: Sequence[NodeReport]) -> Iterator[Check]:
    """Return a note for each sentence on who may use hardware counters, with what administrators can do."""

    def texts(node: NodeReport) -> Iterator[str]:
        if node.cpu_counters:
            paranoid = node.perf_event_paranoid
            closed = paranoid is not None and paranoid > OWN_PROCESSES and not node.counter_privileges
            setting = (
                f"; administrators can set kernel.perf_event_paranoid to {OWN_PROCESSES}, or to 0 for a job"
            )
            remedy = setting if closed else ""
            yield f"CPU counters: {node.cpu_counters}{remedy}."
        if node.counters_in_use_by:
            yield f"CPU counters: in use by {node.counters_in_use_by}."
        if node.gpu_counters and node.gpu_counters_admin_only is not None:
            remedy = "; administrators can set NVreg_RestrictProfilingToAdminUsers=0"
            yield f"GPU counters: {node.gpu_counters}{remedy if node.gpu_counters_admin_only else ''}."

    return _grouped(False, nodes, texts)


def _unmeasured(nodes: Sequence[NodeReport]) -> Iterator[Check]:
    """Return a note for each reason, with all metrics that it keeps from being measured."""

    def texts(node: NodeReport) -> Iterator[str]:
        reasons: dict[str, list[str]] = {}
        for name, reason in node.unmeasured.items():
            # Other rules have lines for these, and a GPU on a board of its own has no module.
            if name in ("gpu", COUNTERS, "module_power_w", *COUNTER_RIGHTS):
                continue
            if not name.removeprefix("gpu").isdigit() and reason not in node.spool_problems:
                reasons.setdefault(reason.rstrip("."), []).append(name)
        for reason, names in reasons.items():
            yield f"not measured: {', '.join(names)}: {reason}."

    return _grouped(False, nodes, texts)


def subject(check: Check) -> str:
    """Return whom a check is about: a host list, or "here"."""
    return hosts.fold(check.nodes) if check.nodes else "here"
