"""``gswarm-tui import``: read a profiler's report, Parquet or a gswarm-profiler file into a recording."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from gswarm_tui.commands.recording_choice import SUFFIX
from gswarm_tui.common.errors import UserError, print_notice, printable
from gswarm_tui.common.paths import working_folder
from gswarm_tui.common.quantities import plural
from gswarm_tui.exchange.json_import import ImportCounts, JsonImport
from gswarm_tui.options import values
from gswarm_tui.options.arguments import CommandParser
from gswarm_tui.printing.progress import Progress
from gswarm_tui.profiling.bounds import MEMORY_MIB, bounded
from gswarm_tui.profiling.importing import import_report, is_report
from gswarm_tui.store.recording.files import is_database
from gswarm_tui.store.recording.profiles import UNKNOWN
from gswarm_tui.store.transfer.importing import importing

_MOST = 2**31 - 1


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Read a file or folder into a new recording. Raises UserError, StoreError."""
    arguments = _parser().read(args)
    path = Path(arguments.path)
    if not path.exists():
        raise UserError(f"there is no file or folder {path}.")
    if not path.is_dir() and not path.is_file():
        raise UserError(f"{path} is a pipe or a device; import reads a file, or a folder of Parquet.")
    if is_database(path):
        raise UserError(f"{path} is a recording already; other commands read it with --db.")
    db = arguments.db or Path(path.resolve().stem + SUFFIX)
    if arguments.db is None and db.exists():
        raise UserError(
            f"{db} exists in {working_folder()}; name a new file with --db, "
            f"or add the import to this one with --db {db}."
        )
    if is_report(path):
        return _import_profile(path, db, arguments, environ)
    if arguments.node is not None or arguments.rank is not None:
        raise UserError(f"{printable(str(path))} isn't a profiler's report; remove --node and --rank.")
    reading = Progress(f"reading {printable(str(path))}")
    with bounded(path, arguments.max_memory_mib), reading as progress, importing(db) as target:
        if path.is_dir():
            counted = ImportCounts(target.add_dataset(path, progress.report), 0, "")
        else:
            counted = JsonImport(target, path, arguments.gpu_memory_mib).read(progress.report)
        profiles = f", {plural(target.profiles, 'profile')}" if target.profiles else ""
    gpus = f" of {plural(counted.gpus, 'GPU')}" if counted.gpus else ""
    print(printable(f"{db}: {plural(counted.samples, 'sample')}{gpus}{profiles} from {path}"))
    if counted.notice:
        print(printable(counted.notice))
    return 0


def _import_profile(path: Path, db: Path, arguments: Namespace, environ: Mapping[str, str]) -> int:
    """Add a profiler's report to a recording. Raises UserError, StoreError."""
    with Progress(f"reading {printable(str(path))}") as progress:
        done = import_report(
            path,
            db,
            environ,
            node=arguments.node or None,
            rank=arguments.rank,
            report=progress.report,
            memory_mib=arguments.max_memory_mib,
        )
    facts = done.facts
    rank = "" if facts.rank is None else f", rank {facts.rank}"
    node = "an unknown node" if facts.node == UNKNOWN else facts.node
    rows = plural(done.rows, "metric" if facts.tool == "ncu" else "event")
    print(printable(f"{db}: profile {done.profile_id}, {rows} of {node}{rank} from {path}"))
    for notice in done.notices:
        print_notice(notice)
    for message in facts.messages:
        print_notice(f"{facts.tool} reported: {message}")
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(
        "import",
        "PATH [--db PATH] [options]",
        "Read a report of Nsight Systems or Nsight Compute, a Parquet export, or JSON of gswarm-profiler, "
        "into a recording.",
        writes=True,
    )
    add = parser.add_argument
    add("path", metavar="PATH", help=".nsys-rep, .sqlite, .ncu-rep, JSON, or folder of Parquet")
    add("--node", metavar="NODE", help="node of a report, if it has another name in the recording")
    number = values.whole(1, _MOST)
    rank, mib = values.whole(0, _MOST), values.whole(64, _MOST)
    add("--rank", type=rank, metavar="N", help="rank of a report, if it doesn't know")
    text = "memory of each GPU in MiB, to convert gpu_memory from a share into a size"
    add("--gpu-memory-mib", type=number, metavar="MIB", help=text)
    text = f"memory that the import may take (default: {MEMORY_MIB})"
    add("--max-memory-mib", type=mib, default=MEMORY_MIB, metavar="MIB", help=text)
    return parser
