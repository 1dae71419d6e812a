"""The app for an hour with 512 GPUs whose links fail at random: its cost must not grow.

Every ten seconds its CPU, memory, file and lag are looked at from outside; the figures compare the run's end
with its beginning, and a plot and a table of all that was seen are left beside the recording.
"""

from __future__ import annotations

import csv
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import duckdb
import numpy as np

from gswarm_tui.fleet.history import history_length
from tests.bench.curves import Curve, draw_over_time
from tests.bench.figures import BenchOptions, Figure, number, table
from tests.bench.lateness import Sleeper
from tests.bench.nodes import Nodes
from tests.bench.processes import cpu_s, rss_mib
from tests.bench.screen import key_to_paint
from tests.bench.watched import Reader, in_terminal
from tests.terminal import InTerminal

NODES, GPUS = 64, 8
LINKS_LIVE_S = 120.0
EVERY_S, EVERY_S_SMOKE = 10.0, 2.5
WARM_UP_S = 60.0
PROMPT_MS = 2.0
"""If the machine wakes a sleeping thread later than this, lags measured then are the machine's."""
FEWEST = 5
"""Minimum number of samples for the median of a quarter."""


@dataclass(frozen=True)
class SoakSample:
    """Cost of ten seconds, ``minute`` minutes after the warm-up.

    ``file_mb`` is the recording with its write-ahead log, ``frames`` what came a second, ``on_disk_s`` and
    ``painted_s`` the median ages of readings when they are on disk and on the screen. ``late_ms`` is how late
    a thread that only sleeps woke meanwhile, 95th percentile: the machine's own lag.
    """

    minute: float
    cpu_pct: float
    rss_mib: float
    file_mb: float
    frames: float
    on_disk_s: float
    painted_s: float
    key_ms: float
    late_ms: float


@dataclass(frozen=True)
class Rule:
    """Condition for a flat column: its last quarter's median is at most ``factor`` times the first quarter's.

    Where it ``settles``, the last quarter is compared with what is before it and has its history full, which
    begins in an hour's third quarter; in a run too short for that, with the quarter before. A ``lag`` is
    judged by the looks at which the machine itself had next to none, if there are enough.
    """

    column: str
    name: str
    unit: str
    factor: float
    settles: bool = False
    lag: bool = False


RULES = (
    Rule("cpu_pct", "CPU", "% of a core", 1.1),
    Rule("rss_mib", "memory", "MiB", 1.02, settles=True),
    Rule("growth", "file growth", "MB a minute", 1.1),
    Rule("on_disk_s", "reading to disk", "s", 1.1, lag=True),
    Rule("painted_s", "reading to screen", "s", 1.1, lag=True),
    Rule("key_ms", "key to paint", "ms", 1.1, lag=True),
)


@dataclass(frozen=True)
class Judged:
    """Result of a column: ``before`` and ``last`` quarter, ``slope`` per hour in the last, ``worst``."""

    rule: Rule
    before: float
    last: float
    slope: float
    worst: float

    def row(self) -> tuple[str, ...]:
        """Return the result as cells of text."""
        values = number(self.before), number(self.last), f"{self.slope:+.3g}", number(self.worst)
        return f"{self.rule.name}, {self.rule.unit}", *values

    def figure(self) -> Figure:
        """Return a figure that states whether the column is flat."""
        limit = "before it, its history full" if self.rule.settles else "the first quarter"
        return Figure(
            f"soak: {self.rule.name} in the last quarter", self.last, self.rule.unit,
            self.rule.factor * self.before, limit=limit, beside=self.before,
        )  # fmt: skip


_HEAD = ("column", "to compare with", "last quarter", "an hour in it", "worst")


def run(options: BenchOptions) -> Iterator[Figure]:
    """Compare each column's last quarter with the one that it must not exceed."""
    minutes = options.minutes or (0.08 if options.smoke else 60.0)
    nodes, every_s = options.count(NODES, 2), EVERY_S_SMOKE if options.smoke else EVERY_S
    path, journal = options.folder / "soak.duckdb", options.folder / "soak.jsonl"
    words = ["--demo", f"{nodes}x{GPUS}", "--db", str(path)]
    with (
        Nodes(options.folder / "soak-nodes", nodes, GPUS, options.seed) as served,
        in_terminal(journal, served.folder, words, lives_s=LINKS_LIVE_S, seed=options.seed) as app,
        Sleeper() as sleeper,
    ):
        app.wait_for("sim")
        time.sleep(options.seconds(WARM_UP_S))
        seen = list(_looks(app, path, Reader(journal, app.writes), sleeper, minutes, every_s))
    _write(seen, options.folder / "soak.csv")
    picture = options.folder / "soak.png"
    _draw(seen, picture)
    print(f"the plot is {picture}", file=sys.stderr)
    judged = [_judged(rule, seen) for rule in RULES]
    print(table(_HEAD, [each.row() for each in judged]), end="\n\n")
    for each in judged:
        yield each.figure()
    heard, lost, twice = _heard_lost_and_twice(path)
    yield Figure("soak: nodes with frames", heard, "nodes", nodes, at_least=True)
    yield Figure("soak: frames lost", lost, "frames", 0)
    yield Figure("soak: frames there twice", twice, "frames", 0)


