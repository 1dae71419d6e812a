"""My usual: a run against the user's former ones of the same name and size."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from gswarm_tui.common.quantities import first_of, gpu_time, plural
from gswarm_tui.fleet.findings import SLOWER_THAN_USUAL, WASTE, Evidence, Finding
from gswarm_tui.insight.catalogue import SLOWER
from gswarm_tui.insight.notes import clause, evidence_text
from gswarm_tui.runs.line import FINISHED, RunLine

LEAST_RUNS, MOST_RUNS = 3, 20
"""Former runs that are needed, and the newest that count."""
_SLOWER_SHARE, _DEVIATIONS, _SHORT_SHARE, _NAMED = 0.1, 3, 0.25, 4
_MEANS = ("sm_clock_mhz", "MHz", 0.03, 0), ("iowait_pct", "%", 0, 5), ("disk_read_mb_s", "MB/s", 0.5, 10)
"""Figures that differ by more than a share of the usual one, and by more than an amount."""
_THROUGHPUT = re.compile(
    r"(?i)(?!eval|val|test|.*(error|fail))(mfu$|.*(throughput|flops|/s(ec)?$|per_?s(ec(ond)?)?($|_)))"
)
_LAUNCHER = re.compile(r"(python|pypy)[\d.]*t?|(ba|da|k|z)?sh|srun|mpirun|mpiexec|torchrun|env|uv|nsys")
_TIMES = _STEP, _DURATION = "step time", "duration"


def compare(line: RunLine, known: Iterable[RunLine]) -> tuple[str, Finding | None]:
    """Compare a run with former ones among the known runs: return a line of text, and the finding that it is
    slower, without a number. The text is empty if there are too few such runs or they share no figure.
    """
    alike = [one for one in known if one.state == FINISHED and _kind(one) == _kind(line)]
    # Runs of a much different length crashed, or did other work.
    alike = [one for one in alike if _SHORT_SHARE < one.name_s / max(line.name_s, 1) < 1 / _SHORT_SHARE]
    earlier = {one.run: one for one in alike if one.run != line.run and one.started_at < line.started_at}
    by_start = sorted(earlier.values(), key=lambda one: one.started_at)
    figures = (*sorted(filter(_THROUGHPUT.match, line.marks)), *_TIMES)
    having = {name: [one for one in by_start if 0 < _value(one, name) < math.inf] for name in figures}
    for figure in sorted(figures, key=lambda name: 0 if name in _TIMES else -len(having[name])):
        value, former = _value(line, figure), having[figure][-MOST_RUNS:]
        if len(former) >= LEAST_RUNS and 0 < value < math.inf:
            break
    else:
        return "", None
    others = [_value(one, figure) for one in former]
    usual, unit = median(others), "s" if figure in _TIMES else ""
    slower_by = (value - usual) * (1 if unit else -1)
    numbers = tuple(_pair(figure, value, usual, unit))
    text = f"{evidence_text(numbers)} (median of {plural(len(former), 'former run')})"
    deviation = median(abs(each - usual) for each in others)
    # A longer run may have done more work.
    if figure == _DURATION or slower_by <= max(_SLOWER_SHARE * usual, _DEVIATIONS * deviation):
        return text, None
    differences = tuple(_differences(line, former))
    parts = (
        f"{line.name}: {text}",
        f"{100 * slower_by / usual:.0f} % {'longer' if unit else 'less'}",
        f"differs: {evidence_text(differences) or 'nothing known in nodes, GPUs, software, clocks, input'}",
        f"≈ {gpu_time(line.gpus * line.seconds * slower_by / (value if unit else usual))} more than usual",
        clause(SLOWER.advice),
    )
    # Other findings may cost the same GPU-hours, so none are added up.
    return text, Finding(
        *("", SLOWER_THAN_USUAL, WASTE, None, None, None, line.nodes, line.started_at, None, 0.0),
        *(" · ".join(parts), (*numbers, *differences), SLOWER.advice, SLOWER.source),
    )


def _kind(line: RunLine) -> tuple[object, ...]:
    """Return what runs have in common that are compared; the name of a launcher says nothing of the work."""
    command = line.command if _LAUNCHER.fullmatch(line.name) else ""
    return line.name, line.user, line.gpus, len(line.nodes), command


def _value(line: RunLine, figure: str) -> float:
    """Return a figure, NaN without one; only a run that ended has a duration."""
    duration = line.name_s if line.state == FINISHED else None
    value = {_STEP: line.step_s, _DURATION: duration}.get(figure, line.marks.get(figure))
    return math.nan if value is None else value


def _pair(name: str, now: float | str, usual: float | str, unit: str = "") -> Iterator[Evidence]:
    yield Evidence(name, now, None, unit)
    yield Evidence(f"usual {name}", usual, None, unit)


def _differences(line: RunLine, former: Sequence[RunLine]) -> Iterator[Evidence]:
    """Yield what the run has that no former one had, and what differs in clocks and input."""
    for name in ("nodes", "gpu_models", "software", "driver"):
        now, *others = (
            {*getattr(one, name)} if name != "driver" else {one.driver} for one in (line, *former)
        )
        new, gone = sorted(now.difference(*others) - {""}), sorted(others[-1] - now - {""})
        if new and gone:
            yield from _pair(name, first_of(new, _NAMED), first_of(gone, _NAMED))
    for name, unit, share, least in _MEANS:
        now, *known = (getattr(one, name) for one in (line, *former))
        usual = median([one for one in known if one is not None] or [math.nan])
        more = math.nan if now is None else now - usual
        if (more if unit == "%" else abs(more)) > max(least, share * usual):
            yield from _pair(name, now, usual, unit)
