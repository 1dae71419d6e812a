"""``gswarm-tui export``: a session, or a whole recording, in formats that other tools read."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TextIO

from gswarm_tui.analysis import periods
from gswarm_tui.analysis.periods import Period
from gswarm_tui.commands.finding import open_source, reference, session_named
from gswarm_tui.commands.target import file_name, new_file, new_folder, size_of
from gswarm_tui.common.errors import UserError, printable, quote
from gswarm_tui.common.quantities import file_size
from gswarm_tui.exchange import csv_export, json_export
from gswarm_tui.exchange.time_windows import micros
from gswarm_tui.options.arguments import CommandParser
from gswarm_tui.printing.progress import Progress
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.store.transfer.parquet import Slice, write_dataset

FORMATS = ("json", "csv", "parquet")
_STDOUT = "-"


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Write a session or a whole recording to a file or folder. Raises UserError, StoreError."""
    asked = _parser().read(words)
    named = reference(asked.session)
    if named.file is not None and asked.db is not None:
        raise UserError(f"{quote(asked.session)} names its file; leave out --db.")
    with closing(open_source(named.file or asked.db, environ)) as source:
        chosen = [session_named(source, named.name)] if named.name else periods.load_recordings(source)
        if not chosen:
            raise UserError(f"{source.path} holds no recording.")
        kind = _format(asked)
        _check(asked, kind)
        if not (sampled := [period for period in chosen if _has_samples(source, period)]):
            what = f"{quote(chosen[0].name)} in {source.path}" if named.name else str(source.path)
            raise UserError(f"{what} holds no samples, so there is nothing to export.")
        if asked.output == _STDOUT:
            _text(source, sampled, asked.table, kind, sys.stdout)
            return 0
        target = Path(asked.output or _usual_name(source, chosen, named.name, kind)).expanduser()
        if kind == "parquet":
            told = _parquet(source, sampled, target, asked.force)
        else:
            with new_file(target, force=asked.force, unlike=source.path) as out:
                told = _text(source, sampled, asked.table, kind, out)
    print(printable(f"{target}: {told}, {_size(target)}"))
    if running := [period.name for period in sampled if period.ended_at is None]:
        print(
            printable(f"gswarm-tui: {', '.join(running)} hadn't ended; this is how far it is."),
            file=sys.stderr,
        )
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(
        "export",
        "[SESSION] [--format FORMAT] [-o PATH] [--table TABLE] [--force] [--db PATH]",
        "Write a session, or without one whole recordings, in a format that other tools read: JSON as\n"
        "gswarm-profiler documents it, one table as CSV, or everything as a Parquet dataset.",
    )
    parser.add_argument(
        "session", nargs="?", default="", metavar="SESSION", help='its name or number, or "recording 1"'
    )
    parser.add_argument("--format", choices=FORMATS, help="the format (default: by the ending of -o)")
    parser.add_argument(
        "--output", "-o", metavar="PATH", help="the file, with parquet the folder; - is standard output"
    )
    parser.add_argument(
        "--table", choices=csv_export.TABLES, help="the samples or the events that CSV has (default: gpu)"
    )
    parser.add_argument("--force", action="store_true", help="replace what is there")
    return parser


def _format(asked: Namespace) -> str:
    if asked.format is not None:
        return str(asked.format)
    if asked.output is not None and (ending := Path(asked.output).suffix.removeprefix(".")) in FORMATS:
        return ending
    raise UserError("say in which format, with --format json, csv or parquet, or by the ending of -o.")


def _check(asked: Namespace, kind: str) -> None:
    if asked.table is not None and kind != "csv":
        raise UserError(f"--table is for CSV; {kind} has its own tables.")
    if asked.output == _STDOUT and kind == "parquet":
        raise UserError("Parquet is written to a folder, not to standard output; name one with -o.")


def _has_samples(source: QuerySource, period: Period) -> bool:
    query = """
    SELECT 1 FROM gpu_samples JOIN gpus USING (gpu_id) JOIN nodes USING (node_id)
    WHERE recording_id = ? AND ts >= make_timestamp(?::BIGINT) AND ts < make_timestamp(?::BIGINT) LIMIT 1
    """
    asked = period.recording_id, micros(period.started_at), micros(period.until)
    return bool(source.query(query, *asked).rows())


def _usual_name(source: QuerySource, chosen: Sequence[Period], name: str, kind: str) -> str:
    """``train.json`` for a session of that name, ``run.json`` for all that ``run.duckdb`` holds."""
    return f"{file_name(chosen[0].name if name else source.path.stem)}.{kind}"


def _text(source: QuerySource, chosen: Sequence[Period], table: str | None, kind: str, out: TextIO) -> str:
    """Write JSON or CSV; what was written in words."""
    if kind == "json" and len(chosen) > 1:
        raise UserError(
            f'{source.path} holds {len(chosen)} recordings and JSON takes one; name it, as in "recording 1".'
        )
    with Progress(f"writing {kind.upper()}") as progress:
        if kind == "csv":
            return (
                f"{csv_export.write_csv(source, list(chosen), table or 'gpu', out, progress.report):,} rows"
            )
        written = json_export.write_json(source, chosen[0], out, progress.report)
    return f"{written.samples:,} samples of {_gpus(written.gpus)}"


def _parquet(source: QuerySource, chosen: Sequence[Period], folder: Path, force: bool) -> str:
    slices = [
        Slice(period.recording_id)
        if period.session_id is None
        else Slice(period.recording_id, period.session_id, period.started_at, period.until)
        for period in chosen
    ]
    with new_folder(folder, force=force) as part, Progress("writing Parquet") as progress:
        samples = write_dataset(source, part, slices, progress.report)
    return f"{samples:,} GPU samples"


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


def _size(path: Path) -> str:
    return file_size(size_of(path))
