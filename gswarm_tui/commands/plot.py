"""``gswarm-tui plot``: draw a session as PDF, PNG or SVG."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from gswarm_tui.analysis.summary_data import load_coverage
from gswarm_tui.analysis.summary_text import partial_sentence
from gswarm_tui.commands.output_files import check_output_file
from gswarm_tui.commands.recording_choice import add_session, open_session, require_samples
from gswarm_tui.commands.run_choice import expand, load_runs
from gswarm_tui.common.errors import UserError, print_notice, printable
from gswarm_tui.common.paths import file_name
from gswarm_tui.common.quantities import plural
from gswarm_tui.options.arguments import CommandParser
from gswarm_tui.printing.formats import atomic_file
from gswarm_tui.printing.progress import Progress


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Plot a session into files. Raises UserError, StoreError."""
    parser = CommandParser(
        "plot",
        "[SESSION] [-o FILE.pdf|png|svg ...] [options]",
        "Plot a session: heatmaps of GPUs over time, curves over all GPUs, marks and events.",
    )
    add_session(parser)
    text = ".pdf, .png or .svg file (default: SESSION.pdf here)"
    parser.add_argument("-o", dest="out", action="append", default=[], metavar="FILE", help=text)
    for option, what in (
        ("--metric", "plot metrics as heatmap and curve: util,power,mem,cpu ..."),
        ("--heatmap", "plot metrics as heatmaps only"),
        ("--curve", "plot metrics as curves only"),
        ("--value", "plot values of marks as curves: loss"),
    ):
        parser.add_argument(option, action="append", default=[], metavar="NAMES", help=what)
    text = "plot figures of many runs by their start: loss,energy_kwh"
    parser.add_argument("--over-time", action="append", default=[], metavar="NAMES", help=text)
    parser.add_argument("--force", action="store_true", help="replace existing files")
    arguments = parser.read(args)

    from gswarm_tui.plotting.annotations import MOST_EVENTS
    from gswarm_tui.plotting.figure import draw, require_suffix
    from gswarm_tui.plotting.metric_choice import choose_metrics
    from gswarm_tui.plotting.plot_data import load_plot_data

    files = [require_suffix(Path(name).expanduser()) for name in arguments.out]
    if arguments.over_time:
        return _plot_over_time(arguments, files, environ)
    choices = choose_metrics(arguments.metric, arguments.heatmap, arguments.curve)
    chosen = bool(arguments.metric or arguments.heatmap or arguments.curve)
    values = _names(arguments.value)
    with open_session(arguments.session, arguments.db, environ) as (source, period):
        require_samples(source, period, "plot")
        files = files or [Path(f"{file_name(period.name)}.pdf")]
        for path in files:
            check_output_file(path, force=arguments.force, recording=source.path)
        with Progress(f"reading {printable(period.name)}"):
            material = load_plot_data(source, period, choices, values, all_of_them=chosen)
            partial = partial_sentence(load_coverage(source, period))
    for path in files:
        with atomic_file(path) as part, Progress(f"drawing {printable(path.name)}"):
            part.write_bytes(draw(material, None, path.suffix[1:].lower()))
        print(path)
    if partial:
        print_notice(f"{period.name} is {partial} (hatched).")
    if not material.all_events:
        print_notice(f"only the first {MOST_EVENTS:,} marks, warnings and errors are drawn.")
    if material.running:
        print_notice(f"{period.name} is still running; plotted as far as recorded.")
    return 0


def _names(words: Sequence[str]) -> list[str]:
    return [name for word in words for part in word.split(",") if (name := part.strip())]


def _plot_over_time(arguments: Namespace, files: Sequence[Path], environ: Mapping[str, str]) -> int:
    """Plot figures of runs, as ``compare`` names them, by the start of each. Raises UserError, StoreError."""
    from gswarm_tui.plotting.over_time import draw_over_time, series_of

    if arguments.metric or arguments.heatmap or arguments.curve or arguments.value:
        raise UserError("--over-time plots figures of runs; remove --metric, --heatmap, --curve and --value.")
    files = files or [Path("over-time.pdf")]
    chosen = expand(arguments.session, arguments.db)
    if not chosen:
        raise UserError("--over-time needs runs, as in gswarm-tui plot --over-time loss 'runs/*.duckdb'.")
    runs = load_runs(chosen, environ, *files, force=arguments.force)
    series = series_of(runs, _names(arguments.over_time))
    for path in files:
        with atomic_file(path) as part:
            part.write_bytes(draw_over_time(series, None, path.suffix[1:].lower()))
        print(path)
    for name, points in series.items():
        if missing := len(runs) - len(points):
            print_notice(f"{plural(missing, 'run')} of {len(runs):,} without {name} left out.")
    return 0
