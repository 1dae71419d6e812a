"""Output of results as a table, CSV, JSON, Markdown or Parquet."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from gswarm_tui.common.errors import UserError, nearest, printable, quote
from gswarm_tui.printing import cells
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.results import Result

FORMATS = ("table", "csv", "json", "markdown", "parquet")
_SUFFIXES = {
    ".txt": "table", ".csv": "csv", ".json": "json", ".md": "markdown", ".markdown": "markdown",
    ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
_LAYOUT_ROWS = 5_000
_FORMULA = re.compile(r"\s*[=+\-@]")


@dataclass(frozen=True)
class OutputOptions:
    """Output options of a result: its format, its file (None: standard output), all rows or not.

    With ``force`` an existing file is replaced. With ``csv_safe`` no CSV cell is a spreadsheet's formula.
    """

    format: str = "table"
    out: Path | None = None
    every: bool = False
    force: bool = False
    csv_safe: bool = False


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags that ``parse_output_options`` reads."""
    add = parser.add_argument
    add(
        "--format",
        metavar="|".join(FORMATS),
        help="output format (default: from the file's suffix, else table)",
    )
    add("--json", action="store_const", const="json", dest="format", help="print JSON, as --format json")
    add("--output", "-o", metavar="FILE", help="write to this file")
    add("--force", action="store_true", help="replace an existing file")
    add("--all", action="store_true", dest="every", help="show all rows in a terminal")
    add_csv_safe(parser)


def add_csv_safe(parser: argparse.ArgumentParser) -> None:
    """Add the flag that keeps spreadsheets from running texts."""
    parser.add_argument(
        "--csv-safe", action="store_true", help="put ' before text that a spreadsheet would run as a formula"
    )


def check_csv_safe(csv_safe: bool, kind: str) -> None:
    """Raise UserError if ``--csv-safe`` was given for another format."""
    if csv_safe and kind != "csv":
        raise UserError(f"--csv-safe applies only to CSV; remove it for {kind}.")


def parse_output_options(arguments: argparse.Namespace) -> OutputOptions:
    """Return the options that the flags set. Raises UserError."""
    out = None if arguments.output in (None, "-") else Path(arguments.output).expanduser()
    if (chosen := arguments.format) is not None and chosen not in FORMATS:
        hint = nearest(chosen, FORMATS) or f"; it is one of {', '.join(FORMATS)}"
        raise UserError(f"--format: {quote(chosen)} isn't a format{hint}.")
    if chosen is None and out is not None:
        chosen = _SUFFIXES.get(out.suffix.lower())
        if chosen is None:
            raise UserError(f"{printable(str(out))} has no known suffix; choose its format with --format.")
    if chosen == "parquet" and out is None:
        raise UserError("Parquet can't be printed; name a file with -o.")
    check_csv_safe(arguments.csv_safe, chosen or "table")
    return OutputOptions(chosen or "table", out, arguments.every, arguments.force, arguments.csv_safe)


def write(result: Result, options: OutputOptions) -> None:
    """Print a result, or write it to a file that appears only when complete. Raises StoreError."""
    with cells.checked_depth():
        if options.format == "parquet" and options.out is not None:
            from gswarm_tui.store.transfer.parquet import write_parquet

            with atomic_file(options.out) as part:
                write_parquet(result, part)
        else:
            with text_out(options.out) as out:
                _WRITERS[options.format](result, out, options)