def _heard_lost_and_twice(path: Path) -> tuple[int, int, int]:
    """Count lost and repeated frames: each node has one life, with frames numbered from 1."""
    with duckdb.connect(str(path), read_only=True) as connection:
        heard, lost, twice = connection.execute(
            "SELECT count(*)::INTEGER, sum(numbered - found)::INTEGER, sum(rows - found)::INTEGER FROM ("
            "SELECT max(seq) AS numbered, count(*) AS rows, count(DISTINCT seq) AS found "
            "FROM host_samples GROUP BY node_id)"
        ).fetchall()[0]
    return int(heard), int(lost), int(twice)


def _looks(
    app: InTerminal, path: Path, reader: Reader, sleeper: Sleeper, minutes: float, every_s: float
) -> Iterator[SoakSample]:
    start = time.monotonic()
    sleeper.late_ms()
    while (began := time.monotonic()) - start < 60 * minutes:
        before = cpu_s(app.pid)
        key_ms = 1000 * key_to_paint(app, round((began - start) / every_s))
        time.sleep(max(0.0, began + every_s - time.monotonic()))
        took = time.monotonic() - began
        lags = reader.lags()
        held = sum(part.stat().st_size for part in path.parent.glob(path.name + "*"))
        look = SoakSample(
            minute=(time.monotonic() - start) / 60,
            cpu_pct=100 * (cpu_s(app.pid) - before) / took,
            rss_mib=rss_mib(app.pid),
            file_mb=held / 1e6,
            frames=lags.frames_a_s,
            on_disk_s=lags.on_disk_s,
            painted_s=lags.painted_s,
            key_ms=key_ms,
            late_ms=sleeper.late_ms(),
        )
        print("  ".join(f"{name} {value:.4g}" for name, value in asdict(look).items()), file=sys.stderr)
        yield look


def _column(seen: Sequence[SoakSample], name: str) -> list[float]:
    if name != "growth":
        return [getattr(look, name) for look in seen]
    minutes, held = _column(seen, "minute"), _column(seen, "file_mb")
    return list(np.diff(held) / np.diff(minutes)) or [0.0]


def _judged(rule: Rule, seen: Sequence[SoakSample]) -> Judged:
    """Judge a column. A file grows in steps, at checkpoints, so means of its quarters are compared."""
    middle: Callable[[Sequence[float]], float] = (
        statistics.fmean if rule.column == "growth" else statistics.median
    )
    values = _column(seen, rule.column)
    quarter = max(1, len(values) // 4)
    compared = _settled(seen, quarter) if rule.settles else slice(0, quarter)
    before, last = values[compared], values[-quarter:]
    if rule.lag:
        before, last = _prompt(before, seen[compared]), _prompt(last, seen[-quarter:])
    each = (seen[-1].minute - seen[0].minute) / max(1, len(seen) - 1)
    slope = _slope(last) / each * 60 if each else 0.0
    return Judged(rule, middle(before), middle(last), slope, max(values))


def _settled(seen: Sequence[SoakSample], quarter: int) -> slice:
    """Return the samples before the last quarter that were taken with full history."""
    full = (history_length(NODES, GPUS) - WARM_UP_S) / 60
    since = sum(look.minute < full for look in seen)
    until = len(seen) - quarter
    return slice(since if since <= until - FEWEST else max(0, until - quarter), max(1, until))


def _prompt(values: list[float], looks: Sequence[SoakSample]) -> list[float]:
    """Return the values of moments at which the machine was on time; all values if these are too few."""
    prompt = [value for value, look in zip(values, looks, strict=True) if look.late_ms <= PROMPT_MS]
    return prompt if len(prompt) >= FEWEST else values


def _slope(values: Sequence[float]) -> float:
    """Return the median slope over all pairs of values (Theil–Sen)."""
    pairs = [(b - a) / (j - i) for i, a in enumerate(values) for j, b in enumerate(values) if j > i]
    return statistics.median(pairs) if pairs else 0.0


def _write(seen: Sequence[SoakSample], path: Path) -> None:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, [field.name for field in fields(SoakSample)])
        table.writeheader()
        table.writerows(asdict(look) for look in seen)


def _draw(seen: Sequence[SoakSample], path: Path) -> None:
    minutes = _column(seen, "minute")
    curves = [
        Curve("CPU, % of a core", minutes, _column(seen, "cpu_pct")),
        Curve("memory, MiB", minutes, _column(seen, "rss_mib")),
        Curve("recording with its log, MB", minutes, _column(seen, "file_mb")),
        Curve("reading to disk, s", minutes, _column(seen, "on_disk_s")),
        Curve("reading to screen, s", minutes, _column(seen, "painted_s")),
        Curve("key to paint, ms", minutes, _column(seen, "key_ms")),
        Curve("a sleeper wakes late, ms", minutes, _column(seen, "late_ms")),
    ]
    draw_over_time(curves, "minutes", path)
