"""``gswarm-tui sql``: queries on a recording, finished or running, in DuckDB's SQL."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path

from gswarm_tui.commands.output_files import check_output_file
from gswarm_tui.commands.recording_choice import note_thinned, open_source
from gswarm_tui.commands.run_choice import open_together
from gswarm_tui.common.errors import UserError, printable
from gswarm_tui.common.paths import is_pattern
from gswarm_tui.options import values
from gswarm_tui.options.arguments import CommandParser, parse
from gswarm_tui.printing import formats
from gswarm_tui.printing.progress import Progress
from gswarm_tui.store.querying.results import QuerySource, Result
from gswarm_tui.store.querying.running_query import split


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the queries, or open the SQL screen. Raises UserError, StoreError."""
    parser = CommandParser(
        "sql",
        '["SELECT ..." | -f FILE | -] [options]',
        "Query a recording with DuckDB's SQL, also while it is written. Without a query,\n"
        "the SQL screen opens, with history and completion. Queries can't change a\n"
        "recording.",
        database=False,
    )
    text = "recording file or 'runs/*.duckdb', can be repeated (default: the newest in this folder)"
    parser.add_argument(
        "--db", action="append", type=values.argument(values.recordings), metavar="PATH", help=text
    )
    parser.add_argument("query", nargs="?", metavar="QUERY", help="statements; - reads standard input")
    parser.add_argument("--file", "-f", metavar="FILE", help="read statements from a file")
    formats.add_options(parser)
    arguments = parser.read(args)
    output = formats.parse_output_options(arguments)
    interactive = arguments.query is None and arguments.file is None and sys.stdin.isatty()
    if interactive and not sys.stdout.isatty():
        raise UserError("sql needs a query: standard output is not a terminal, so no screen can open.")
    if interactive and output.out is not None:
        raise UserError("-o writes the result of a query; give the query as well.")
    statements = [] if interactive else split(_text(arguments.query, arguments.file))
    if not interactive and not statements:
        raise UserError("the query is empty.")
    if output.out is not None and len(statements) > 1:
        raise UserError(f"-o writes one result, but there are {len(statements)} statements.")
    with closing(_open(arguments.db or [], environ)) as source:
        if interactive:
            return _open_screen(source, environ)
        check_output_file(output.out, force=output.force, recording=source.path)
        for number, statement in enumerate(statements):
            if number:
                print()
            _print_result(source, statement, output)
    return 0


def _open(paths: Sequence[Path], environ: Mapping[str, str]) -> QuerySource:
    """Open one recording, or several as one. Raises UserError, StoreError."""
    several = len(paths) > 1 or any(map(is_pattern, paths))
    first = paths[0] if paths else None
    source = open_together(paths) if several else open_source(first, environ, for_people=True)
    dates = source.query("SELECT max(thinned_at) FROM recordings").rows()[0]
    note_thinned(f"at least one of {source.path}" if several else source.path, dates)
    return source


def _print_result(source: QuerySource, statement: str, output: formats.OutputOptions) -> None:
    """Print or write the result of a statement. Raises UserError, StoreError."""
    with Progress(f"querying {printable(source.path.name)}") as progress:
        result = source.query(statement)
        try:
            if output.out is None:
                first = next(result.batches, [])
                progress.hide()
                result = Result(result.names, result.types, chain([first], result.batches), result.close)
            formats.write(result, output)
        finally:
            result.close()


def _open_screen(source: QuerySource, environ: Mapping[str, str]) -> int:
    """Show the SQL screen until the user quits. Raises UserError."""
    import asyncio

    from gswarm_tui.analysis.queries import RecordingQueries
    from gswarm_tui.common.query_history import QueryHistory, history_path
    from gswarm_tui.run import build
    from gswarm_tui.tui.viewer import SqlApp

    app = SqlApp(
        running=source.running,
        open_queries=lambda: RecordingQueries(source),
        theme=build.choose_theme(parse([], environ), environ),
        history=QueryHistory(history_path()),
    )
    asyncio.run(app.run_async())
    return app.return_code or 0


def _text(query: str | None, file: str | None) -> str:
    """Return the SQL to run. Raises UserError."""
    if query is not None and file is not None:
        raise UserError("sql takes a query or a file, not both.")
    name = "standard input"
    try:
        if file is not None and file != "-":
            path = Path(file).expanduser()
            name = printable(str(path))
            with path.open(encoding="utf-8") as opened:
                text = opened.read()
        elif query in (None, "-"):
            text = sys.stdin.read()
        else:
            name, text = "the query", str(query)
        text.encode()  # bytes of arguments and of standard input that are no UTF-8 became lone surrogates
    except OSError as error:
        raise UserError(f"{name} can't be read: {error.strerror or error}.") from None
    except UnicodeError:
        raise UserError(f"{name} isn't text in UTF-8.") from None
    return text
