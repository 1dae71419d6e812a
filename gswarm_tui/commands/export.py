"""``gswarm-tui export``: write a session or whole recordings in formats that other tools read."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TextIO

from gswarm_tui.analysis import periods
from gswarm_tui.analysis.periods import Period
from gswarm_tui.commands.output_files import check_output_file, new_folder, size_of
from gswarm_tui.commands.recording_choice import (
    SessionReference,
    choose_session,
    note_thinned,
    open_source,
    parse_words,
)
from gswarm_tui.commands.run_choice import expand_several, use_each
from gswarm_tui.common.errors import UserError, print_notice, printable, quote
from gswarm_tui.common.paths import file_name
from gswarm_tui.common.quantities import file_size, plural
from gswarm_tui.exchange import json_export
from gswarm_tui.exchange.csv_export import TABLES, write_csv
from gswarm_tui.options.arguments import CommandParser
from gswarm_tui.printing.formats import add_csv_safe, check_csv_safe, text_out
from gswarm_tui.printing.progress import Progress
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.store.transfer.parquet import Slice, write_dataset

FORMATS = ("json", "csv", "parquet", "wandb", "mlflow")
_FOLDERS = FORMATS[2:]
_STDOUT = "-"


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Write a session or a whole recording to a file or folder. Raises UserError, StoreError."""
    parser = CommandParser(
        "export",
        "[SESSION] [--format FORMAT] [-o PATH] [options]",
        "Export a session (default: whole recordings) as JSON in gswarm-profiler's format, as CSV with one "
        "table, as a Parquet dataset with all tables and profiles, or as a run of W&B or MLflow.",
    )
    add = parser.add_argument
    add("session", nargs="*", metavar="SESSION", help='name, number, or "recording 1"')
    add("--format", choices=FORMATS, help="output format (default: from the suffix of -o)")
    add(
        "--output",
        "-o",
        metavar="PATH",
        help="file, or folder for parquet, wandb, mlflow; - is standard output",
    )
    add("--append", metavar="DATASET", help="add runs, also of 'runs/*.duckdb', to a Parquet dataset")
    text = f"rows of the CSV: {', '.join(TABLES)} (default: gpu)"
    add("--table", choices=TABLES, metavar="TABLE", help=text)
    add("--force", action="store_true", help="replace an existing file or export")
    add("--all-gpus", action="store_true", help="include GPUs that Slurm gave to others")
    add_csv_safe(parser)
    arguments = parser.read(args)
    if arguments.append is not None:
        return _append(arguments, environ)
    named = parse_words(arguments.session, arguments.db)
    with closing(open_source(named.file, environ)) as source:
        chosen = [choose_session(source, named.name)] if named.name else periods.load_recordings(source)
        if not chosen:
            raise UserError(f"{source.path} has no recording.")
        note_thinned(source.path, (one.thinned_at for one in chosen))
        kind = _format(arguments)
        if arguments.table is not None and kind != "csv":
            raise UserError(f"--table applies only to CSV; remove it for {kind}.")
        check_csv_safe(arguments.csv_safe, kind)
        if arguments.output == _STDOUT and kind in _FOLDERS:
            raise UserError(
                f"{kind.capitalize()} is written to a folder, not to standard output; name a folder with -o."
            )
        if arguments.output == _STDOUT:
            _text(source, chosen, arguments, kind, sys.stdout)
            return 0
        # train.json for a session of that name, run.json for all of run.duckdb
        default = f"{file_name(chosen[0].name if named.name else source.path.stem)}.{kind}"
        target = Path(arguments.output or default).expanduser()
        if kind in ("wandb", "mlflow"):
            written = _tracked(source, chosen, target, arguments, kind)
        elif kind == "parquet":
            written = _parquet(source, chosen, target, force=arguments.force, all_gpus=arguments.all_gpus)
        else:
            check_output_file(target, force=arguments.force, recording=source.path)
            with text_out(target) as out:
                written = _text(source, chosen, arguments, kind, out)
    print(printable(f"{target}: {written}, {file_size(size_of(target))}"))
    if running := [period.name for period in chosen if period.ended_at is None]:
        state = "is still running" if source.running else "has no end"
        print_notice(f"{', '.join(running)} {state}; exported as far as recorded.")
    return 0


