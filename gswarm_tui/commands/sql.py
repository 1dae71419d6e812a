"""``gswarm-tui sql``: questions to a recording, finished or running, in DuckDB's SQL."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from gswarm_tui.commands.finding import open_source
from gswarm_tui.common.errors import UserError, printable
from gswarm_tui.options.arguments import CommandParser
from gswarm_tui.printing import formats
from gswarm_tui.printing.progress import Progress
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.results import QueryError, Result
from gswarm_tui.store.querying.running_query import split

if TYPE_CHECKING:
    from gswarm_tui.printing.formats import OutputOptions
    from gswarm_tui.store.querying.results import QuerySource

_MOST_SQL = 1024 * 1024


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Answer what is asked, or what is typed. Raises UserError, StoreError."""
    parser = CommandParser(
        "sql",
        '["SELECT ..." | -f FILE | -] [options]',
        "Ask a recording, also one that is being written, in DuckDB's SQL. Without a\n"
        "query you are asked for one, with history and completion. Nothing that is\n"
        "asked changes a recording.",
    )
    parser.add_argument(
        "query", nargs="?", metavar="QUERY", help="statements; - reads them from standard input"
    )
    parser.add_argument("--file", "-f", metavar="FILE", help="read them from a file")
    formats.add_options(parser)
    asked = parser.read(words)
    form = formats.parse_output_options(asked)
    typed = asked.query is None and asked.file is None and sys.stdin.isatty()
    if typed and not sys.stdout.isatty():
        raise UserError("sql needs a query here: standard output is no terminal to type one in.")
    if typed and form.out is not None:
        raise UserError("-o takes one answer; give its query as well.")
    statements = [] if typed else split(_text(asked.query, asked.file))
    if not typed and not statements:
        raise UserError("there is no statement in what was asked.")
    if form.out is not None and len(statements) > 1:
        raise UserError(f"-o takes one answer, and these are {len(statements)} statements.")
    with closing(_Asking(open_source(asked.db, environ), environ)) as asking:
        if typed:
            _converse(asking, form)
        for number, statement in enumerate(statements):
            if number:
                print()
            asking.answer(statement, form)
    return 0


class _Asking:
    """Asks a recording, also when that ends meanwhile: then its file."""

    def __init__(self, source: QuerySource, environ: Mapping[str, str]) -> None:
        self.source = source
        self._environ = environ

    def answer(self, statement: str, form: OutputOptions, values: Iterable[object] = ()) -> None:
        """Prints or writes an answer. Raises UserError, StoreError."""
        with Progress(f"asking {printable(self.source.path.name)}") as progress:
            answer = self._begun(statement, list(values))
            try:
                if form.out is None:
                    first = next(answer.batches, [])
                    progress.hide()
                    answer = Result(answer.names, answer.types, chain([first], answer.batches), answer.close)
                formats.write(answer, form, unlike=self.source.path)
            finally:
                answer.close()

    def _begun(self, statement: str, values: Sequence[object]) -> Result:
        try:
            return self.source.query(statement, *values)
        except QueryError:
            raise
        except StoreError:
            if not self.source.running:
                raise
        self.source.close()
        self.source = open_source(self.source.path, self._environ)
        return self.source.query(statement, *values)

    def close(self) -> None:
        """Let go of it."""
        self.source.close()


def _converse(asking: _Asking, form: OutputOptions) -> None:
    """Answer what is typed at a prompt. Raises StoreError."""
    from gswarm_tui.common.query_history import QueryHistory, history_path
    from gswarm_tui.shell.prompt import Prompt

    told = "being recorded" if asking.source.running else "finished"
    print(f"{printable(asking.source.path.name)} ({told}). A query ends with a semicolon; .help tells more.")
    Prompt(asking.source, asking.answer, form, QueryHistory(history_path())).run()


def _text(query: str | None, file: str | None) -> str:
    """The SQL that the person gave. Raises UserError."""
    if query is not None and file is not None:
        raise UserError("sql takes a query or a file with one, not both.")
    where = "standard input"
    try:
        if file is not None and file != "-":
            path = Path(file).expanduser()
            where = printable(str(path))
            with path.open(encoding="utf-8") as found:
                text = found.read(_MOST_SQL + 1)
        elif query in (None, "-"):
            text = sys.stdin.read(_MOST_SQL + 1)
        else:
            text = str(query)
    except OSError as error:
        raise UserError(f"{where} can't be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{where} isn't text.") from None
    if len(text) > _MOST_SQL:
        raise UserError(f"{where} is longer than a million characters, the most for a query.")
    return text
