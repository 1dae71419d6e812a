"""What can come next in a query: commands, tables and views, columns, keywords and functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from gswarm_tui.store.querying.results import QuerySource

_KEYWORDS = """
SELECT FROM WHERE GROUP BY ORDER LIMIT OFFSET HAVING QUALIFY WITH AS JOIN LEFT RIGHT FULL INNER CROSS ASOF
LATERAL ON USING UNION ALL EXCEPT INTERSECT DISTINCT CASE WHEN THEN ELSE END AND OR NOT IN IS NULL LIKE
BETWEEN EXISTS ASC DESC NULLS FIRST LAST OVER PARTITION WINDOW FILTER VALUES PIVOT UNPIVOT DESCRIBE SUMMARIZE
SHOW EXPLAIN ANALYZE INTERVAL TIMESTAMP DATE TRUE FALSE CAST EXCLUDE REPLACE COLUMNS
"""
_FUNCTIONS = """
abs any_value arg_max arg_min avg bool_and bool_or coalesce concat count date_trunc epoch first format
greatest histogram lag last lead least len list lower max mean median min mode nullif quantile_cont rank
regexp_matches replace round row_number split_part stddev strftime string_agg substr sum time_bucket upper
"""
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*$")
_BEFORE_TABLE = re.compile(r"\b(from|join|describe|summarize|table)\s+$", re.IGNORECASE)
_OWNER = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\.$")


@dataclass(frozen=True)
class Known:
    """The tables and views of a recording, each with its columns."""

    columns: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, source: QuerySource) -> Known:
        """What a recording has. Raises StoreError."""
        rows = source.query(
            "SELECT table_name, list(column_name ORDER BY column_index) FROM duckdb_columns() "
            "WHERE NOT internal GROUP BY ALL ORDER BY 1"
        ).rows()
        return cls({str(table): tuple(columns) for table, columns in rows})

    def of_text(self, text: str) -> list[str]:
        """The columns of the tables that the text names, or of all where it names none."""
        words = set(re.findall(r"[a-z_][a-z0-9_]*", text.lower()))
        named = [table for table in self.columns if table in words] or list(self.columns)
        return sorted({column for table in named for column in self.columns[table]})


class SqlCompleter(Completer):
    """Completes the word before the cursor; keywords in the case in which it was begun."""

    def __init__(self, known: Known, commands: Iterable[str]) -> None:
        self._known = known
        self._commands = tuple(commands)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """What fits, tables first where one has to come."""
        text = document.text_before_cursor
        if text.startswith((".", "\\")):
            for command in self._commands:
                if command.startswith(text):
                    yield Completion(command, -len(text))
            return
        found = _WORD.search(text)
        word = found[0] if found else ""
        if not word and not complete_event.completion_requested:
            return
        before = text[: len(text) - len(word)]
        seen: set[str] = set()
        for name, kind in self._candidates(document.text, before, word):
            if name.lower().startswith(word.lower()) and name.lower() not in seen:
                seen.add(name.lower())
                yield Completion(name, -len(word), display_meta=kind)

    def _candidates(self, text: str, before: str, word: str) -> Iterator[tuple[str, str]]:
        if owner := _OWNER.search(before):
            columns = self._known.columns.get(owner[1].lower()) or self._known.of_text(text)
            yield from ((column, "column") for column in columns)
            return
        tables = [(table, "table") for table in self._known.columns]
        if _BEFORE_TABLE.search(before):
            yield from tables
            return
        yield from ((column, "column") for column in self._known.of_text(text))
        yield from tables
        keywords = (_KEYWORDS.lower() if word.islower() else _KEYWORDS).split()
        yield from ((keyword, "") for keyword in keywords)
        yield from ((function, "function") for function in _FUNCTIONS.split())
