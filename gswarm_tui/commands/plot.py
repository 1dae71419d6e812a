"""``gswarm-tui plot``: a session as a picture for a paper, a talk or a colleague."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from gswarm_tui.commands.finding import SESSION_HELP, open_source, reference, session_named
from gswarm_tui.commands.target import file_name
from gswarm_tui.common.errors import printable
from gswarm_tui.options.arguments import CommandParser


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Draw a session into files. Raises UserError, StoreError."""
    parser = CommandParser(
        "plot",
        "[SESSION] [-o FILE.pdf|png|svg ...] [--metric util,power,...]",
        "Draw a session: GPU by time as colours, curves over all GPUs, marks and what happened.",
    )
    parser.add_argument("session", nargs="?", default="", metavar="SESSION", help=SESSION_HELP)
    parser.add_argument(
        "-o",
        dest="out",
        action="append",
        default=[],
        metavar="FILE",
        help="a .pdf, .png or .svg (default: SESSION.pdf here)",
    )
    for option, what in (
        ("--metric", "metrics as heatmap and curve: util,power,mem,cpu ..."),
        ("--heatmap", "metrics as heatmaps only"),
        ("--curve", "metrics as curves only"),
        ("--value", "values of marks as curves: loss"),
    ):
        parser.add_argument(option, action="append", default=[], metavar="NAMES", help=what)
    parser.add_argument("--max", action="store_true", help="show the highest value of each bin, not the mean")
    asked = parser.read(words)
    named = reference(asked.session)

    from gswarm_tui.plotting.figure import draw, require_suffix
    from gswarm_tui.plotting.metric_choice import MAX, MEAN, choose_metrics
    from gswarm_tui.plotting.plot_data import load_plot_data
    from gswarm_tui.printing.formats import atomic_file
    from gswarm_tui.printing.progress import Progress

    files = [require_suffix(Path(name).expanduser()) for name in asked.out]
    choices = choose_metrics(asked.metric, asked.heatmap, asked.curve)
    chosen = bool(asked.metric or asked.heatmap or asked.curve)
    values = [name for words in asked.value for part in words.split(",") if (name := part.strip())]
    with closing(open_source(asked.db or named.file, environ)) as source:
        period = session_named(source, named.name)
        how = MAX if asked.max else MEAN
        with Progress(f"reading {printable(period.name)}"):
            material = load_plot_data(source, period, choices, values, how, all_of_them=chosen)
    for path in files or [Path(f"{file_name(period.name)}.pdf")]:
        with atomic_file(path, unlike=source.path) as part, Progress(f"drawing {printable(path.name)}"):
            part.write_bytes(draw(material, None, path.suffix[1:].lower()))
        print(path)
    if material.running:
        print(f"gswarm-tui: {period.name} still runs; this is how far it is.", file=sys.stderr)
    return 0
