"""Answers in the formats that people and programs want: table, CSV, JSON, Markdown, Parquet."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from gswarm_tui.common.errors import UserError, nearest, printable, quote
from gswarm_tui.printing import cells
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.results import Result

FORMATS = ("table", "csv", "json", "markdown", "parquet")
_SUFFIXES = {
    ".txt": "table",
    ".csv": "csv",
    ".json": "json",
    ".md": "markdown",
    ".markdown": "markdown",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_LAYOUT_ROWS = 5_000
_COUNTED_ROWS = 1_000_000


@dataclass(frozen=True)
class OutputOptions:
    """How an answer is wanted: its format, its file (None: standard output), all of its rows or not.

    With ``force`` the file takes the place of one that is there.
    """

    format: str = "table"
    out: Path | None = None
    every: bool = False
    force: bool = False


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags that ``parse_output_options`` reads."""
    add = parser.add_argument
    add(
        "--format",
        metavar="|".join(FORMATS),
        help="how it is written (default: by the file's suffix, else table)",
    )
    add("--output", "-o", metavar="FILE", help="write to this file instead")
    add("--force", action="store_true", help="replace a file that is there")
    add("--all", action="store_true", dest="every", help="show all rows, however many, in a terminal too")


def parse_output_options(asked: argparse.Namespace) -> OutputOptions:
    """What the flags say. Raises UserError."""
    out = None if asked.output in (None, "-") else Path(asked.output).expanduser()
    if (chosen := asked.format) is not None and chosen not in FORMATS:
        hint = nearest(chosen, FORMATS) or f"; it is one of {', '.join(FORMATS)}"
        raise UserError(f"--format: {quote(chosen)} isn't a format{hint}.")
    if chosen is None and out is not None:
        chosen = _SUFFIXES.get(out.suffix.lower())
        if chosen is None:
            raise UserError(f"{printable(str(out))} doesn't tell its format; say it with --format.")
    if chosen == "parquet" and out is None:
        raise UserError("Parquet is no text; name a file for it with -o.")
    return OutputOptions(chosen or "table", out, asked.every, asked.force)


def write(answer: Result, form: OutputOptions, *, unlike: Path | None = None) -> None:
    """Print an answer, or write its file, which appears whole or not at all.

    ``unlike`` is the recording, which must not be overwritten. Raises UserError, StoreError.
    """
    if form.out is None:
        _WRITERS[form.format](answer, sys.stdout, form.every)
        return
    if form.out.is_file() and not form.force and not _same(form.out, unlike):
        file = printable(str(form.out))
        raise UserError(f"{file} exists; name another file with -o, or replace it with --force.")
    with atomic_file(form.out, unlike) as part:
        if form.format == "parquet":
            from gswarm_tui.store.transfer.parquet import write_parquet

            write_parquet(answer, part)
        else:
            with part.open("w", encoding="utf-8", newline="") as out:
                _WRITERS[form.format](answer, out, True)


@contextlib.contextmanager
def text_out(form: OutputOptions, unlike: Path | None = None) -> Iterator[TextIO]:
    """Where text goes: standard output, or a file that appears whole. Raises UserError, StoreError."""
    if form.out is None:
        yield sys.stdout
        return
    with atomic_file(form.out, unlike) as part, part.open("w", encoding="utf-8") as out:
        yield out


@contextlib.contextmanager
def atomic_file(path: Path, unlike: Path | None = None) -> Iterator[Path]:
    """A file to write that takes the place of ``path`` once all went well. Raises UserError, StoreError."""
    if _same(path, unlike):
        raise UserError(f"{printable(str(path))} is the recording itself; name another file with -o.")
    if path.is_dir():
        raise UserError(f"{printable(str(path))} is a folder; name a file in it with -o.")
    try:
        # A name that nobody can guess: where others may write, too, they could have made it a link.
        with tempfile.NamedTemporaryFile(
            prefix=f".{path.name}.", suffix=".part", dir=path.parent, delete=False
        ) as made:
            part = Path(made.name)
        try:
            yield part
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{path} can't be written: {error.strerror or error}") from error


