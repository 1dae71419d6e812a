"""Lines printed after quitting: the figures of the recording, and the commands to run next."""

from __future__ import annotations

import contextlib
import shlex
import threading
from pathlib import Path

from gswarm_tui.analysis import periods
from gswarm_tui.analysis.summary_data import Summary, summarize
from gswarm_tui.common.errors import UserError, printable
from gswarm_tui.common.quantities import duration, energy, percent, plural
from gswarm_tui.store.querying.file_source import FileSource

LONGEST_S = 5.0
"""Limit of the query for the figures; a longer one is interrupted, and the line is left out."""


def recording_figures(path: Path, recording_id: int) -> str:
    """Return duration, energy, mean utilisation and worst GPU of a closed recording; empty if they fail."""
    try:
        with contextlib.closing(FileSource(path, for_people=False)) as source:
            limit = threading.Timer(LONGEST_S, source.interrupt)
            limit.start()
            try:
                whole = next(o for o in periods.load_recordings(source) if o.recording_id == recording_id)
                return _figures(summarize(source, whole))
            finally:
                limit.cancel()
    except (UserError, StopIteration):
        return ""


def _figures(summary: Summary) -> str:
    length = duration(summary.period.seconds)
    if (whole := summary.whole) is None:
        return f"recorded {length}, without a GPU sample"
    parts = [energy(whole.energy_j), f"mean util {percent(whole.util_mean_pct)}"]
    measured = [gpu for gpu in summary.gpus if gpu.util_mean_pct is not None]
    if len(measured) > 1:
        worst = min(measured, key=lambda gpu: gpu.util_mean_pct or 0.0)
        parts.append(f"worst {printable(worst.label)} ({percent(worst.util_mean_pct)})")
    return f"recorded {length}, {plural(whole.gpus, 'GPU')}: {', '.join(parts)}"


def next_commands(path: Path) -> str:
    """Return the line that names the next commands: one to copy, with its file quoted for a shell."""
    with contextlib.suppress(ValueError, OSError):
        path = path.relative_to(Path.cwd())
    return f"next: gswarm-tui summary --db={printable(shlex.quote(str(path)))}   (or replay, report)"
