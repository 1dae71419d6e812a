"""``gswarm-tui sessions``: list the sessions of a recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

from gswarm_tui.analysis import periods, session_list
from gswarm_tui.commands.output_files import check_output_file
from gswarm_tui.commands.recording_choice import open_source
from gswarm_tui.common.errors import UserError, print_notice, printable
from gswarm_tui.common.quantities import plural
from gswarm_tui.options.arguments import CommandParser
from gswarm_tui.printing import formats
from gswarm_tui.printing.progress import Progress

MOST_LISTED = 1_000
"""Of a large recording, each takes a tenth of a second, and a crafted file may have 100,000."""


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print the sessions of a recording. Raises UserError, StoreError."""
    from gswarm_tui.printing.table import show

    parser = CommandParser("sessions", "[--db PATH]", "List the sessions of a recording.")
    formats.add_options(parser)
    arguments = parser.read(args)
    form = formats.parse_output_options(arguments)
    with closing(open_source(arguments.db, environ)) as source:
        check_output_file(form.out, force=form.force, recording=source.path)
        found = periods.load_sessions(source)
        listed = found or periods.load_recordings(source)
        if not listed:
            raise UserError(f"{printable(str(source.path))} has no recording.")
        if len(listed) > MOST_LISTED:
            print_notice(
                f"only the newest {MOST_LISTED:,} of {len(listed):,} are listed; "
                "`gswarm-tui sql 'FROM sessions'` lists all"
            )
            found, listed = found[-MOST_LISTED:], listed[-MOST_LISTED:]
        with Progress(f"summarising {printable(str(source.path))}") as progress:
            entries = session_list.list_periods(source, listed, progress.report)
        if form.format not in ("table", "markdown"):
            formats.write(session_list.period_result(entries if found else []), form)
            return 0
        with formats.text_out(form.out) as out:
            if not found:
                out.write(f"{printable(str(source.path))} has no sessions. Its recordings:\n\n")
            elif form.format == "table":
                out.write(f"{printable(str(source.path))}: {plural(len(found), 'session')}\n\n")
            table = session_list.period_table(entries)
            write = formats.write_markdown_table if form.format == "markdown" else show
            write(table.names, table.rows, out, right=table.right)
            if partial := session_list.partial_note(entries):
                out.write(f"\n{partial}\n" if form.format == "markdown" else f"{partial}\n")
    return 0
