"""``gswarm-tui sql``: questions to a recording, finished or running, in DuckDB's SQL."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from gswarm_tui.arguments import CommandParser
from gswarm_tui.commands.finding import open_source
from gswarm_tui.errors import UserError, printable

_MOST_SQL = 16 * 1024 * 1024


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Answer what is asked, or what is typed. Raises UserError, StoreError."""
    from gswarm_tui.printing import formats
    from gswarm_tui.store.asking import split

    parser = CommandParser(
        "sql",
        '["SELECT ..." | -f FILE | -] [options]',
        "Ask a recording, also one that is being written, in DuckDB's SQL. Without a query\n"
        "you are asked for one. Nothing that is asked can change the recording.",
    )
    parser.add_argument(
        "query", nargs="?", metavar="QUERY", help="one or more statements; - is standard input"
    )
    parser.add_argument("--file", "-f", metavar="FILE", help="read them from a file")
    formats.add_options(parser)
    asked = parser.read(words)
    form = formats.wanted(asked)
    text = _text(asked.query, asked.file)
    with closing(open_source(asked.db, environ)) as source:
        if not (statements := split(text)):
            raise UserError("there is no statement in what was asked.")
        if form.out is not None and len(statements) > 1:
            raise UserError(f"-o takes one answer, and these are {len(statements)} statements.")
        for number, statement in enumerate(statements):
            if number and form.format == "table":
                print()
            formats.write(source.ask(statement), form, unlike=source.path)
    return 0


def _text(query: str | None, file: str | None) -> str:
    """The SQL that the person gave. Raises UserError."""
    if query is not None and file is not None:
        raise UserError("sql takes a query or a file with one, not both.")
    if file is not None and file != "-":
        path = Path(file).expanduser()
        try:
            with path.open(encoding="utf-8") as found:
                return found.read(_MOST_SQL)
        except OSError as error:
            raise UserError(f"{printable(str(path))} can't be read: {error.strerror or error}.") from None
        except UnicodeDecodeError:
            raise UserError(f"{printable(str(path))} isn't a text of SQL.") from None
    if query in (None, "-"):
        return sys.stdin.read(_MOST_SQL)
    return str(query)