def _format(arguments: Namespace) -> str:
    if arguments.format is not None:
        return str(arguments.format)
    suffix = Path(arguments.output or "").suffix
    if (kind := suffix.removeprefix(".").lower()) in FORMATS:
        return kind
    if suffix:
        raise UserError(
            f"{quote(suffix)} isn't a known suffix; name a .json, .csv, .parquet, .wandb or .mlflow file, "
            "or use --format."
        )
    raise UserError(
        "no format; use --format json, csv, parquet, wandb or mlflow, or -o with a name that ends in one "
        "of these."
    )


def _text(source: QuerySource, chosen: Sequence[Period], arguments: Namespace, kind: str, out: TextIO) -> str:
    """Write JSON or CSV; return the numbers of rows as text."""
    if kind == "json":
        _require_one(source, chosen, "JSON")
    with Progress(f"writing {kind.upper()}") as progress:
        if kind == "csv":
            options = {"safe": arguments.csv_safe, "all_gpus": arguments.all_gpus}
            rows = write_csv(source, chosen, arguments.table or "gpu", out, progress.report, **options)
            return plural(rows, "row")
        all_gpus = arguments.all_gpus
        samples, gpus = json_export.write_json(source, chosen[0], out, progress.report, all_gpus=all_gpus)
    return f"{plural(samples, 'sample')} of {plural(gpus, 'GPU')}"


def _parquet(
    source: QuerySource, chosen: Sequence[Period], folder: Path, *, force: bool, all_gpus: bool
) -> str:
    slices = _slices(chosen, all_gpus=all_gpus)
    with new_folder(folder, force=force) as part, Progress("writing Parquet") as progress:
        samples, profiles = write_dataset(source, part, slices, progress.report)
    return _written(samples, profiles)


def _tracked(
    source: QuerySource, chosen: Sequence[Period], folder: Path, arguments: Namespace, kind: str
) -> str:
    """Write a run of an experiment tracker."""
    _require_one(source, chosen, kind)
    quoted = shlex.quote(str(folder))
    if kind == "wandb":
        from gswarm_tui.exchange.wandb_export import write_wandb as write

        then = f"send the run with wandb sync {quoted}/wandb/offline-run-*"
    else:
        from gswarm_tui.exchange.mlflow_export import write_mlflow as write

        then = f"show the run with mlflow ui --backend-store-uri sqlite:///{quoted}/mlflow.db"
    with new_folder(folder, force=arguments.force) as part, Progress(f"writing {kind}") as progress:
        count = write(source, chosen[0], part, progress.report, all_gpus=arguments.all_gpus)
    print_notice(f"nothing was sent; {then}")
    return plural(count, "value")


def _require_one(source: QuerySource, chosen: Sequence[Period], kind: str) -> None:
    if len(chosen) > 1:
        raise UserError(
            f'{source.path} has {len(chosen)} recordings, but {kind} takes one; name it, as in "recording 1".'
        )


def _slices(chosen: Sequence[Period], *, all_gpus: bool) -> list[Slice]:
    return [
        Slice(period.recording_id, all_gpus=all_gpus)
        if period.session_id is None
        else Slice(period.recording_id, period.session_id, period.started_at, period.until, all_gpus)
        for period in chosen
    ]


def _written(samples: int, profiles: int) -> str:
    return plural(samples, "GPU sample") + (f", {plural(profiles, 'profile')}" if profiles else "")


def _append(arguments: Namespace, environ: Mapping[str, str]) -> int:
    """Add a session, whole recordings of a file, or those of several files to a dataset."""
    if arguments.output or arguments.format or arguments.table or arguments.force:
        raise UserError("--append adds to a dataset; remove -o, --format, --table and --force.")
    dataset = Path(arguments.append).expanduser()
    runs = expand_several(arguments.session) or [parse_words(arguments.session, arguments.db)]

    def add(source: QuerySource, run: SessionReference) -> None:
        chosen = [choose_session(source, run.name)] if run.name else periods.load_recordings(source)
        if source.running:
            raise UserError(f"{source.path} is still recorded; add it after its end.")
        slices = _slices(chosen, all_gpus=arguments.all_gpus)
        with new_folder(dataset, force=False, append=True) as part:
            written = write_dataset(source, part, slices, dataset=dataset)
        print(printable(f"{dataset}: {source.path} added, {_written(*written)}"))
        note_thinned(source.path, (one.thinned_at for one in chosen))

    use_each(runs, environ, add, "writing Parquet")
    return 0
