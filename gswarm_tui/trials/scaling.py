"""How a program's time depends on its number of GPUs: a fit to measured times.

The model is T(n) = serial + parallel / n + communication · (n - 1), where n is the number of GPUs divided by
that of the smallest placement. The first two terms are Amdahl's law (G. M. Amdahl, AFIPS 1967). The third is
the overhead of a communication that grows linearly with its participants, as in a ring or at a coordinator
(I. Foster, Designing and Building Parallel Programs, 1995, chapter 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

_TERMS: tuple[Callable[[float], float], ...] = (lambda _: 1.0, lambda n: 1 / n, lambda n: n - 1)
WORST_ERROR = 0.1
"""A fit with a larger relative error is no description of the times."""


@dataclass(frozen=True)
class ScalingFit:
    """Terms of a fit in seconds, and its relative error (root of the mean square).

    With times at two sizes the fit is exact, and ``serial_share`` is Karp and Flatt's serial fraction
    (A. H. Karp and H. P. Flatt, CACM 33, 1990).
    """

    serial_s: float
    parallel_s: float
    communication_s: float
    error: float
    sizes: int

    def seconds(self, size: float) -> float:
        """Return the time at a size, the number of GPUs relative to the smallest placement."""
        terms = (self.serial_s, self.parallel_s, self.communication_s)
        return sum(term * of(size) for term, of in zip(terms, _TERMS, strict=True))

    @property
    def serial_share(self) -> float:
        """Share of the serial part in the time of the smallest placement."""
        return self.serial_s / (self.serial_s + self.parallel_s)

    @property
    def checked(self) -> bool:
        """Whether there are more sizes than terms, so that the error says how well the model fits."""
        return self.sizes > sum(1 for term in (self.serial_s, self.parallel_s, self.communication_s) if term)


def fit_scaling(times: Sequence[tuple[float, float]]) -> ScalingFit | None:
    """Fit the model to pairs of size and seconds; no term is negative, two sizes leave communication out.

    Returns:
        None for fewer than two sizes, or if the model doesn't describe the times.
    """
    sizes = len({size for size, _ in times})
    if sizes < 2 or any(seconds <= 0 for _, seconds in times):
        return None
    longest = max(seconds for _, seconds in times)
    fit = _fit([(size, seconds / longest) for size, seconds in times], min(sizes, len(_TERMS)), sizes)
    fit = replace(
        fit,
        serial_s=fit.serial_s * longest,
        parallel_s=fit.parallel_s * longest,
        communication_s=fit.communication_s * longest,
    )
    return fit if fit.error <= WORST_ERROR and fit.serial_s + fit.parallel_s > 0 else None


def _fit(times: Sequence[tuple[float, float]], terms: int, sizes: int) -> ScalingFit:
    """Return the least squares of the relative errors over all choices of positive terms."""
    best: ScalingFit | None = None
    for number in range(1, terms + 1):
        for chosen in combinations(range(terms), number):
            solved = _solve(times, chosen)
            if solved is None or min(solved) < 0:
                continue
            values = dict(zip(chosen, solved, strict=True))
            serial_s, parallel_s, communication_s = (values.get(term, 0.0) for term in range(3))
            fit = ScalingFit(serial_s, parallel_s, communication_s, 0.0, sizes)
            errors = [(fit.seconds(size) / seconds - 1) ** 2 for size, seconds in times]
            fit = replace(fit, error=math.sqrt(sum(errors) / len(errors)))
            if best is None or fit.error < best.error - 1e-12:
                best = fit
    assert best is not None  # noqa: S101 (one positive term always fits positive times)
    return best


def _solve(times: Sequence[tuple[float, float]], chosen: Sequence[int]) -> list[float] | None:
    """Return the least squares of some terms; None if they depend on each other."""
    import numpy as np  # late: its threads, one for each CPU, must not run while a trial forks its recorder

    rows = [[_TERMS[term](size) / seconds for term in chosen] for size, seconds in times]
    solved, _, rank, _ = np.linalg.lstsq(np.array(rows), np.ones(len(rows)))
    return solved.tolist() if rank == len(chosen) else None