def _same(path: Path, other: Path | None) -> bool:
    return other is not None and path.exists() and path.samefile(other)


def _write_table(answer: Result, out: TextIO, every: bool) -> None:
    from gswarm_tui.printing.table import show

    bound = None if every or not out.isatty() else rows_that_fit()
    rows, right = shown(answer)
    if bound is None:
        left_out = show(answer.names, rows, out, right=right)
        more = 0
    else:
        left_out = show(answer.names, itertools.islice(rows, bound), out, right=right)
        more = sum(1 for _ in itertools.islice(rows, _COUNTED_ROWS))
        answer.close()
    if more:
        many = f"{more:,} more row{'s' if more > 1 else ''}"
        out.write(f"… {'at least ' if more == _COUNTED_ROWS else ''}{many}; --all shows them\n")
    if left_out:
        many = f"{len(left_out)} column{'s' if len(left_out) > 1 else ''}"
        words = f"{many} left out for want of width: {', '.join(left_out)}"
        out.write(textwrap.fill(words, shutil.get_terminal_size().columns, break_on_hyphens=False) + "\n")


def rows_that_fit() -> int:
    """How many rows of a table a terminal is to show: about two of its heights."""
    return max(20, 2 * shutil.get_terminal_size().lines)


def shown(answer: Result) -> tuple[Iterator[list[str]], frozenset[int]]:
    """The rows as people read them, and which columns are numbers."""
    batches = iter(answer.batches)
    first: list[tuple[Any, ...]] = []
    for batch in batches:
        first += batch
        if len(first) >= _LAYOUT_ROWS:
            break
    columns: Sequence[Sequence[Any]] = list(zip(*first, strict=True)) or [() for _ in answer.names]
    writers = [cells.writer(kind, column) for kind, column in zip(answer.types, columns, strict=True)]
    rows = itertools.chain(first, itertools.chain.from_iterable(batches))
    texts = ([write(value) for write, value in zip(writers, row, strict=True)] for row in rows)
    return texts, frozenset(i for i, kind in enumerate(answer.types) if cells.is_number(kind))


def _write_csv(answer: Result, out: TextIO, _every: bool) -> None:
    safe = printable if out.isatty() else str
    out.write(",".join(safe(_quoted(name)) for name in answer.names) + "\n")
    for batch in answer.batches:
        for row in batch:
            values = (
                "" if value is None else _quoted(cells.exact(value, kind))
                for value, kind in zip(row, answer.types, strict=True)
            )
            out.write(safe(",".join(values)) + "\n")


def _quoted(text: str) -> str:
    """A field of CSV; an empty text is quoted, because nothing at all is NULL."""
    if text and not any(character in text for character in ',"\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'


def _write_json(answer: Result, out: TextIO, _every: bool) -> None:
    before = "[\n"
    for batch in answer.batches:
        for row in batch:
            values = {
                name: cells.plain(value, kind)
                for name, value, kind in zip(answer.names, row, answer.types, strict=True)
            }
            out.write(before + json.dumps(values, ensure_ascii=out.isatty(), allow_nan=False))
            before = ",\n"
    out.write("[]\n" if before == "[\n" else "\n]\n")


def _write_markdown(answer: Result, out: TextIO, _every: bool) -> None:
    rows, right = shown(answer)
    out.write(_piped([printable(name) for name in answer.names]))
    out.write(_piped(["---:" if index in right else "---" for index in range(len(answer.names))]))
    out.writelines(map(_piped, rows))


def _piped(texts: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |\n"


_WRITERS: dict[str, Callable[[Result, TextIO, bool], None]] = {
    "table": _write_table,
    "csv": _write_csv,
    "json": _write_json,
    "markdown": _write_markdown,
}
