"""Completion of SQL: tables, views, columns, keywords and functions that can come next."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

COLUMNS_QUERY = """
SELECT table_name, column_name FROM duckdb_columns()
WHERE NOT internal AND database_name = current_database() ORDER BY table_name, column_index"""
"""Query for the columns of ``SqlCompleter``."""

_KEYWORDS = """
SELECT FROM WHERE GROUP BY ORDER LIMIT OFFSET HAVING QUALIFY WITH AS JOIN LEFT RIGHT FULL INNER CROSS ASOF
LATERAL ON USING UNION ALL EXCEPT INTERSECT DISTINCT CASE WHEN THEN ELSE END AND OR NOT IN IS NULL LIKE ILIKE
BETWEEN EXISTS ASC DESC NULLS FIRST LAST OVER PARTITION WINDOW FILTER VALUES PIVOT UNPIVOT DESCRIBE SUMMARIZE
SHOW EXPLAIN ANALYZE INTERVAL TIMESTAMP DATE TRUE FALSE CAST EXCLUDE REPLACE COLUMNS ANY SEMI SIMILAR TABLE
UNNEST WITHIN
"""
_FUNCTIONS = """
abs any_value arg_max arg_min avg bool_and bool_or coalesce concat count date_trunc epoch first format
greatest histogram lag last lead least len list lower max mean median min mode nullif quantile_cont rank
regexp_matches replace round row_number split_part stddev strftime string_agg substr sum time_bucket upper
"""
KEYWORDS = tuple(_KEYWORDS.split())
FUNCTIONS = tuple(_FUNCTIONS.split())
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*$")
_BEFORE_TABLE = re.compile(r"\b(from|join|describe|summarize|table)\s+$", re.IGNORECASE)
_OWNER = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\.$")


class SqlCompleter:
    """Completes the word before the cursor; keywords in the case in which it was begun."""

    def __init__(self, columns: Iterable[tuple[str, str]]) -> None:
        """``columns`` are pairs of a table or view and a column of it."""
        self._tables: dict[str, list[str]] = {}
        for table, column in columns:
            self._tables.setdefault(table, []).append(column)

    def matches(self, before: str, text: str) -> list[str]:
        """Return what can complete ``before``, the part of ``text`` in front of the cursor.

        An empty word is completed only where a table or a table's column must follow.
        """
        found = _WORD.search(before)
        word = found[0] if found else ""
        before = before[: len(before) - len(word)]
        if not word and not _BEFORE_TABLE.search(before) and not _OWNER.search(before):
            return []
        fitting = (
            name
            for name in self._candidates(text, before, word)
            if name.lower().startswith(word.lower()) and name.lower() != word.lower()
        )
        return list({name.lower(): name for name in fitting}.values())

    def _candidates(self, text: str, before: str, word: str) -> Iterator[str]:
        if owner := _OWNER.search(before):
            yield from self._tables.get(owner[1].lower()) or self._columns_of(text)
            return
        if _BEFORE_TABLE.search(before):
            yield from self._tables
            return
        yield from self._columns_of(text)
        yield from self._tables
        yield from (keyword.lower() for keyword in KEYWORDS) if word.islower() else KEYWORDS
        yield from FUNCTIONS

    def _columns_of(self, text: str) -> list[str]:
        """Return the columns of the tables named in the text, or of all tables."""
        words = set(re.findall(r"[a-z_][a-z0-9_]*", text.lower()))
        named = [table for table in self._tables if table in words] or list(self._tables)
        return sorted({column for table in named for column in self._tables[table]})
