"""``gswarm-tui report``: write a session's report as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from gswarm_agent import __version__
from gswarm_tui.commands.output_files import check_output_file
from gswarm_tui.commands.recording_choice import add_session, open_session, require_samples
from gswarm_tui.commands.run_choice import expand_several, load_runs, print_copies
from gswarm_tui.common.errors import UserError, print_notice, printable
from gswarm_tui.common.paths import file_name
from gswarm_tui.options.arguments import CommandParser
from gswarm_tui.printing.formats import atomic_file
from gswarm_tui.printing.progress import Progress


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Write the report of a session. Raises UserError, StoreError."""
    parser = CommandParser(
        "report",
        "[SESSION | FILE ...] [-o FILE.html] [--force]",
        "Write a session's report: one HTML page with plots, figures, events and settings; of several files, "
        "one with the figures of each.",
    )
    add_session(parser)
    parser.add_argument("-o", dest="out", metavar="FILE", help=".html file (default: SESSION.html here)")
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    arguments = parser.read(args)
    out = None if arguments.out is None else Path(arguments.out).expanduser()
    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"{out} doesn't end in .html; name an HTML file with -o.")

    from gswarm_tui.reporting.page import runs_page
    from gswarm_tui.reporting.report import build_report

    now = datetime.now(UTC).replace(tzinfo=None)
    if several := expand_several(arguments.session):
        path = out or Path("runs.html")
        runs = load_runs(several, environ, path, force=arguments.force)
        print_copies(runs)
        with atomic_file(path) as part:
            part.write_text(runs_page(runs, now, None), encoding="utf-8")
        print(path)
        return 0

    with open_session(arguments.session, arguments.db, environ) as (source, period):
        require_samples(source, period, "report")
        path = out or Path(f"{file_name(period.name)}.html")
        check_output_file(path, force=arguments.force, recording=source.path)
        with Progress(f"reading and drawing {printable(period.name)}"):
            report = build_report(source, period, now, None, __version__)
    with atomic_file(path) as part:
        part.write_text(report.html(), encoding="utf-8")
    print(path)
    if report.running:
        print_notice(f"{period.name} is still running; reported as far as recorded.")
    return 0