@contextlib.contextmanager
def text_out(path: Path | None) -> Iterator[TextIO]:
    """Open standard output, or a file that appears only when complete. Raises StoreError."""
    if path is None:
        yield sys.stdout
        return
    with atomic_file(path) as part, part.open("w", encoding="utf-8", newline="") as out:
        yield out


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Create a temporary file that replaces ``path`` on success. Raises StoreError."""
    try:
        # A random name: in a shared folder, others could have put a link at a predictable one.
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


def _write_readable(result: Result, out: TextIO, options: OutputOptions) -> None:
    rows, right = _readable(result)
    write_text_table(result.names, rows, out, options, right=right)


def _readable(result: Result) -> tuple[Iterator[list[str]], frozenset[int]]:
    """Return the rows as readable texts, and the indexes of the numeric columns."""
    batches = iter(result.batches)
    first: list[tuple[Any, ...]] = []
    for batch in batches:
        first += batch
        if len(first) >= _LAYOUT_ROWS:
            break
    columns: Sequence[Sequence[Any]] = list(zip(*first, strict=True)) or [() for _ in result.names]
    writers = [cells.writer(kind, column) for kind, column in zip(result.types, columns, strict=True)]
    rows = itertools.chain(first, itertools.chain.from_iterable(batches))
    texts = ([write(value) for write, value in zip(writers, row, strict=True)] for row in rows)
    return texts, frozenset(i for i, kind in enumerate(result.types) if cells.is_number(kind))


def _write_csv(result: Result, out: TextIO, options: OutputOptions) -> None:
    safe = printable if out.isatty() else str
    guarded = guard_formula if options.csv_safe else str
    out.write(",".join(safe(_quoted(name)) for name in result.names) + "\n")
    for batch in result.batches:
        for row in batch:
            values = (
                ""
                if value is None
                else _quoted(
                    cells.exact(value, kind) if cells.is_number(kind) else guarded(cells.exact(value))
                )
                for value, kind in zip(row, result.types, strict=True)
            )
            out.write(safe(",".join(values)) + "\n")


def guard_formula(text: str) -> str:
    """Begin a text with an apostrophe if a spreadsheet would run it as a formula."""
    return f"'{text}" if _FORMULA.match(text) else text


def _quoted(text: str) -> str:
    """Quote a CSV field if needed; an empty text is quoted, as an empty field is NULL."""
    if text and not any(character in text for character in ',"\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'


def _write_json(result: Result, out: TextIO, _options: OutputOptions) -> None:
    names = _distinct(result.names)
    before = "[\n"
    for batch in result.batches:
        for row in batch:
            values = {
                name: cells.plain(value, kind)
                for name, value, kind in zip(names, row, result.types, strict=True)
            }
            out.write(before + json.dumps(values, ensure_ascii=out.isatty(), allow_nan=False))
            before = ",\n"
    out.write("[]\n" if before == "[\n" else "\n]\n")


def _distinct(names: Sequence[str]) -> list[str]:
    """Return the names with a number at those that an earlier column has: ``a``, ``a_1``, ``a_2``."""
    distinct: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in itertools.count(1))
        free = (each for each in numbered if each not in distinct and each not in names)
        distinct.append(next(free) if name in distinct else name)
    return distinct


def write_text_table(
    names: Sequence[str],
    rows: Iterable[Sequence[str]],
    out: TextIO,
    options: OutputOptions,
    *,
    right: frozenset[int],
) -> None:
    """Write a table of text in Markdown or for a terminal, whichever the options say."""
    if options.format == "markdown":
        write_markdown_table(names, rows, out, right=right)
    else:
        from gswarm_tui.printing.table import show

        show(names, rows, out, right=right, every=options.every)


def write_markdown_table(
    names: Sequence[str], rows: Iterable[Sequence[str]], out: TextIO, *, right: frozenset[int]
) -> None:
    """Write a table of text in Markdown; columns in ``right`` are numbers."""
    out.write(_piped(names))
    out.write(_piped(["---:" if index in right else "---" for index in range(len(names))]))
    out.writelines(map(_piped, rows))


def _piped(texts: Sequence[str]) -> str:
    return "| " + " | ".join(printable(text).replace("|", "\\|") for text in texts) + " |\n"


_WRITERS: dict[str, Callable[[Result, TextIO, OutputOptions], None]] = {
    "table": _write_readable,
    "csv": _write_csv,
    "json": _write_json,
    "markdown": _write_readable,
}
