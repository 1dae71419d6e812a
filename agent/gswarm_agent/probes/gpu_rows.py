"""What GPUs answered at one tick, made into rows of the catalogue: of all GPUs at once, column by column."""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter

from gswarm_agent.metrics import GPU_COLUMNS
from gswarm_agent.probes.rates import Rates

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional, Sequence, Tuple, TypeAlias

    from gswarm_agent.frame import Number, Row
    from gswarm_agent.probes.questions import FieldSum, Levels

Traffic: TypeAlias = "Callable[[], Optional[Tuple[float, float]]]"
"""Tells PCIe (tx, rx) in MB/s of a GPU that has no counters of it."""
Counting: TypeAlias = "Tuple[Tuple[int, float, float], ...]"
"""Of each of a GPU's counters how often it began anew, and its rate's scale and most. Changes as a whole."""
Pick: TypeAlias = "Callable[[Sequence[Any]], Tuple[Any, ...]]"
"""Puts what is in the order of an answer, its last ``None`` included, into the catalogue's."""
Answer: TypeAlias = "Tuple[int, Counting, Pick, Row]"
"""When a GPU's counters were read (monotonic ns), how they count, and the driver's numbers, to be picked."""

_PCIE = [GPU_COLUMNS.index(name) for name in ("pcie_tx_mb_s", "pcie_rx_mb_s")]


@lru_cache(maxsize=None)
def in_the_catalogues_order(columns: Tuple[str, ...]) -> Pick:
    """What picks from numbers with these names and a None. GPUs that answer the same have the same one."""
    places = [columns.index(name) if name in columns else len(columns) for name in GPU_COLUMNS]
    return itemgetter(*places)


class GpuRows:
    """Rates and units of the catalogue, from the numbers of so many GPUs, which are in their order."""

    def __init__(self, levels: Sequence[Levels], counts: Sequence[FieldSum], gpus: int) -> None:
        self._converts = [
            (GPU_COLUMNS.index(name), source.convert)
            for source in levels
            for name in source.columns
            if source.convert is not None
        ]
        self._rated = [GPU_COLUMNS.index(source.column) for source in counts if source.rated]
        self._rates = Rates(gpus * len(self._rated))
        self._counting: List[Counting] = [((0, 0.0, 0.0),) * len(self._rated)] * gpus
        self._ways = [(0.0, 0.0)] * (gpus * len(self._rated))
        self._unmeasured: Answer = 0, (), in_the_catalogues_order(()), (None,)

    def of(
        self, answers: Sequence[Optional[Answer]], traffic: Sequence[Optional[Traffic]]
    ) -> Tuple[Optional[Row], ...]:
        """A row for each GPU, None for those without an answer."""
        for gpu, answer in enumerate(answers):
            if answer is not None and answer[1] is not self._counting[gpu]:
                self._follow(gpu, answer[1])
        times, _, picks, numbers = zip(*[answer or self._unmeasured for answer in answers])
        columns: List[Sequence[Optional[Number]]]
        if picks.count(picks[0]) == len(picks):
            columns = list(picks[0](list(zip(*numbers))))
        else:
            columns = list(zip(*[pick(row) for pick, row in zip(picks, numbers)]))
        for place, convert in self._converts:
            columns[place] = [None if number is None else convert(int(number)) for number in columns[place]]
        n, count = len(self._rated), len(answers)
        counted = [total for place in self._rated for total in columns[place]]
        rates = [
            None if growth is None else min(most, growth * scale)
            for growth, (scale, most) in zip(self._rates.update_each(counted, times * n), self._ways)
        ]
        for at, place in enumerate(self._rated):
            columns[place] = rates[at * count : (at + 1) * count]
        for gpu, metered in enumerate(traffic):
            if metered is not None:
                for place, rate in zip(_PCIE, metered() or (None, None)):
                    columns[place] = [*columns[place][:gpu], rate, *columns[place][gpu + 1 :]]
        return tuple([answer and row for answer, row in zip(answers, zip(*columns))])

    def _follow(self, gpu: int, counting: Counting) -> None:
        """A GPU's counters count in another way now, or some begin anew."""
        for at, (before, now) in enumerate(zip(self._counting[gpu], counting)):
            counter = at * len(self._counting) + gpu
            self._ways[counter] = now[1:]
            if now[0] != before[0]:
                self._rates.reset(counter)
        self._counting[gpu] = counting
